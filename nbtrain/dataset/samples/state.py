"""A run's position in its data: enough to resume at exactly the next sample, on any number of ranks.

The training order is one sequence of positions 0, 1, 2, ... into the training split. Step n uses the next
global_batch_size positions. Rows of micro_batch_size * data_parallel_size positions are the micro batches,
and rank r of d uses the r-th of d equal parts of each row. The set of positions in a step therefore does not
depend on d.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from nbtrain.base.errors import DataError


@dataclass(frozen=True)
class DataState:
    """The run's position in its data, and the settings that determine the order of samples.

    It is stored in every checkpoint.
    """

    seed: int
    split: str
    """Relative sizes of the training, validation and test splits."""
    split_rule: str
    dataset_sha256: str
    index_samples: int
    """Number of training samples that the order was built for; fixed at the first launch."""
    consumed_samples: int = 0
    skipped_sample_ranges: tuple[tuple[int, int], ...] = ()
    """[first, last) positions in the training order that are skipped, ascending and without overlap."""
    shuffle: str = "megatron"
    """Shuffling of the epochs (data.shuffle)."""
    packing: str = "stream"
    """Packing of documents into samples (data.packing)."""

    def __post_init__(self) -> None:
        ranges = tuple((int(first), int(last)) for first, last in self.skipped_sample_ranges)
        ends = [0, *(last for _, last in ranges)]
        if any(not end <= first < last for end, (first, last) in zip(ends, ranges)):
            raise DataError(
                f"skipped_sample_ranges is {list(ranges)}, but must be non-empty [first, last) pairs in "
                "ascending order that do not overlap."
            )
        object.__setattr__(self, "skipped_sample_ranges", ranges)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values; ranges become lists."""
        return {**asdict(self), "skipped_sample_ranges": [list(pair) for pair in self.skipped_sample_ranges]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "DataState":
        """Return the state stored by to_dict(). Raises KeyError if a key is missing."""
        return cls(**{entry.name: value[entry.name] for entry in fields(cls)})

    def advanced(self, num_samples: int) -> "DataState":
        """Return the state after `num_samples` more samples."""
        return replace(self, consumed_samples=self.consumed_samples + num_samples)

    def skipping(self, first: int, last: int) -> "DataState":
        """Return a state that also skips the positions [first, last).

        Raises DataError if the run is past `first`, or if these positions overlap a skipped range.
        """
        reached = self.position(self.consumed_samples)
        if first < reached:
            raise DataError(
                f"positions [{first:,}, {last:,}) cannot be skipped, because the run is already at position "
                f"{reached:,}. Resume from a checkpoint before these positions."
            )
        ranges = sorted((*self.skipped_sample_ranges, (first, last)))
        return replace(self, skipped_sample_ranges=tuple(ranges))

    def position(self, sample: int) -> int:
        """Return the position of the run's sample number `sample`; skipped positions have no number."""
        return int(self._positions(np.array([sample]))[0])

    def step_positions(self, global_batch_size: int) -> np.ndarray:
        """Return the positions of the step that starts at consumed_samples, int64 [global_batch_size]."""
        return self._positions(np.arange(self.consumed_samples, self.consumed_samples + global_batch_size))

    def _positions(self, samples: np.ndarray) -> np.ndarray:
        if not self.skipped_sample_ranges:
            return samples.astype(np.int64)
        ranges = np.array(self.skipped_sample_ranges, np.int64)
        lengths = ranges[:, 1] - ranges[:, 0]
        skipped = np.concatenate([[0], np.cumsum(lengths)])
        # Element j is the number of samples that are trained on before skipped range j.
        begins = ranges[:, 0] - skipped[:-1]
        return samples + skipped[np.searchsorted(begins, samples, side="right")]


def rank_positions(
    positions: np.ndarray, micro_batch_size: int, data_parallel_rank: int, data_parallel_size: int
) -> np.ndarray:
    """Return one rank's positions, int64 [accumulation_steps, micro_batch_size].

    Raises DataError if a row is incomplete.
    """
    row = micro_batch_size * data_parallel_size
    if len(positions) % row:
        raise DataError(
            f"a step has {len(positions)} samples, but their number must be a multiple of "
            f"micro_batch_size({micro_batch_size}) * data_parallel_size({data_parallel_size}) = {row}."
        )
    parts = positions.reshape(-1, data_parallel_size, micro_batch_size)
    return parts[:, data_parallel_rank]
