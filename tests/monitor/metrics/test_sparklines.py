"""A run's loss in a few points, compared with the full curve: restarts, NaN, and the number of bytes read."""

import math
import os
from pathlib import Path

import pytest

from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.metrics import sparklines
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.sparklines import POINTS, Sparklines

TAGS = [sparklines.LOSS, *(scalar(name).tag for name in ("learning_rate", "grad_norm", "mfu"))]


def loss(step: int) -> float:
    return math.nan if 400 <= step < 500 else 2 + 8 / step


def write(run: RunDir, number: int, steps: range) -> None:
    """Write a metrics file that resumed before the first step, with another line after every tenth step."""
    file = MetricsFile(run.tensorboard, steps[0] - 1)
    for step in steps:
        file.write(step, 1.7e9 + step, 64 * step, step, dict.fromkeys(TAGS, loss(step) + number))
        if step % 10 == 0:
            file.write(step, 1.7e9 + step, 64 * step, step, {"time/evaluation": 1.0})
    file.flush()


def test_a_long_run_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampled point is a point of the run, the first and last are included, and little of the file is
    read.
    """
    run = RunDir(tmp_path / "gpt")
    write(run, 0, range(1, 4001))
    path = run.tensorboard / "metrics.jsonl"
    reader = ScalarReader(run.tensorboard, [sparklines.LOSS])
    reader.refresh()
    all_points = reader.series[sparklines.LOSS]
    read = []
    pread = sparklines.os.pread
    monkeypatch.setattr(sparklines.os, "pread", lambda *what: read.append(what[1]) or pread(*what))
    line = Sparklines().of(run)
    assert line is not None
    known = dict(zip(all_points.steps, all_points.values))
    for step, value in zip(line["steps"], line["values"]):
        assert value is None if math.isnan(known[step]) else value == pytest.approx(known[step], rel=1e-5)
    assert (line["steps"][0], line["steps"][-1]) == (1, 4000) and None in line["values"]
    assert line["label"] == "loss 10 at step 1, 2.002 at step 4,000"
    assert len(line["steps"]) == POINTS and sum(read) < path.stat().st_size / 2


def test_a_restart_replaces_steps_and_a_grown_file_is_read_again(tmp_path: Path) -> None:
    run, lines = RunDir(tmp_path / "gpt"), Sparklines()
    assert lines.of(run) is None
    write(run, 0, range(1, 1001))
    first = lines.of(run)
    assert first is not None and lines.of(run) is first
    write(run, 3, range(601, 1201))
    line = lines.of(run)
    assert line is not None and line["steps"] == sorted(set(line["steps"])) and line["steps"][-1] == 1200
    assert all(value > 5 for step, value in zip(line["steps"], line["values"]) if step > 600)
    assert all(value < 11 for step, value in zip(line["steps"], line["values"]) if step <= 600 and value)
    # A restart drops steps before it has logged any.
    MetricsFile(run.tensorboard, 700).flush()
    line = lines.of(run)
    assert line is not None and 600 < line["steps"][-1] <= 700


def test_a_run_that_was_trained_anew_with_files_of_the_same_size_is_read_again(tmp_path: Path) -> None:
    run, lines = RunDir(tmp_path / "gpt"), Sparklines()
    write(run, 3, range(2, 5))
    first, path = lines.of(run), run.tensorboard / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace(":9.0", ":8.0"))
    os.utime(path, (2e9, 2e9))
    line = lines.of(run)
    assert first is not None and line is not None and path.stat().st_size == len(text)
    assert (first["values"][0], line["values"][0]) == (9.0, 8.0)


def test_lines_with_the_losses_of_many_datasets_are_sampled(tmp_path: Path) -> None:
    """A line may be longer than the piece that is read first."""
    run = RunDir(tmp_path / "gpt")
    file = MetricsFile(run.tensorboard, 0)
    tags = [sparklines.LOSS, *(f"{sparklines.LOSS}/dataset {number}" for number in range(300))]
    for step in range(1, 101):
        file.write(step, 1.7e9 + step, 64 * step, step, dict.fromkeys(tags, loss(step)))
    file.flush()
    assert (run.tensorboard / "metrics.jsonl").stat().st_size > 100 * sparklines.WINDOW_BYTES
    line = Sparklines().of(run)
    assert line is not None and (line["steps"][0], line["steps"][-1]) == (1, 100)
    assert len(line["steps"]) == POINTS


def test_a_short_run_is_read_completely(tmp_path: Path) -> None:
    """A run with few points is read completely. If it ends in NaN, the label says so."""
    run = RunDir(tmp_path / "gpt")
    write(run, 0, range(398, 402))
    line = Sparklines().of(run)
    assert line is not None and line["steps"] == [398, 399, 400, 401]
    assert line["values"][2:] == [None, None]
    assert line["label"] == "loss 2.02 at step 398, NaN at step 401"
