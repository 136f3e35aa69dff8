"""The rates that a calibration replaces in a plan, and how the plan reports them."""

import datetime
from dataclasses import replace

import pytest

from nbtrain.config.arithmetic.devices import BY_NAME
from nbtrain.config.load import load
from nbtrain.planner.calibration import calibration
from nbtrain.planner.calibration.calibration import Calibration, write_calibration
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.setup import setup_of
from nbtrain.planner.time import rates as module
from nbtrain.planner.time.rates import calibrated_rates, rates_of_device
from nbtrain.planner.time.step import estimate_step

H100 = "NVIDIA H100 80GB HBM3"
TODAY = datetime.date.today().isoformat()
GPU = [
    {"what": "product", "ranks": 1, "dtype": "bf16", "m": 1, "n": 1, "k": 1, "flops": 700e12},
    {"what": "product", "ranks": 1, "dtype": "tf32", "m": 1, "n": 1, "k": 1, "flops": 300e12},
    {"what": "memory", "ranks": 1, "bytes_per_second": 3e12},
    {"what": "collective", "ranks": 8, "collective": "all_gather", "bytes": 1 << 12, "seconds": 7e-5},
    {"what": "collective", "ranks": 8, "collective": "all_gather", "bytes": 1 << 30, "seconds": 3e-3},
]
CPU = [
    {"what": "block", "ranks": 1, "dtype": "fp32", "hidden": 256, "tokens": 2048}
    | {"forward": 0.05, "backward": 0.1},
    {"what": "ends", "ranks": 1, "dtype": "fp32", "hidden": 256, "vocabulary": 1024, "tokens": 2048}
    | {"seconds": 0.1},
]


@pytest.fixture
def machine(workspace, repository, monkeypatch):
    """Pretend that this machine is called X and has H100s."""
    (workspace / "examples").symlink_to(repository / "examples")
    monkeypatch.setattr(calibration, "machine_key", lambda: "X")
    monkeypatch.setattr(module, "machine_gpus", lambda: [H100])


def file_of(figures, machine="X", date=TODAY, device="cpu"):
    write_calibration(Calibration(machine, date, 90.0, figures, {"write_bytes_per_second": 5e8}, device))


def test_a_cpu_plan_takes_the_calibration_and_says_so(machine):
    """The plan of a CPU run uses the calibration: 4 blocks of 0.15 s and 0.1 s for embedding and loss make
    0.7 s per step.
    """
    file_of(CPU)
    made = plan(load("gpt3-tiny"))
    assert made.duration.step.seconds == pytest.approx(0.7)
    assert made.duration.tokens_per_second == pytest.approx(2048 / 0.7)
    assert made.duration.basis == f"calibrated on {TODAY} (X)"


def test_a_calibration_that_is_not_used_is_named_in_the_plan(machine):
    file_of(CPU, machine="Y")
    basis = plan(load("gpt3-tiny")).duration.basis
    assert basis.endswith(
        f"in the benchmarks; data/calibration.json is not used, because it has entries only for other "
        f"machines: Y ({TODAY}). Run `nbtrain calibrate` to measure this machine"
    )


def test_what_was_not_measured_keeps_its_assumed_rate(machine):
    file_of(CPU)
    basis = plan(load("gpt3-tiny", {"precision.dtype": "bf16", "parallel.zero_stage": 1})).duration.basis
    assert basis.startswith("assumed ")


def test_a_plan_for_this_machines_gpus_takes_their_rates(machine):
    """A plan for this machine's GPUs uses the calibrated rates of products, memory and disk, and the bus
    bandwidth of 8 GPUs.
    """
    file_of(GPU, device="gpu")
    device = module.find_device(H100)
    setup = replace(setup_of(load("gpt3-tiny")), on_gpu=True, device=device, dtype="bf16")
    planned = rates_of_device(device)
    rates = calibrated_rates(planned, setup)
    assert rates.matmul_flops["bf16"] == 700e12 and rates.memory_bytes_per_second == 3e12
    assert rates.matmul_flops["fp16"] == planned.matmul_flops["fp16"]
    assert rates.inside.bytes_per_second == pytest.approx((1 << 30) / 3e-3 * 7 / 8)
    assert rates.inside.latency_seconds == pytest.approx(1e-5) and rates.disk_bytes_per_second == 5e8
    assert estimate_step(setup, rates).compute != estimate_step(setup, planned).compute
    other = replace(setup, device=BY_NAME["V100-32GB"])
    assert calibrated_rates(planned, other) is planned


@pytest.mark.parametrize("measured, on_gpu", [("gpu", False), ("cpu", True)])
def test_figures_of_a_machines_other_device_are_not_used(machine, measured, on_gpu):
    """A calibration of this machine's GPUs is not used for CPU runs, and a calibration of its CPU is not used
    for GPU runs.
    """
    setup = setup_of(load("gpt3-tiny"))
    if on_gpu:
        setup = replace(setup, on_gpu=True, device=module.find_device(H100), dtype="bf16")
    planned = rates_of_device(module.find_device(H100))
    file_of(CPU + GPU, device=measured)
    assert calibrated_rates(planned, setup) is planned
    file_of(CPU + GPU, device="gpu" if on_gpu else "cpu")
    assert calibrated_rates(planned, setup).source == f"calibrated on {TODAY} (X)"
