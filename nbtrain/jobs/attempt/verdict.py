"""Decide how an attempt ended, from the exit records of its ranks, and whether another attempt can help.

Only the exit records decide, because the launcher's own exit code is 1 after any failure. A rank without a
record counts as failed: it was killed together with its wrapper.

When one rank fails, the ranks that wait for it fail too. The cause is therefore the first failure other than
the loss of a peer. The kind of failure determines what the supervisor does next: wait for room on the disk,
count the devices, or roll back.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from nbtrain.base.run_directory import end_kinds, outcomes
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, SUCCEEDED
from nbtrain.base.run_directory.records import ExitRecord
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.fixes import fix_of
from nbtrain.jobs.machine.host_memory import HostMemory
from nbtrain.jobs.machine.processes import signal_name

SIGABRT, SIGBUS, SIGKILL, SIGTERM = 6, 7, 9, 15
# Exit code that a shell reports for a process killed by SIGKILL.
EXIT_137 = 128 + SIGKILL
# Descriptions of success, by the run's mode.
DONE = {
    "full": "all steps are trained and saved",
    "perf": "all steps are measured, and no checkpoint is saved",
    "eval": "the newest checkpoint is evaluated, and nothing is trained",
}
# First words of the cause of a job that a stop request has ended. They are replaced for a pause and for a
# deadline, which end the ranks with the same request.
STOPPED = "stopped on request"
# Part of the cause of a job that a full disk has ended.
DISK_IS_FULL = "the disk is full"
FULL_DISK = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded|Errno 122\b", re.IGNORECASE)
# Messages of torch, Python's multiprocessing and NCCL, some of which also say "No space left on device".
SHARED_MEMORY = re.compile(
    r"unable to \w+ shared memory|insufficient shared memory|out of shared memory|\bSemLock\(|/dev/shm/"
)
DEVICE_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|CUDNN_STATUS_ALLOC_FAILED")
HOST_MEMORY = re.compile(r"\bMemoryError\b|can't allocate memory|Cannot allocate memory|Errno 12\b")
LOST_DEVICE = re.compile(
    r"uncorrectable ECC|fallen off the bus|unspecified launch failure|CUDA error: (?:unknown error|hardware)|"
    r"\bXid\b|needs GPU \d+, but torch",
    re.IGNORECASE,
)
# Messages of gloo, NCCL and torch's store from a rank that only lost a peer.
LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused|aborted)|broken pipe|socket (?:closed|timeout)|application "
    r"timeout|"
    r"timed out|wait timeout|ncclRemoteError|ncclSystemError|communicator was aborted|remote process|"
    r"DistNetworkError|DistBackendError|TCPStore|connectFullMesh|Watchdog caught",
    re.IGNORECASE,
)
# Those messages of LOST_PEER that come from a rank whose wait has timed out.
TIMED_OUT = re.compile(r"time-?out|timed out", re.IGNORECASE)
# {error class in base/errors.py: kind of end}.
KIND_OF_ERROR = {
    "StabilityError": end_kinds.UNSTABLE,
    "LossScaleError": end_kinds.SMALLEST_LOSS_SCALE,
    "DiskFullError": end_kinds.DISK,
}
# Number of good steps after which the configuration alone does not explain running out of memory.
STEADY_STEPS = 20
# Beginning of an error that names the step in which it happened, which is one after the last finished step.
NAMES_STEP = re.compile(r"step [\d,]+: ")
# Errors that the user must fix; the same configuration fails the same way again.
USER_ERROR = re.compile(r"\b(ConfigError|DataError|CheckpointError|NbtrainError|SubmitError)\b")


@dataclass(frozen=True)
class Circumstances:
    """Facts about an attempt that the supervisor knows and the ranks do not."""

    world_size: int
    config: RunConfig
    """The configuration with which the ranks trained; it determines which fixes are possible."""
    stop_requested: bool = False
    hang: str | None = None
    """Text that says which ranks hung and for how long; None if the ranks were not killed for a hang."""
    stuck: str | None = None
    """Description of where the ranks were when the first rank gave up waiting for a peer.

    None if no rank gave up.
    """
    awaited: int | None = None
    """The rank that hung, or for which the other ranks waited; None if that rank is not known."""
    memory: HostMemory = field(default_factory=HostMemory)
    """The kernel's memory counters during the attempt."""
    pids: Mapping[int, int] = field(default_factory=dict)
    """{rank: process id} of the ranks that have reported."""
    killed_at: float | None = None
    """Time of the supervisor's first SIGKILL, in seconds since the epoch; None if it sent no SIGKILL."""
    killed_after: str = ""
    """Text such as "61 s after the request (limit: ...)" for ranks killed after a stop; "" for others."""
    first_step: int = 0
    """The step of the checkpoint from which the attempt started; 0 without a checkpoint."""
    gone: tuple[int, ...] = ()
    """Ranks without an exit record that were gone before the supervisor killed any rank."""
    launcher_signal: int | None = None
    """The signal with which another process killed the ranks' launcher; None if no process did."""
    trained: bool = True
    """Whether rank 0 finished loading. Before that, there is nothing to save."""
    mode: str = "full"
    """The run's mode. Only mode full trains to the end and saves checkpoints."""
    saved_step: int | None = None
    """The step of the run's newest checkpoint, which may be on the nodes' own disks; None without one."""
    reached_step: int | None = None
    """The last step that any rank reported, in its exit record or a heartbeat; None without a report."""
    node_left: str = ""
    """Text about the node that is gone or that its scheduler ended, if that is why ranks stopped; else ""."""
    launcher_message: str = ""
    """How the launcher ended, for an attempt in which no rank lived long enough to report."""

    def fix(self, kind: str) -> str:
        """Return fix_of() for this kind of end and the configuration with which the ranks trained."""
        return fix_of(kind, self.config)


@dataclass(frozen=True)
class Verdict:
    """The end of one attempt."""

    state: str
    """State of the job if there is no further attempt: SUCCEEDED, CANCELLED or FAILED."""
    cause: str
    """Why the attempt ended, as one sentence without a full stop."""
    retry: bool = False
    """Whether another attempt can help."""
    signature: tuple | None = None
    """Value that is equal for two failures at the same step with the same cause.

    None for a failure that is not compared with the failures of other attempts.
    """
    step: int | None = None
    kind: str = ""
    """Kind of the end, a value from base/run_directory/end_kinds.py; "" for an end without a kind."""
    rank: int | None = None
    """Rank that failed first, or for which the other ranks waited; None if that rank is not known."""
    given_up: str = ""
    """Why there is no further attempt, although one could help; "" otherwise."""
    bad_samples: tuple[int, int] | None = None
    """Samples that the bad step read: positions [first, last) in the training order.

    None if the attempt did not end with a rollback, which skips these samples and those between them and the
    newest checkpoint.
    """


def judge(records: Mapping[int, ExitRecord], circumstances: Circumstances) -> Verdict:
    """Return the verdict on an attempt whose processes have all exited.

    `records` maps each rank to its exit record.
    """
    around = circumstances
    step = max((record.step for record in records.values() if record.step is not None), default=None)
    failed, cancelled = partial(Verdict, FAILED, step=step), partial(Verdict, CANCELLED, step=step)
    missing = sorted(set(range(around.world_size)) - set(records))
    ends = {record.outcome for record in records.values()}
    if not missing and ends == {outcomes.FINISHED}:
        return Verdict(SUCCEEDED, _done(around, step), step=step)
    if rolled := [record for record in records.values() if record.outcome == outcomes.ROLLBACK]:
        return _rollback(rolled[0], around)
    saved = _kept(around, step)
    if not missing and ends <= outcomes.COMPLETED:
        if around.stop_requested:
            return cancelled(f"{STOPPED}{_at(step)}; {saved}")
        if around.node_left:
            return failed(f"{around.node_left}, so its ranks stopped{_at(step)}; {saved}", retry=True)
        if around.launcher_signal is not None:
            # The launcher's death made the ranks save and exit; no user requested the end of the run.
            killed = _launcher_killed(around.launcher_signal)
            return failed(f"{killed}, so its ranks stopped{_at(step)}; {saved}", retry=True)
        if limit := next((record.detail for record in records.values() if record.detail), ""):
            on = "; `nbtrain resume` continues the run" if around.mode == "full" else ""
            return cancelled(f"{limit}{_at(step)}; {saved}{on}")
        return cancelled(f"a signal that nbtrain did not send stopped the ranks{_at(step)}; {saved}")
    if around.stop_requested:
        words = {record.said for record in records.values()}
        done = around.mode != "full" or _is_saved(around, step)
        if done and not missing and words <= outcomes.COMPLETED:
            # A report is a rank's last action, so whatever ended these ranks came while they were exiting.
            if words == {outcomes.FINISHED}:
                return Verdict(SUCCEEDED, _done(around, step), step=step)
            return cancelled(f"{STOPPED}{_at(step)}; {saved}")
        said, rank = _stop_out_of_order(records, around, step, saved)
        return cancelled(said, rank=rank)
    if around.hang:
        rank = around.awaited
        if rank is None and len(missing) < around.world_size:
            # Ranks on a lost node leave no record; the other ranks left a record when the supervisor killed
            # them.
            rank = next(iter(missing), None)
        return failed(around.hang, retry=True, kind=end_kinds.HANG, rank=rank)
    first = _first_failure(records, around)
    # A rank that lost a peer, or was ended by another process, does not show the cause.
    if first is None or _distance(first, around):
        if around.launcher_signal is not None:
            said = f"{_launcher_killed(around.launcher_signal)}; its ranks ended{_at(step)}"
            return failed(said, retry=True, kind=end_kinds.KILLED)
        if around.node_left and 0 < len(missing) < around.world_size:
            return _gone_with_node(missing, around, step)
        if missing:
            return _without_witness(missing, around, step)
    assert first is not None, "a rank without a record is missing"
    verdict = _failure(first, missing, around, step)
    awaited = around.awaited if verdict.kind == end_kinds.HANG else None
    return replace(verdict, rank=first.rank if awaited is None else awaited)


def _done(around: Circumstances, step: int | None) -> str:
    if around.mode != "full" or _is_saved(around, step):
        return DONE[around.mode]
    return f"all steps are trained; {_kept(around, step)}"


def _is_saved(around: Circumstances, step: int | None) -> bool:
    return around.saved_step is not None and around.saved_step >= (step or 0)


def _kept(around: Circumstances, step: int | None) -> str:
    """Return text that says whether `step` is saved.

    This is judged by the existing checkpoints, not by the ranks' reports.
    """
    if around.mode != "full":
        return f"mode: {around.mode} saves no checkpoint"
    if _is_saved(around, step):
        return "saved"
    if around.saved_step is None:
        return "no checkpoint was saved"
    return f"not saved; the newest checkpoint is from step {around.saved_step:,}"


def _stop_out_of_order(
    records: Mapping[int, ExitRecord], around: Circumstances, step: int | None, saved: str
) -> tuple[str, int | None]:
    """Return (cause, rank) for a requested stop during which a rank failed or was killed.

    `rank` is the rank that the cause names; None if the cause names no rank. That rank may have failed after
    it had saved.
    """
    killed, kept = around.killed_at is not None, around.saved_step
    first = _first_failure(records, around)
    how, rank = (f" (rank {first.rank}: {first.message})", first.rank) if first else ("", None)
    if not around.trained and around.mode == "full":
        if not (first and first.outcome == outcomes.FAILED):
            how, rank = "", None
        on = f"; a resume continues from the checkpoint of step {kept:,}" if kept else ""
        early = f"while its ranks were starting, before step {(kept or 0) + 1}: nothing to save"
        return f"{STOPPED} {early}{how}{on}", rank
    reached = around.reached_step if step is None else step
    if kept is not None and reached is not None and kept >= reached:
        if killed:
            how, rank = " (its processes had to be killed later)", None
        return f"{STOPPED}{_at(kept)}; {saved}{how}", rank
    newest = "no checkpoint was saved" if kept is None else f"the newest checkpoint is from step {kept:,}"
    if not killed:
        return f"{STOPPED}{_at(step)} before it could save{how}; {newest}", rank
    # A rank that hangs after its save reports nothing, so only the checkpoint is known.
    missed = "had saved" if step is not None or kept is None else "reported a save"
    missed += "" if step is None else f" step {step:,}"
    late = f" {around.killed_after}" if around.killed_after else ""
    return f"{STOPPED}; its ranks were killed{late} before they {missed}; {newest}", None


def _rollback(record: ExitRecord, around: Circumstances) -> Verdict:
    order, stopped = json.loads(record.detail), around.stop_requested
    return Verdict(
        CANCELLED if stopped else FAILED,
        record.message + (f"; {STOPPED} before the rollback" if stopped else ""),
        retry=not stopped,
        step=order["step"],
        kind=end_kinds.ROLLBACK,
        bad_samples=(order["first"], order["last"]),
    )


def _failure(first: ExitRecord, missing: list[int], around: Circumstances, step: int | None) -> Verdict:
    killed = first.outcome == outcomes.KILLED or first.exit_code == EXIT_137
    at = "" if NAMES_STEP.match(first.message) else _at(first.step)
    where = f"rank {first.rank} was killed{at}" if killed else f"rank {first.rank} failed{at}"
    said = f"{first.message}\n{first.detail}"
    if killed:
        return _killed(first, where, around, step)
    if SHARED_MEMORY.search(said):
        # Another attempt would find the same small /dev/shm and fail again.
        full = f"{where}: /dev/shm is full: {_last_line(first)}. {around.fix(end_kinds.SHARED_MEMORY)}"
        return Verdict(FAILED, full, step=step, kind=end_kinds.SHARED_MEMORY)
    has_fix = KIND_OF_ERROR.get(first.error or "") == end_kinds.DISK
    if has_fix or FULL_DISK.search(said):
        # A system error has no fix.
        fix = "" if has_fix else f". {around.fix(end_kinds.DISK)}"
        full = f"{where}: {DISK_IS_FULL}: {first.message.removesuffix('.')}{fix}"
        return Verdict(FAILED, full, True, step=step, kind=end_kinds.DISK)
    if DEVICE_MEMORY.search(said):
        return _out_of_memory(first, where, around, step, end_kinds.DEVICE_MEMORY)
    if user_error(first):
        kind = KIND_OF_ERROR.get(first.error, end_kinds.USER_ERROR)
        return Verdict(FAILED, f"{where}: {first.message}", step=step, kind=kind)
    if HOST_MEMORY.search(said):
        return _out_of_memory(first, where, around, step, end_kinds.HOST_MEMORY)
    if LOST_DEVICE.search(said):
        return Verdict(
            FAILED, f"{where}: its GPU is lost: {first.message}", True, step=step, kind=end_kinds.DEVICE
        )
    if _lost_peer(first):
        return _lost_peers(first, around, step)
    gone = ""
    if missing:
        were = (
            "which was killed with its wrapper process"
            if len(missing) == 1
            else "which were killed with their wrapper processes"
        )
        gone = f" (no exit record from rank{'s' * (len(missing) > 1)} {_ranks(missing)}, {were})"
    signature = None if missing else (first.step, first.message)
    return Verdict(FAILED, f"{where}: {first.message}{gone}", retry=True, signature=signature, step=step)


def _last_line(record: ExitRecord) -> str:
    """Return the last line of an error message, which is the error itself after a data worker's traceback."""
    return (record.detail.strip() or record.message).splitlines()[-1].rstrip(".")


def _killed(record: ExitRecord, where: str, around: Circumstances, step: int | None) -> Verdict:
    if record.signal not in (SIGKILL, None):
        said = _once(where, record.message)
        if record.signal == SIGBUS:
            said += ": shared memory (/dev/shm) is full, or a mapped file was truncated"
        return Verdict(FAILED, said, retry=True, step=step, kind=end_kinds.KILLED)
    how = "exit code 137" if record.signal is None else "SIGKILL"
    if evidence := around.memory.evidence(around.pids.get(record.rank)):
        fix = around.fix(end_kinds.HOST_MEMORY)
        said = f"out of host memory: the kernel killed it ({how}; {evidence}). {fix}"
        # A second failure at the same step means that the run does not fit into memory.
        return Verdict(
            FAILED, f"{where}: {said}", True, (end_kinds.HOST_MEMORY, step), step, end_kinds.HOST_MEMORY
        )
    # The kernel does not record which process sent a signal, so the cause separates facts from guesses.
    said = "killed by SIGKILL" if record.signal else "exit code 137, which stands for SIGKILL"
    return Verdict(
        FAILED, f"{_once(where, said)}, {_by_whom(around)}", True, step=step, kind=end_kinds.KILLED
    )


def _once(where: str, said: str) -> str:
    """Join texts such as "rank 1 was killed at step 7" and "killed by SIGKILL" without repeating "killed"."""
    by = said.removeprefix("killed ")
    return f"{where}: {said}" if by == said else f"{where} {by}"


def _by_whom(around: Circumstances) -> str:
    by = "not by nbtrain but by a user, another program or "
    if perhaps := around.memory.possibility:
        return f"{by}possibly the kernel's out-of-memory killer: {perhaps}"
    return f"{by}the kernel's out-of-memory killer ({around.memory.no_evidence})"


def _out_of_memory(
    record: ExitRecord, where: str, around: Circumstances, step: int | None, kind: str
) -> Verdict:
    """Return the verdict on a rank that ran out of memory.

    It allows a retry only after STEADY_STEPS good steps, because then memory fragmentation or another program
    may be the cause.
    """
    made = (record.step or 0) - around.first_step
    title = "GPU memory" if kind == end_kinds.DEVICE_MEMORY else "host memory"
    said = f"{where}: out of {title}: {record.message.removeprefix('OutOfMemoryError: ')}"
    if made >= STEADY_STEPS:
        signature = (kind, record.step)
        return Verdict(FAILED, f"{said} (after {made} good steps)", True, signature, step, kind)
    return Verdict(FAILED, f"{said.removesuffix('.')}. {around.fix(kind)}", step=step, kind=kind)


def _lost_peers(first: ExitRecord, around: Circumstances, step: int | None) -> Verdict:
    if around.stuck:
        said = f"{around.stuck}; rank {first.rank} gave up waiting{_at(first.step)}: {first.message}"
        return Verdict(FAILED, said, True, step=step, kind=end_kinds.HANG)
    said = (
        "ranks lost contact with each other, and none of them reported another error; the first report is "
        f"from rank {first.rank}{_at(first.step)}: {first.message}"
    )
    kind = end_kinds.TIMEOUT if TIMED_OUT.search(first.message) else end_kinds.LOST_PEER
    return Verdict(FAILED, said, True, step=step, kind=kind)


def user_error(record: ExitRecord) -> bool:
    """Return whether a rank failed with an error that only the user can fix.

    Such an error has a message and no traceback, or is of a class in USER_ERROR.
    """
    detail = record.detail.strip()
    if detail and not detail.startswith("Traceback"):
        return True
    raised = detail.splitlines()[-1].partition(":")[0] if detail else ""
    return bool(USER_ERROR.match(record.message) or USER_ERROR.search(raised))


def _launcher_killed(number: int) -> str:
    return f"the launcher of the ranks was killed by {signal_name(number)}, not by nbtrain"


def _without_witness(missing: list[int], around: Circumstances, step: int | None) -> Verdict:
    """Return the verdict on ranks without an exit record, which were killed together with their wrappers.

    If ranks were found gone before others were killed, the verdict names only those.
    """
    gone = [rank for rank in missing if rank in around.gone] or missing
    if len(gone) == around.world_size and not around.gone:
        words = f": {around.launcher_message}" if around.launcher_message else ""
        said = f"the launcher ended before any rank wrote an exit record{words}"
        return Verdict(FAILED, said, retry=True, step=step)
    said = f"the wrapper processes of ranks {_ranks(gone)} were killed, and the ranks with them"
    if len(gone) == 1:
        said = f"rank {gone[0]}'s wrapper process was killed, and rank {gone[0]} with it"
    pids = (around.pids.get(rank) for rank in gone)
    if evidence := next(filter(None, (around.memory.evidence(pid) for pid in pids)), ""):
        said += f": out of host memory ({evidence}). {around.fix(end_kinds.HOST_MEMORY)}"
        return Verdict(
            FAILED, said, True, (end_kinds.HOST_MEMORY, step), step, end_kinds.HOST_MEMORY, rank=gone[0]
        )
    if around.node_left:
        return _gone_with_node(missing, around, step)
    said = f"{said}, {_by_whom(around)}"
    return Verdict(FAILED, said, retry=True, step=step, kind=end_kinds.NO_RECORD, rank=gone[0])


def _gone_with_node(missing: list[int], around: Circumstances, step: int | None) -> Verdict:
    said = f"{around.node_left}; no exit record from rank{'s' * (len(missing) > 1)} {_ranks(missing)}"
    return Verdict(FAILED, said, retry=True, step=step, kind=end_kinds.NO_RECORD, rank=missing[0])


def _first_failure(records: Mapping[int, ExitRecord], around: Circumstances) -> ExitRecord | None:
    """Return the failure that caused the other failures; None if no rank failed.

    The other ranks lost a peer, or were ended by the launcher or the supervisor.
    """
    return min(_bad(records), key=lambda record: (_distance(record, around), record.time), default=None)


def _distance(record: ExitRecord, around: Circumstances) -> int:
    """Return how far an exit is from the cause of the failure, from 0 to 3.

    0: the rank failed by itself; 1: it lost a peer; 2: it received a signal after another rank's end; 3: the
    supervisor killed it.
    """
    if record.signal == SIGKILL and around.killed_at is not None and record.time >= around.killed_at:
        return 3
    if record.outcome == outcomes.KILLED and record.signal in (SIGABRT, SIGTERM):
        return 2
    return 1 if _lost_peer(record) else 0


def _lost_peer(record: ExitRecord) -> bool:
    # NCCL reports both a full /dev/shm and a lost peer as a system error.
    own = SHARED_MEMORY.search(f"{record.message}\n{record.detail}")
    return record.outcome == outcomes.FAILED and not own and bool(LOST_PEER.search(record.message))


def lost_a_peer(records: Mapping[int, ExitRecord]) -> bool:
    """Return whether every failed rank gave up waiting for another rank, which may hang.

    Returns False if no rank failed.
    """
    bad = _bad(records)
    return bool(bad) and all(_lost_peer(record) for record in bad)


def _bad(records: Mapping[int, ExitRecord]) -> list[ExitRecord]:
    return [record for record in records.values() if record.outcome in outcomes.FAILED_OUTCOMES]


def _at(step: int | None) -> str:
    return f" at step {step:,}" if step is not None else ""


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
