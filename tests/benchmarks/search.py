"""CPU seconds of the layout search and of the what-if page.

    python tests/benchmarks/search.py [--rounds 5]

Searches layouts of 13B on 64 and of 175B on 1,024 A100-80GB, once in a fresh process (imports not counted)
and then `--rounds` times, and changes every control of a what-if page in turn. Prints the times of the first
call, the median and the longest; asserts nothing.
"""

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from nbtrain.planner.search.largest import largest
from nbtrain.planner.search.legal import space_of
from nbtrain.planner.search.search import run_on, search
from nbtrain.planner.search.what_if import LABELS, what_if

# 175B's own batch ramps up in steps of 16, which leaves few layouts; without the ramp-up there are many.
CASES: tuple[tuple[str, int, dict[str, None]], ...] = (
    ("13B", 64, {}),
    ("175B", 1024, {}),
    ("175B", 1024, {"batch.rampup": None}),
)
GPU = "A100-80GB"
CHANGES = 240


def cpu_seconds(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return time.process_time() - before


def line(name: str, taken: list[float]) -> str:
    first, later = 1e3 * taken[0], [1e3 * each for each in taken[1:]]
    return f"| {name} | {first:,.0f} | {statistics.median(later):,.1f} | {max(later):,.1f} |"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    print("| CPU milliseconds | first call | median | longest |\n| --- | --- | --- | --- |")
    for name, gpus, changes in CASES:
        taken = [cpu_seconds(partial(search, name, gpus, 8, GPU, changes)) for _ in range(rounds + 1)]
        found = search(name, gpus, 8, GPU, changes)
        without = " without ramp-up" * bool(changes)
        words = f"search of {name}{without} on {gpus:,} GPUs: {found.estimated} estimates"
        print(line(words, taken))
    space = space_of(run_on("13B", 4, None, "A100-40GB"))
    print(
        line(
            "largest, 13B on 4 GPUs", [cpu_seconds(partial(largest, space, "13B")) for _ in range(rounds + 1)]
        )
    )
    state, draw, taken = what_if("gpt-13b-4xdp-4xpp-4xtp"), random.Random(5), []
    for name in itertools.islice(itertools.cycle(LABELS), CHANGES):
        value = draw.choice(state.control(name).values)
        before = time.process_time()
        state = state.changed(name, value)
        state.shown()
        taken.append(time.process_time() - before)
    print(line(f"one change of the what-if page ({CHANGES} changes)", taken))


if __name__ == "__main__":
    main()
