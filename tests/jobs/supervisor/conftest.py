"""Supervisors without ranks: processes that wait in the queue and hold the devices that they get."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.submission.job_files import write_identity
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.queue_place import QueuePlace
from nbtrain.jobs.supervisor.signals import SignalRequests
from tests.jobs.conftest import TINY


class Holders:
    """Forked processes. Each writes the line "name +" when it gets its devices, and "name -" before it
    ends.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._pids: dict[str, int] = {}
        (folder / "tiny.yaml").write_text(TINY)
        self.queue = Queue()
        self.queue.make()
        self.lines = folder / "lines"
        self.lines.touch()

    def machine(self, **limits: object) -> None:
        """Write devices.json, which limits the devices that all jobs may use together."""
        self.queue.devices_json.write_text(json.dumps(limits))

    def config(self, name: str, **overrides: object) -> RunConfig:
        return load(self._folder / "tiny.yaml", {"name": name, **overrides}, check=False)

    def job(self, name: str, submitted_at: float | None = None, backend: str = "local") -> JobDir:
        """Create the folder of a job, with only the files that the queue reads."""
        job = RunDir.named(name).job(new_job_id())
        job.make_folders()
        write_identity(job.run)
        at = time.time() if submitted_at is None else submitted_at
        JobRecord(job.job_id, "0", name, "QUEUED", at, 1, backend=backend).write(job.job_json)
        return job

    def start(
        self, name: str, submitted_at: float | None = None, hold_seconds: float = 3600, **overrides: object
    ) -> JobDir:
        """Start a process that waits for devices, holds them and then ends; TERM stops it."""
        config = self.config(name, **overrides)
        job = self.job(name, submitted_at, config.backend.kind)
        self._pids[name] = os.fork()
        if self._pids[name] == 0:
            try:
                self._hold(config, job, hold_seconds)
            finally:
                os._exit(1)
        return job

    def _hold(self, config: RunConfig, job: JobDir, seconds: float) -> None:
        log = os.open(job.supervisor_log, os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        asked, journal = SignalRequests().listen(), Journal(job)
        journal.take_over()
        place = QueuePlace(journal, config)
        if place.wait(asked, config) is None:
            journal.set_state("RUNNING")
            self._say(f"{job.run.name} + {os.environ.get('NBTRAIN_GPUS', '')}")
            asked.stop_within(seconds)
            self._say(f"{job.run.name} -")
        journal.set_state("CANCELLED" if asked.stop else "SUCCEEDED")
        place.give_up()
        os._exit(0)

    def _say(self, line: str) -> None:
        with self.lines.open("a") as stream:
            stream.write(f"{line.strip()}\n")

    def said(self) -> list[str]:
        return self.lines.read_text().splitlines()

    def signal(self, name: str, number: int = signal.SIGTERM) -> None:
        os.kill(self._pids[name], number)
        if number == signal.SIGKILL:
            self.ended(name)

    def ended(self, name: str) -> None:
        """Wait until the process has ended."""
        os.waitpid(self._pids.pop(name), 0)

    def end_all(self) -> None:
        for name, pid in list(self._pids.items()):
            os.kill(pid, signal.SIGKILL)
            self.ended(name)


@pytest.fixture
def holders(workspace: Path) -> Iterator[Holders]:
    """Provide a machine with two cores and no jobs."""
    made = Holders(workspace)
    made.machine(cores=2)
    yield made
    made.end_all()


@pytest.fixture
def cause_of() -> Callable[[JobDir], str]:
    """Return the cause of a job's state, read from its record."""

    def cause(job: JobDir) -> str:
        record = JobRecord.read(job.job_json)
        return (record.cause if record else None) or ""

    return cause
