"""Requests to a supervisor, through files and signals."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtrain.base.run_directory.jobstate import CANCELLED
from nbtrain.base.run_directory.node_records import Ask
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.signals import ALLOCATION, ENGINE, PAUSE, REQUEST, SignalRequests
from nbtrain.jobs.supervisor.supervise import asked_again


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    job = JobDir(RunDir(tmp_path), "20260101-120000-abcd")
    job.control_ask.parent.mkdir(parents=True)
    return job


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restore the signal handlers of this process after the test."""
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_request_is_heeded_once(job: JobDir) -> None:
    """Each request is obeyed once; when save is requested again, the request has another number."""
    asked = SignalRequests()
    asked.read_ask(job)
    assert asked == SignalRequests()
    Ask(1, "save", 0.0).write(job.control_ask)
    asked.read_ask(job)
    assert asked.save and not asked.stop
    asked.save = False
    asked.read_ask(job)
    assert not asked.save
    Ask(2, "save", 0.0).write(job.control_ask)
    asked.read_ask(job)
    assert asked.save
    Ask(3, "stop_now", 0.0).write(job.control_ask)
    asked.read_ask(job)
    assert (asked.stop, asked.stop_now, asked.why) == (True, True, REQUEST)


def test_of_two_who_ask_at_once_the_second_is_heeded_too(job: JobDir) -> None:
    """If two processes write a request with the same number at the same time, both are obeyed; an old request
    that reappears is not.
    """
    asked = SignalRequests()
    for number, action, stops in ((3, "save", False), (3, "stop", True)):
        Ask(number, action, 1.0).write(job.control_ask)
        asked.read_ask(job)
        assert (asked.save, asked.stop) == (True, stops)
    asked.save = False
    Ask(2, "save", 0.0).write(job.control_ask)
    asked.read_ask(job)
    assert not asked.save


@pytest.mark.parametrize(
    ("actions", "left"),
    [
        (("save", "stop"), "stop"),
        (("stop", "save"), "stop"),
        (("stop", "stop_now"), "stop_now"),
        (("stop_now", "stop"), "stop_now"),
        (("stop_now", "save"), "stop_now"),
    ],
)
def test_no_later_request_takes_a_stop_back(job: JobDir, actions: tuple[str, str], left: str) -> None:
    """A later request does not replace a stop that the supervisor may not have read yet."""
    for action in actions:
        Ask.put(job.control_ask, action)
    ask = Ask.read(job.control_ask)
    assert ask is not None and ask.action == left


@pytest.mark.parametrize(("action", "stops"), [("save", False), ("stop", True), ("something new", False)])
def test_a_new_supervisor_heeds_only_an_old_stop(job: JobDir, action: str, stops: bool) -> None:
    """A new supervisor obeys an old stop request, but no other old request, because its predecessor has
    answered the saves.
    """
    Ask(7, action, 0.0).write(job.control_ask)
    asked = SignalRequests()
    asked.read_ask(job, at_start=True)
    assert (asked.stop, asked.save) == (stops, False)


def test_a_request_outweighs_other_reasons(job: JobDir) -> None:
    """A user's stop takes precedence over the end of an allocation, so the job does not continue in another
    allocation.
    """
    asked = SignalRequests()
    asked.leave(PAUSE)
    asked.leave(ALLOCATION)
    assert asked.why == PAUSE
    Ask(1, "stop", 0.0).write(job.control_ask)
    asked.read_ask(job)
    assert asked.why == REQUEST
    asked.leave(ALLOCATION)
    assert asked.why == REQUEST


def test_signals_of_an_allocation_are_its_engines(handlers: None) -> None:
    """In an allocation, USR1 means the time limit and TERM the end; otherwise they are a user's requests to
    save and to stop.
    """
    inside, outside = SignalRequests().listen(in_allocation=True), SignalRequests()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (inside.stop, inside.save, inside.why) == (True, False, ALLOCATION)
    os.kill(os.getpid(), signal.SIGTERM)
    assert inside.why == ENGINE
    outside.listen()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (outside.stop, outside.save) == (False, True)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (outside.why, outside.stop_now) == (REQUEST, False)
    os.kill(os.getpid(), signal.SIGQUIT)
    assert outside.stop_now


@pytest.mark.parametrize(
    ("action", "goes_on"), [(None, True), ("save", True), ("stop", False), ("stop_now", False)]
)
def test_a_cancelled_job_goes_on_if_its_engine_starts_it_again(
    job: JobDir, action: str | None, goes_on: bool
) -> None:
    """A job that was preempted and requeued continues, unless its user has stopped it."""
    (job.path / "events").mkdir()
    JobRecord(job.job_id, "id", "tiny", CANCELLED, 0.0, 4, backend="slurm").write(job.job_json)
    if action:
        Ask(1, action, 0.0).write(job.control_ask)
    assert asked_again(Journal(job)) == goes_on
