"""The plan of a run that has finished is compared with what the run measured."""

import pytest

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.last_job import Comparison, compare, record_of


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
    assert Comparison("step", 1.21, 1.1858).text == "predicted 1.21 s a step, measured 1.19 s: -2 %"
    assert Comparison("memory", 4 << 30, 5 << 30).text == (
        "predicted 4.0 GiB, measured 5.0 GiB of rank 0: +25 %"
    )
    assert Comparison("bubble", 0.2, 0.23).text == (
        "predicted 20% of a step, measured 23% with transfers (rank 0): +3 points"
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
