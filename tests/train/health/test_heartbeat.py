"""Heartbeats show that a rank is alive, and in which step and phase it is."""

import errno
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.records import STACK_SIGNAL, Collective, Heartbeat, TrainingProgress
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.train.health import heartbeat as heartbeat_module
from nbtrain.train.health.heartbeat import HeartbeatWriter
from tests.waiting import wait_until


class Clock:
    """A replacement for time.monotonic and time.time in heartbeat.py that the test advances."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heartbeat_module, "time", clock)
    return clock


@pytest.fixture
def job(tmp_path):
    return RunDir(tmp_path / "run").job("20261121-031500-a1b2")


def test_beats_are_written_once_a_second(job, clock):
    writer = HeartbeatWriter(job, 1, 2)
    for step in range(1, 25):
        clock.now += 0.1
        writer.beat(step)
    beat = Heartbeat.read(job.heartbeat(1))
    # Written after 0.1 s, 1.1 s and 2.1 s.
    assert (beat.rank, beat.attempt, beat.step, beat.time) == (1, 2, 21, pytest.approx(1002.1))
    assert beat.process.pid == os.getpid() and beat.process.alive()
    assert beat.progress is None


def test_a_change_of_phase_is_written_at_once(job, clock):
    writer = HeartbeatWriter(job, 0, 0)
    writer.progress = TrainingProgress(total_steps=10, train_tokens=100)
    seen = []
    with writer.phase("train"):
        clock.now += 0.2
        with writer.phase("save"):
            seen.append(Heartbeat.read(job.heartbeat(0)))
        seen.append(Heartbeat.read(job.heartbeat(0)))
    assert [(beat.phase, beat.phase_since) for beat in seen] == [("save", 1000.2), ("train", 1000.2)]
    assert seen[0].progress == TrainingProgress(total_steps=10, train_tokens=100)


def test_a_phases_event_has_its_own_seconds(job, clock):
    """Evaluating and saving do not count as training time; a phase that fails writes no event."""
    writer = HeartbeatWriter(job, 0, 0)
    writer.events = EventWriter(job, "rank0")
    with writer.phase("train"):
        clock.now += 3
        with writer.phase("evaluate"):
            clock.now += 1
        with pytest.raises(OSError), writer.phase("save"):
            clock.now += 2
            raise OSError
        clock.now += 4
    events = [(event["phase"], event["seconds"]) for event in read_events(job)]
    assert events == [("evaluate", 1.0), ("train", 7.0)]
    assert Heartbeat.read(job.heartbeat(0)).phase == "train"


def test_the_thread_renews_the_file_and_counts_no_progress(job, monkeypatch):
    """While a rank waits, the thread updates the time of its heartbeat, but not its progress."""
    monkeypatch.setattr(heartbeat_module, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat_module.faulthandler, "register", lambda *arguments, **named: None)
    writer = HeartbeatWriter(job, 0, 0)
    here = Collective("all_reduce", "data_parallel", [0, 1], 7, 5.0, True)
    writer.collectives = SimpleNamespace(current=lambda: here, calls=13)
    writer.beat(3)
    writer.start()
    seen = []

    def three_times() -> bool:
        if (beat := Heartbeat.read(job.heartbeat(0))) is not None and beat.step:
            seen.append(beat)
        return len({beat.time for beat in seen}) >= 3

    wait_until(three_times, "the heartbeat is not renewed", pause_seconds=0.001)
    assert {(beat.step, beat.progress_count) for beat in seen} == {(3, 14)}
    assert seen[-1].collective == here
    assert seen[-1].dumps_stack
    writer.beat(4)
    writer.stop()
    # The final heartbeat shows the last step, however soon after the previous one.
    last = Heartbeat.read(job.heartbeat(0))
    assert (last.step, last.progress_count) == (4, 15)
    assert last.host != ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE])
def test_a_failed_write_ends_neither_the_rank_nor_its_heartbeats(job, monkeypatch, number):
    """If a heartbeat cannot be written, as on a network disk, the rank and the thread continue, and the next
    heartbeat is written.
    """
    writer = HeartbeatWriter(job, 0, 0)
    monkeypatch.setattr(heartbeat_module, "BEAT_SECONDS", 0.01)
    write, failures = heartbeat_module.Heartbeat.write, [number] * 3

    def fails(*arguments):
        if failures:
            raise OSError(failures.pop(), os.strerror(number))
        write(*arguments)

    monkeypatch.setattr(heartbeat_module.Heartbeat, "write", fails)
    writer.start()
    try:
        wait_until(writer.path.exists, "no heartbeat is written", pause_seconds=0.01)
        assert not failures
    finally:
        writer.stop()


HANGING = """
import sys, time
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.train.health.heartbeat import HeartbeatWriter

def where_it_hangs():
    print("ready", flush=True)
    time.sleep(600)

job = RunDir(sys.argv[1]).job("20261121-031500-a1b2")
HeartbeatWriter(job, 0, 0).start()
written = set()
while len(written) < 2:
    time.sleep(0.02)
    if beat := Heartbeat.read(job.heartbeat(0)):
        written.add(beat.time)
where_it_hangs()
"""


@pytest.mark.slow
def test_a_hanging_rank_writes_its_stack(job):
    """After STACK_SIGNAL, a hanging rank writes the stack of each thread to stderr and continues."""
    rank = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(job.run.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert rank.stdout.readline() == "ready\n"
        rank.send_signal(STACK_SIGNAL)
        lines = []
        while not any("in <module>" in line for line in lines):
            lines.append(rank.stderr.readline())
        assert any("in where_it_hangs" in line for line in lines)
        assert any("in _renew" in line for line in lines)
        assert rank.poll() is None
    finally:
        rank.send_signal(signal.SIGKILL)
        rank.communicate()
