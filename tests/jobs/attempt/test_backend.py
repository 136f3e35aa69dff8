"""A backend is chosen by name, and every action on a job goes through it."""

import sys
import time
from types import SimpleNamespace

import pytest

from nbtrain.api.run import Run
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.attempt.backend import (
    BACKENDS,
    CAPABILITIES,
    READ_FROM_FILES,
    Backend,
    Capabilities,
    backend_of,
)
from nbtrain.jobs.control import control
from nbtrain.jobs.request.request import active_job


class Elsewhere:
    """A backend whose jobs do not run anywhere; it records the calls it gets."""

    capabilities = Capabilities(save=False, stop_in_order=False)

    def __init__(self):
        self.asked = []
        self.state = "RUNNING"

    def status(self, job):
        return self.state, None

    def cancel(self, job, now):
        self.asked.append(("cancel", now))
        self.state = "CANCELLED"
        return True

    def finish(self, job, now):
        self.asked.append(("finish", now))

    def logs(self, job, rank, lines):
        return [f"rank {rank}"]

    def events(self, job):
        return [{"kind": "state", "message": "far away"}]


@pytest.fixture
def elsewhere(monkeypatch):
    backend = Elsewhere()
    monkeypatch.setitem(BACKENDS, "elsewhere", "tests_elsewhere")
    monkeypatch.setitem(sys.modules, "tests_elsewhere", SimpleNamespace(BACKEND=backend))
    return backend


@pytest.fixture
def job(workspace):
    job = JobDir(RunDir.named("tiny"), new_job_id())
    job.make_folders()
    job.run.config_yaml.write_text(to_yaml(load("gpt-tiny", {"name": "tiny"})))
    JobRecord(job.job_id, "id", "tiny", "QUEUED", time.time(), 1, backend="elsewhere").write(job.job_json)
    return job


def test_a_job_is_asked_through_its_backend(job, elsewhere):
    """The state, logs and events of a job come from its backend. A backend that cannot stop a job in order
    kills it.
    """
    assert active_job(job.run).job_id == job.job_id
    run = Run(job.run)
    assert run.log(5) == ["rank 0"]
    assert [event["message"] for event in run.events] == ["far away"]
    assert control.cancel(job) == ("CANCELLED", None)
    assert elsewhere.asked == [("cancel", True), ("finish", False)]
    assert active_job(job.run) is None


def test_a_backend_whose_jobs_are_read_from_files_reads_them_as_backend_does():
    """Backend reads the jobs of local and hosts, so neither may read them differently."""
    for kind in READ_FROM_FILES:
        for name in ("status", "logs", "follow", "events"):
            assert getattr(type(backend_of(kind)), name) is getattr(Backend, name), (kind, name)


def test_what_a_backend_cannot_do_is_not_asked_for(job, elsewhere):
    with pytest.raises(JobError, match="runs on a backend that cannot request a checkpoint"):
        control.request_save(job)
    assert elsewhere.asked == []


def test_a_backend_of_a_newer_nbtrain_is_named(job):
    with pytest.raises(
        JobError, match=r"backend\.kind = elsewhere is unknown; this version of nbtrain supports local"
    ):
        control.cancel(job)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_backend_is_imported_on_use_and_can_what_its_line_says(kind):
    assert backend_of(kind).capabilities == CAPABILITIES[kind]
