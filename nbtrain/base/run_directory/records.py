"""Records in a run directory, one dataclass each, including ProcessIdentity, which is safer than a pid."""

import functools
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION


class Record:
    """A dataclass that is read from and written to a JSON file. Keys of a newer nbtrain are ignored."""

    @classmethod
    def of_json(cls, value: Any, where: object = "") -> Self:
        """Build the record from a JSON object. Raises RecordError, which begins with `where`."""
        known = _inner_records(cls)  # type: ignore[arg-type]
        try:
            return cls(**{name: _nested(known[name], value[name], where) for name in value if name in known})
        except (TypeError, KeyError, AttributeError) as error:
            raise RecordError(f"{where}: is not a {cls.__name__}: {error}") from error

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the record from a file.

        None if the file does not exist. Raises RecordError, which names the file.
        """
        value = files.read_json(path)
        return None if value is None else cls.of_json(value, path)

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        files.write_json(path, asdict(self))  # type: ignore[call-overload]


class RenewedRecord(Record):
    """A record that is rewritten every few seconds without fsync. A power failure may leave its file
    empty.
    """

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read the record from a file. None if the file does not exist or is empty. Raises RecordError."""
        value = files.read_json_unsynced(path)
        return None if value is None else cls.of_json(value, path)

    def write(self, path: Path) -> None:
        """Write the record by rename, without fsync."""
        files.write_json_unsynced(path, asdict(self))  # type: ignore[call-overload]


@functools.cache
def _inner_records(cls: type[Record]) -> dict[str, tuple[type[Record], object] | None]:
    """Return {field: (record class, container)}; the value is None for a field that holds no record.

    The container is list or dict if the field holds several records, and None if it holds one.
    """
    found: dict[str, tuple[type[Record], object] | None] = {}
    for one in fields(cls):  # type: ignore[arg-type]
        kind: Any = one.type
        if isinstance(kind, UnionType):
            # `X | None`: a value that is not None is an X.
            kind = next(inner for inner in get_args(kind) if inner is not type(None))
        records = [
            inner
            for inner in (kind, *get_args(kind))
            if isinstance(inner, type) and issubclass(inner, Record)
        ]
        found[one.name] = (records[0], get_origin(kind)) if records else None
    return found


def _nested(inner: tuple[type[Record], object] | None, value: Any, where: object) -> Any:
    """Convert the value of a field that holds one record, a list of records or a dict of records."""
    if inner is None or value is None:
        return value
    record, several = inner
    if several is list:
        return [record.of_json(one, where) for one in value]
    if several is dict:
        return {key: record.of_json(one, where) for key, one in value.items()}
    return record.of_json(value, where)


@dataclass
class Stamp(Record):
    """A time on the kernel's clock since boot, which cannot be set.

    Two stamps of the same boot therefore give an exact duration.
    """

    boot_id: str
    seconds: float

    @classmethod
    def now(cls) -> "Stamp":
        """Read CLOCK_BOOTTIME, which, like the wall clock, also counts while the machine is suspended."""
        return cls(boot_id(), round(time.clock_gettime(time.CLOCK_BOOTTIME), 3))


@dataclass
class Stamped(Record):
    """A record that stores a Stamp in addition to each of its times in seconds since the epoch."""

    stamps: dict[str, Stamp] = field(default_factory=dict, kw_only=True, compare=False)

    def mark(self, name: str) -> None:
        """Set the time `name` to now."""
        setattr(self, name, time.time())
        self.stamps[name] = Stamp.now()

    def seconds_between(self, begin: str, end: str) -> float:
        """Return the seconds between two times.

        The stamps are used if both are from the same boot, otherwise the wall clock.
        """
        first, last = self.stamps.get(begin), self.stamps.get(end)
        if first and last and first.boot_id == last.boot_id:
            return last.seconds - first.seconds
        return max(0.0, getattr(self, end) - getattr(self, begin))

    def seconds_since(self, begin: str, now: float | None = None) -> float:
        """Return the seconds since a time.

        The stamp of `begin` is used if it is from this boot, otherwise the wall clock until `now`.
        """
        first = self.stamps.get(begin)
        if first and first.boot_id == boot_id():
            return Stamp.now().seconds - first.seconds
        return max(0.0, (time.time() if now is None else now) - getattr(self, begin))


@dataclass
class ProcessIdentity(Record):
    """A process, identified so that a later process with the same pid is not mistaken for it."""

    pid: int
    start_ticks: int
    boot_id: str
    host: str = field(default="", compare=False)
    """Name of the process's host when the record was written. A host may be renamed later."""

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a live process that this user may see.

        None otherwise; a zombie is not alive.
        """
        try:
            # The command name is in parentheses and may hold anything, so the line is split after the last
            # parenthesis.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # PermissionError: another user's process where /proc is mounted with hidepid=1.
            return None
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id(), host_name())

    def alive(self) -> bool:
        """Return whether the process is running on this host."""
        return ProcessIdentity.of(self.pid) == self

    def elsewhere(self) -> bool:
        """Return whether the process is on another host or in another container.

        Its absence on this host then proves nothing.
        """
        return self.host not in ("", host_name()) and not self.alive()

    def gone(self) -> bool:
        """Return whether the process is known to have ended."""
        return not self.alive() and not self.elsewhere()


def host_name() -> str:
    """Return this host's name in the form that ProcessIdentity stores."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class AttemptRecord(Record):
    """One attempt of a job, in job.json. Unknown values are None."""

    attempt: int
    started_at: float
    world_size: int
    data_parallel_size: int
    first_step: int | None = None
    """Step of the checkpoint to load; None if there was none when the attempt began."""
    first_tokens: int = 0
    """Number of tokens that were trained before the attempt began."""
    running_at: float | None = None
    """Time at which rank 0 finished loading."""
    resumed_from_step: int | None = None
    ended_at: float | None = None
    reached_step: int | None = None
    cause: str | None = None
    """Reason why the attempt ended, as one sentence without a full stop. None if it has not ended or has
    succeeded.
    """
    reason: str | None = None
    """Kind of end (base/run_directory/end_kinds.py). "" if no kind applies; None if it is not known."""
    failed_rank: int | None = None
    """Rank that failed first, or for which the others waited. None if no such rank is known."""
    given_up: str = ""
    """Reason why no other attempt followed, although one could have helped; "" otherwise."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Faults to inject, from backend.env (config/fault_orders.py)."""
    trace: bool = False
    """Whether rank 0 writes the loss and gradient norm of every step in hexadecimal."""
    lost_tokens: int | None = None
    """Number of tokens trained after the checkpoint from which the next attempt starts."""
    nodes: int | None = None
    """Number of machines on which the attempt's ranks ran."""
    async_save: bool | None = None
    """Whether the ranks write checkpoints in the background, as decided when the attempt began."""
    saving: str = ""
    """Sentence that says how the ranks write checkpoints, and why; "" if they write no checkpoints."""
    paused_seconds: float = 0.0
    """Seconds that the job had been paused or had waited for its devices before the attempt began."""


@dataclass
class DevicePrice(Record):
    """Price and energy of one device for an hour, from the plan at a job's submission."""

    usual: float | None
    currency: str
    kwh_per_hour: float | None
    devices_per_rank: float = 1.0
    """Number of devices that are paid for each rank. The number is more than 1 if a machine has more GPUs
    than ranks.
    """

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> "DevicePrice | None":
        """Return the price and the energy of a device for an hour, from a plan as in plan.json.

        None if the plan knows neither.
        """
        cost = plan.get("cost") or {}
        hours, energy, price = cost.get("device_hours"), cost.get("energy_kwh"), cost.get("price") or {}
        kwh_per_hour = energy / hours if hours and energy is not None else None
        if kwh_per_hour is None and not price:
            return None
        seconds, ranks = (plan.get("duration") or {}).get("seconds"), plan.get("world_size")
        per_rank = max(1.0, hours * 3600.0 / seconds / ranks) if hours and seconds and ranks else 1.0
        return cls(price.get("usual"), price.get("currency", ""), kwh_per_hour, per_rank)


@dataclass
class Preemption(Stamped):
    """Entry in job.json about an attempt that ended because the job's devices were taken away."""

    attempt: int
    notice: str
    """Announcement of the preemption, by the scheduler or by backend.preemption_notice."""
    preempted_at: float
    lost_steps: int
    """Number of steps trained after the checkpoint from which the next attempt starts."""
    lost_tokens: int
    resumed_at: float | None = None
    """Time at which the next attempt began; None while the job waits for devices."""

    @property
    def waited_seconds(self) -> float:
        """Seconds for which the job waited for devices; 0 while it still waits."""
        return 0.0 if self.resumed_at is None else self.seconds_between("preempted_at", "resumed_at")


@dataclass
class TrainingProgress(Record):
    """Progress of the training as rank 0 knows it, a part of its heartbeat. None means not known yet."""

    total_steps: int
    train_tokens: int
    consumed_tokens: int = 0
    consumed_samples: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    """Mean samples per second over the last 100 steps."""
    eta_seconds: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    validation_losses: dict[str, float] = field(default_factory=dict)
    """Last validation loss of each dataset of a blend or mixture, if the dataset had tokens in the loss."""
    steps_without_loss: int | None = None
    """Number of steps so far without a token in the loss."""
    test_loss: float | None = None
    overflow_steps: int | None = None
    """Number of steps that fp16's loss scaling has skipped so far."""
    checkpoint_step: int | None = None
    save_seconds: float | None = None
    """Seconds that the longest save of this job took, until the checkpoint was complete."""
    num_parameters: int | None = None
    memory_bytes: int | None = None
    """Peak memory of rank 0's device; on a CPU, the peak resident memory of the process."""
    pipeline_fraction: float | None = None
    """Fraction of rank 0's step time in which it waits for other pipeline stages or sends data to them. None
    without a pipeline.
    """
    target_tokens: int | None = None
    """Number of tokens that will have been trained after the last step. In a trial (batch.max_steps), it is
    less than train_tokens.
    """

    @property
    def goal_tokens(self) -> int:
        """Number of tokens of the whole training, as views show it.

        In a trial, it is less than train_tokens.
        """
        return self.train_tokens if self.target_tokens is None else self.target_tokens

    @property
    def mean_tokens_per_second(self) -> float | None:
        """Mean tokens per second over the last 100 steps, on which a single slow step has little effect.

        Until this mean is known, the value is the speed of the newest logged step; None if neither is known.
        """
        if not self.samples_per_second or not self.consumed_samples:
            return self.tokens_per_second
        return self.samples_per_second * self.consumed_tokens / self.consumed_samples


NO_SPEED: dict[str, Any] = {"tokens_per_second": None, "samples_per_second": None, "eta_seconds": None}
"""Fields of the progress of an ended attempt that do not apply to the next attempt."""


@dataclass
class JobRecord(Stamped):
    """job.json: the state of one job, with its attempts and preemptions. jobstate.py explains the states."""

    job_id: str
    run_id: str
    name: str
    state: str
    created_at: float
    world_size: int
    cause: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    attempt: int = 0
    restarts: int = 0
    resumed_from_step: int | None = None
    """Step of the checkpoint from which the newest attempt started. None if the attempt began at step 0."""
    supervisor: ProcessIdentity | None = None
    backend: str = "local"
    command: list[str] = field(default_factory=list)
    """Command of a rank: arguments for Python, to which the run directory is appended."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the run when the job was submitted."""
    autotune: str = "none"
    """Mode of DeepSpeed's autotuner. tune: the backend runs the autotuner without a supervisor. run: the
    autotuner runs first, then a supervisor.
    """
    attempts: list[AttemptRecord] = field(default_factory=list)
    """Records of the job's attempts, oldest first."""
    preemptions: list[Preemption] = field(default_factory=list)
    """Preemptions and evictions of the job, oldest first. They do not count as restarts."""
    goes_on_from: TrainingProgress | None = None
    """Progress of the newest checkpoint when the job was submitted; None if there was none."""
    price: DevicePrice | None = None
    """Price and energy from the plan at the submission. None if the plan knew neither."""
    schema_version: int = SCHEMA_VERSION

    def attempt_record(self, attempt: int) -> AttemptRecord | None:
        """Return the record of an attempt; None if there is none."""
        return next((one for one in self.attempts if one.attempt == attempt), None)

    @property
    def newest_attempt(self) -> AttemptRecord | None:
        """Newest attempt. None before the first attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def first_step(self) -> int | None:
        """Step of the checkpoint that the newest attempt must load. None without a checkpoint.

        Before the first attempt, it is the step that the first attempt must load.
        """
        if self.attempts:
            return self.attempts[-1].first_step
        return self.goes_on_from.checkpoint_step if self.goes_on_from else None

    @property
    def preemption_lost_steps(self) -> int:
        """Number of steps that all preemptions together have lost."""
        return sum(preemption.lost_steps for preemption in self.preemptions)

    @property
    def preemption_waited_seconds(self) -> float:
        """Seconds for which the job has waited for devices after its preemptions.

        If it still waits, they are counted until now or, in an ended job, until its end.
        """
        waiting, so_far = self.waiting_preemption, 0.0
        if waiting is not None and self.ended_at is not None:
            so_far = max(0.0, self.ended_at - waiting.preempted_at)
        elif waiting is not None:
            so_far = waiting.seconds_since("preempted_at")
        return so_far + sum(preemption.waited_seconds for preemption in self.preemptions)

    @property
    def waiting_preemption(self) -> Preemption | None:
        """Preemption after which the job still waits for devices. None if it does not wait."""
        newest = self.preemptions[-1] if self.preemptions else None
        return newest if newest is not None and newest.resumed_at is None else None

    def placed(self, beat: "Heartbeat") -> "Heartbeat":
        """Return the heartbeat `beat`, corrected while its rank has not loaded the checkpoint yet.

        Until the rank has loaded it, the heartbeat gets the step and tokens of the checkpoint.
        """
        newest = self.newest_attempt
        progress = beat.progress
        # While the rank loads the checkpoint, it sets its step before its number of tokens.
        at_step = newest is not None and beat.step == newest.first_step
        loads = not beat.step or bool(at_step and progress and not progress.consumed_tokens)
        if newest is not None and beat.attempt != newest.attempt:
            progress = progress and replace(progress, **NO_SPEED)
            beat = replace(beat, progress=progress)
        if newest is None or not newest.first_step or (not loads and beat.attempt == newest.attempt):
            return beat
        progress = progress and replace(progress, consumed_tokens=newest.first_tokens)
        return replace(beat, step=newest.first_step, progress=progress)


@dataclass
class Collective(Record):
    """The collective operation that a rank is in, or the last one that it called."""

    name: str
    """Name of the collective in torch.distributed. For send and recv, it includes the other rank's number."""
    kind: str
    """Kind of the process group, such as data_parallel; "" if the group has no kind."""
    ranks: list[int]
    number: int
    """Number of collectives that this rank has called in this group, including this one."""
    since: float
    waiting: bool
    """Whether the call has not returned yet. On a GPU, a call returns before the collective is done."""
    group: str = ""
    """Name of the group in torch, which is the same on all its ranks. The group is identified by its name and
    not by its ranks, because several groups may have the same ranks.
    """


@dataclass
class Heartbeat(Stamped, RenewedRecord):
    """heartbeat/<rank>.json, renewed at every change of phase and once a second in between.

    A thread of the rank renews it, so that `time` is fresh even if the rank hangs; the other fields show
    progress.
    """

    rank: int
    attempt: int
    process: ProcessIdentity
    time: float
    step: int
    phase: str
    """Phase of the rank: a key of rank_phases.ACTIVITIES."""
    phase_since: float
    progress: TrainingProgress | None = None
    """Progress of the training. Only rank 0 has it."""
    progress_count: int = 0
    """Counter that increases with every micro-batch, phase and collective, and stays the same in a rank that
    hangs.
    """
    collective: Collective | None = None
    host: str = ""
    dumps_stack: bool = False
    """Whether the rank writes the stacks of its threads to its log when it gets STACK_SIGNAL."""
    compute_seconds: float | None = None
    """Seconds for which the rank itself computed in the newest logged step, without waiting for other
    ranks.
    """
    written_bytes: int = 0
    """Number of checkpoint bytes written since the rank began. It grows during a save."""


STACK_SIGNAL = signal.SIGUSR2


@dataclass
class ExitRecord(Record):
    """exit/<rank>.<attempt>.json, which the rank's wrapper writes after the rank has ended."""

    rank: int
    attempt: int
    time: float
    exit_code: int | None
    """Exit code of the rank. None if a signal ended the rank."""
    signal: int | None
    outcome: str
    """How the process of the rank ended: one of the values in base/run_directory/outcomes.py."""
    step: int | None = None
    message: str = ""
    """Last message of the rank, on one line."""
    detail: str = ""
    """Details of the outcome: for a failure its traceback, if there is one; for a stop the limit that caused
    it, such as exit_interval_steps; for a rollback {"step", "first", "last"} as JSON: the bad step and the
    positions [first, last) that it has read."""
    said: str = ""
    """Outcome that the rank itself reported at its end; "" if it reported no outcome."""
    error: str = ""
    """Class of the error that ended the rank if it is one of nbtrain's errors (base/errors.py), else ""."""


@dataclass
class Rollback(Record):
    """Entry of rollbacks.json: samples that every attempt skips after it has loaded a checkpoint."""

    job_id: str
    attempt: int
    time: float
    step: int
    """Step with the NaN, Inf or loss spike."""
    checkpoint_step: int
    """Step of the newest checkpoint when the bad step occurred; 0 without a checkpoint."""
    first: int
    """First of the skipped positions [first, last) in the training order. The skipped positions extend from
    checkpoint_step to the end of the bad step.
    """
    last: int
    cause: str

    @classmethod
    def read_all(cls, path: Path) -> "list[Rollback]":
        return [cls.of_json(value, path) for value in files.read_json(path) or []]

    def append(self, path: Path) -> None:
        files.write_json(path, [asdict(entry) for entry in (*self.read_all(path), self)])


@dataclass
class ResumeCertificate(Record):
    """resume.json: how exactly a resume continues from its checkpoint (checkpoint/live/resume_report.py)."""

    kind: str
    """Exactness of the resume. bit-exact: as if the run had never been interrupted; data-exact: the same
    batches, with other rounding; changed: neither of the two.
    """
    reasons: list[str]
    """Differences from the run before the interruption, the most important first; empty if bit-exact."""
    step: int
    """Step of the checkpoint from which the run resumes."""
    next_batch_sha256: str | None
    """SHA-256 over positions and tokens of the next global batch. None if there is no next batch."""
    checked_at: float
    attempt: int | None = None
    """Attempt of the job that resumed."""
    source: str = ""
    """Disk from which the checkpoint was read, and why; "" without checkpoint.local_dir."""

    def __str__(self) -> str:
        batch = f", next batch {self.next_batch_sha256[:12]}" if self.next_batch_sha256 else ""
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        source = f"; taken from {self.source}" if self.source else ""
        return f"resume from step {self.step:,} is {self.kind}{batch}{reasons}{source}"


@dataclass
class Provenance(Record):
    """provenance/<attempt>.json: everything that the numbers of an attempt depend on.

    Rank 0 writes it before its first step (train/provenance.py).
    """

    job_id: str
    attempt: int
    first_step: int
    """Step of the checkpoint that was loaded; 0 without a checkpoint."""
    settings: dict[str, Any]
    """{dotted key: value} for the settings that affect the numbers, without passwords."""
    code_sha256: str
    """SHA-256 over nbtrain's files. code/<code_sha256>.json in the run directory lists them."""
    versions: dict[str, str]
    """Versions of Python and of the libraries that affect the numbers."""
    device: dict[str, Any]
    """Kind and name of rank 0's device; for a CPU also its model, its vector instructions and threads."""
    variables: dict[str, str]
    """Environment variables that change how the libraries compute."""
    data: dict[str, Any]
    """Order of the samples (DataState), with the SHA-256 of the tokenizer and of the first batch."""
    data_files: dict[str, str]
    """{name: SHA-256} for the sources of the text and the files of the prepared dataset."""


@dataclass
class ControlRequest(Record):
    """control/request.json. Rank 0 reads it at each step boundary, and all ranks agree on it."""

    request_id: int
    """Number that increases by one with each request. Rank 0 acts once on each number."""
    action: str
    """Requested action. save: save a checkpoint and continue; stop: save a checkpoint and exit with outcome
    "stopped".
    """
    reason: str
    time: float
