"""The supervisor's decisions between attempts, with attempts that are told and not run."""

import time

import pytest

from nbtrain.jobs.supervisor import Supervisor
from nbtrain.jobs.verdict import Verdict
from nbtrain.rundir import JobDir, JobRecord, RunDir, new_job_id, read_events


@pytest.fixture
def supervisor(tiny, workspace):
    """A supervisor over a job on disk; supervisor.told is the list of verdicts its attempts end in."""
    config = tiny(**{"backend.restart_backoff_seconds": 0.01, "backend.max_restarts": 3})
    job = JobDir(RunDir.named("tiny"), new_job_id())
    job.make_folders()
    JobRecord(job.job_id, "id", "tiny", "QUEUED", time.time(), world_size=1).write(job.job_json)
    supervisor = Supervisor(job)
    supervisor.known_config = config
    supervisor.told = []
    supervisor.attempt = lambda: supervisor.told.pop(0)
    return supervisor


def failure(signature=None, retry=True):
    return Verdict("FAILED", "rank 0 failed", retry=retry, signature=signature, step=3)


def test_it_stops_when_the_restarts_are_used_up(supervisor):
    """max_restarts 3: four attempts, and the cause says so; each restart is an event."""
    supervisor.told = [failure() for _ in range(9)]
    verdict = supervisor.attempts()
    assert (verdict.state, verdict.cause) == (
        "FAILED",
        "rank 0 failed; not tried again: backend.max_restarts = 3 is used up",
    )
    assert len(supervisor.told) == 5
    restarts = [event for event in read_events(supervisor.job) if event["kind"] == "restart"]
    assert [event["wait_seconds"] for event in restarts] == [0.01, 0.02, 0.04]
    assert JobRecord.read(supervisor.job.job_json).state == "RESTARTING"


def test_the_same_failure_twice_ends_it(supervisor):
    """The same step and message again: nothing changes by trying; another failure in between counts anew."""
    supervisor.told = [failure((3, "boom")), failure((5, "boom")), failure((5, "boom")), failure()]
    assert supervisor.attempts().cause.endswith("not tried again: the attempt before failed the same way")
    assert len(supervisor.told) == 1


def test_no_second_attempt_where_it_cannot_help(supervisor):
    """retry False ends the job at once."""
    supervisor.told = [failure(retry=False), failure()]
    assert supervisor.attempts().cause == "rank 0 failed"
    assert len(supervisor.told) == 1


def test_a_stop_while_waiting_is_obeyed(supervisor):
    """Cancelled between two attempts: CANCELLED, with the failure before it."""
    supervisor.told = [failure(), failure()]
    supervisor.stop_requested = True
    verdict = supervisor.attempts()
    assert (verdict.state, verdict.cause) == (
        "CANCELLED",
        "stopped on request while it waited to restart; before: rank 0 failed",
    )


def test_lost_work_is_counted(supervisor):
    """Steps and tokens since the newest checkpoint are in the event."""
    supervisor.reached_step = 9
    supervisor.told = [failure(retry=True), Verdict("SUCCEEDED", "done")]
    supervisor.attempts()
    event = next(event for event in read_events(supervisor.job) if "lost_tokens" in event)
    assert (event["step"], event["checkpoint_step"], event["lost_tokens"]) == (9, 0, 9 * 8 * 16)
    assert event["message"].endswith("no checkpoint yet: 9 steps (1,152 tokens) are lost")


def test_a_full_disk_does_not_end_the_watch(supervisor, monkeypatch):
    """A state that cannot be written for want of space is passed over; the ranks are still watched."""
    import errno

    from nbtrain import files

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_json", full)
    supervisor.set_state("RUNNING")
    assert supervisor.record.state == "RUNNING"
