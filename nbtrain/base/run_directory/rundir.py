"""The run directory: every path in it, who writes it, and what it holds.

    output/<run>/
      run.json                  submit      schema_version, run_id, name, parent, created_at
      config.yaml               submit      the resolved configuration of the newest job: every field
                                            (with autotune: run, rank 0 adds the best settings)
      plan.json                 submit      the planner's estimates before launch
      summary.json              supervisor  at every end of a job
      rollbacks.json            supervisor  samples that are skipped, and why
      init_from.json            submit      which weights the run starts from: hashes, config.json or step
      certificate.json          supervisor  at every end of a job: hashes of all that the run depends on, and
                                            the losses of its steps (monitor/run/certificate.py)
      code/<sha256>.json        rank 0      SHA-256 of each file of nbtrain that trained it
      own_code.json             submit      the file of `code`: path, SHA-256, functions, whether it was tried
      own_code/<name>.py        submit      a copy of that file, which the ranks import
      notes.json                the user    labels changed since the submission, notes, archived or not
      jobs/<job id>/
        job.json                submit, then the supervisor from its first act on
        config.yaml             submit      the resolved configuration of this job, passwords in
                                            addresses as ***
        origins.json            submit      where each setting was set: a line of a YAML, an override
        environment.json        submit      commit, versions, devices, hashes
        deepspeed.json          submit      the derived DeepSpeed configuration
        autotune.json           submit      input of DeepSpeed's autotuner
        autotune.py             submit      the script that the autotuner starts: nbtrain.train.tuning
        resume.json             rank 0      how exactly its newest attempt resumed from the checkpoint
        provenance/<attempt>.json  rank 0   what the attempt's numbers depend on: settings, code, data
        control/request.json    supervisor  the request to the ranks for the next step boundary
        control/ack.json        rank 0      the last request that the ranks have carried out
        control/devices.json    an operator number of devices for the next attempt (backend.elastic)
        control/pause.json      any process whether the job is to pause
        control/priority.json   any process its priority in this machine's queue, if changed since submission
        control/ask.json        any process a request to a supervisor on another host
        control/given_up.json   any process the note that a supervisor on another host counts as dead
        control/launch.json     supervisor  the ranks of an attempt, for the node agents
        control/signals.json    supervisor  signals to ranks, for the node agents
        nodes/<k>.json          the agent of node k: its presence and activity; not for local jobs
        nodes/<k>.<attempt>.json  the same agent: how an attempt ended on its machine
        handle.json             submit      the scheduler's id of the job (Slurm, Kubernetes)
        network.json            rank 0      measured speed of the network (train/calibration/network.py)
        engine.json             any process the scheduler's last response
        kubernetes.json         any process pods, conditions and events of the job in a cluster
        heartbeat/<rank>.json   that rank
        exit/<rank>.<attempt>.json          the wrapper of that rank
        logs/<rank>.<attempt>.log           that rank's stdout and stderr
        logs/supervisor.log     supervisor  its own output and the launcher's
        logs/node<k>.log        the agent of node k: its own output and the launcher's; if a pod ended
                                before its agent could write, the pod's output
        events/<writer>.jsonl   that writer (submit, supervisor, rank0, ...)
        resources/<node>.jsonl  that node   its CPU, memory, GPUs, network and disks over time
      tensorboard/              rank 0      scalars: event files for TensorBoard, and metrics.jsonl,
                                            metrics.2.jsonl, ... for nbtrain (metrics_files.py)
      model/global_step<N>/     the ranks   a checkpoint; valid once it has its manifest.json (written last)
      model/latest              rank 0      a hint that readers do not rely on
      model/local.json          rank 0      checkpoints on the nodes' own disks (checkpoint.local_dir)
      universal/global_step<N>/ `nbtrain checkpoint universal`: a checkpoint in DeepSpeed's universal form
      autotuning_exps/  autotuning_results/  DeepSpeed's autotuner: its trials and its results
      evaluation/global_step<N>/<name>.json  `nbtrain evaluate`: a checkpoint's results (evaluation_files.py)
      profiling/  export/  notebooks/
      .lock                     the run's lock, on network file systems that cannot lock folders

"any process" marks files that any of nbtrain's processes may replace, for example a command, a notebook or
the JupyterLab server; the last writer wins. Every other file has one writer at a time. Every JSON file that
nbtrain writes appears by rename. Files in the run directory refer to each other by relative paths, so the
folder can be moved. Times are seconds since the epoch, UTC. Readers tolerate a missing file but not a
truncated one. This module uses only the standard library, because the trainer, the supervisor and the panel
all import it.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.text.nearest import nearest
from nbtrain.base.workspace import check_name, display, output_root

SCHEMA_VERSION = 1
# File in a checkpoint folder, written last (checkpoint/files/manifest.py): without it the folder does not
# count.
MANIFEST = "manifest.json"
JOB_ID_PATTERN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
# Text in rank 0's event about a checkpoint that a resume skips, between the checkpoint's name and the reason.
NOT_USED = "is not used"
CHECKPOINT_PATTERN = re.compile(r"global_step(\d+)")


class _Below:
    """A path below the folder of a RunDir or JobDir.

    The path is built when it is accessed, because a list of runs uses only few of the paths.
    """

    def __init__(self, *parts: str):
        self._parts = parts

    def __get__(self, owner: "RunDir | JobDir", kind: type | None = None) -> Path:
        return owner.path.joinpath(*self._parts)


class RunDir:
    """All paths of one run."""

    run_json = _Below("run.json")
    config_yaml = _Below("config.yaml")
    plan_json = _Below("plan.json")
    summary_json = _Below("summary.json")
    rollbacks_json = _Below("rollbacks.json")
    init_from_json = _Below("init_from.json")
    own_code_json = _Below("own_code.json")
    own_code = _Below("own_code")
    notes_json = _Below("notes.json")
    certificate_json = _Below("certificate.json")
    jobs = _Below("jobs")
    tensorboard = _Below("tensorboard")
    model = _Below("model")
    latest = _Below("model", "latest")
    local_json = _Below("model", "local.json")
    universal = _Below("universal")
    profiling = _Below("profiling")
    export = _Below("export")
    evaluation = _Below("evaluation")
    notebooks = _Below("notebooks")
    autotuning_exps = _Below("autotuning_exps")
    autotuning_results = _Below("autotuning_results")
    autotuning_optimum = _Below("autotuning_results", "ds_config_optimal.json")

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path).absolute()
        self.name = self.path.name

    @classmethod
    def named(cls, name: str) -> "RunDir":
        """Return the directory of the run `name` in the output directory. It need not exist."""
        return cls(output_root() / check_name(name, "name"))

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    def code(self, sha256: str) -> Path:
        return self.path / "code" / f"{sha256}.json"

    def checkpoint(self, step: int) -> Path:
        return self.model / f"global_step{step}"

    def checkpoint_manifest(self, step: int) -> Path:
        return self.checkpoint(step) / MANIFEST

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of every checkpoint folder, complete or not, ascending."""
        if not self.model.is_dir():
            return []
        matches = (CHECKPOINT_PATTERN.fullmatch(entry.name) for entry in self.model.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def exists(self) -> bool:
        return self.run_json.is_file()

    def record(self) -> dict[str, Any] | None:
        """Return the contents of run.json. None if it does not exist."""
        return files.read_json(self.run_json)

    @property
    def run_id(self) -> str | None:
        """Id of the run, from run.json. None if no job was submitted yet."""
        return (self.record() or {}).get("run_id")

    def job_ids(self) -> list[str]:
        """Return the job ids, oldest first. An id starts with the UTC time of its submission."""
        if not self.jobs.is_dir():
            return []
        return sorted(name for name in os.listdir(self.jobs) if JOB_ID_PATTERN.fullmatch(name))

    def job(self, job_id: str) -> "JobDir":
        return JobDir(self, job_id)

    def unused_job_id(self) -> str:
        """Return a job id that sorts after the run's other ids, even if another host's clock is ahead."""
        known, job_id = self.job_ids(), new_job_id()
        if not known or job_id > known[-1]:
            return job_id
        return new_job_id(time_of_job(known[-1]) + 1)

    def newest_job(self) -> "JobDir | None":
        ids = self.job_ids()
        return JobDir(self, ids[-1]) if ids else None

    def existing_job(self, job_id: str | None = None) -> "JobDir":
        """Return the job with the given id, by default the newest job.

        Raises JobError if it does not exist.
        """
        ids = self.job_ids()
        if not ids:
            raise JobError(
                f"{display(self.path)} has no job yet. Run `nbtrain submit {self.name}` to start one."
            )
        if job_id is not None and job_id not in ids:
            raise JobError(f"{display(self.path)} has no job {job_id!r}. Its jobs: {', '.join(ids)}.")
        return self.job(job_id or ids[-1])

    @contextlib.contextmanager
    def locked(self, blocking: bool = True) -> Iterator[bool]:
        """Hold the run's lock (locks.py) while the block runs, and yield whether the lock was acquired.

        With `blocking`, wait for the lock, so that it is always acquired.
        """
        descriptor = flock_folder(self.path, blocking)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)


class JobDir:
    """All paths of one job of a run."""

    job_json = _Below("job.json")
    config_yaml = _Below("config.yaml")
    origins_json = _Below("origins.json")
    environment_json = _Below("environment.json")
    deepspeed_json = _Below("deepspeed.json")
    network_json = _Below("network.json")
    autotune_json = _Below("autotune.json")
    autotune_script = _Below("autotune.py")
    resume_json = _Below("resume.json")
    control_request = _Below("control", "request.json")
    control_ack = _Below("control", "ack.json")
    control_devices = _Below("control", "devices.json")
    control_pause = _Below("control", "pause.json")
    control_priority = _Below("control", "priority.json")
    control_ask = _Below("control", "ask.json")
    control_given_up = _Below("control", "given_up.json")
    control_launch = _Below("control", "launch.json")
    control_signals = _Below("control", "signals.json")
    handle_json = _Below("handle.json")
    engine_json = _Below("engine.json")
    kubernetes_json = _Below("kubernetes.json")
    logs = _Below("logs")
    supervisor_log = _Below("logs", "supervisor.log")
    nodes = _Below("nodes")
    events = _Below("events")
    resources = _Below("resources")

    def __init__(self, run: RunDir, job_id: str):
        if not JOB_ID_PATTERN.fullmatch(job_id):
            raise ValueError(f"{job_id!r} is not a job id such as 20261121-031500-a1b2")
        self.run = run
        self.job_id = job_id
        self.path = run.jobs / job_id

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"{rank}.json"

    def provenance(self, attempt: int) -> Path:
        return self.path / "provenance" / f"{attempt}.json"

    def heartbeats(self) -> list[Path]:
        """Return the heartbeat files that exist, one per rank."""
        folder = self.path / "heartbeat"
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        return [folder / name for name in names if name.endswith(".json")]

    def exit_record(self, rank: int, attempt: int) -> Path:
        return self.path / "exit" / f"{rank}.{attempt}.json"

    def log(self, rank: int, attempt: int) -> Path:
        return self.logs / f"{rank}.{attempt}.log"

    def node(self, number: int) -> Path:
        return self.nodes / f"{number}.json"

    def node_exit(self, number: int, attempt: int) -> Path:
        return self.nodes / f"{number}.{attempt}.json"

    def node_records(self) -> dict[int, Path]:
        """Return {node: path of its record} for the nodes whose agents have begun. {} for a local job."""
        paths = (path for path in self.nodes.glob("*.json") if path.stem.isdigit())
        return {int(path.stem): path for path in paths}

    def node_log(self, number: int) -> Path:
        return self.logs / f"node{number}.log"

    def node_logs(self) -> list[Path]:
        """Return the existing logs of node agents, sorted by the node's number."""
        return sorted(self.logs.glob("node*.log"), key=lambda path: (len(path.name), path.name))

    def make_folders(self) -> None:
        for name in ("control", "heartbeat", "exit", "logs", "events", "nodes"):
            (self.path / name).mkdir(parents=True, exist_ok=True)


def run_names() -> list[str]:
    """Return the names of the runs in the output directory."""
    return sorted(folder.name for folder in run_folders(output_root()) if _is_run(RunDir(folder)))


def run_folders(root: Path) -> list[Path]:
    """Return the entries of an output directory that may be runs, in any order; [] if it cannot be read."""
    try:
        return [root / name for name in os.listdir(root) if may_be_run(name)]
    except OSError:
        return []


def may_be_run(name: str) -> bool:
    """Return whether an entry of an output directory may be a run, by its name.

    A folder that is being deleted has a name with a leading dot.
    """
    return not name.startswith(".")


def _is_run(run: RunDir) -> bool:
    # A folder that this user may not read, such as lost+found, must not hide the others.
    with contextlib.suppress(PermissionError):
        return run.exists()
    return False


def runs_like(name: str) -> str:
    """Return a sentence for an error about an unknown run.

    The sentence lists runs with similar names, and says how many runs there are.
    """
    known = run_names()
    runs = f"{len(known):,} run{'' if len(known) == 1 else 's'}"
    return f"{nearest(name, known, 3)} `nbtrain runs` lists {runs} under {display(output_root())}.".strip()


def new_job_id(now: float | None = None) -> str:
    """Return a new id: the UTC time to the second and four random hex digits, so that ids sort by age."""
    moment = time.gmtime(time.time() if now is None else now)
    return time.strftime("%Y%m%d-%H%M%S-", moment) + os.urandom(2).hex()


def time_of_job(job_id: str) -> float:
    """Return when a job was submitted, in seconds since the epoch. The time is part of the job's id."""
    # Imported here, because it loads datetime and locale, 4 ms in all.
    import calendar

    return calendar.timegm(time.strptime(job_id[:15], "%Y%m%d-%H%M%S"))


def new_run_id() -> str:
    return os.urandom(8).hex()
