"""The run directory: every path in it, who owns it, and the shape of every record.

    output/<run>/
      run.json                  submit      schema_version, run_id, name, parent, created_at
      config.yaml               submit      the resolved configuration: every field
                                            (autotune: run: rank 0 adds what was found)
      plan.json                 submit      what the planner said before launch
      summary.json              supervisor  at every end of a job
      rollbacks.json            supervisor  samples that are passed over, and why
      notes.json                the user    labels changed since the submission, notes, archived or not
      jobs/<job id>/
        job.json                submit, then the supervisor from its first act on
        environment.json        submit      commit, versions, devices, hashes
        deepspeed.json          submit      the derived DeepSpeed configuration
        autotune.json           submit      what DeepSpeed's autotuner starts from
        autotune.py             submit      the script that it starts; it runs nbtrain.train.tuning
        resume.json             rank 0      what its newest attempt kept of its checkpoint
        control/request.json    supervisor  what the ranks are asked to do at the next step boundary
        control/ack.json        rank 0      the last request it carried out
        control/devices.json    an operator how many devices the next attempt may take (backend.elastic)
        control/pause.json      anyone      whether the job is to pause
        control/ask.json        anyone      a request to a supervisor on another host
        control/given_up.json   anyone      that a supervisor on another host counts as dead
        control/launch.json     supervisor  the ranks of an attempt, for the node agents
        control/signals.json    supervisor  signals to ranks, for the node agents
        nodes/<k>.json          the agent of node k: that it is there; not for jobs of this machine
        nodes/<k>.<attempt>.json  the same agent: how its ranks ended
        handle.json             submit      the engine's own name of the job (Slurm, Kubernetes)
        engine.json             who asked   what the engine said last
        kubernetes.json         who asked   a cluster's pods, conditions and events of the job
        heartbeat/<rank>.json   that rank
        exit/<rank>.<attempt>.json          the wrapper of that rank
        logs/<rank>.<attempt>.log           that rank's stdout and stderr
        logs/supervisor.log     supervisor  its own words and torchrun's
        logs/node<k>.log        the agent of node k: its own words and torchrun's; of a pod that ended before
                                its agent could write, what the pod said
        events/<writer>.jsonl   that writer (submit, supervisor, rank0, ...)
        resources/<node>.<number>.<level>.bin  that node: its CPU, memory, GPUs, network and disks over time
      tensorboard/              rank 0      event files
      model/global_step<N>/     the ranks   a checkpoint; counts if its manifest.json (written last) is whole
      model/latest              rank 0      a hint, never the truth
      model/local.json          rank 0      what lies on the nodes' own disks (checkpoint.local_dir)
      universal/global_step<N>/ `nbtrain checkpoint universal`: a checkpoint in DeepSpeed's universal form
      autotuning_exps/  autotuning_results/  DeepSpeed's autotuner: its trials, and what it found
      profiling/  export/  notebooks/
      .lock                     on network file systems that lock no folder: the run's lock

One writer per file; every JSON file appears by rename; nothing inside holds an absolute path, so the
folder can be moved. Times are seconds since the epoch, UTC. Readers tolerate a missing file, never a torn
one. This module is the standard library only: the trainer, the supervisor and the panel all meet here.
"""

import calendar
import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.locks import flock_folder
from nbtrain.base.workspace import check_name, output_root

SCHEMA_VERSION = 1
# Of a checkpoint; written last (checkpoint/manifest.py), so that a folder without it does not count.
MANIFEST = "manifest.json"
JOB_ID_PATTERN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
# In rank 0's event about a checkpoint that a resume passes over, after its name and before the reason.
NOT_USED = "is not used"
CHECKPOINT_PATTERN = re.compile(r"global_step(\d+)")


class RunDir:
    """Owner of every path of one run."""

    def __init__(self, path: str | os.PathLike):
        self.path = path = Path(path).absolute()
        self.name = path.name
        self.run_json = path / "run.json"
        self.config_yaml = path / "config.yaml"
        self.plan_json = path / "plan.json"
        self.summary_json = path / "summary.json"
        self.rollbacks_json = path / "rollbacks.json"
        self.notes_json = path / "notes.json"
        self.jobs = path / "jobs"
        self.tensorboard = path / "tensorboard"
        self.model = path / "model"
        self.latest = self.model / "latest"
        self.local_json = self.model / "local.json"
        self.universal = path / "universal"
        self.profiling = path / "profiling"
        self.export = path / "export"
        self.notebooks = path / "notebooks"
        self.autotuning_exps = path / "autotuning_exps"
        self.autotuning_results = path / "autotuning_results"
        self.autotuning_optimum = self.autotuning_results / "ds_config_optimal.json"

    @classmethod
    def named(cls, name: str) -> "RunDir":
        """The directory of the run `name` under the output root; it need not exist."""
        return cls(output_root() / check_name(name, "name"))

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

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
        """Hold the run's lock (locks.py). Yields whether it was taken: always, if blocking."""
        descriptor = flock_folder(self.path, blocking)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)


class JobDir:
    """Owner of every path of one job of a run."""

    def __init__(self, run: RunDir, job_id: str):
        if not JOB_ID_PATTERN.fullmatch(job_id):
            raise ValueError(f"{job_id!r} is not a job id such as 20261121-031500-a1b2")
        self.run = run
        self.job_id = job_id
        self.path = path = run.jobs / job_id
        self.job_json = path / "job.json"
        self.environment_json = path / "environment.json"
        self.deepspeed_json = path / "deepspeed.json"
        self.autotune_json = path / "autotune.json"
        self.autotune_script = path / "autotune.py"
        self.resume_json = path / "resume.json"
        self.control_request = path / "control" / "request.json"
        self.control_ack = path / "control" / "ack.json"
        self.control_devices = path / "control" / "devices.json"
        self.control_pause = path / "control" / "pause.json"
        self.control_ask = path / "control" / "ask.json"
        self.control_given_up = path / "control" / "given_up.json"
        self.control_launch = path / "control" / "launch.json"
        self.control_signals = path / "control" / "signals.json"
        self.handle_json = path / "handle.json"
        self.engine_json = path / "engine.json"
        self.kubernetes_json = path / "kubernetes.json"
        self.supervisor_log = path / "logs" / "supervisor.log"
        self.events = path / "events"
        self.resources = path / "resources"

    def heartbeat(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"{rank}.json"

    def exit_record(self, rank: int, attempt: int) -> Path:
        return self.path / "exit" / f"{rank}.{attempt}.json"

    def log(self, rank: int, attempt: int) -> Path:
        return self.path / "logs" / f"{rank}.{attempt}.log"

    def node(self, number: int) -> Path:
        return self.path / "nodes" / f"{number}.json"

    def node_exit(self, number: int, attempt: int) -> Path:
        return self.path / "nodes" / f"{number}.{attempt}.json"

    def node_log(self, number: int) -> Path:
        return self.path / "logs" / f"node{number}.log"

    def make_folders(self) -> None:
        for name in ("control", "heartbeat", "exit", "logs", "events", "nodes"):
            (self.path / name).mkdir(parents=True, exist_ok=True)


def new_job_id(now: float | None = None) -> str:
    """UTC time to the second and four random hex digits: sorts by age."""
    moment = time.gmtime(time.time() if now is None else now)
    return time.strftime("%Y%m%d-%H%M%S-", moment) + secrets.token_hex(2)


def time_of_job(job_id: str) -> float:
    """Seconds since the epoch: when a job was submitted, as its id says it."""
    return calendar.timegm(time.strptime(job_id[:15], "%Y%m%d-%H%M%S"))


def new_run_id() -> str:
    return secrets.token_hex(8)
