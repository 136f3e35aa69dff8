"""Blends several datasets by weight: chooses the dataset of each sample by Megatron's rule.

    sample k comes from the dataset i with the largest  w_i * max(k, 1) - (samples taken from i so far),
    in double precision; the lowest i if several are equal

megatron-core and Megatron-DeepSpeed both blend this way. They differ in sizes, for N requested samples and
normalized weights (split_rule selects the project):

    rule                samples requested from dataset i  samples of the blend    index      datasets
    megatron-deepspeed  ceil(N w_i 1.005)                 sum of that column      uint8      < 255
    megatron-core       ceil(ceil(N w_i) (1 + 0.005))     sum of ceil(N w_i)      int16      < 32,767

A blend can read more samples from a dataset than its index provides. megatron-core rejects that,
Megatron-DeepSpeed reads past the dataset's end, and nbtrain continues with the dataset's next pass. The
dataset chosen for sample k does not depend on N, so a longer blend begins with the samples of a shorter one.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.dataset.samples.gpt_index import Allocate
from nbtrain.dataset.samples.index_files import cached_arrays
from nbtrain.dataset.samples.sample import Sample

SURPLUS = 0.005
BLEND_VERSION = 1
INDEX_DTYPES: dict[str, np.dtype] = {
    "megatron-deepspeed": np.dtype(np.uint8),
    "megatron-core": np.dtype(np.int16),
}
LARGEST_NUM_DATASETS = {"megatron-deepspeed": 254, "megatron-core": 32_766}
# Samples laid out at a time, and stretches of them that are processed in parallel. For 2^20 samples in one
# call and 2 to 20 datasets, 512 stretches were fastest among 128 to 2,048.
BLOCK_SAMPLES = 1 << 22
NUM_STRETCHES = 512


class BlendSizes(NamedTuple):
    """Sizes that a split_rule computes for N requested samples and the given weights."""

    weights: list[float]
    """Normalized weights that the choice of samples uses."""
    samples: list[int]
    """Number of samples requested from each dataset."""
    blend: int
    """Number of samples in the blend."""


def blend_sizes(rule: str, weights: list[float], num_samples: int) -> BlendSizes:
    """Compute a blend's sizes. Raises DataError if the rule's index cannot number that many datasets."""
    limit = LARGEST_NUM_DATASETS[rule]
    if len(weights) > limit:
        raise DataError(
            f"data.blend: the blend has {len(weights):,} datasets, but {rule} (data.split_rule) blends at "
            f"most {limit:,}. Remove datasets."
        )
    if rule == "megatron-core":
        shares = _normalised(weights)
        targets = [math.ceil(num_samples * share) for share in shares]
        samples = [math.ceil(target * (1 + SURPLUS)) for target in targets]
        return BlendSizes(_normalised(shares), samples, sum(targets))
    total = float(np.cumsum(weights)[-1])  # added in sequence, because the last bit can change a ceil
    shares = [weight / total for weight in weights]
    samples = [math.ceil(num_samples * share * (1 + SURPLUS)) for share in shares]
    return BlendSizes(_normalised(shares), samples, sum(samples))


def _normalised(weights: list[float]) -> list[float]:
    array = np.array(weights, np.float64)
    return (array / array.sum()).tolist()


def fill_blend_index(
    dataset_index: np.ndarray, dataset_sample_index: np.ndarray, weights: list[float]
) -> np.ndarray:
    """Fill both arrays, [n] each, for normalized `weights`. Return each dataset's number of samples.

    The result equals the result of Megatron's sequential loop. Here a block is divided into stretches that
    are computed in parallel from estimated counts. Two computations from different counts soon agree, so
    after a wrong estimate only the beginning of the stretch is computed again, until it agrees with the first
    result.
    """
    shares = np.array(weights, np.float64)
    counts = np.zeros(len(weights), np.int64)
    for start in range(0, len(dataset_index), BLOCK_SAMPLES):
        end = min(start + BLOCK_SAMPLES, len(dataset_index))
        chosen = _choices(shares, counts, start, end - start)
        dataset_index[start:end] = chosen
        for number in range(len(weights)):
            places = np.flatnonzero(chosen == number)
            dataset_sample_index[start + places] = np.arange(counts[number], counts[number] + len(places))
            counts[number] += len(places)
    return counts


def _choices(shares: np.ndarray, counts: np.ndarray, start: int, length: int) -> np.ndarray:
    """Return the dataset of each sample in [start, start + length), int16.

    `counts` holds each dataset's number of samples before `start`.
    """
    stretch = -(-length // NUM_STRETCHES)
    if stretch < NUM_STRETCHES:
        chosen = np.empty(length, np.int16)
        _walk(shares, counts.copy(), start, chosen)
        return chosen
    begins = start + stretch * np.arange(-(-length // stretch), dtype=np.int64)
    guessed = _likely_counts(shares, begins)
    guessed[0] = counts
    # Entry [row, s] of the table belongs to sample begins[s] + row.
    table = _walk_side_by_side(shares, guessed, begins, stretch)
    true = counts.astype(np.int64).copy()
    for number, begin in enumerate(begins.tolist()):
        column = table[: min(stretch, start + length - begin), number]
        _correct(shares, true.copy(), true - guessed[number], begin, column)
        true += np.bincount(column, minlength=len(shares))
    return np.ascontiguousarray(table.T).reshape(-1)[:length]


def _walk(shares: np.ndarray, counts: np.ndarray, start: int, chosen: np.ndarray) -> None:
    """Fill `chosen` with Megatron's sequential loop, and update `counts` in place."""
    for place in range(len(chosen)):
        number = int((shares * float(max(start + place, 1)) - counts).argmax())
        chosen[place] = number
        counts[number] += 1


def _correct(
    shares: np.ndarray, counts: np.ndarray, difference: np.ndarray, start: int, chosen: np.ndarray
) -> None:
    """Correct `chosen`, which was computed from wrong counts.

    Runs the sequential loop from the right `counts` until its choices agree with those in `chosen`.
    """
    apart = int(np.abs(difference).sum())
    place = 0
    while apart and place < len(chosen):
        number = int((shares * float(max(start + place, 1)) - counts).argmax())
        counts[number] += 1
        before = int(chosen[place])
        if number != before:
            chosen[place] = number
            difference[number] += 1
            difference[before] -= 1
            apart = int(np.abs(difference).sum())
        place += 1


def _walk_side_by_side(shares: np.ndarray, counts: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """Run the sequential loop for all stretches in parallel, from `counts` [stretches, datasets].

    Returns the dataset of each sample, int16 [length, stretches].
    """
    chosen = np.empty((length, len(begins)), np.int16)
    current = counts.astype(np.float64)  # whole numbers below 2^53: exact
    flat, rows = current.reshape(-1), len(shares) * np.arange(len(begins))
    errors = np.empty_like(current)
    samples = begins.astype(np.float64)[:, None]
    for row in range(length):
        np.multiply(shares, np.maximum(samples, 1.0) if row < 2 else samples, out=errors)
        errors -= current
        numbers = errors.argmax(axis=1)
        chosen[row] = numbers
        flat[rows + numbers] += 1
        samples += 1
    return chosen


def _likely_counts(shares: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Estimate how often each dataset is chosen for the first k samples, for each k in `samples`.

    Returns int64 [samples, datasets]. The counts after k samples are near w_i k and add up to k.
    """
    exact = shares * samples[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = samples - counts.sum(axis=1)
    order = np.argsort(counts - exact, axis=1, kind="stable")
    for column in range(len(shares)):
        taken = missing > column
        counts[np.flatnonzero(taken), order[taken, column]] += 1
    return counts


class BlendIndex:
    """The two index arrays of a blend of `size` samples, read from `folder` or created there."""

    def __init__(self, folder: Path, rule: str, weights: list[float], size: int):
        description = {"blend_version": BLEND_VERSION, "rule": rule, "weights": weights, "samples": size}

        def build(allocate: Allocate) -> None:
            fill_blend_index(
                allocate("dataset_index", (size,), INDEX_DTYPES[rule]),
                allocate("dataset_sample_index", (size,), np.dtype(np.int64)),
                weights,
            )

        arrays = cached_arrays(folder, description, ("dataset_index", "dataset_sample_index"), build)
        self.dataset_index = arrays["dataset_index"]
        self.dataset_sample_index = arrays["dataset_sample_index"]
        self._num_datasets = len(weights)

    def counts(self, stop: int) -> list[int]:
        """Return each dataset's number of samples among the first `stop`."""
        counts = np.zeros(self._num_datasets, np.int64)
        for start in range(0, stop, BLOCK_SAMPLES):
            part = self.dataset_index[start : min(start + BLOCK_SAMPLES, stop)]
            counts += np.bincount(part, minlength=self._num_datasets)
        return counts.tolist()


class BlendedDataset:
    """One split of a blend. Each position reads a sample from the dataset that the rule chooses for it."""

    def __init__(self, datasets: list[Any], numbers: list[int], index: BlendIndex, num_samples: int):
        """Mix `datasets`; `numbers` are the indices of their entries in data.blend."""
        self.datasets = datasets
        self.numbers = numbers
        self.index = index
        self.num_samples = num_samples

    def __len__(self) -> int:
        return len(self.index.dataset_index)

    @property
    def num_documents(self) -> int:
        return sum(dataset.num_documents for dataset in self.datasets)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the split of all datasets, each token counted once."""
        return sum(dataset.num_tokens for dataset in self.datasets)

    @property
    def num_epochs(self) -> float:
        """Number of epochs over the dataset that is repeated most often."""
        return max(dataset.num_epochs for dataset in self.datasets)

    def place(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is out of range for {len(self)} positions")
        return int(self.index.dataset_index[position]), int(self.index.dataset_sample_index[position])

    def __getitem__(self, position: int) -> np.ndarray:
        number, own = self.place(position)
        return self.datasets[number][own]

    def sample(self, position: int) -> Sample:
        number, own = self.place(position)
        return self.datasets[number].sample(own)._replace(dataset=self.numbers[number])
