"""A preempted job: it costs no restart, waits until its devices are back, and records what it lost."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, QUEUED, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, Preemption, ProcessIdentity
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.attempt.backend import CAPABILITIES
from nbtrain.jobs.attempt.verdict import Verdict
from nbtrain.jobs.control import control
from nbtrain.jobs.supervisor import supervise
from nbtrain.jobs.supervisor.signals import ENGINE, PAUSE, PREEMPTION, REQUEST
from nbtrain.jobs.supervisor.summary import write_summary
from nbtrain.monitor.job.job_description import job_status
from tests.jobs.conftest import TINY
from tests.jobs.supervisor.test_recovery import Told

NOTICE = "Slurm preempted job 12 (PreemptTime=2026-11-29T08:00:56)"


class Launcher:
    """A launcher whose scheduler has a record of a preemption for as many looks as the test says."""

    def __init__(self) -> None:
        self.looks = 0
        self.trouble = ""
        self.meanwhile: Callable[[], None] = lambda: None

    def preemption(self, signalled: bool = False) -> str:
        self.looks -= 1
        self.meanwhile()
        return NOTICE if self.looks >= 0 else ""

    def preemption_trouble(self) -> str:
        return self.trouble

    def give_back(self) -> None:
        """Keep the devices."""

    def missing(self) -> str:
        return ""


@pytest.fixture
def supervised(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Return the supervision of a job that may not restart."""
    monkeypatch.setattr(supervise, "RETURN_POLL_SECONDS", 0.01)
    (workspace / "tiny.yaml").write_text(TINY)
    told = Told(load(workspace / "tiny.yaml", {"backend.max_restarts": 0}, check=False))
    told.it.launcher = Launcher()
    return told


def left(told: Told, step: int, why: str = PREEMPTION) -> Verdict:
    """Return the verdict on an attempt whose ranks were asked to leave."""
    told.it.requests.stop, told.it.requests.why = True, why
    told.journal.reached_step = step
    return Verdict(CANCELLED, f"stopped on request at step {step}; saved", step=step)


def killed(step: int = 3) -> Verdict:
    return Verdict(
        FAILED, "node 1: was asked to leave (SIGTERM), so its ranks stopped", retry=True, step=step
    )


def test_ten_preemptions_need_no_restart_and_ten_signals_end_the_job(supervised: Told) -> None:
    """With max_restarts 0 a job that is preempted ten times goes to its end; one that only gets signals fails
    at the first.
    """
    launcher, attempts = supervised.it.launcher, itertools.count(1)

    def run(it: Any) -> Verdict:
        number = next(attempts)
        if number > 10:
            return Verdict(SUCCEEDED, "all steps are trained and saved")
        it.journal.attempt_starts(it.config)
        launcher.looks = 3
        # The ranks left in order, or had been told to leave before the supervisor knew.
        return left(supervised, number) if number % 2 else killed(number)

    assert supervise.run_attempts(supervised.it, run).state == SUCCEEDED
    record = supervised.journal.record
    assert (record.restarts, record.attempt, len(record.preemptions)) == (0, 10, 10)
    assert [preemption.lost_steps for preemption in record.preemptions] == list(range(1, 11))
    assert record.preemptions[4].lost_tokens == 5 * 8 * 16
    assert all(preemption.resumed_at for preemption in record.preemptions[:-1])
    assert {attempt.cause for attempt in record.attempts} == {NOTICE}
    launcher.looks = 0
    supervised.it.requests.why = ""
    verdict = supervise.run_attempts(supervised.it, lambda it: killed())
    assert verdict.state == FAILED and verdict.cause.endswith("backend.max_restarts = 0 is used up")


def test_what_it_lost_and_how_long_it_waits_is_shown_and_recorded(supervised: Told) -> None:
    """While it waits, the job is QUEUED with the time and the lost steps; afterwards events, job.json and
    summary.json have the waiting time.
    """
    seen: list[tuple[str, str]] = []

    def look() -> None:
        record = JobRecord.read(supervised.job.job_json)
        assert record is not None
        seen.append((record.state, record.cause or ""))

    launcher, ends = supervised.it.launcher, [left, None]

    def run(it: Any) -> Verdict:
        it.journal.attempt_starts(it.config)
        if ends.pop(0) is None:
            return Verdict(SUCCEEDED, "done")
        launcher.looks, launcher.meanwhile = 4, look
        return left(supervised, 7)

    assert supervise.run_attempts(supervised.it, run).state == SUCCEEDED
    state, cause = seen[-1]
    assert state == QUEUED
    assert cause.startswith("preempted, waiting in the queue since ") and cause.endswith(
        f" UTC, lost 7 steps; {NOTICE}"
    )
    first, last = supervised.events("preemption")
    assert (first["lost_steps"], first["lost_tokens"], first["step"]) == (7, 7 * 8 * 16, 7)
    record = JobRecord.read(supervised.job.job_json)
    assert record is not None and record.waiting_preemption is None
    (preemption,) = record.preemptions
    assert last["waited_seconds"] == round(preemption.waited_seconds, 3) > 0
    record.mark("ended_at")
    summary = write_summary(supervised.job.run, supervised.it.config, record, None)
    assert (summary["preemptions"], summary["preemption_lost_steps"], summary["restarts"]) == (1, 7, 0)
    assert summary["preemption_waited_seconds"] == round(preemption.waited_seconds, 3)
    text = job_status(record, False, [], record.ended_at).restarts_text
    assert text.startswith("0 restarts, 1 preemption (7 steps lost, ")


@pytest.mark.parametrize(
    ("why", "state", "kept"),
    [(ENGINE, CANCELLED, True), (REQUEST, CANCELLED, True), (PAUSE, SUSPENDED, True)],
)
def test_the_wait_ends_with_the_allocation_or_on_request(
    supervised: Told, why: str, state: str, kept: bool
) -> None:
    """The scheduler's TERM, a stop and a pause end the wait; each is handled as in a job that runs."""
    launcher, asked = supervised.it.launcher, supervised.it.requests
    supervised.it.pause_ends_allocation = True

    def signal() -> None:
        if launcher.looks == 1:
            if why == PAUSE:
                control.ask_pause(supervised.job, True)
            else:
                asked.stop, asked.why = True, why

    def run(it: Any) -> Verdict:
        it.journal.attempt_starts(it.config)
        launcher.looks, launcher.meanwhile = 5, signal
        return left(supervised, 2)

    verdict = supervise.run_attempts(supervised.it, run)
    assert (verdict.state, asked.why) == (state, why)
    assert supervised.journal.record.waiting_preemption is not None


@pytest.mark.parametrize("why", [REQUEST, PAUSE])
def test_a_users_stop_is_not_a_preemption(supervised: Told, why: str) -> None:
    """If the user asked first, the job is stopped or paused, whatever the scheduler does then."""
    supervised.it.launcher.looks = 9
    supervised.it.pause_ends_allocation = True
    if why == PAUSE:
        control.ask_pause(supervised.job, True)
    verdict = supervise.run_attempts(supervised.it, lambda it: left(supervised, 2, why))
    assert verdict.state == (SUSPENDED if why == PAUSE else CANCELLED)
    assert supervised.journal.record.preemptions == []


def test_a_notice_makes_the_ranks_save_and_a_broken_command_is_reported_once(supervised: Told) -> None:
    """A notice asks the ranks to leave; a command that fails is one warning and changes nothing."""
    launcher, asked = supervised.it.launcher, supervised.it.requests
    trouble = "backend.preemption_notice: curl took more than 10 s and was killed"
    for launcher.trouble in (trouble, trouble, "", trouble):
        supervise.heed_preemption(supervised.it)
    assert not asked.stop
    assert [event["message"] for event in supervised.events("warning")] == [trouble]
    launcher.looks = 1
    supervise.heed_preemption(supervised.it)
    assert (asked.stop, asked.why) == (True, PREEMPTION)
    assert [event["message"] for event in supervised.events("preemption")] == [NOTICE]


def test_an_allocation_that_could_not_say_its_end_was_preempted_too(supervised: Told) -> None:
    """If the supervisor was killed with the allocation, the next one records the preemption, from the step in
    the last heartbeat.
    """
    job, journal = supervised.job, supervised.journal
    journal.attempt_starts(supervised.it.config)
    process = ProcessIdentity(1, 1, "boot", "n0")
    Heartbeat(0, 0, process, 5.0, 9, "train", 1.0).write(job.heartbeat(0))
    later = supervise.Journal(job)
    later.config = supervised.it.config
    later.record.started_at = 1.0
    later.take_over()

    class Backend:
        def preempted_since(self, job: Any, started_at: float) -> str:
            return NOTICE

    supervise.note_lost_allocation(later, Backend())
    (preemption,) = later.record.preemptions
    assert (preemption.lost_steps, preemption.notice, preemption.attempt) == (9, NOTICE, 0)
    assert preemption.preempted_at == 5.0, "the last sign of life"
    assert later.record.attempts[0].cause == NOTICE
    assert later.record.attempts[0].reason == "preempted"
    assert [event["kind"] for event in read_events(job)][-1] == "preemption"


def test_the_wait_of_a_job_that_has_ended_does_not_grow(supervised: Told) -> None:
    """A job that was cancelled while it waited shows the time until its end."""
    record = supervised.journal.record
    record.preemptions, record.ended_at = [Preemption(0, NOTICE, 100.0, 0, 0)], 160.0
    assert record.preemption_waited_seconds == 60.0


@pytest.mark.parametrize(
    ("continues", "state", "cause"),
    [
        ("", CANCELLED, f"{NOTICE}: nothing is saved yet, `nbtrain resume` continues it"),
        ("continues in Slurm job 13", QUEUED, f"lost 0 steps; {NOTICE}; continues in Slurm job 13"),
    ],
)
def test_a_preempted_job_waits_in_the_queue_only_if_it_continues(
    supervised: Told, monkeypatch: pytest.MonkeyPatch, continues: str, state: str, cause: str
) -> None:
    """With PreemptMode=CANCEL and no resubmission left, the job is CANCELLED and does not claim to wait."""
    journal, asked = supervised.journal, supervised.it.requests
    journal.record.backend = "slurm"
    supervised.job.run.config_yaml.write_text(to_yaml(supervised.it.config))

    class Backend:
        capabilities = CAPABILITIES["slurm"]

        def launcher(self, job: Any, command: Any) -> Any:
            return SimpleNamespace(close=lambda: None)

        def after_preemption(self, job: Any, config: Any) -> str:
            return continues

    def run(it: Any) -> Verdict:
        journal.preempted(0, NOTICE, 0)
        asked.stop, asked.why = True, ENGINE
        return Verdict(CANCELLED, "stopped on request while it waited in the queue")

    monkeypatch.setattr(supervise, "backend_of", lambda kind: Backend())
    monkeypatch.setattr(supervise, "run_attempts", run)
    assert supervise.supervise(journal, asked) == 0
    record = JobRecord.read(supervised.job.job_json)
    assert record is not None and record.state == state
    assert (record.cause or "").endswith(cause) and ("waiting" in (record.cause or "")) is bool(continues)
