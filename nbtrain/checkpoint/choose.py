"""Which checkpoint a start or a resume loads."""

import logging
from pathlib import Path
from typing import Any

from nbtrain.base.checkpoint_files import newest_whole
from nbtrain.base.errors import CheckpointError
from nbtrain.base.events import EventWriter
from nbtrain.base.rundir import NOT_USED, RunDir
from nbtrain.checkpoint import manifest as manifests
from nbtrain.parallel.agreement import broadcast_object, gather_objects
from nbtrain.parallel.startup import World

logger = logging.getLogger(__name__)


def choose(run: RunDir, world: World, events: EventWriter | None) -> dict[str, Any] | None:
    """The manifest of the newest checkpoint that is whole; None where there is no checkpoint at all.

    Called by all ranks together; each reads a share of the files. A torn checkpoint is passed over, with an
    event and a log line. One whose contents are not what its manifest says, or that holds code, is rejected
    for good. Raises CheckpointError if there are checkpoints and none is whole.
    """
    steps = broadcast_object(run.checkpoint_steps())
    assert isinstance(steps, list)

    def problem(folder: Path) -> str | None:
        """Why a folder is not whole, agreed on by all ranks."""
        reason = broadcast_object(manifests.size_problem(folder) if world.rank == 0 else None)
        if reason is None:
            shares = gather_objects(manifests.content_problem(folder, world.rank, world.size))
            reason = next((share for share in shares if share), None)
            if reason is not None and world.rank == 0:
                manifests.reject(folder, str(reason))
        return None if reason is None else str(reason)

    newest, torn = newest_whole(run, problem, steps)
    for step, reason in torn:
        message = f"checkpoint {run.checkpoint(step).name} {NOT_USED}: {reason}; trying the one before it"
        if events is not None:
            logger.warning("%s", message)
            events.write("warning", message, step=step)
    if newest is not None:
        return manifests.read(run.checkpoint(newest))
    if torn:
        reasons = "; ".join(f"{run.checkpoint(step).name}: {reason}" for step, reason in torn)
        raise CheckpointError(
            f"{run.model}: no checkpoint is whole: {reasons}. Remove the folder to train from the start, "
            "or put a good copy there."
        )
    return None
