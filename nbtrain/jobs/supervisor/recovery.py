"""Policy that decides what follows a failed attempt or a rollback; supervise.py carries it out.

How the next attempt starts, by the reason why the attempt ended:

    rollback       at once; the samples from the checkpoint to the bad step are skipped permanently
    full disk      once the disk has room, after at most backend.disk_wait_seconds
    other reasons  after a wait that doubles with each attempt in a row that saved no checkpoint; at once with
                   backend local if the attempt saved a checkpoint, no GPU failed and backend.elastic is off

Full disks and other reasons count against backend.max_restarts, rollbacks do not. Neither do preemptions and
pauses, which do not come here (run_attempts in supervise.py). With backend.elastic, the usable devices are
counted first, and the next attempt has as many data-parallel ranks as fit on them; the global batch size
stays the same. A job whose attempts fail twice in a row in the same way is given up.
"""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nbtrain.base import files
from nbtrain.base.files import READ_ONLY
from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step, on_nodes_words
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED
from nbtrain.base.run_directory.records import AttemptRecord, Rollback
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text import amounts
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.state import DataState
from nbtrain.jobs.attempt.rank_wrapper import WITHOUT_WORD
from nbtrain.jobs.attempt.verdict import DISK_IS_FULL, STOPPED, Verdict

LONGEST_BACKOFF_SECONDS = 300.0
# A float cannot exceed 2.0 ** 1024, and backend.max_restarts may be a million.
MOST_DOUBLINGS = 1000

# After this many rollbacks to one checkpoint without progress, the job is given up.
VAIN_ROLLBACKS = 3

# Free space below which a rank cannot write its exit record.
NO_ROOM_BYTES = 1 << 20


@dataclass(frozen=True)
class Recovery:
    """Actions of the supervisor between two attempts."""

    give_up: str = ""
    """Reason to end the job; "" if another attempt follows."""
    rollback: Rollback | None = None
    """Samples that the next attempt skips. With a rollback, the attempt starts at once."""
    wait_seconds: float = 0.0
    needs_room: bool = False
    """Whether to wait until the disk has room for one more checkpoint."""
    counts_devices: bool = False
    """Whether to resize the next attempt to the devices that are usable when it starts."""


def recovery_from(
    verdict: Verdict,
    before: Verdict | None,
    restarts: int,
    config: RunConfig,
    rollbacks: Sequence[Rollback] = (),
    *,
    vain: int,
) -> Recovery:
    """Return the recovery after an attempt whose `verdict` allows a retry.

    `before` is the verdict on the previous attempt. If the attempt ended with a rollback, this rollback is
    the last in `rollbacks`. `vain` is the number of attempts in a row, up to the newest, that saved no
    checkpoint (saved_nothing()).
    """
    if verdict.kind == end_kinds.ROLLBACK:
        return _after_rollback(config, rollbacks)
    backend = config.backend
    if before and verdict.signature and verdict.signature == before.signature:
        return Recovery("the previous attempt failed in the same way")
    if restarts >= backend.max_restarts:
        return Recovery(f"backend.max_restarts = {backend.max_restarts} is used up")
    # A device or a machine that failed needs some time before it can be counted or reached again.
    at_once = (
        vain == 0 and backend.kind == "local" and not backend.elastic and verdict.kind != end_kinds.DEVICE
    )
    wait_seconds = backend.restart_backoff_seconds * 2.0 ** min(max(0, vain - 1), MOST_DOUBLINGS)
    return Recovery(
        wait_seconds=0.0 if at_once else min(wait_seconds, LONGEST_BACKOFF_SECONDS),
        needs_room=verdict.kind == end_kinds.DISK,
        counts_devices=backend.elastic,
    )


def saved_nothing(attempts: Sequence[AttemptRecord], saved_step: int | None) -> int:
    """Count how many attempts in a row, up to the newest, saved no checkpoint.

    `saved_step` is the step of the newest checkpoint; None if there is no checkpoint.
    """
    after, vain = saved_step or 0, 0
    for attempt in reversed(attempts):
        first = attempt.first_step or 0
        if after > first:
            break
        after, vain = first, vain + 1
    return vain


def _after_rollback(config: RunConfig, rollbacks: Sequence[Rollback]) -> Recovery:
    """Return a recovery that retries at once, or gives up after too many rollbacks.

    Too many means more than stability.max_skipped_steps rollbacks within stability.loss_spike_window_steps,
    or VAIN_ROLLBACKS rollbacks without progress.
    """
    stability = config.stability
    newest, window = rollbacks[-1], stability.loss_spike_window_steps
    near = [rollback for rollback in rollbacks if abs(rollback.step - newest.step) < window]
    if len(near) > stability.max_skipped_steps:
        return Recovery(
            f"{len(near)} rollbacks within {amounts.counted(window, 'step')} are more than "
            f"stability.max_skipped_steps = {stability.max_skipped_steps} allows; lower lr_schedule.lr or "
            "check the data"
        )
    if in_vain(rollbacks) >= VAIN_ROLLBACKS:
        older = ", or remove that checkpoint to continue from an older one" if newest.checkpoint_step else ""
        return Recovery(
            f"{VAIN_ROLLBACKS} attempts from {starting_point(newest)} made no progress, although each "
            f"skipped different samples, so the data is not the cause; lower lr_schedule.lr{older}"
        )
    return Recovery(rollback=newest)


def in_vain(rollbacks: Sequence[Rollback]) -> int:
    """Count the newest rollbacks of the same job to the same checkpoint without progress between them.

    The count begins with the first rollback whose attempt reached the furthest step.
    """
    newest = rollbacks[-1]
    place = (newest.job_id, newest.checkpoint_step)
    same = itertools.takewhile(
        lambda rollback: (rollback.job_id, rollback.checkpoint_step) == place, reversed(rollbacks)
    )
    steps = [rollback.step for rollback in same]
    steps.reverse()
    return len(steps) - steps.index(max(steps))


def starting_point(rollback: Rollback) -> str:
    """Return where a rollback returns to: "step 4", or "the start" if there is no checkpoint."""
    return f"step {rollback.checkpoint_step:,}" if rollback.checkpoint_step else "the start"


def saved_words(job: JobDir) -> str:
    """Return text about the newest saved step, such as "saved at step 40", for the end of an allocation."""
    step = newest_checkpoint_step(job.run)
    said = "nothing is saved yet" if step is None else f"saved at step {step:,}"
    return "; ".join(filter(None, (said, on_nodes_words(job.run))))


def rollback_of(verdict: Verdict, job: JobDir, attempt: int) -> Rollback:
    """Return the rollback that a verdict requires.

    Later attempts skip the samples from the newest checkpoint to the end of the bad step.
    """
    assert verdict.bad_samples is not None and verdict.step is not None
    step = newest_checkpoint_step(job.run) or 0
    manifest = files.read_json(job.run.checkpoint_manifest(step)) if step else None
    first = 0
    if manifest and "data_state" in manifest:
        state = DataState.from_dict(manifest["data_state"])
        first = state.position(state.consumed_samples)
    return Rollback(
        job_id=job.job_id,
        attempt=attempt,
        time=time.time(),
        step=verdict.step,
        checkpoint_step=step,
        first=first,
        last=verdict.bad_samples[1],
        cause=verdict.cause,
    )


def with_the_disk(verdict: Verdict, free_bytes: int, read_only: bool = False) -> Verdict:
    """Return the verdict with a full or read-only disk as its cause, if the disk explains the failure.

    On a full disk, ranks can write neither a report nor an exit record. On a disk that has become read-only,
    no further attempt could save anything, so the verdict no longer allows a retry.
    """
    silent = not verdict.kind and WITHOUT_WORD in verdict.cause
    if read_only and verdict.state == FAILED:
        said = "a rank wrote no exit record" if verdict.kind == end_kinds.NO_RECORD else verdict.cause
        cause = f"the run directory is {READ_ONLY}; {said}"
        return replace(verdict, cause=cause, kind=end_kinds.READ_ONLY, retry=False, signature=None)
    if free_bytes >= NO_ROOM_BYTES or not (verdict.retry and (silent or verdict.kind == end_kinds.NO_RECORD)):
        return verdict
    cause = verdict.cause if silent else "a rank wrote no exit record"
    return replace(verdict, cause=f"{cause}; {DISK_IS_FULL}", kind=end_kinds.DISK, signature=None)


def given_up(verdict: Verdict, why: str) -> Verdict:
    """Return the final verdict on a job that is not tried again, although another attempt could help."""
    cause = f"{verdict.cause}; not tried again: {why}"
    return Verdict(FAILED, cause, step=verdict.step, kind=verdict.kind, rank=verdict.rank, given_up=why)


def preempted(verdict: Verdict, notice: str) -> Verdict:
    """Return the verdict on an attempt that ended because its devices were taken away."""
    return Verdict(CANCELLED, notice, step=verdict.step, kind=end_kinds.PREEMPTED)


def overdue(verdict: Verdict, config: RunConfig) -> Verdict:
    """Return the verdict on a job whose deadline has passed.

    A job that ended by itself keeps its own verdict.
    """
    if verdict.state != CANCELLED:
        return verdict
    stopped = verdict.cause.replace(STOPPED, "stopped", 1)
    said = f"deadline: backend.deadline_seconds = {config.backend.deadline_seconds:g} has passed; {stopped}"
    return Verdict(FAILED, said, step=verdict.step, rank=verdict.rank)


def cancelled_while_waiting(verdict: Verdict) -> Verdict:
    """Return the verdict on a job that was stopped between two attempts."""
    return Verdict(CANCELLED, f"{STOPPED} while the job waited to restart after a failure: {verdict.cause}")
