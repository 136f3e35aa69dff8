"""How an attempt ended, read from the exit records of its ranks, and whether trying again can help.

The records are the only witnesses. torchrun's own code is 1 whatever happened, and silence is a failure too:
a rank without a record was taken away together with its wrapper.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nbtrain.jobstate import CANCELLED, FAILED, SUCCEEDED
from nbtrain.rundir import ExitRecord

SIGKILL, SIGBUS = 9, 7
# What a success means, by the run's mode.
DONE = {
    "full": "all steps are trained and saved",
    "perf": "all steps are measured, none is saved",
    "eval": "the newest checkpoint is evaluated, nothing is trained",
}
FULL_DISK = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b", re.IGNORECASE)
# Errors that the user mends; the same configuration fails the same way again.
USER_ERROR = re.compile(r"\b(ConfigError|DataError|CheckpointError|NbtrainError|SubmitError)\b")


@dataclass(frozen=True)
class Circumstances:
    """What the supervisor knows and no rank can."""

    world_size: int
    stop_requested: bool = False
    killed_by_us: bool = False
    """The supervisor killed ranks that did not leave in time."""
    hang: str | None = None
    """Which ranks hung and since when, where that is why they were killed."""
    oom_kills: int | None = None
    """Kills that the kernel counted in this cgroup during the attempt; None where it does not tell."""
    launcher_signal: int | None = None
    """The signal that killed torchrun, where one did and it was not the supervisor's."""
    mode: str = "full"
    """The run's mode: only full trains to the end and saves."""
    launcher_message: str = ""
    """The launcher's last words, for an attempt that no rank lived to see."""


@dataclass(frozen=True)
class Verdict:
    """The end of one attempt."""

    state: str
    """SUCCEEDED, CANCELLED or FAILED: what the job becomes if nothing is tried again."""
    cause: str
    """One sentence, without a full stop."""
    retry: bool = False
    """Whether another attempt can help."""
    signature: tuple | None = None
    """Equal for two failures in the same place for the same reason; None where that cannot be told."""
    step: int | None = None


def judge(records: Mapping[int, ExitRecord], circumstances: Circumstances) -> Verdict:
    """The verdict on an attempt whose processes are all gone. `records` maps rank to exit record."""
    around = circumstances
    steps = [record.step for record in records.values() if record.step is not None]
    step = max(steps, default=None)
    missing = sorted(set(range(around.world_size)) - set(records))
    outcomes = {record.outcome for record in records.values()}
    if not missing and outcomes == {"finished"}:
        return Verdict(SUCCEEDED, DONE[around.mode], step=step)
    saved = "saved" if around.mode == "full" else f"mode: {around.mode} saves nothing"
    if not missing and outcomes <= {"finished", "stopped"}:
        if around.stop_requested:
            return Verdict(CANCELLED, f"stopped on request{_at(step)}; {saved}", step=step)
        if around.launcher_signal is not None:
            # Its death tells the ranks to stop, and they save; nobody wanted the run to end.
            return Verdict(
                FAILED,
                f"torchrun was killed by signal {around.launcher_signal}, so its ranks stopped{_at(step)}; {saved}",
                retry=True,
                step=step,
            )
        limit = next((record.detail for record in records.values() if record.detail), "")
        if limit:
            on = ", `nbtrain resume` goes on" if around.mode == "full" else ""
            return Verdict(CANCELLED, f"{limit}{_at(step)}; {saved}{on}", step=step)
        return Verdict(
            CANCELLED, f"its ranks were told to stop by a signal from outside{_at(step)}; {saved}", step=step
        )
    if around.stop_requested:
        if around.killed_by_us:
            return Verdict(CANCELLED, f"stopped on request; killed before it had saved{_at(step)}", step=step)
        first = _first_failure(records)
        how = f" (rank {first.rank}: {first.message})" if first else ""
        return Verdict(CANCELLED, f"stopped on request before it could save{_at(step)}{how}", step=step)
    if around.hang:
        return Verdict(FAILED, around.hang, retry=True, step=step)
    first = _first_failure(records)
    if first is None:
        return _without_witness(missing, around, step)
    return _failure(first, missing, around, step)


def _failure(first: ExitRecord, missing: list[int], around: Circumstances, step: int | None) -> Verdict:
    where = (
        f"rank {first.rank} {first.outcome if first.outcome == 'failed' else 'was killed'}{_at(first.step)}"
    )
    said = f"{first.message}\n{first.detail}"
    if first.signal is not None:
        # Killing has no author in the kernel's record, so the cause says what is known and what is guessed.
        return Verdict(FAILED, f"{where}: {_killed(first, around)}", retry=True, step=step)
    if FULL_DISK.search(said):
        return Verdict(FAILED, f"{where}: the disk is full: {first.message}", step=step)
    if user_error(first):
        return Verdict(FAILED, f"{where}: {first.message}", step=step)
    gone = f" (no exit record from rank {_ranks(missing)}: killed with its wrapper)" if missing else ""
    signature = None if missing else (first.step, first.message)
    return Verdict(FAILED, f"{where}: {first.message}{gone}", retry=True, signature=signature, step=step)


def user_error(record: ExitRecord) -> bool:
    """Whether a rank failed by an error that only the user can mend: told in words, without a traceback."""
    detail = record.detail.strip()
    if detail and not detail.startswith("Traceback"):
        return True
    raised = detail.splitlines()[-1].partition(":")[0] if detail else ""
    return bool(USER_ERROR.match(record.message) or USER_ERROR.search(raised))


def _without_witness(missing: list[int], around: Circumstances, step: int | None) -> Verdict:
    if len(missing) == around.world_size:
        words = f": {around.launcher_message}" if around.launcher_message else ""
        return Verdict(
            FAILED, f"the launcher ended before any rank had left a record{words}", retry=True, step=step
        )
    return Verdict(
        FAILED,
        f"rank {_ranks(missing)} left no exit record: killed together with its wrapper",
        retry=True,
        step=step,
    )


def _killed(record: ExitRecord, around: Circumstances) -> str:
    if record.signal == SIGKILL:
        if around.oom_kills:
            return "out of host memory: the kernel ended it (SIGKILL, counted by its cgroup)"
        known = (
            "the cgroup counts no such kill"
            if around.oom_kills == 0
            else "the kernel's counter is not readable"
        )
        return (
            f"{record.message}, not by nbtrain: by hand, by another program, or out of host memory ({known})"
        )
    if record.signal == SIGBUS:
        return f"{record.message}: shared memory (/dev/shm) is full, or a mapped file was cut short"
    return record.message


def _first_failure(records: Mapping[int, ExitRecord]) -> ExitRecord | None:
    # Every other rank fails because of the first one: its peers vanish, or the launcher ends them.
    bad = [record for record in records.values() if record.outcome in ("failed", "killed")]
    return min(bad, key=lambda record: record.time, default=None)


def _at(step: int | None) -> str:
    return f" at step {step}" if step is not None else ""


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
