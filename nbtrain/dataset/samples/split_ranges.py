"""Finds the sequences of a run's splits: stream packing cuts a dataset once, best-fit packing each source."""

from nbtrain.config.arithmetic.splits import SPLIT_NAMES, split_bounds
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import OpenDataset
from nbtrain.dataset.samples.packed_index import MixedSource, mixed_sources, of_split


def split_ranges(
    config: RunConfig, opened: OpenDataset, split: str, is_own: bool = True
) -> list[tuple[int, int]]:
    """Return the [first, last) ranges of a split's sequences, without empty ranges.

    `is_own` says whether the run trains on this dataset. If not, the sources are read from the dataset's
    manifest instead of the run's data.sources; the run's data.split applies in both cases. Raises DataError
    if the manifest, the files and the run do not agree.
    """
    if config.data.resolved_packing == "best_fit":
        ranges = [(part.first, part.last) for part in sources_of_split(config, opened, split, is_own)]
    else:
        ranges = [stream_range(config, len(opened.indexed), split)]
    return [(first, last) for first, last in ranges if first < last]


def stream_range(config: RunConfig, num_sequences: int, split: str) -> tuple[int, int]:
    """Return a split's range [first, last) of the dataset's sequences for packing: stream."""
    bounds = split_bounds(config.data.split, config.data.split_rule, num_sequences)
    return bounds[SPLIT_NAMES.index(split)]


def sources_of_split(
    config: RunConfig, opened: OpenDataset, split: str, is_own: bool = True
) -> list[MixedSource]:
    """Return each source's part of a split for packing: best_fit. A part may be empty. Raises DataError."""
    configured = config.data.sources if is_own else []
    sources = mixed_sources(opened.files, opened.manifest, configured, len(opened.indexed))
    return of_split(sources, config.data.split, config.data.split_rule, split)
