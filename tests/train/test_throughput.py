"""Rates and the parts of a step."""

import pytest
import torch

from nbtrain.config.load import load
from nbtrain.train.throughput import (
    Rate,
    StepTimer,
    compute_dtype,
    host_memory,
    measure_matmul_flops,
    peak_flops,
)

CPU = torch.device("cpu")


def test_rate_is_the_mean_of_the_last_hundred_steps():
    rate = Rate()
    assert rate.per_second() is None
    rate.add(1000, 1.0)
    for _ in range(100):
        rate.add(10, 2.0)
    assert rate.per_second() == 5.0


def test_parts_of_a_step_add_up():
    timer = StepTimer(CPU)
    for _ in range(2):
        with timer.part("forward"):
            sum(range(20_000))
    seconds = timer.seconds()
    assert seconds["forward"] > 0
    assert seconds["data"] == seconds["backward"] == seconds["optimizer"] == 0


def test_the_matrix_rate_of_this_device_is_measured():
    """A rate that this machine can have, and no random number is drawn from training's generator."""
    before = torch.get_rng_state()
    assert 1e8 < measure_matmul_flops(CPU, torch.float32) < 1e15
    assert torch.equal(torch.get_rng_state(), before)


def test_a_cpu_has_no_datasheet_peak():
    """No guess, so no MFU."""
    assert peak_flops(CPU, load("gpt-tiny")) is None


def test_compute_dtype():
    assert compute_dtype(load("gpt-tiny", {"precision.dtype": "fp32"})) == torch.float32
    overrides = {"precision.dtype": "bf16", "precision.autocast": True}
    assert compute_dtype(load("gpt-tiny", overrides)) == torch.bfloat16


def test_host_memory():
    resident, used = host_memory()
    assert resident > 50e6
    assert 0 < used < 1


def test_figures_of_a_missing_part_are_refused():
    with pytest.raises(KeyError), StepTimer(CPU).part("lunch"):
        pass
