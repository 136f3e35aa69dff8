"""The measurement that a planned time rests on, and the committed results that it must agree with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nbtrain.config.arithmetic.devices import BY_NAME
from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.last_job import Measured
from nbtrain.planner.time.duration import OWN, rests_on
from nbtrain.planner.time.rates import read_speed

pytestmark = pytest.mark.usefixtures("workspace")

RESULTS = Path(__file__).parents[3] / "docs" / "evidence" / "gpu.json"


def test_the_measurement_is_the_one_on_the_page():
    """Device, date, tokens/s and seconds of a step are those of gpu.json."""
    label = f"{OWN.num_devices} x NVIDIA {OWN.device}"
    row = json.loads(RESULTS.read_text())[label]["rows"]["speed"]["125m, nbtrain"]
    assert row["values"]["tokens/s"] == f"{OWN.tokens_per_second:,}"
    assert row["words"].startswith(f"{OWN.step_seconds:g} s a step")
    assert row["date"] == OWN.date
    assert OWN.device in BY_NAME


@pytest.mark.parametrize(
    ("run", "overrides", "kind", "words"),
    [
        ("gpt-125m", ["resources.gpu_type=H200"], "one step", "0.344 s per step (docs/evidence/gpu.md)"),
        ("gpt-125m-2xdp", ["resources.gpu_type=H200"], "one step", "has not been measured on several H200"),
        (
            "gpt-125m",
            [],
            "scaled step",
            "nbtrain has not been measured on A100-40GB, so this step was scaled by the datasheets",
        ),
        ("gpt-125m", ["resources.gpu_type=MI300X"], "scaled step", "has not been measured on MI300X"),
        ("gpt-tiny", [], "cpu benchmarks", "gpt3-tiny and a 14M model on 2 cores"),
    ],
)
def test_each_kind_of_device_says_what_its_plan_rests_on(run, overrides, kind, words):
    found = plan(load(run, overrides), use_measured=False)
    assert found.rests_on is not None and found.rests_on.kind == kind
    assert words in found.rests_on.words
    assert found.sections()["Time"]["rests on"] == found.rests_on.words
    assert found.rests_on.words in str(found)
    assert found.to_dict()["rests_on"]["kind"] == kind


def test_own_measurements_come_first():
    """The run's last job comes before this machine's calibration, which comes before the one step."""
    speed = read_speed(load("gpt-125m"), use_measured=False)
    assert speed.rates is not None
    calibrated = replace(speed, rates=replace(speed.rates, source="measured here"))
    found = rests_on(calibrated)
    assert found is not None and (found.kind, found.measurement) == ("calibration", OWN)
    job = Measured(1e5, speed.setup, (), None, None)
    found = rests_on(replace(calibrated, last_job=job))
    assert found is not None and (found.kind, found.measurement) == ("last job", None)


def test_an_unknown_gpu_has_no_measurement():
    found = plan(load("gpt-125m", ["resources.gpu_type=null"]), use_measured=False)
    assert found.rests_on is None and "rests on" not in found.sections()["Time"]
    assert found.to_dict()["rests_on"] is None
