"""A run's loss in a few points, compared with the full curve: restarts, NaN, and the number of bytes read."""

import math
from pathlib import Path

import pytest
from tensorboard.compat.proto import event_pb2, summary_pb2

from nbtrain.base.metrics import scalar
from nbtrain.base.rundir import RunDir
from nbtrain.monitor import sparklines
from nbtrain.monitor.sparklines import POINTS, Sparklines
from nbtrain.monitor.tfevents import masked_crc32c, read_scalars

TAGS = [sparklines.LOSS, *(scalar(name).tag for name in ("learning_rate", "grad_norm", "mfu"))]


def loss(step: int) -> float:
    return math.nan if 400 <= step < 500 else 2 + 8 / step


def write(run: RunDir, number: int, steps: range, together: bool = False) -> Path:
    """Write an event file with one event per scalar, or one event per step."""
    run.tensorboard.mkdir(parents=True, exist_ok=True)
    path = run.tensorboard / f"events.out.tfevents.{1_700_000_000 + number}.host"
    with path.open("wb") as stream:
        for step in steps:
            values = [summary_pb2.Summary.Value(tag=tag, simple_value=loss(step) + number) for tag in TAGS]
            for group in [values] if together else [[value] for value in values]:
                summary = summary_pb2.Summary(value=group)
                event = event_pb2.Event(wall_time=1.7e9 + step, step=step, summary=summary)
                content = event.SerializeToString()
                length = len(content).to_bytes(8, "little")
                stream.write(length + masked_crc32c(length).to_bytes(4, "little") + content + bytes(4))
    return path


@pytest.mark.parametrize("together", [False, True])
def test_a_long_run_is_sampled(tmp_path: Path, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampled point is a point of the run, the first and last are included, and little of the file is
    read.
    """
    run = RunDir(tmp_path / "gpt")
    path = write(run, 0, range(1, 4001), together)
    all_points = read_scalars(run.tensorboard, [sparklines.LOSS])[sparklines.LOSS]
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


def test_a_short_run_is_read_completely(tmp_path: Path) -> None:
    """A run with few points is read completely. If it ends in NaN, the label says so."""
    run = RunDir(tmp_path / "gpt")
    write(run, 0, range(398, 402))
    line = Sparklines().of(run)
    assert line is not None and line["steps"] == [398, 399, 400, 401]
    assert line["values"][2:] == [None, None]
    assert line["label"] == "loss 2.02 at step 398, NaN at step 401"
