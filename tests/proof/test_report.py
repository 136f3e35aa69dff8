"""How a twin compares curves: equal, close or different, and from which step on."""

import math

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.twin_picture import draw
from nbtrain.proof.report import (
    TOLERANCES,
    Check,
    Curve,
    TwinReport,
    check_bitwise,
    check_close,
    check_export,
    check_trained,
)

STEPS = 7


def curve(**changes: float) -> Curve:
    """Return a curve of 7 steps. loss5=1e-3 adds 1e-3 to the loss of step 5; norm3 and validation6 work in
    the same way.
    """
    losses = {step: 6.0 - step / 10 for step in range(1, STEPS + 1)}
    norms = {step: 1.5 + step / 100 for step in range(1, STEPS + 1)}
    validation = {step: 5.9 - step / 10 for step in (2, 4, 6, 7)}
    for name, value in changes.items():
        parts = {"loss": losses, "norm": norms, "validation": validation}
        kind, step = name[:-1], int(name[-1])
        parts[kind][step] += value
    return Curve(losses, norms, validation)


def without(whole: Curve, *steps: int) -> Curve:
    return Curve(
        *({step: value for step, value in part.items() if step not in steps} for part in vars(whole).values())
    )


def test_a_curve_is_read_to_the_last_bit_and_newest_first(tmp_path):
    """A curve is read with all bits from the events of all jobs; for a step that was repeated, the last value
    counts.
    """
    run = RunDir(tmp_path / "run")
    for job_id, steps in (("20261121-000000-aaaa", (1, 2)), ("20261121-000001-aaaa", (2, 3))):
        events = EventWriter(run.job(job_id), "rank0")
        for step in steps:
            events.write(
                "trace", "", step=step, loss=(step + int(job_id[14]) / 3).hex(), grad_norm=(0.1).hex()
            )
        events.write("validation", "", step=steps[-1], loss=5.0)
    found = Curve.of(run)
    assert found.losses == {1: 1.0, 2: 2 + 1 / 3, 3: 3 + 1 / 3}
    assert found.validation == {2: 5.0, 3: 5.0}
    assert found.points["grad_norm"] == [0.1] * 3


def test_a_run_is_trained_when_every_step_has_its_number():
    assert check_trained(curve(), STEPS).outcome == "passed"
    missing = check_trained(without(curve(), 3), STEPS)
    assert (missing.outcome, missing.message) == ("failed", "6 of 7 steps were trained")
    odd = check_trained(curve(norm4=math.nan), STEPS)
    assert odd.message == "the loss or gradient norm of step 4 is NaN or Inf"


@pytest.mark.parametrize("change", ["loss5", "norm5", "validation6"])
def test_one_bit_is_not_equal(change):
    straight = curve()
    assert check_bitwise("resume", straight, curve(), 4).outcome == "passed"
    found = check_bitwise("resume", straight, curve(**{change: 1e-15}), 4)
    assert found.outcome == "failed"
    assert f"first at step {change[-1]}:" in found.message and "stopped at step 4" in found.message


def test_missing_steps_are_not_equal():
    found = check_bitwise("resume", curve(), without(curve(), 6, 7), 4)
    assert found.outcome == "failed" and "[1, 2, 3, 4, 5]" in found.message


@pytest.mark.parametrize("number_format", TOLERANCES)
@pytest.mark.parametrize("change", ["loss5", "norm5", "validation6"])
def test_what_is_close_depends_on_the_format(number_format, change):
    """The tolerance depends on the number format. A deviation of half the tolerance passes; twice the
    tolerance fails, and the result names the step.
    """
    loss, norm = TOLERANCES[number_format]
    allowed = norm * 1.55 if change == "norm5" else loss
    near = check_close("layout", curve(**{change: allowed / 2}), curve(), number_format, "here")
    assert near.outcome == "passed", near.message
    far = check_close("layout", curve(**{change: allowed * 2}), curve(), number_format, "here")
    assert far.outcome == "failed"
    assert f"at step {change[-1]}" in far.message and far.message.startswith("here: ")


def test_what_has_no_number_or_no_counterpart_is_not_close():
    """A NaN does not count as close, nor does a step that only one of the curves has. A part of a run is
    compared with the same part of the other run.
    """
    assert check_close("reshape", without(curve(), 1, 2, 3), curve(), "fp32", "here").outcome == "passed"
    assert check_close("layout", curve(loss5=math.nan), curve(), "fp32", "here").outcome == "failed"
    assert check_close("layout", curve(), without(curve(), 5), "fp32", "here").outcome == "failed"
    assert check_close("layout", without(curve(), *range(1, 8)), curve(), "fp32", "here").outcome == "failed"


def test_exported_weights_have_the_last_validation_loss():
    answer = {"validation_loss": 5.2, "num_tensors": 3, "num_parameters": 1000, "bytes": 4000}
    assert check_export("export", answer, curve(), "fp32").outcome == "passed"
    off = check_export("export", {**answer, "validation_loss": 5.201}, curve(), "fp32")
    assert off.outcome == "failed" and "by 1.0e-03, at most 1e-05 is allowed" in off.message
    assert check_export("export", {**answer, "validation_loss": 5.201}, curve(), "bf16").outcome == "passed"
    assert (
        check_export("export", {**answer, "validation_loss": math.nan}, curve(), "bf16").outcome == "failed"
    )
    assert check_export("export", None, curve(), "bf16").outcome == "failed"


def report(*outcomes: str) -> TwinReport:
    checks = [
        Check(f"check {number}", outcome, "words", {"loss_tolerance": 1e-5})
        for number, outcome in enumerate(outcomes)
    ]
    curves = {name: curve().points for name in ("straight", "exact", "rounded", "reference", "reshaped")}
    return TwinReport(
        run="gpt",
        twin="gpt-twin",
        ranks=8,
        layout="8 ranks: data 2 x pipeline 4, ZeRO 1",
        folded={"data_parallel_size": (4, 2)},
        number_format="bf16",
        checks=checks,
        not_proven=[{"what": "precision.fp8: true", "why": "only GPUs", "instead": "bf16"}],
        curves=curves,
        seconds=61.4,
        created_at=0.0,
        versions={},
        cores=2,
    )  # fmt: skip


def test_a_report_passes_when_all_of_it_did(tmp_path):
    """A report passes only if every check passed and none was skipped. It can be written, read again and
    drawn.
    """
    assert report("passed", "passed").passed
    assert not report("passed", "failed").passed
    assert not report("passed", "skipped").passed
    run = RunDir(tmp_path / "gpt-twin")
    run.path.mkdir()
    report("passed", "failed", "skipped").write(run)
    text = str(report("passed", "failed", "skipped"))
    assert text.splitlines() == [
        "Twin of gpt: FAILED in 61 s. 8 ranks: data 2 x pipeline 4, ZeRO 1, bf16.",
        "",
        "Scaled down",
        "  data_parallel_size   4 in the run, 2 in the twin",
        "",
        "Checks",
        "  ok       check 0  words",
        "  FAILED   check 1  words",
        "  skipped  check 2  words",
        "",
        "Not proven here",
        "  precision.fp8: true  only GPUs; the twin uses bf16",
    ]
    figure = draw(files.read_json(run.path / "twin.json"))
    assert figure.get_suptitle().startswith("Twin of gpt: FAILED")
    losses, differences = figure.axes
    assert len(losses.lines) == 5
    assert {line.get_label() for line in differences.lines} >= {"all ranks, fp32", "the run's number format"}
    assert draw(report("passed").to_dict()).get_suptitle().startswith("Twin of gpt: passed")
