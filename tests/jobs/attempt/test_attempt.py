"""Detecting ranks that hang, measured by the supervisor's own clock."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.jobs.attempt import attempt as attempt_module
from nbtrain.jobs.attempt.attempt import Attempt
from nbtrain.jobs.attempt.ranks import BIRTH_SECONDS
from nbtrain.jobs.backends.local import LocalLauncher
from nbtrain.jobs.machine.host_memory import HostMemory


class HandLauncher(LocalLauncher):
    """A launcher that reads a real run directory, records its orders, and ends when the test says so."""

    def __init__(self, job):
        super().__init__(job, [])
        self.code, self.left, self.sent = None, True, []

    def launch(self, config, attempt):
        pass

    def poll(self):
        return self.code

    def signal(self, number, only=None):
        self.sent.append(signal.Signals(number).name)

    def kill(self):
        self.sent.append("kill")

    def processes_left(self):
        return self.left

    def memory(self):
        return HostMemory()


class Watched:
    """An attempt of two ranks; the test writes their heartbeats and moves the clock."""

    def __init__(self, config, monkeypatch):
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now, sleep=lambda seconds: None)
        monkeypatch.setattr(attempt_module, "time", clock)
        self.job = JobDir(RunDir.named("tiny"), new_job_id(time.time()))
        self.job.make_folders()
        self.launcher = HandLauncher(self.job)
        self.attempt = Attempt(self.job, config, 0, self.launcher)
        self.attempt.start()

    @property
    def killed(self):
        return "kill" in self.launcher.sent

    def beat(self, rank, step, phase="train", **more):
        identity = ProcessIdentity.of(os.getpid())
        Heartbeat(rank, 0, identity, self.now, step, phase, 0.0, host="a", **more).write(
            self.job.heartbeat(rank)
        )

    def look(self, seconds=1.0):
        self.now += seconds
        self.on = self.attempt.poll()
        return self.attempt.hang


@pytest.fixture
def watched(tiny, monkeypatch):
    two = {"parallel.data_parallel_size": 2, "backend.heartbeat_timeout_seconds": 10.0}
    return Watched(tiny(**two), monkeypatch)


def test_a_fresh_file_without_progress_is_a_hang(watched):
    """A rank whose heartbeats are recent but show no progress hangs; micro batches within a long step count
    as progress.
    """
    for second in range(9):
        watched.beat(0, 6, progress_count=second)
        watched.beat(1, 6, progress_count=3)
        assert watched.look() is None
    for second in range(9, 13):
        watched.beat(0, 6, progress_count=second)
        watched.beat(1, 6, progress_count=3)
        watched.look()
    assert watched.killed
    assert watched.attempt.hang.startswith("no progress for 10 s: rank 1 stopped: last reported at step 6, 1")
    assert "does not even write" not in watched.attempt.hang
    assert watched.attempt.awaited == 1


@pytest.mark.parametrize("phase", ["start", "build", "end"])
def test_coming_and_going_may_take_longer(watched, phase):
    """Importing modules and exiting, during which a rank reports no progress, may take two minutes longer
    than a step.
    """
    for rank in (0, 1):
        watched.beat(rank, 0, phase=phase)
    for _ in range(int(BIRTH_SECONDS) + 9):
        assert watched.look() is None
    watched.look(2.0)
    assert watched.look() is not None


def test_a_rank_that_is_gone_without_a_record_ends_the_attempt(watched):
    """If a rank disappears together with its wrapper, and so without a record, the attempt ends.

    The peers that wait for it do not count as hanging and have their grace period.
    """
    watched.beat(0, 6)
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    Heartbeat(1, 0, gone, watched.now, 6, "train", 0.0).write(watched.job.heartbeat(1))
    watched.look()
    watched.look(2.0)
    # Its record may have arrived by now; from the next look on its peers have 10 s.
    watched.look()
    for _ in range(10):
        watched.look()
    assert not watched.killed
    watched.look()
    assert watched.killed
    assert (watched.attempt.hang, watched.attempt.stuck, watched.attempt.ranks.gone) == (None, None, (1,))


def test_who_waited_is_asked_once_the_record_has_come(watched):
    """A rank that gives up waiting for another may exit before its record arrives; that does not count as a
    killed wrapper.
    """
    watched.beat(0, 6)
    gone = ProcessIdentity(os.getpid(), 1, "another boot")
    Heartbeat(1, 0, gone, watched.now, 6, "train", 0.0).write(watched.job.heartbeat(1))
    watched.look()
    words = "RuntimeError: Timed out waiting 1000ms for recv operation to complete"
    ExitRecord(1, 0, 0.0, 1, None, "failed", 6, words).write(watched.job.exit_record(1, 0))
    watched.look()
    assert watched.attempt.ranks.gone == ()
    assert watched.attempt.stuck.startswith("rank 0 stopped: last reported at step 6")
    assert watched.attempt.awaited == 0


def test_a_pause_of_the_supervisor_is_not_held_against_the_ranks(watched):
    """After the machine was suspended, ranks do not count as hanging, although none could write a heartbeat
    in that time.
    """
    for rank in (0, 1):
        watched.beat(rank, 6)
    watched.look()
    assert watched.look(3600.0) is None
    for _ in range(9):
        assert watched.look() is None
    watched.look(2.0)
    assert watched.killed


def test_a_pause_longer_than_a_short_limit_is_no_hang(tiny, monkeypatch):
    """With a limit of 2 s, a machine that freezes for 3 s does not make healthy ranks count as hanging."""
    two = {"parallel.data_parallel_size": 2, "backend.heartbeat_timeout_seconds": 2.0}
    watched = Watched(tiny(**two), monkeypatch)
    for rank in (0, 1):
        watched.beat(rank, 6)
    watched.look()
    assert watched.look(3.0) is None
    assert watched.look(1.0) is None
    watched.look(1.0)
    assert watched.look(1.0) is not None


def test_a_stop_before_the_first_step_is_a_signal_at_once(watched):
    """A stop before the first step is sent as a signal immediately, because a rank that is still importing
    does not read control/.

    A rank that trains reads the request, and gets a signal only when its time is over.
    """
    watched.look()
    watched.attempt.ask_stop()
    watched.look()
    assert watched.launcher.sent == ["SIGTERM"]


def test_a_stop_of_ranks_that_train_leaves_them_their_time(watched):
    for rank in (0, 1):
        watched.beat(rank, 6)
    watched.look()
    watched.attempt.ask_stop()
    for _ in range(19):
        watched.look()
    assert watched.launcher.sent == []
    watched.look()
    assert watched.launcher.sent == ["SIGTERM"]
    watched.look(3.0)
    assert watched.launcher.sent == ["SIGTERM"]
    watched.look()
    assert watched.launcher.sent == ["SIGTERM", "kill"]


def test_the_first_save_may_take_longer_than_the_limit_while_it_grows(watched):
    """A first save that takes 100 s with a limit of 20 s is reported once, and not killed as long as its
    files grow.
    """
    for rank in (0, 1):
        watched.beat(rank, 6, "save")
    watched.look()
    watched.attempt.ask_stop()
    for second in range(100):
        watched.beat(1, 6, "save", written_bytes=(1 << 20) * second)
        watched.look()
        if second == 15:
            assert watched.attempt.saves_on() == ""
    assert not watched.killed
    assert watched.attempt.saves_on() == (
        "100 s after the stop request (limit: backend.shutdown_timeout_seconds = 20), ranks are still saving "
        "or exiting and have written 99.0 MiB; they are killed after 20 s without progress, at the latest "
        "200 s after the request"
    )
    for _ in range(25):
        watched.beat(1, 6, "save", written_bytes=99 << 20)
        watched.look()
    assert watched.killed
    cause = watched.attempt.finish().cause
    assert cause == (
        "stopped on request; its ranks were killed 125 s after the request (limit: "
        "backend.shutdown_timeout_seconds = 20) before they had saved; no checkpoint was saved"
    )


def test_bytes_of_a_save_in_the_background_are_no_progress_of_the_training(watched):
    for second in range(12):
        for rank in (0, 1):
            watched.beat(rank, 6, "train", written_bytes=second << 20)
        watched.look()
    assert watched.attempt.hang is not None


def test_a_supervisor_that_stood_still_gives_the_ranks_their_time(watched):
    """After a supervisor was suspended for a minute, ranks still get their full time before they are
    signalled.
    """
    for rank in (0, 1):
        watched.beat(rank, 6)
    watched.look()
    watched.attempt.ask_stop()
    watched.look()
    watched.look(60.0)
    assert watched.launcher.sent == []


def test_an_attempt_ends_with_its_launcher(watched):
    watched.look()
    assert watched.on
    watched.launcher.code = 0
    watched.look()
    assert not watched.on


def test_ranks_of_a_killed_launcher_may_save(watched):
    """If the launcher is killed, its ranks have as much time to save as after a stop, and are killed then."""
    for rank in (0, 1):
        watched.beat(rank, 6)
    watched.look()
    watched.launcher.code = -9
    for _ in range(20):
        watched.look()
        assert watched.on
    watched.look()
    assert not watched.on
    assert watched.launcher.sent == ["kill"]


def test_what_ended_the_launcher_before_any_rank_is_in_the_cause(watched):
    """If the launcher fails before it starts a rank, the cause is the error in the traceback of this attempt,
    not of an earlier one.
    """
    head = 'Traceback (most recent call last):\n  File "run.py", line 1\n'
    log = watched.job.supervisor_log
    log.write_text(f"an earlier attempt: é\n{head}ValueError: old\n")
    watched.attempt.start()
    watched.launcher.code, watched.launcher.left = 1, False
    for said, error in (("", ""), (f"{head}ValueError: new\n", ": ValueError: new")):
        with log.open("a") as stream:
            stream.write(said)
        assert watched.attempt.finish().cause == (
            f"the launcher ended before any rank wrote an exit record: exit code 1{error}; "
            "see logs/supervisor.log"
        )
