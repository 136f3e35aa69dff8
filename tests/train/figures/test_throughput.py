"""Throughput, and how the time of a step is divided into parts."""

import time

import pytest
import torch

from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.config.arithmetic.flops import model_flops_per_token
from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.train.figures import throughput
from nbtrain.train.figures.throughput import (
    Pauses,
    PerfClock,
    Rate,
    Speedometer,
    StepTimer,
    Throughput,
    host_memory,
    measure_matmul_flops,
)

CPU = torch.device("cpu")


def test_rate_is_the_mean_of_the_last_hundred_steps():
    rate = Rate()
    assert rate.per_second() is None
    rate.add(1000, 1.0)
    for _ in range(100):
        rate.add(10, 2.0)
    assert rate.per_second() == 5.0


def test_pauses_to_come_are_those_at_every_interval_and_the_end():
    """The remaining time includes all future pauses: in 250 steps, validations at 100, 200 and 250, and
    checkpoints at 80, 160, 240 and 250.
    """
    steps = ["batch.max_steps=250", "evaluation.eval_interval_steps=100", "checkpoint.save_interval_steps=80"]
    pauses = Pauses(load("gpt-tiny", steps, check=False))
    assert pauses.left(0) == 0.0
    pauses.add("validation", 5.0)
    pauses.add("checkpoint", 7.0)
    assert [pauses.left(step) for step in (0, 80, 100, 249, 250)] == [43.0, 36.0, 31.0, 12.0, 0.0]


def test_checkpoints_on_the_nodes_own_disks_come_at_their_own_interval():
    """Checkpoints on the nodes' own disks have a separate interval, and are not counted as checkpoints in the
    run directory.
    """
    steps = {"batch.max_steps": 100, "checkpoint.save_interval_steps": 50}
    local = {"checkpoint.local_dir": "/local", "checkpoint.local_save_interval_steps": 10}
    pauses = Pauses(load("gpt-tiny", {**steps, **local}, check=False))
    pauses.add("checkpoint", 7.0)
    pauses.add("local checkpoint", 0.5)
    # Steps 50 and 100 are due for both, and are saved in the run directory.
    assert pauses.left(0) == 2 * 7.0 + 8 * 0.5
    assert pauses.left(50) == 7.0 + 4 * 0.5
    assert pauses.left(90) == 7.0


def test_parts_of_a_step_add_up():
    timer = StepTimer(CPU)
    for _ in range(2):
        with timer.part("forward"):
            sum(range(20_000))
    seconds = timer.seconds()
    assert seconds["forward"] > 0
    assert seconds["data"] == seconds["backward"] == seconds["optimizer"] == 0


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test advances with clock(seconds)."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def test_a_part_inside_another_stops_the_outer_ones_clock(clock):
    """Data loading inside the forward pass stops the clock of the forward pass; time outside of all parts
    counts only for the step.
    """
    timer = StepTimer(CPU)
    with timer.part("forward"):
        clock(2.0)
        with timer.part("data"):
            clock(3.0)
            assert timer.part_now == "data"
        clock(1.0)
    clock(0.5)
    assert timer.wall_seconds() is None
    timer.end()
    clock(7.0)
    assert timer.wall_seconds() == 6.5
    assert timer.seconds() == {"data": 3.0, "forward": 3.0, "backward": 0, "optimizer": 0, "pipeline": 0}
    assert timer.seconds() == timer.seconds()


def test_a_part_that_fails_ends_too(clock):
    timer = StepTimer(CPU)
    with pytest.raises(ValueError, match="broken"), timer.part("forward"):
        clock(2.0)
        raise ValueError("broken")
    clock(5.0)
    assert (timer.part_now, timer.seconds()["forward"]) == (None, 2.0)


def test_own_work_is_computing_without_collectives(clock):
    """Waiting for a collective in the optimizer's step is not subtracted from the forward or backward
    pass.
    """
    timer = StepTimer(CPU)
    for part, seconds in (("forward", 4.0), ("backward", 6.0), ("optimizer", 5.0)):
        with timer.part(part):
            clock(seconds)
    assert (timer.compute_seconds(), timer.communication_seconds) == (10.0, None)
    timer.communication = {"forward": 1.0, "backward": 2.5, "optimizer": 4.0, None: 0.5}
    assert (timer.compute_seconds(), timer.communication_seconds) == (6.5, 8.0)


def test_three_figures_of_speed_are_three(monkeypatch):
    """At 44.78 samples/s on an A100, a 125M model has 28.7 % MFU, and with full recomputation also 35.9 %
    HFU.
    """
    monkeypatch.setattr(throughput, "peak_flops", lambda config, device: 312e12)
    monkeypatch.setattr(throughput, "measure_matmul_flops", lambda device, dtype: 250e12)
    plain = Speedometer(load("gpt-125m"), CPU).at(44.780 * 2048)
    assert plain.model_flops == pytest.approx(89.52e12, abs=0.01e12)
    assert plain.mfu == plain.hfu == pytest.approx(0.287, abs=0.0005)
    assert plain.matmul_fraction == pytest.approx(89.52 / 250, abs=0.0001)
    recomputing = load("gpt-125m", {"parallel.activation_checkpointing.granularity": "full"})
    full = Speedometer(recomputing, CPU).at(44.780 * 2048)
    assert (full.mfu, full.matmul_fraction) == (plain.mfu, plain.matmul_fraction)
    assert full.hfu == pytest.approx(0.3588, abs=0.0005)


def test_every_device_has_an_equal_share(monkeypatch):
    """On 64 ranks, each device computes a 64th of the model's FLOPs, however the model is sharded."""
    monkeypatch.setattr(throughput, "peak_flops", lambda config, device: None)
    monkeypatch.setattr(throughput, "measure_matmul_flops", lambda device, dtype: 1e12)
    config = load("gpt-13b-4xdp-4xpp-4xtp")
    speeds = Speedometer(config, CPU).at(1e6)
    assert config.world_size == 64
    assert speeds.model_flops == pytest.approx(1e6 * model_flops_per_token(config) / 64)
    assert (speeds.mfu, speeds.hfu) == (None, None)


def test_the_matrix_rate_of_this_device_is_measured():
    """The measured matrix throughput of this machine is plausible, and measuring does not change the random
    generator of the training.
    """
    before = torch.get_rng_state()
    assert 1e8 < measure_matmul_flops(CPU, torch.float32) < 1e15
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cpu_has_no_datasheet_peak():
    """A CPU has no datasheet peak, so MFU is None."""
    assert Speedometer(load("gpt-tiny"), CPU).peak_flops is None


def test_the_matrix_rate_is_measured_in_the_runs_format():
    assert DTYPES[load("gpt-tiny", {"precision.dtype": "fp32"}).precision.dtype] == torch.float32
    overrides = {"precision.dtype": "bf16", "precision.autocast": True}
    assert DTYPES[load("gpt-tiny", overrides).precision.dtype] == torch.bfloat16


def test_host_memory():
    resident, used = host_memory()
    assert resident > 50e6
    assert 0 < used < 1


def test_figures_of_a_missing_part_are_refused():
    with pytest.raises(KeyError), StepTimer(CPU).part("lunch"):
        pass


# --- mode: perf -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps, expected",
    [
        # Each step of 8 samples takes 2 s, the first three 10 s; the clock shows 100 when the run begins.
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


def test_samples_per_second():
    assert Throughput(15, 120, 30.0).samples_per_second == 4.0


def test_a_perf_run_is_planned_as_it_is_made():
    """A run with mode perf trains 20 steps or max_steps, saves no checkpoint, and keeps the schedules of the
    full run.
    """
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
