"""Packing: CPU seconds and fill of best-fit-decreasing and of simpler methods, on the same lengths.

    python tests/benchmarks/packing.py [--sequences 200000] [--capacity 2048] [--rounds 3]

(a) is nbtrain.dataset.samples.packing, which prepare and training call. (b) is first-fit-decreasing: the
longest example first, each into the first bin with enough space; a tree of maxima finds that bin quickly. (c)
is next-fit: whole examples in order, with a new sequence when the next example does not fit. (d) is one
example per sequence. Lengths are log-normal (median 245, sigma 1.0) and cut at the capacity. The methods
alternate in each round. Prints the medians; asserts nothing.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from nbtrain.dataset.samples.packing import pack_best_fit


def best_fit_decreasing(lengths: np.ndarray, capacity: int) -> int:
    return len(pack_best_fit(lengths, capacity))


def first_fit_decreasing(lengths: np.ndarray, capacity: int) -> int:
    """Return the number of bins.

    Node k of the tree holds the largest free space of nodes 2 k and 2 k + 1; the leaves are bins.
    """
    leaves = 1 << max(1, len(lengths) - 1).bit_length()
    tree = [capacity] * (2 * leaves)
    used = 0
    for length in sorted(lengths.tolist(), reverse=True):
        node = 1
        while node < leaves:
            node *= 2
            if tree[node] < length:
                node += 1
        used = max(used, node - leaves + 1)
        tree[node] -= length
        while node > 1:
            node //= 2
            largest = tree[2 * node] if tree[2 * node] > tree[2 * node + 1] else tree[2 * node + 1]
            if tree[node] == largest:
                break
            tree[node] = largest
    return used


def next_fit(lengths: np.ndarray, capacity: int) -> int:
    used, room = 0, 0
    for length in lengths.tolist():
        if length > room:
            used, room = used + 1, capacity
        room -= length
    return used


def one_each(lengths: np.ndarray, capacity: int) -> int:
    return len(lengths)


WAYS: dict[str, Callable[[np.ndarray, int], int]] = {
    "best-fit-decreasing (ours)": best_fit_decreasing,
    "first-fit-decreasing": first_fit_decreasing,
    "next-fit (concatenation of whole examples)": next_fit,
    "one example a sequence": one_each,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=200_000)
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    drawn = np.random.RandomState(0).lognormal(5.5, 1.0, given.sequences)
    lengths = np.clip(drawn, 1, given.capacity).astype(np.int64)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    bins = {}
    for _ in range(given.rounds):
        for name, pack in WAYS.items():
            started = time.process_time()
            bins[name] = pack(lengths, given.capacity)
            seconds[name].append(time.process_time() - started)
    print(f"{given.sequences:,} lengths of {lengths.mean():.0f} on average into {given.capacity:,} slots")
    print(f"{'way':44} {'CPU s':>8} {'bins':>9} {'fill %':>8}")
    for name in WAYS:
        fill = 100 * int(lengths.sum()) / (bins[name] * given.capacity)
        print(f"{name:44} {statistics.median(seconds[name]):8.3f} {bins[name]:9,} {fill:8.3f}")


if __name__ == "__main__":
    main()
