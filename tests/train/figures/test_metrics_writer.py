"""Scalars in metrics.jsonl and in event files: tags, counts instead of steps, and restarts without duplicate
points."""

import itertools
import json
import math
import subprocess
import sys
import time

import pytest

from nbtrain.base.run_directory.metrics import SCALARS
from nbtrain.monitor.metrics.event_files import read_event_files
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.train.figures.metrics_writer import MetricsWriter


@pytest.fixture(autouse=True)
def seconds_apart(monkeypatch):
    """Make every call of time.time() return the next second: event files are sorted by the second in their
    names, and a real restart takes longer.
    """
    ticks = itertools.count(1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))


def points(folder, tag):
    """Return [(step, value)] of a scalar as nbtrain reads it, which takes restarts into account."""
    reader = ScalarReader(folder)
    reader.refresh()
    return rounded(reader.series[tag])


def event_points(folder, tag):
    """Return [(step or count, value)] of a tag in the event files."""
    return rounded(read_event_files(folder)[tag])


def rounded(series):
    return list(zip(series.steps, [round(value, 3) for value in series.values]))


BY_TENSORBOARD = """
import json, sys, time
from tensorboard import context
from tensorboard.data import server_ingester
from tensorboard.util import grpc_util
try:
    binary = server_ingester.get_server_binary()
except server_ingester.NoDataServerError as error:
    sys.exit(f"no data server: {error}")
ingester = server_ingester.SubprocessServerDataIngester(
    server_binary=binary,
    logdir=sys.argv[1],
    reload_interval=0,
    channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
)
ingester.start()
# It answers before it has read the folder.
for _ in range(6000):
    found = ingester.data_provider.read_scalars(
        context.RequestContext(), experiment_id="", plugin_name="scalars", downsample=1000
    )
    series = [points for tags in found.values() for points in tags.values()]
    if series and all(points and points[-1].value == float(sys.argv[2]) for points in series):
        break
    time.sleep(0.05)
print(json.dumps([
    [run, tag, [[point.step, round(point.value, 3)] for point in series]]
    for run, tags in found.items() for tag, series in tags.items()
]))
"""


def by_tensorboard(root, newest):
    """Return {(run, tag): [(step, value)]} from TensorBoard's data server. `newest` is the value with which
    every series must end.
    """
    command = [sys.executable, "-c", BY_TENSORBOARD, root, str(newest)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "no data server" in done.stderr:
        pytest.skip(done.stderr)
    return {(run, tag): [tuple(point) for point in points] for run, tag, points in json.loads(done.stdout)}


def test_every_scalar_of_the_table_can_be_written(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, 128, 4, **{scalar.name: 1.5 for scalar in SCALARS})
    writer.close()
    for scalar in SCALARS:
        assert points(tmp_path, scalar.tag) == event_points(tmp_path, scalar.tag) == [(1, 1.5)]
        if scalar.by_tokens:
            assert event_points(tmp_path, f"{scalar.tag} vs tokens") == [(128, 1.5)]
            assert event_points(tmp_path, f"{scalar.tag} vs samples") == [(4, 1.5)]


def test_an_unknown_value_leaves_no_point(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, 128, 4, loss=2.0, mfu=None)
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    loss = "lm-loss-training/lm loss"
    assert accumulator.Tags()["scalars"] == [loss, f"{loss} vs tokens", f"{loss} vs samples"]


def test_after_a_restart_each_step_has_one_point_and_none_is_lost(tmp_path):
    """After a crash and a resume from step 2, each step has exactly one point, as nbtrain reads it and in the
    event files by tokens and by samples."""
    first = MetricsWriter(tmp_path, 0)
    for step in (1, 2, 3):
        first.write(step, 128 * step, 4 * step, loss=float(step))
    first.close()
    second = MetricsWriter(tmp_path, 2)
    for step in (3, 4):
        second.write(step, 128 * step, 4 * step, loss=10.0 + step)
    second.close()
    expected = [1.0, 2.0, 13.0, 14.0]
    assert points(tmp_path, "lm-loss-training/lm loss") == list(zip((1, 2, 3, 4), expected))
    assert event_points(tmp_path, "lm-loss-training/lm loss vs tokens") == list(
        zip((128, 256, 384, 512), expected)
    )
    assert event_points(tmp_path, "lm-loss-training/lm loss vs samples") == list(
        zip((4, 8, 12, 16), expected)
    )


def test_both_kinds_of_file_have_the_same_times_and_values(tmp_path):
    """A scalar's time is equal in both; values that no float32 holds, such as a count of tokens, are exact in
    metrics.jsonl only."""
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, 300_000_001, 4, loss=0.1, steps_vs_tokens=300_000_001, grad_norm=math.inf)
    writer.text("config", "a\nb")
    writer.close()
    events = read_event_files(tmp_path)
    reader = ScalarReader(tmp_path)
    reader.refresh()
    assert set(reader.series) == {tag for tag in events if " vs " not in tag} | {"steps-vs-tokens/steps"}
    for tag, series in reader.series.items():
        assert (series.steps, series.wall_times) == (events[tag].steps, events[tag].wall_times)
        assert series.values == pytest.approx(events[tag].values, rel=1e-7)
    assert reader.series["steps-vs-tokens/steps"].values == [300_000_001.0]


@pytest.mark.slow
def test_writing_loads_no_torch(tmp_path):
    """The writer needs no torch, so that tests write the files of a run quickly."""
    code = (
        "import sys; from pathlib import Path\n"
        "from nbtrain.train.figures.metrics_writer import MetricsWriter\n"
        "MetricsWriter(Path(sys.argv[1]), 0).close(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_a_restart_before_the_first_checkpoint_starts_over(tmp_path):
    first = MetricsWriter(tmp_path, 0)
    first.write(1, 128, 4, loss=1.0)
    first.close()
    second = MetricsWriter(tmp_path, 0)
    second.write(1, 128, 4, loss=9.0)
    second.close()
    assert points(tmp_path, "lm-loss-training/lm loss") == [(1, 9.0)]


def test_a_scalar_of_a_family_has_the_name_in_its_tag(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, 128, 4, **{"loss/wiki": 2.5, "loss/b/c#2": 3.5, "loss/none": None})
    writer.close()
    assert points(tmp_path, "lm-loss-training/lm loss/wiki") == [(1, 2.5)]
    assert points(tmp_path, "lm-loss-training/lm loss/b/c#2") == [(1, 3.5)]
    assert event_points(tmp_path, "lm-loss-training/lm loss/wiki vs tokens") == [(128, 2.5)]
    with pytest.raises(KeyError):
        writer.write(1, 128, 4, losses=1.0)


@pytest.mark.slow
def test_tensorboard_has_one_entry_for_a_run_and_no_point_twice(tmp_path):
    """TensorBoard lists a run once; its data server drops points that were written again after a restart."""
    folder = tmp_path / "gpt" / "tensorboard"
    first = MetricsWriter(folder, 0)
    for step in (1, 2, 3):
        first.write(step, 128 * step, 4 * step, loss=float(step))
    first.close()
    second = MetricsWriter(folder, 2)
    second.write(3, 384, 12, loss=13.0)
    second.close()
    loss = "lm-loss-training/lm loss"
    assert by_tensorboard(tmp_path, newest=13.0) == {
        ("gpt/tensorboard", loss): [(1, 1.0), (2, 2.0), (3, 13.0)],
        ("gpt/tensorboard", f"{loss} vs tokens"): [(128, 1.0), (256, 2.0), (384, 13.0)],
        ("gpt/tensorboard", f"{loss} vs samples"): [(4, 1.0), (8, 2.0), (12, 13.0)],
    }


def test_tensorboard_without_its_data_server_keeps_the_points_by_tokens(tmp_path):
    """TensorBoard's Python reader keeps the points by tokens, because the restart marker, which is a step, is
    not compared with token counts.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = MetricsWriter(tmp_path, 0)
    first.write(1, 128, 4, loss=1.0)
    first.close()
    MetricsWriter(tmp_path, 1).close()
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert [point.step for point in accumulator.Scalars("lm-loss-training/lm loss vs tokens")] == [128]
