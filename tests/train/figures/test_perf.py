"""The clock of mode: perf."""

import time

import pytest
import torch

from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.train.figures.perf import PerfClock, Throughput

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "steps, expected",
    [
        # Each step of 8 samples takes 2 s, the first three 10 s; the clock stands at 100 when the run begins.
        (20, Throughput(15, 120, 30.0)),
        (12, Throughput(9, 72, 18.0)),
        (2, Throughput(2, 16, 20.0)),
        (1, Throughput(1, 8, 10.0)),
    ],
)
def test_the_first_quarter_is_left_out(monkeypatch, steps, expected):
    clock, now = PerfClock(steps, CPU), 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    for step in range(steps + 1):
        assert clock.result is None
        clock.at(step, 8 * step)
        now += 10.0 if step < 3 else 2.0
    assert clock.result == expected


def test_rate():
    assert Throughput(15, 120, 30.0).samples_per_second == 4.0


def test_a_perf_run_is_planned_as_it_is_made():
    """20 steps or max_steps, no checkpoint on the disk; the schedules stay those of the whole run."""
    perf = load("gpt-125m", {"mode": "perf"})
    assert (perf.train_steps, perf.scheduled_steps, perf.shortened_by) == (20, 4769, "mode: perf")
    assert perf.train_tokens == 2_500_000_000
    assert plan(perf).disk.num_checkpoints == 0
    assert plan(perf).sections()["Training"]["steps"] == "20 of 4,769 (mode: perf)"
    shorter = load("gpt-125m", {"mode": "perf", "batch.max_steps": 7})
    assert (shorter.train_steps, shorter.shortened_by) == (7, "batch.max_steps")
    short = load(
        "gpt-125m", {"mode": "perf", "batch.train_tokens": 524_288, "lr_schedule.lr_warmup_tokens": 0}
    )
    assert (short.train_steps, short.shortened_by) == (1, "")
