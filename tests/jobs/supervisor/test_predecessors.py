"""A supervisor that another one has replaced exits before the new one starts ranks."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from threading import Thread

import pytest

from nbtrain.base.run_directory.records import AttemptRecord, JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.jobs.supervisor import predecessors
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.predecessors import wait_for_displaced, wait_for_predecessors


@pytest.fixture
def first():
    """Start a process that plays the supervisor which is being replaced."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def job(workspace):
    job = JobDir(RunDir.named("run"), new_job_id())
    job.make_folders()
    return job


def events_of(job) -> str:
    return (job.events / "supervisor.jsonl").read_text()


def taken_over(job, supervisor: ProcessIdentity, ended_at: float | None = None) -> Journal:
    """Return the journal of a supervisor that has replaced another one, whose attempt has ended or not."""
    attempt = AttemptRecord(0, time.time(), 1, 1, ended_at=ended_at)
    record = JobRecord(
        job.job_id, "id", "run", "RUNNING", time.time(), 1, supervisor=supervisor, attempts=[attempt]
    )
    record.mark("started_at")
    record.write(job.job_json)
    journal = Journal(job)
    journal.take_over()
    return journal


def test_one_on_this_host_is_waited_for_until_it_is_gone(job, first):
    journal = taken_over(job, ProcessIdentity.of(first.pid))
    waiting = Thread(target=wait_for_displaced, args=(journal,))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive()
    first.kill()
    first.wait()
    waiting.join(600)
    assert not waiting.is_alive()
    [said] = [line for line in events_of(job).splitlines() if "waiting up to" in line]
    assert f"supervisor {first.pid} on {os.uname().nodename}, which had this job, to kill its ranks" in said


def test_one_that_does_not_leave_and_one_on_another_host_are_waited_for_so_long(job, first, monkeypatch):
    """The wait for the previous supervisor is limited; if it does not exit, it is reported as alive only if
    it is on this host.
    """
    monkeypatch.setattr(predecessors, "DISPLACED_SECONDS", 0.3)
    here = ProcessIdentity.of(first.pid)
    elsewhere = replace(here, pid=here.pid + 1, start_ticks=1, host="other-host")
    for supervisor, words in ((elsewhere, []), (here, ["has not exited within 0.3 s"])):
        (job.events / "supervisor.jsonl").unlink(missing_ok=True)
        journal, began = taken_over(job, supervisor), time.monotonic()
        wait_for_displaced(journal)
        assert time.monotonic() - began >= 0.3
        said = events_of(job)
        assert ["has not exited within 0.3 s"] * ("has not exited" in said) == words


def test_one_that_had_handed_the_job_over_or_is_gone_is_not_waited_for(job, first):
    handed_over = taken_over(job, ProcessIdentity.of(first.pid), ended_at=time.time())
    assert handed_over.displaced is None
    identity = ProcessIdentity.of(first.pid)
    first.kill()
    first.wait()
    for journal in (handed_over, taken_over(job, identity)):
        wait_for_displaced(journal)
    assert "waiting up to" not in events_of(job)


def test_a_save_that_the_lost_allocation_interrupted_is_removed(job, first):
    """The folder of a checkpoint that the lost attempt was writing is removed. An older one stays."""
    identity = ProcessIdentity.of(first.pid)
    first.kill()
    first.wait()
    run = job.run
    run.checkpoint(2).mkdir(parents=True)
    os.utime(run.checkpoint(2), (0, 0))
    journal = taken_over(job, identity)
    run.checkpoint(4).mkdir()
    wait_for_predecessors(journal, 1.0)
    assert run.checkpoint_steps() == [2]
    assert "removed model/global_step4, left half-written by attempt 0" in events_of(job)
