"""Signs of life."""

import os

import pytest

from nbtrain.rundir import EventWriter, Heartbeat, Progress, RunDir, read_events
from nbtrain.train import heartbeat as heartbeat_module
from nbtrain.train.heartbeat import HeartbeatWriter


class Clock:
    """time.monotonic and time.time of heartbeat.py, moved by hand."""

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
    # Written at 0.1 s, 1.1 s and 2.1 s.
    assert (beat.rank, beat.attempt, beat.step, beat.time) == (1, 2, 21, pytest.approx(1002.1))
    assert beat.process.pid == os.getpid() and beat.process.alive()
    assert beat.progress is None


def test_a_change_of_phase_is_written_at_once(job, clock):
    writer = HeartbeatWriter(job, 0, 0)
    writer.progress = Progress(total_steps=10, train_tokens=100)
    seen = []
    with writer.phase("train"):
        clock.now += 0.2
        with writer.phase("save"):
            seen.append(Heartbeat.read(job.heartbeat(0)))
        seen.append(Heartbeat.read(job.heartbeat(0)))
    assert [(beat.phase, beat.phase_since) for beat in seen] == [("save", 1000.2), ("train", 1000.2)]
    assert seen[0].progress == Progress(total_steps=10, train_tokens=100)


def test_a_phases_event_has_its_own_seconds(job, clock):
    """Evaluation and saving inside the training do not count as training; a failed phase has no event."""
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
