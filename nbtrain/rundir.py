"""The run directory: every path in it, who owns it, and the shape of every record.

    output/<run>/
      run.json                  submit      schema_version, run_id, name, parent, created_at
      config.yaml               submit      the resolved configuration: every field
      plan.json                 submit      what the planner said before launch
      summary.json              supervisor  at every end of a job
      rollbacks.json            supervisor  samples that are passed over, and why
      jobs/<job id>/
        job.json                submit, then the supervisor from its first act on
        environment.json        submit      commit, versions, devices, hashes
        deepspeed.json          submit      the derived DeepSpeed configuration
        resume.json             rank 0      what its newest attempt kept of the checkpoint that it went on from
        control/request.json    supervisor  what the ranks are asked to do at the next step boundary
        control/ack.json        rank 0      the last request it carried out
        control/devices.json    an operator how many devices the next attempt may take (backend.elastic)
        heartbeat/<rank>.json   that rank
        exit/<rank>.<attempt>.json          the wrapper of that rank
        logs/<rank>.<attempt>.log           that rank's stdout and stderr
        logs/supervisor.log     supervisor  its own words and torchrun's
        events/<writer>.jsonl   that writer (submit, supervisor, rank0, ...)
      tensorboard/              rank 0      event files
      model/global_step<N>/     the ranks   a checkpoint; counts when its manifest.json (rank 0, last) is whole
      model/latest              rank 0      a hint, never the truth
      universal/global_step<N>/ `nbtrain checkpoint universal`: a checkpoint in DeepSpeed's universal form
      profiling/  export/  notebooks/

One writer per file; every JSON file appears by rename; nothing inside holds an absolute path, so the
folder can be moved. Times are seconds since the epoch, UTC. Readers tolerate a missing file, never a torn one.
This module is the standard library only: the trainer, the supervisor and the panel all meet here.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nbtrain import files
from nbtrain.workspace import check_name, output_root

SCHEMA_VERSION = 1
JOB_ID_PATTERN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
# Of a checkpoint's manifest (train/checkpoint_manifest.py).
MANIFEST = "manifest.json"
# In its place, where the trainer has read the contents and found others.
REJECTED = "rejected.json"
MANIFEST_VERSIONS = (1, 2)
# In rank 0's event about a checkpoint that a resume passes over, behind its name and before the reason.
NOT_USED = "is not used"
CHECKPOINT_PATTERN = re.compile(r"global_step(\d+)")


class RunDir:
    """Owner of every path of one run."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).absolute()

    @classmethod
    def named(cls, name: str) -> "RunDir":
        """The directory of the run `name` under the output root; it need not exist."""
        return cls(output_root() / check_name(name, "name"))

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def config_yaml(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plan_json(self) -> Path:
        return self.path / "plan.json"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def rollbacks_json(self) -> Path:
        return self.path / "rollbacks.json"

    @property
    def jobs(self) -> Path:
        return self.path / "jobs"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def latest(self) -> Path:
        return self.model / "latest"

    @property
    def universal(self) -> Path:
        return self.path / "universal"

    @property
    def profiling(self) -> Path:
        return self.path / "profiling"

    @property
    def export(self) -> Path:
        return self.path / "export"

    @property
    def notebooks(self) -> Path:
        return self.path / "notebooks"

    def checkpoint(self, step: int) -> Path:
        return self.model / f"global_step{step}"

    def checkpoint_manifest(self, step: int) -> Path:
        return self.checkpoint(step) / MANIFEST

    def checkpoint_steps(self) -> list[int]:
        """Steps of every checkpoint folder, whole or not, ascending."""
        if not self.model.is_dir():
            return []
        matches = (CHECKPOINT_PATTERN.fullmatch(entry.name) for entry in self.model.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def exists(self) -> bool:
        return self.run_json.is_file()

    def record(self) -> dict[str, Any] | None:
        """run.json, or None."""
        return files.read_json(self.run_json)

    def job_ids(self) -> list[str]:
        """Job ids, oldest first (an id starts with its UTC time)."""
        if not self.jobs.is_dir():
            return []
        return sorted(entry.name for entry in self.jobs.iterdir() if JOB_ID_PATTERN.fullmatch(entry.name))

    def job(self, job_id: str) -> "JobDir":
        return JobDir(self, job_id)

    def newest_job(self) -> "JobDir | None":
        ids = self.job_ids()
        return JobDir(self, ids[-1]) if ids else None

    @contextlib.contextmanager
    def locked(self, blocking: bool = True) -> Iterator[bool]:
        """Hold the run's lock: flock on the directory itself, so that no lock file can be left behind.

        Yields whether it was taken (always, if blocking). The kernel frees it when the holder dies.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(descriptor)


class JobDir:
    """Owner of every path of one job of a run."""

    def __init__(self, run: RunDir, job_id: str):
        if not JOB_ID_PATTERN.fullmatch(job_id):
            raise ValueError(f"{job_id!r} is not a job id such as 20261121-031500-a1b2")
        self.run = run
        self.job_id = job_id
        self.path = run.jobs / job_id

    @property
    def job_json(self) -> Path:
        return self.path / "job.json"

    @property
    def environment_json(self) -> Path:
        return self.path / "environment.json"

    @property
    def deepspeed_json(self) -> Path:
        return self.path / "deepspeed.json"

    @property
    def resume_json(self) -> Path:
        return self.path / "resume.json"

    @property
    def control_request(self) -> Path:
        return self.path / "control" / "request.json"

    @property
    def control_ack(self) -> Path:
        return self.path / "control" / "ack.json"

    @property
    def control_devices(self) -> Path:
        return self.path / "control" / "devices.json"

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"{rank}.json"

    def exit_record(self, rank: int, attempt: int) -> Path:
        return self.path / "exit" / f"{rank}.{attempt}.json"

    def log(self, rank: int, attempt: int) -> Path:
        return self.path / "logs" / f"{rank}.{attempt}.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "logs" / "supervisor.log"

    @property
    def events(self) -> Path:
        return self.path / "events"

    def make_folders(self) -> None:
        for name in ("control", "heartbeat", "exit", "logs", "events"):
            (self.path / name).mkdir(parents=True, exist_ok=True)


def checkpoint_problem(folder: Path) -> str | None:
    """Why a checkpoint is not whole, as far as names and sizes tell; None where they are right. Cheap."""
    if not folder.is_dir():
        return "there is no such checkpoint"
    try:
        manifest = files.read_json(folder / MANIFEST)
    except ValueError:
        return f"{MANIFEST} is not JSON"
    if manifest is None:
        return _why_rejected(folder) or f"it has no {MANIFEST}: its writing was cut off"
    if not isinstance(manifest, dict):
        return f"{MANIFEST} holds a {type(manifest).__name__} in place of fields"
    if (version := manifest.get("schema_version")) not in MANIFEST_VERSIONS:
        known = " and ".join(str(number) for number in MANIFEST_VERSIONS)
        return f"{MANIFEST} has schema_version {version}; this nbtrain reads {known}"
    described = manifest.get("files")
    if not isinstance(described, dict) or not all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for entry in described.values()
    ):
        return f"{MANIFEST} does not say size and SHA-256 of its files"
    for name, expected in described.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if (size := path.stat().st_size) != expected["bytes"]:
            return f"{name} has {size:,} bytes; its manifest says {expected['bytes']:,}"
    return None


def _why_rejected(folder: Path) -> str | None:
    """What the trainer found when it read the contents of a checkpoint that had a manifest; None where it found nothing."""
    try:
        rejected = files.read_json(folder / REJECTED)
    except ValueError:
        return f"{REJECTED} is not JSON"
    return str(rejected["reason"]) if isinstance(rejected, dict) and "reason" in rejected else None


def new_job_id(now: float | None = None) -> str:
    """UTC time to the second and four random hex digits: sorts by age."""
    moment = time.gmtime(time.time() if now is None else now)
    return time.strftime("%Y%m%d-%H%M%S-", moment) + secrets.token_hex(2)


def new_run_id() -> str:
    return secrets.token_hex(8)


@dataclass
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The identity of a live process, or None. Zombies do not count as alive."""
        try:
            # The command name is in parentheses and may hold anything, so cut after the last one.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    def alive(self) -> bool:
        return ProcessIdentity.of(self.pid) == self


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class AttemptRecord:
    """One attempt of a job, in job.json; what is not known yet is None."""

    attempt: int
    started_at: float
    world_size: int
    data_parallel_size: int
    first_step: int | None = None
    """Of the newest whole checkpoint when it began, which it is to load; None where there was none."""
    first_tokens: int = 0
    """Trained until then."""
    running_at: float | None = None
    """When rank 0 was past loading."""
    resumed_from_step: int | None = None
    ended_at: float | None = None
    reached_step: int | None = None
    cause: str | None = None
    """Of its end, where it failed or was rolled back."""
    lost_tokens: int | None = None
    """Trained since the checkpoint that the next attempt goes on from."""


@dataclass
class JobRecord:
    """job.json. States and who may set them: jobstate.py."""

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
    """The checkpoint that the newest attempt went on from; None where it began at step 0."""
    supervisor: ProcessIdentity | None = None
    backend: str = "local"
    command: list[str] = field(default_factory=list)
    """What a rank runs: arguments of Python, to which the run directory is added."""
    attempts: list[AttemptRecord] = field(default_factory=list)
    """Oldest first."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def read(cls, path: Path) -> "JobRecord | None":
        value = files.read_json(path)
        if value is None:
            return None
        if value.get("supervisor"):
            value["supervisor"] = ProcessIdentity(**value["supervisor"])
        value["attempts"] = [AttemptRecord(**attempt) for attempt in value.get("attempts", [])]
        return cls(**value)

    def write(self, path: Path) -> None:
        files.write_json(path, asdict(self))

    @property
    def first_step(self) -> int | None:
        """Of the checkpoint that the newest attempt is to load; None where there is none."""
        return self.attempts[-1].first_step if self.attempts else None

    def placed(self, beat: "Heartbeat") -> "Heartbeat":
        """`beat` at the checkpoint's step and tokens, until its rank has loaded that and tells of its own."""
        newest = self.attempts[-1] if self.attempts else None
        if newest is None or not newest.first_step or (beat.step and beat.attempt == newest.attempt):
            return beat
        progress = beat.progress and replace(beat.progress, consumed_tokens=newest.first_tokens)
        return replace(beat, step=newest.first_step, progress=progress)


@dataclass
class Progress:
    """What rank 0 knows about the training; rides in its heartbeat. None: not known yet."""

    total_steps: int
    train_tokens: int
    consumed_tokens: int = 0
    consumed_samples: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    """Mean of the last 100 steps."""
    eta_seconds: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    test_loss: float | None = None
    overflow_steps: int | None = None
    """Of the run so far, that fp16's loss scaling left out."""
    checkpoint_step: int | None = None
    num_parameters: int | None = None


@dataclass
class Collective:
    """The collective that a rank is in, or the last one it called."""

    name: str
    """As torch.distributed names it; send and recv with the other rank's number."""
    kind: str
    """The kind of its group, such as data_parallel; "" where it has no name."""
    ranks: list[int]
    number: int
    """How many collectives this rank has called in this group, this one counted."""
    since: float
    waiting: bool
    """Whether the call has not returned; on a GPU it returns before the collective is done."""
    group: str = ""
    """torch's name of the group, the same on all its ranks: several groups may have the same ranks."""


@dataclass
class Heartbeat:
    """heartbeat/<rank>.json, renewed at every change of phase and once a second in between.

    A thread of the rank renews it, so that it is fresh while the rank hangs: whether a rank goes on is told by
    everything but `time`.
    """

    rank: int
    attempt: int
    process: ProcessIdentity
    time: float
    step: int
    phase: str
    """One of PHASES."""
    phase_since: float
    progress: Progress | None = None
    """Rank 0 only."""
    progress_count: int = 0
    """Rises with every micro batch, phase and collective; stands still in a rank that hangs."""
    collective: Collective | None = None
    host: str = ""
    dumps_stack: bool = False
    """Whether the rank writes the stacks of its threads to its log when it gets STACK_SIGNAL."""

    @classmethod
    def read(cls, path: Path) -> "Heartbeat | None":
        value = files.read_json(path)
        if value is None:
            return None
        value["process"] = ProcessIdentity(**value["process"])
        if value.get("progress"):
            value["progress"] = Progress(**value["progress"])
        if value.get("collective"):
            value["collective"] = Collective(**value["collective"])
        return cls(**value)

    def write(self, path: Path) -> None:
        files.write_json_unsynced(path, asdict(self))


STACK_SIGNAL = signal.SIGUSR2
PHASES = ("start", "build", "load", "train", "evaluate", "save", "test", "end")


@dataclass
class ExitRecord:
    """exit/<rank>.<attempt>.json, written by the rank's wrapper when the rank is gone."""

    rank: int
    attempt: int
    time: float
    exit_code: int | None
    """None where a signal ended it."""
    signal: int | None
    outcome: str
    """finished: all tokens done; stopped: saved and left on request; rollback: left in order, to go on from the newest
    checkpoint; failed: an error; killed: by a signal."""
    step: int | None = None
    message: str = ""
    """One line: what the rank said last."""
    detail: str = ""
    """The traceback of a failure, where there is one; of a stop the limit that made it, such as exit_interval_steps; of a
    rollback {"step", "first", "last"} as JSON: the bad step and the positions [first, last) that it has read."""

    @classmethod
    def read(cls, path: Path) -> "ExitRecord | None":
        value = files.read_json(path)
        return cls(**value) if value is not None else None

    def write(self, path: Path) -> None:
        files.write_json(path, asdict(self))


@dataclass
class Rollback:
    """One entry of rollbacks.json, a list: every attempt that loads a checkpoint passes over these samples."""

    job_id: str
    attempt: int
    time: float
    step: int
    """The bad one."""
    checkpoint_step: int
    """The newest checkpoint then; 0 where there was none."""
    first: int
    """[first, last) positions of the training order: from that checkpoint to the end of the bad step."""
    last: int
    cause: str

    @classmethod
    def read_all(cls, path: Path) -> "list[Rollback]":
        return [cls(**value) for value in files.read_json(path) or []]

    def append(self, path: Path) -> None:
        files.write_json(path, [asdict(entry) for entry in (*self.read_all(path), self)])


@dataclass
class ResumeCertificate:
    """resume.json: what going on from a checkpoint kept (train/certificate.py)."""

    kind: str
    """bit-exact: as if never interrupted; data-exact: the same batches, other rounding; changed: neither."""
    reasons: list[str]
    """What is not as it was, the weightiest first; empty where bit-exact."""
    step: int
    """Of the checkpoint."""
    next_batch_sha256: str | None
    """Over positions and tokens of the next global batch; None where there is none."""
    checked_at: float

    @classmethod
    def read(cls, path: Path) -> "ResumeCertificate | None":
        value = files.read_json(path)
        return cls(**value) if value is not None else None

    def write(self, path: Path) -> None:
        files.write_json(path, asdict(self))

    def __str__(self) -> str:
        batch = f", next batch {self.next_batch_sha256[:12]}" if self.next_batch_sha256 else ""
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"resume from step {self.step:,} is {self.kind}{batch}{reasons}"


@dataclass
class ControlRequest:
    """control/request.json: read by rank 0 at each step boundary, agreed on by all ranks."""

    request_id: int
    """Rises by one per request; rank 0 acts once per id."""
    action: str
    """save: checkpoint and go on; stop: checkpoint and leave with outcome "stopped"."""
    reason: str
    time: float

    @classmethod
    def read(cls, path: Path) -> "ControlRequest | None":
        value = files.read_json(path)
        return cls(**value) if value is not None else None

    def write(self, path: Path) -> None:
        files.write_json(path, asdict(self))


class EventWriter:
    """Appends to events/<writer>.jsonl: {"sequence", "time", "writer", "kind", "message", ...data}.

    kind is a lower-case word: state, phase, checkpoint, validation, alert, restart, config, warning, error.
    A phase event is written when the phase ends and carries "phase" and "seconds".
    Order within a file is by sequence, never by the clock; a new process goes on from the last number.
    """

    def __init__(self, job: JobDir, writer: str):
        self.writer = writer
        self.path = job.events / f"{writer}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        existing = list(read_events_file(self.path))
        self._sequence = existing[-1]["sequence"] + 1 if existing else 0
        self._mend_torn_tail()

    def write(self, kind: str, message: str, **data: Any) -> None:
        event = {
            "sequence": self._sequence,
            "time": time.time(),
            "writer": self.writer,
            "kind": kind,
            "message": message,
            **data,
        }
        self._sequence += 1
        # One write() of one line: readers that meet half a line leave it for the next look.
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, ensure_ascii=False) + "\n")

    def _mend_torn_tail(self) -> None:
        """End a line that a killed writer left open, so that ours does not glue to it."""
        if self.path.exists() and (content := self.path.read_bytes()) and not content.endswith(b"\n"):
            with self.path.open("ab") as stream:
                stream.write(b"\n")


def read_events_file(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of one event file, in order; a torn line is skipped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        if not line.endswith("\n"):
            return
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def read_events(job: JobDir) -> list[dict[str, Any]]:
    """All events of a job, by time; events of one writer stay in its order."""
    streams = [list(read_events_file(path)) for path in sorted(job.events.glob("*.jsonl"))]
    return sorted((event for stream in streams for event in stream), key=lambda event: event["time"])
