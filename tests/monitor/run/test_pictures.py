"""Figures and the table of scalars, for a run and for any folder of event files."""

import math
from pathlib import Path

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.pictures import scalars_of, scalars_table, throughput, timing, training_curves
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob
from tests.monitor.metrics.test_event_files import EventFile


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=60)
    for _ in range(60):
        job.one_step()
    job.finish("SUCCEEDED", "all tokens are done and saved")
    return job.run


def drawn(figure) -> dict[str, list[tuple[list[float], list[float]]]]:
    """Return {title: the (x, y) points of each line} of the figure."""
    return {
        axes.get_title(loc="left"): [
            (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()
        ]
        for axes in figure.axes
    }


def test_curves_of_a_run_are_its_points(run: RunDir) -> None:
    """The four pictures of a run show exactly its points, and smoothed lines stay between them."""
    lines = drawn(training_curves(RunView(run)))
    assert list(lines) == ["Loss", "Validation perplexity", "Learning rate", "Throughput"]
    points, mean, validation = lines["Loss"]
    series = RunView(run).scalars("loss")
    assert points == (series.steps, series.values)
    assert mean[1][0] == series.values[0]
    assert min(series.values) <= mean[1][-1] <= max(series.values)
    assert mean[1][-1] == pytest.approx(sum(series.values[-2:]) / 2)
    assert validation[0] == [10, 20, 30, 40, 50, 60]
    (perplexity,) = lines["Validation perplexity"]
    assert perplexity[1] == pytest.approx([math.exp(loss) for loss in validation[1]], rel=1e-5)


def test_a_run_without_perplexity_has_no_picture_of_it(tmp_path: Path) -> None:
    """A run without validation has no perplexity chart; a run with preference pairs has a chart of its reward
    margin there.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=60)
    job.step = 1
    job.scalars(loss=2.0, learning_rate=1e-3, tokens_per_second=100.0)
    assert [*drawn(training_curves(job.run))] == ["Loss", "Learning rate", "Throughput"]
    job.scalars(validation_loss=0.5, validation_reward_margin=1.5)
    lines = drawn(training_curves(job.run))
    assert [*lines] == ["Loss", "Reward margin", "Learning rate", "Throughput"]
    assert lines["Reward margin"] == [([1], [1.5])]
    job.finish("CANCELLED", "stopped")


@pytest.mark.slow
def test_figure_shows_itself_without_pyplot(run: RunDir) -> None:
    """A figure renders itself as PNG in a notebook, without pyplot or a display."""
    assert training_curves(run)._repr_png_().startswith(b"\x89PNG")


def test_time_of_a_step_and_the_ranks_side_by_side(tmp_path: Path) -> None:
    """The parts of the step time are stacked, and per-rank curves have points only at logged steps."""
    file = EventFile(tmp_path / "run", 100)
    for step in (1, 2):
        for tag, value in (
            ("iteration-time/iteration-time", 4.0),
            ("time/forward", 1.0),
            ("time/backward", 2.0),
        ):
            file.scalar(step, value, 100 + step, tag)
    for tag, value in (("min", 1.0), ("median", 1.5), ("max", 3.0)):
        file.scalar(2, value, 102, f"ranks/compute {tag}")
    file.scalar(2, 5, 102, "ranks/slowest rank")
    file.scalar(2, 1.0, 102, "ranks/slowdown of the slowest")
    figure = timing(tmp_path / "run")
    lines = drawn(figure)
    assert list(lines) == [
        "Time of a step",
        "Compute time of the ranks: rank 5 is 100% slower than its stage",
    ]
    parts, ranks = figure.axes
    assert lines["Time of a step"] == [([1, 2], [4.0, 4.0])]
    # The second area extends from the top of the first one to 3 s.
    assert [area.get_paths()[0].get_extents().y1 for area in parts.collections] == [1.0, 3.0]
    assert [text.get_text() for text in parts.get_legend().get_texts()] == [
        "forward",
        "backward",
        "whole step",
    ]
    assert [line.get_ydata()[0] for line in ranks.get_lines()] == [3.0, 1.5, 1.0]


def test_folder_of_megatron_deepspeed_is_drawn(tmp_path: Path) -> None:
    """Event files of Megatron-DeepSpeed can be drawn; tokens per second are computed from their scalars."""
    file = EventFile(tmp_path / "megatron", 100)
    for step in (1, 2):
        file.scalar(step, 9.0 / step, 100 + step)
        file.scalar(step, 256, 100 + step, "batch-size/batch-size")
        file.scalar(step, 2048, 100 + step, "seqlen/actual_seq_length")
        file.scalar(step, 4.0, 100 + step, "iteration-time/iteration-time")
        file.scalar(step, 0.5, 100 + step, "steps-vs-tokens/lm loss")
    folder = tmp_path / "megatron"
    assert set(scalars_of(folder)) == {
        "loss",
        "batch_size",
        "seq_length",
        "iteration_time",
        "steps-vs-tokens/lm loss",
    }
    assert throughput(scalars_of(folder)).values == [131072.0, 131072.0]
    lines = drawn(training_curves(folder))
    assert lines["Loss"] == [([1, 2], [9.0, 4.5])]
    assert lines["Throughput"] == [([1, 2], [131072.0, 131072.0])]
    assert "Validation perplexity" not in lines


def test_run_folder_by_path_and_a_folder_without_events(run: RunDir, tmp_path: Path) -> None:
    """A run can be given as the path of its folder; a folder without event files is an error."""
    assert len(scalars_of(str(run.path))["loss"]) == 60
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no TensorBoard event file"):
        training_curves(tmp_path / "empty")


def test_table_has_the_newest_value_with_its_unit(run: RunDir) -> None:
    """The table lists each scalar's newest value with its unit, step and meaning; markup in tags is
    escaped.
    """
    table = scalars_table(run)
    rows = {name: (value, step) for name, value, step, _ in table.rows}
    assert rows["host_memory_bytes"] == ("492.1 MiB", "60")
    assert rows["tokens_per_second"][0].endswith(" tokens/s")
    assert rows["validation_loss"][0].endswith(" nats")
    assert "mfu" not in rows
    file = EventFile(run.tensorboard.parent / "other", 100)
    file.scalar(1, 2.0, 101, "<script>alert(1)</script>")
    table = scalars_table(run.path / "other")
    assert "<script>" not in table._repr_html_()
    assert repr(table).splitlines()[1].startswith("<script>alert(1)</script>")
    assert repr(table).split()[-1] == "1"
