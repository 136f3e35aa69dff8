"""Outcomes and messages that steps derive from measured values, with recorded values and without a GPU."""

import math

import pytest
import torch

from tests.gpu import flash, fpdt, memory, parity, run_ahead, speed, zeropp
from tests.gpu.cases import Place
from tests.gpu.steps import BY_NAME
from tests.gpu.tolerance import Difference, allowed, difference

GIB = 1 << 30
PLAN = memory.Planned(2 * GIB, 10 * GIB, 12 * GIB, True)
MEASURED = {
    "states": 2 * GIB,
    "allocated": 10 * GIB,
    "reserved": 11 * GIB,
    "used": 13 * GIB,
    "used_before": GIB,
    "context_before": False,
    "resident": 3 * GIB,
}


def test_memory_is_within_ten_per_cent_or_fails():
    found = memory.compare(PLAN, MEASURED, True)
    assert (found.outcome, found.words) == ("passed", "reserved 11.00 GiB, host 3.00 GiB")
    assert list(found.values.values()) == [
        "2.00",
        "2.00 (+0.0%)",
        "10.00",
        "10.00 (+0.0%)",
        "12.00",
        "12.00 (+0.0%)",
    ]
    found = memory.compare(PLAN, MEASURED | {"allocated": 8 * GIB}, True)
    assert found.outcome == "failed"
    assert found.words.startswith("allocated planned +25.0%, allowed is 10%; reserved")
    found = memory.compare(memory.Planned(1, 1, 1, False), MEASURED, True)
    assert (found.outcome, found.words[:37]) == ("failed", "the plan says that it does not fit; r")


def test_curves_are_judged_by_the_format():
    """A curve passes if rounding explains its difference; a learning rate off by 5
    % (16 u), or NaN, fails.
    """
    assert allowed("bf16").loss == 4 / 256 and allowed("fp16").norm == 8 / 2048
    assert difference([6.0, 5.0], [1.0, 2.0], [6.0, 5.5], [1.0, 1.0]) == Difference(0.0, 0.5, 1.0)
    assert Difference(1e-4, 2.7e-3, 1e-2).exceeds(allowed("bf16")) == []
    assert Difference(0.0, 6.4e-2, 6.6e-2).exceeds(allowed("bf16")) == [
        "loss 0.064 > 0.016",
        "norm 0.066 > 0.031",
    ]
    broken = difference([6.0, math.nan, 5.0], [1.0] * 3, [6.0] * 3, [1.0] * 3)
    assert broken.exceeds(allowed("fp8")) == ["loss nan > 0.25"]
    with pytest.raises(ValueError, match="2 steps against 3"):
        difference([1.0] * 2, [1.0] * 2, [1.0] * 3, [1.0] * 3)


def test_a_wait_fails_a_run_that_may_not_wait():
    quiet = {"watched": 8, "profiled": 8, "torch": {}, "calls": {}, "events": 8}
    assert run_ahead.judged(quiet, True).outcome == "passed"
    for wrong in (
        {"torch": {"stage3.py:9": 8}},
        {"calls": {"cudaStreamSynchronize": 1}},
        {"events": 9},
        {"watched": 0},
    ):
        assert run_ahead.judged(quiet | wrong, True).outcome == "failed", wrong
    shown = run_ahead.judged(quiet | {"torch": {"stage3.py:9": 8}}, False)
    assert (shown.outcome, shown.words) == ("passed", "stage3.py:9 8")
    assert tuple(shown.values) == BY_NAME["run-ahead"].columns


def test_kernels_are_compared_with_plain_attention():
    """This CPU's flash kernel passes against plain attention, and a wrong scale fails."""
    tensors = flash.inputs(Place("cpu"), torch.bfloat16, (2, 2, 48, 16))
    exact = flash.attended(tensors, "math", torch.float32)
    plain = flash.attended_plainly(tensors)
    ours = flash.attended(tensors, "flash", torch.bfloat16)
    found = flash.compared(ours, plain, exact, ["flash_fwd"], must="flash")
    assert found.outcome == "passed" and tuple(found.values) == BY_NAME["flash"].columns, found.words
    assert (
        flash.compared(ours, plain, exact, ["fmha"], must="flash").words
        == "no kernel that ran is called flash"
    )
    wrong = flash.attended([tensors[0] * 1.1, *tensors[1:]], "flash", torch.bfloat16)
    assert flash.compared(wrong, plain, exact, []).words.startswith("output ")
    found = fpdt.compared(
        (6.0, [torch.ones(2, 2)]), (6.01, [torch.ones(2, 2)]), (6.001, [torch.ones(2, 2) * 1.01])
    )
    assert found.outcome == "passed"
    found = fpdt.compared(
        (6.0, [torch.zeros(2, 2)]), (6.01, [torch.ones(2, 2)]), (6.0, [torch.ones(2, 2) * 1.01])
    )
    assert (found.outcome, found.words) == ("failed", "more than 2 times as far")


def test_quantization_may_be_off_by_a_step():
    numbers = torch.tensor([[1.0, -0.5, 0.25, 0.1], [100.0, 3.0, -7.0, 0.0]])
    assert (
        zeropp.judged_round_trip(numbers, numbers + numbers.abs().amax(1, True) / 128, 8).outcome == "passed"
    )
    assert (
        zeropp.judged_round_trip(numbers, numbers + numbers.abs().amax(1, True) / 100, 8).outcome == "failed"
    )
    assert zeropp.judged_round_trip(numbers, numbers * torch.nan, 4).outcome == "failed"


def test_speed_is_shown_beside_plan_and_bare_loop():
    figures = {
        "tokens_per_second": 300_000.0,
        "step_seconds": 0.4369,
        "peak_bytes": 30 * GIB,
        "mfu": 0.41,
        "matmul_fraction": 0.5,
        "measured_matmul_flops": 780e12,
        "planned_tokens_per_second": 330_000.0,
    }
    found = speed.finding("125m", "ours", figures, {"tokens_per_second": 310_000.0})
    assert found.words == "0.437 s a step, peak 30.0 GiB, target 45% of the matrix rate reached"
    assert list(found.values.values()) == [
        "300,000",
        "330,000 (+10%)",
        "41.0%",
        "50.0% of 780 TFLOP/s",
        "0.968",
    ]
    assert tuple(found.values) == BY_NAME["speed"].columns


def test_a_curve_has_its_columns():
    class Trained:
        losses = (6.0, 5.0)

    found = parity.judged(Difference(0.0, 1.0, 0.0), "bf16", Trained())
    assert (found.outcome, found.words) == ("failed", "loss 1 > 0.016; 2 steps, loss 6.0000 -> 5.0000")
    assert tuple(found.values) == BY_NAME["parity"].columns
