"""Cause each fault in a tiny run of two CPU processes, and write docs/evidence/faults-local.md.

    python -m tests.jobs.faults_table [NAME ...]       run only these faults; keep the other rows

The table shows the message that the user reads, how long the run takes to train again, and how many tokens
are lost. docs/errors.md quotes some of its messages and is updated too. tests/jobs/test_faults.py causes some
of these faults and tests their messages.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.hardware.cgroup import cgroup_file
from nbtrain.base.run_directory.checkpoint_files import read_checkpoints
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load, to_yaml
from nbtrain.dataset.prepare.prepare import prepare
from nbtrain.jobs.control import control
from nbtrain.jobs.submission.submit import resume, submit
from tests.disks import mounted_disk
from tests.docs import errors
from tests.parity.sources import FAULTS as EVIDENCE
from tests.parity.sources import stamp
from tests.waiting import PATIENCE_SECONDS, wait_until

DOCUMENT = EVIDENCE.page
BEGIN, END = "<!-- measured: python tests/jobs/faults_table.py -->", "<!-- end -->"
SEQ_LENGTH, BATCH, STEPS = 16, 8, 20
HANG_SECONDS = 60
RUN = f"""
name: tiny
model:
  num_layers: 2
  hidden_size: 32
  num_attention_heads: 2
  seq_length: {SEQ_LENGTH}
  hidden_dropout: 0.1
tokenizer: {{name: mock, vocab_size: 384}}
data: {{name: mock, split: "80,10,10", sources: [{{kind: mock, num_documents: 300}}]}}
batch: {{micro_batch_size: 2, global_batch_size: {BATCH}, train_tokens: {STEPS * BATCH * SEQ_LENGTH}}}
lr_schedule: {{lr: 1.0e-3, lr_warmup_tokens: 128}}
precision: {{dtype: fp32}}
parallel: {{data_parallel_size: 2, zero_stage: 1}}
checkpoint: {{save_interval_steps: 4}}
evaluation: {{eval_interval_steps: 10, eval_iters: 1}}
resources: {{device: cpu}}
backend:
  restart_backoff_seconds: 1
  shutdown_timeout_seconds: 20
  heartbeat_timeout_seconds: {HANG_SECONDS}
"""


@dataclass
class Suffered:
    """A job that suffered a fault, and how it ended."""

    job: JobDir
    state: str
    cause: str
    fault_at: float | None = None
    """When the fault happened, in seconds since the epoch."""

    @property
    def record(self) -> JobRecord:
        record = JobRecord.read(self.job.job_json)
        assert record is not None
        return record

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_events(self.job)

    @property
    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.job.log(0, 0).parent.glob("*.log")))

    @property
    def seconds(self) -> float | None:
        """Return the seconds between the fault and the time when the job trains again, or None if it never
        does.
        """
        again = [attempt.running_at for attempt in self.record.attempts[1:] if attempt.running_at]
        return again[0] - self.fault_at if again and self.fault_at else None

    @property
    def lost_tokens(self) -> int | None:
        return sum(attempt.lost_tokens or 0 for attempt in self.record.attempts)


@dataclass
class Fault:
    """A row of the table: how the fault is caused, and in which report the user reads about it."""

    title: str
    orders: list[dict[str, Any]] = field(default_factory=list)
    """Value of NBTRAIN_FAULTS for the job."""
    settings: dict[str, Any] = field(default_factory=dict)
    act: Callable[["Suffered", Callable[[], float]], None] | None = None
    """Function called while the job runs, with the job and a function that records the time of the fault."""
    reported_as: str = "restart"
    """Kind of the event that the user reads. "end" stands for the job's cause, "lost" for the cause of a lost
    job.
    """
    prepare: Callable[[Path], contextlib.AbstractContextManager] | None = None
    """Context manager that prepares a small disk or a memory cgroup for the job."""


def at(step: int, do: str, rank: int | None = None, attempt: int | None = 0, **more: Any) -> dict[str, Any]:
    order = {"step": step, "do": do, **more}
    return (
        order | ({} if rank is None else {"rank": rank}) | ({} if attempt is None else {"attempt": attempt})
    )


def reached(job: JobDir, step: int) -> bool:
    beat = Heartbeat.read(job.heartbeat(0))
    return beat is not None and beat.step >= step


def kill_supervisor(suffered: Suffered, note: Callable[[], float]) -> None:
    job = suffered.job
    wait_until(lambda: reached(job, 6), "step 6")
    # A run without a complete checkpoint cannot be resumed.
    wait_until(lambda: read_checkpoints(job.run).complete_step is not None, "a checkpoint")
    supervisor = suffered.record.supervisor
    assert supervisor is not None
    note()
    os.kill(supervisor.pid, signal.SIGKILL)
    wait_until(lambda: read_state(job, time.time())[0] == "LOST", "LOST")


def ask_for_one(suffered: Suffered, note: Callable[[], float]) -> None:
    control.ask_devices(suffered.job, 1)


def fill_disk(suffered: Suffered, note: Callable[[], float]) -> None:
    """Fill the small disk after step 6, and free space again when the job waits for it."""
    job = suffered.job
    wait_until(lambda: reached(job, 6), "step 6")
    ballast = job.run.path.parent / "ballast"
    note()
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1 << 16))
    wait_until(
        lambda: (
            any("waiting up to" in event["message"] for event in suffered.events)
            or read_state(job, time.time())[0] == "FAILED"
        ),
        "the wait for room",
    )
    ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[dict[str, str]]:
    """Mount a disk of 100 MiB for the output; a restart needs 80 MiB of free space. Requires root."""
    with mounted_disk(folder / "disk", "100m", refused=Impossible) as disk:
        yield {"NBTRAIN_OUTPUT": str(disk)}


@contextlib.contextmanager
def little_memory(folder: Path) -> Iterator[dict[str, str]]:
    """Create a memory cgroup of 3 GiB for all processes of the job. Requires root."""
    own = cgroup_file("memory", "memory.max", "memory.limit_in_bytes")
    if own is None:
        raise Impossible("no memory cgroup is visible here")
    group = own.parent / f"nbtrain-faults-{os.getpid()}"
    try:
        group.mkdir()
        (group / own.name).write_text(str(3 << 30))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        raise Impossible(f"cgroups cannot be made here: {error}") from error
    try:
        yield {"FAULTS_CGROUP": str(group)}
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "an empty cgroup")
        group.rmdir()


class Impossible(Exception):
    """The fault cannot be produced on this machine; the reason is written to the table."""


FAULTS = {
    "killed": Fault("kill -9 of a rank", [at(7, "kill", rank=1)]),
    "crashed": Fault("a rank crashes (SIGSEGV)", [at(7, "kill", rank=1, signal=11)]),
    "stopped": Fault("a rank is stopped (SIGSTOP)", [at(7, "stop", rank=1)]),
    "asleep": Fault("a rank sleeps before a collective", [at(7, "sleep", rank=1)]),
    "raised": Fault("an error in one rank, once", [at(7, "raise", rank=1, message="boom")]),
    "repeated": Fault(
        "the same error at the same step", [at(7, "raise", 1, None, message="boom")], reported_as="end"
    ),
    "nan-stop": Fault("loss is nan, `on_nan: stop`", [at(7, "nan", rank=1)], reported_as="end"),
    "nan-skip": Fault(
        "loss is nan, `on_nan: skip`",
        [at(7, "nan", rank=1)],
        {"stability.on_nan": "skip"},
        reported_as="skip",
    ),
    "nan-rollback": Fault(
        "loss is nan, `on_nan: rollback`",
        [at(7, "nan", rank=1)],
        {"stability.on_nan": "rollback"},
        reported_as="rollback",
    ),
    "spike-skip": Fault(
        "loss jumps, `on_loss_spike: skip`",
        [at(7, "spike")],
        {"stability.on_loss_spike": "skip", "stability.loss_spike_window_steps": 4},
        reported_as="skip",
    ),
    "spike-rollback": Fault(
        "loss jumps, `on_loss_spike: rollback`",
        [at(7, "spike")],
        {"stability.on_loss_spike": "rollback", "stability.loss_spike_window_steps": 4},
        reported_as="rollback",
    ),
    "gpu-memory": Fault(
        "out of GPU memory at step 1 (the message of CUDA, raised on a CPU)",
        [at(1, "oom", 1, None)],
        reported_as="end",
    ),
    "host-memory": Fault(
        "out of host memory (a cgroup of 3 GiB)", [at(7, "memory", rank=1)], prepare=little_memory
    ),
    "full-disk": Fault(
        "the disk is full; room is made while the job waits", act=fill_disk, prepare=small_disk
    ),
    "fewer": Fault(
        "a rank dies and one device is left, `elastic: true`",
        [at(7, "kill", rank=1)],
        {"backend.elastic": True},
        act=ask_for_one,
    ),
    "supervisor": Fault(
        "kill -9 of the supervisor; `nbtrain resume`", act=kill_supervisor, reported_as="lost"
    ),
}


def suffer(name: str, folder: Path, data_home: Path) -> Suffered:
    """Run a job with the fault in `folder` and return the result. Raises Impossible if the fault cannot be
    produced.
    """
    fault = FAULTS[name]
    (folder / "tiny.yaml").write_text(RUN)
    with fault.prepare(folder) if fault.prepare else contextlib.nullcontext({}) as around:
        variables = {"NBTRAIN_WORKSPACE": str(folder), "NBTRAIN_DATA": str(data_home), **around}
        with _environment(variables):
            orders = {
                "NBTRAIN_FAULTS": json.dumps(fault.orders),
                "NBTRAIN_TRACE": "1",
                "OMP_NUM_THREADS": "1",
            }
            config = load(folder / "tiny.yaml", {"name": name, "backend.env": orders, **fault.settings})
            job = (
                _submit_inside(config, folder, around["FAULTS_CGROUP"])
                if "FAULTS_CGROUP" in around
                else submit(config)
            )
            suffered = Suffered(job, "", "")

            def note() -> float:
                suffered.fault_at = time.time()
                return suffered.fault_at

            if fault.act:
                fault.act(suffered, note)
            suffered.state, cause = control.wait(job, PATIENCE_SECONDS)
            suffered.cause = cause or ""
            if suffered.fault_at is None:
                times = re.findall(r"^injected fault: .*, time ([\d.]+)$", suffered.log, flags=re.M)
                suffered.fault_at = float(times[0]) if times else None
            if fault.reported_as == "lost":
                _resume(suffered)
            # The files are read later; files on a small disk would be gone once it is unmounted.
            _keep(suffered, folder)
    return suffered


def _resume(suffered: Suffered) -> None:
    """Resume a lost job, as a user would, and measure the time until the new job trains."""
    lost = suffered.record
    second = resume(suffered.job.run)
    state, _ = control.wait(second, PATIENCE_SECONDS)
    assert state == "SUCCEEDED", state
    record = JobRecord.read(second.job_json)
    assert record is not None
    lost.attempts += record.attempts
    lost.write(suffered.job.job_json)


def _keep(suffered: Suffered, folder: Path) -> None:
    if suffered.job.run.path.is_relative_to(folder / "disk"):
        kept = RunDir(folder / "kept" / suffered.job.run.name)
        shutil.copytree(suffered.job.run.path, kept.path)
        suffered.job = kept.job(suffered.job.job_id)


def _submit_inside(config: Any, folder: Path, group: str) -> JobDir:
    """Submit from a new process in the cgroup, so that all processes of the job belong to it."""
    yaml = folder / "resolved.yaml"
    yaml.write_text(to_yaml(config))
    script = (
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from nbtrain.config.load import load_resolved\n"
        "from nbtrain.jobs.submission.submit import submit\n"
        "print(submit(load_resolved(sys.argv[2])).job_id)\n"
    )
    command = [sys.executable, "-c", script, group, str(yaml)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return RunDir.named(config.name).job(answer.stdout.strip())


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in (*variables, "NBTRAIN_OUTPUT")}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def report(name: str, suffered: Suffered) -> str:
    """Return the message that the user reads first."""
    kind = FAULTS[name].reported_as
    if kind in ("end", "lost"):
        return suffered.cause
    # Rank 0 reports a skip; the supervisor reports the end of an attempt.
    writer = "rank0" if kind == "skip" else "supervisor"
    event = next(event for event in suffered.events if (event["kind"], event["writer"]) == (kind, writer))
    return str(event.get("cause") or event["message"])


# --- the table ------------------------------------------------------------------------------------


def row(name: str, suffered: Suffered | None, why_not: str = "") -> str:
    title = FAULTS[name].title
    if suffered is None:
        return f"| {title} | not measured: {why_not} | | |"
    # The temporary folder means nothing to a reader.
    place = str(suffered.job.run.path.parents[1])
    words = report(name, suffered).replace(f"{place}/", "").replace("|", "\\|").replace("\n", " ")
    again = "the job ends" if suffered.seconds is None else f"{suffered.seconds:.0f}"
    if FAULTS[name].reported_as == "skip":
        again = "0, the job continues"
    return f"| {title} | {words} | {again} | {suffered.lost_tokens:,} |"


def write_table(rows: dict[str, str]) -> None:
    """Replace these rows; write a new stamp only if all rows are replaced."""
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    table, _, tail = rest.partition(END)
    known = {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| ")}
    lines = [rows.get(name) or known.get(f"| {fault.title}", "") for name, fault in FAULTS.items()]
    header = (
        "| fault | what the user reads | seconds to running again | tokens lost |\n| --- | --- | --- | --- |"
    )
    body = "\n".join(line for line in lines if line)
    stamps = [stamp(EVIDENCE)] if rows.keys() == FAULTS.keys() else re.findall(r"^Sources: .*$", table, re.M)
    head_lines = "".join(f"{line}\n\n" for line in stamps)
    files.write_text(DOCUMENT, f"{head}{BEGIN}\n{head_lines}{header}\n{body}\n{END}{tail}")


def main(names: list[str]) -> None:
    rows = {}
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        home = Path(temporary) / "data"
        (Path(temporary) / "tiny.yaml").write_text(RUN)
        with _environment({"NBTRAIN_DATA": str(home)}):
            prepare(load(Path(temporary) / "tiny.yaml"))
        for name in names or list(FAULTS):
            folder = Path(temporary) / name
            folder.mkdir()
            try:
                suffered = suffer(name, folder, home)
                rows[name] = row(name, suffered)
            except Impossible as error:
                rows[name] = row(name, None, str(error))
            print(rows[name], flush=True)
            write_table(rows)
    errors.renew_reports()


if __name__ == "__main__":
    main(sys.argv[1:])
