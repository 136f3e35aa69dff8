"""Samples that are skipped permanently because of a rollback."""

import logging
from typing import Any

from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import Rollback
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.dataset.samples.state import DataState

logger = logging.getLogger(__name__)


def pass_bad_samples(run: RunDir, data: DataState, events: EventWriter | None = None) -> DataState:
    """Return a data state (a checkpoint's or a new one) that skips the samples of the run's rollbacks.

    Samples that are already trained or skipped are ignored, so this may be called at every load.
    """
    for entry in Rollback.read_all(run.rollbacks_json):
        reached = data.position(data.consumed_samples)
        for first, last in _outside(max(entry.first, reached), entry.last, data.skipped_sample_ranges):
            data = data.skipping(first, last)
            message = f"samples {first:,} to {last - 1:,} of the training order are skipped: {entry.cause}"
            logger.info("%s", message)
            if events is not None:
                events.write("rollback", message, positions=[first, last], step=entry.step)
    return data


def skipped_samples(run: RunDir, manifest: dict[str, Any] | None) -> int:
    """Return an upper bound of the number of samples that the run skips.

    It adds up the samples of the run's rollbacks and those skipped in the data state of `manifest`, if given.
    """
    ranges = [(entry.first, entry.last) for entry in Rollback.read_all(run.rollbacks_json)]
    if manifest is not None:
        ranges += DataState.from_dict(manifest["data_state"]).skipped_sample_ranges
    return sum(last - first for first, last in ranges)


def _outside(first: int, last: int, ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the parts of [first, last) that are outside `ranges`, which are ascending."""
    pieces = []
    for begin, end in ranges:
        if first < min(begin, last):
            pieces.append((first, min(begin, last)))
        first = max(first, end)
    return [*pieces, (first, last)] if first < last else pieces
