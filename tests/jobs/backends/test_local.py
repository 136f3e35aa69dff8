"""Jobs on this machine, and actions that must not be applied here to jobs of another machine."""

import os
import time

import pytest

from nbtrain.base.errors import JobError
from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.node_records import Ask
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.backends.local import LocalBackend, LocalLauncher
from nbtrain.jobs.control import control


@pytest.fixture
def job(workspace):
    job = JobDir(RunDir.named("tiny"), new_job_id())
    job.make_folders()
    job.run.config_yaml.write_text(to_yaml(load("gpt-tiny", {"name": "tiny"})))
    return job


def write(job, supervisor, state="RUNNING"):
    JobRecord(job.job_id, "id", "tiny", state, time.time(), 1, supervisor=supervisor).write(job.job_json)


def test_a_job_of_another_host_is_asked_by_a_file(job):
    """A job on another host gets its request through a file; a process with the same pid on this machine gets
    no signal.
    """
    me = ProcessIdentity.of(os.getpid())
    write(job, ProcessIdentity(me.pid, me.start_ticks, "its boot", "other"))
    there = LocalBackend()
    asked = []
    for ask in (lambda: there.save(job), lambda: there.cancel(job, False), lambda: there.cancel(job, True)):
        assert ask()
        asked.append(Ask.read(job.control_ask))
    assert [(request.number, request.action) for request in asked] == [
        (1, "save"),
        (2, "stop"),
        (3, "stop_now"),
    ]
    with pytest.raises(JobError, match="a job is active"):
        control.clean(job.run)


def test_a_dead_supervisor_in_another_container_is_given_up(job, monkeypatch):
    """`cancel --now` marks a job whose supervisor is silent as LOST; a later heartbeat makes it RUNNING
    again.
    """
    monkeypatch.setattr(control, "UNHEARD_SECONDS", 0.0)
    write(job, ProcessIdentity(7, 1, "its boot", "other"))
    os.utime(job.job_json, (time.time() - 70, time.time() - 70))
    assert read_state(job, time.time()) == ("RUNNING", None)
    state, cause = control.cancel(job, now=True)
    assert (state, cause) == (
        "LOST",
        "its supervisor (pid 7 on other) gave no sign of life within 0 s of the request to exit at once, "
        "while the job was RUNNING",
    )
    os.utime(job.job_json, (time.time() + 5, time.time() + 5))
    assert read_state(job, time.time()) == ("RUNNING", None)
    assert Ask.read(job.control_ask).action == "stop_now"


def test_there_is_nobody_to_ask_of_a_job_that_has_ended(job):
    write(job, ProcessIdentity.of(os.getpid()), "FAILED")
    assert not LocalBackend().cancel(job, now=True)
    write(job, ProcessIdentity(os.getpid(), 1, "another boot"))
    assert not LocalBackend().save(job)


def test_a_launcher_reads_the_records_of_its_own_attempt(job):
    """The launcher ignores heartbeats and exit records of other attempts."""
    launcher = LocalLauncher(job, [])
    Heartbeat(0, 0, ProcessIdentity.of(os.getpid()), 1.0, 6, "train", 0.0).write(job.heartbeat(0))
    ExitRecord(0, 0, 1.0, 0, None, "finished").write(job.exit_record(0, 0))
    assert launcher.heartbeat(0).step == 6
    assert launcher.exit_record(0).outcome == "finished"
    Heartbeat(0, 1, ProcessIdentity.of(os.getpid()), 2.0, 7, "train", 0.0).write(job.heartbeat(0))
    assert launcher.heartbeat(0) is None
    assert launcher.exit_record(1) is None


def test_devices_are_counted_on_gpus_alone(job, monkeypatch):
    """GPUs are counted that the ranks see, also if the job holds none of them in the queue."""
    monkeypatch.setattr(nvml, "driver_gpus", lambda: (Gpu("G", 1, index=0), Gpu("G", 1, index=1)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    launcher = LocalLauncher(job, [])
    assert launcher.devices(load("gpt-tiny", {"resources.device": "cpu"})) is None
    shared = {"resources.device": "gpu", "backend.share_devices": True}
    assert launcher.devices(load("gpt-tiny", shared)) == [2]
    shared["backend.env"] = {"CUDA_VISIBLE_DEVICES": "1"}
    assert launcher.devices(load("gpt-tiny", shared)) == [1]
