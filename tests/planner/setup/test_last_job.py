"""The plan of a run that has finished is compared with what the run measured."""

import json
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Literal, get_args, get_origin

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.arithmetic.devices import Device, find_device
from nbtrain.config.code_file import code_file
from nbtrain.config.load import load
from nbtrain.config.own_blocks import shape_of, write_own_block
from nbtrain.config.shape import OwnBlock
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.last_job import (
    Comparison,
    compare,
    record_of,
    record_of_setup,
    setup_of_record,
)
from nbtrain.planner.setup.setup import Setup

BLOCK = OwnBlock(300_000, 3_000, 280_000, 0, 200_000, 2_000, 5)


@pytest.fixture
def ran(workspace, repository):
    """Return a function that writes the summary of a finished run and returns the run's configuration."""
    (workspace / "examples").symlink_to(repository / "examples")

    def write(overrides=None, **figures):
        config = load("gpt-tiny", overrides)
        run = RunDir.named(config.name)
        run.path.mkdir(parents=True, exist_ok=True)
        files.write_json(run.summary_json, {"measured_with": record_of(config), **figures})
        return config

    return write


def test_every_figure_says_predicted_measured_and_the_difference():
    assert Comparison("step", 1.21, 1.1858).text == "predicted 1.21 s per step, measured 1.19 s: -2 %"
    assert Comparison("memory", 4 << 30, 5 << 30).text == (
        "predicted 4.0 GiB, measured 5.0 GiB on rank 0: +25 %"
    )
    assert Comparison("bubble", 0.2, 0.23).text == (
        "predicted 20% of a step, measured 23% on rank 0 including transfers: +3 percentage points"
    )


def test_a_plan_of_a_run_that_has_run_shows_what_it_measured(ran):
    """The plan of a finished run also shows what was measured: 8 samples at 16 samples/s are half a second
    per step.
    """
    config = ran(samples_per_second=16.0, memory_bytes=1 << 30)
    made = plan(config)
    step, memory = made.compared
    assert (step.name, step.measured, step.predicted) == ("step", 0.5, made.duration.step.seconds)
    assert (memory.name, memory.measured, memory.predicted) == ("memory", 1 << 30, made.memory.total_bytes)
    text = str(made)
    assert "Last job" in text and f"step {step.text}" in " ".join(text.split())
    assert [one["name"] for one in made.to_dict()["measured"]] == ["step", "memory"]
    # The next plan of the run uses the measurements.
    assert made.duration.tokens_per_second == pytest.approx(16 * 256)
    assert plan(config, use_measured=False).compared == []


def test_a_pipeline_is_compared_by_its_bubble_too(ran):
    piped = {"parallel.pipeline_parallel_size": 2, "batch.micro_batch_size": 2, "parallel.zero_stage": 1}
    config = ran(piped, samples_per_second=16.0, pipeline_fraction=0.3)
    bubble = plan(config).compared[-1]
    assert (bubble.name, bubble.measured) == ("bubble", 0.3) and 0 < bubble.predicted < 1


def test_another_setup_is_not_compared(ran):
    """The measurements of a run with four layers are not shown in the plan of two layers."""
    ran(samples_per_second=16.0, memory_bytes=1 << 30)
    assert plan(load("gpt-tiny", {"model.num_layers": 2})).compared == []


def test_a_run_that_never_ran_has_nothing_to_compare(ran, workspace):
    assert compare(load("gpt-tiny"), None, 1.0, 1.0, 0.0) == []


def test_the_last_job_of_a_run_with_its_own_blocks_counts(ran, workspace):
    """The record has the blocks as the trial counted them, and the next plan reads them from it."""
    code = workspace / "my_code.py"
    code.write_text("def layer(config, index, parts):\n    return parts.mlp()\n")
    own = {"code": str(code)}
    config = load("gpt-tiny", own)
    write_own_block(config, code_file(config).sha256, BLOCK)
    assert shape_of(config).own_block == BLOCK
    ran(own, samples_per_second=16.0)
    made = plan(config)
    assert made.duration.basis == "4,096 tokens/s, measured by this run's last job"
    assert [one.name for one in made.compared] == ["step"]
    # A file with other blocks is another setup.
    code.write_text("def layer(config, index, parts):\n    return parts.attention()\n")
    assert "this run's last job with different settings (code), times" in plan(config).duration.basis


def other_than(kind, default):
    """Return a value of a field's type that is not its default."""
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    if kind is bool:
        return default is not True
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if get_origin(kind) is tuple:
        return tuple(other_than(inner, None) for inner in get_args(kind) if inner is not ...)
    if kind is Device:
        return find_device("H100")
    if is_dataclass(kind):
        return kind(**{field.name: other_than(field.type, field.default) for field in fields(kind)})
    return {int: 7, float: 0.5, str: "other"}[kind]


def test_a_record_has_every_field_of_a_setup():
    """Types that JSON does not know (tuples, dataclasses, the device by its name) are read as they were."""
    setup = other_than(Setup, None)
    assert setup.shape.own_block is not None and setup.device is not None
    assert setup_of_record(json.loads(json.dumps(record_of_setup(setup)))) == setup


@pytest.mark.parametrize(
    "damage", [{"shape": "x"}, {"shape": None}, {"stage_layers": 4}, {"device": "x"}, {"a": 1}]
)
def test_a_damaged_record_is_not_used(ran, damage):
    config = ran(samples_per_second=16.0)
    path = RunDir.named(config.name).summary_json
    summary = files.read_json(path)
    summary["measured_with"]["setup"] |= damage
    files.write_json(path, summary)
    assert plan(config).compared == []


def test_a_record_without_a_newer_field_has_its_default(ran):
    config = ran(samples_per_second=16.0)
    path = RunDir.named(config.name).summary_json
    summary = files.read_json(path)
    setup = summary["measured_with"]["setup"]
    del setup["loader_workers"], setup["shape"]["own_block"]
    files.write_json(path, summary)
    assert [one.name for one in plan(config).compared] == ["step"]
