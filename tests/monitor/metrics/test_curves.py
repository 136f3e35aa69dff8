"""Curves that are downsampled while they are read, and ranges that are read with every point."""

import itertools
import math
import random

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.metrics import curves, metrics_reader
from nbtrain.monitor.metrics.curves import Curve, CurveReader, drawn_points
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.run.metrics_range import CurvesRequest, csv_pieces, curve_view, metrics

LOSS = scalar("loss").tag
TOKENS = scalar("steps_vs_tokens").tag


def write(folder, *lines, resumed_from_step=0):
    """Write a metrics file of lines (wall time, step, {tag: value})."""
    file = MetricsFile(folder, resumed_from_step)
    for wall_time, step, values in lines:
        file.write(step, wall_time, 64 * step, step, values)
    file.flush()


def loss_at(step):
    return 3.0 + math.sin(step / 50)


def long_run(folder, steps, spike=None):
    """Write the loss and tokens of a long run with a single outlier."""
    write(
        folder,
        *(
            (1000.0 + step, step, {LOSS: 99.0 if step == spike else loss_at(step), TOKENS: 64.0 * step})
            for step in range(1, steps + 1)
        ),
    )


@pytest.mark.parametrize("count", [1, 15, 16, 17, 18, 33, 100, 1000, 4097])
def test_few_points_are_kept_and_no_spike_is_lost(count):
    """A downsampled curve keeps its lowest, highest and last values, unchanged and in order."""
    curve, rng = Curve(16), random.Random(count)
    written = {step: rng.random() for step in range(3, 3 + count)}
    for step, value in written.items():
        curve.put(step, value, float(step))
    steps, values = list(curve.steps), list(curve.values)
    assert len(curve) == count and len(steps) == len(values) <= 16 + 2 + 3
    assert steps == sorted(steps) and all(written[step] == value for step, value in zip(steps, values))
    assert [float(step) for step in steps] == list(curve.wall_times)
    assert (min(values), max(values)) == (min(written.values()), max(written.values()))
    assert (steps[-1], curve.last) == (count + 2, written[count + 2])
    if count <= 16:
        assert curve.width == 1 and dict(zip(steps, values)) == written


def test_short_curve_is_what_a_series_is():
    """A short curve equals the full series, with points that are repeated or out of order."""
    curve, series = Curve(), Series()
    for step, value, wall in [(1, 1.0, 1.0), (3, 3.0, 3.0), (2, 2.0, 4.0), (3, 9.0, 5.0), (1, 0.0, 6.0)]:
        curve.put(step, value, wall)
        series.put(step, value, wall)
    assert [list(curve.steps), list(curve.values), list(curve.wall_times)] == [
        series.steps,
        series.values,
        series.wall_times,
    ]


def test_values_that_are_no_numbers_hide_no_others():
    """An interval of a downsampled curve is NaN only if all its values are NaN."""
    curve = Curve(8)
    for step in range(100):
        curve.put(step, math.nan if step % 2 or step >= 64 else float(step), 0.0)
    values = list(curve.values)
    assert max(value for value in values if value == value) == 62.0
    assert math.isnan(values[-1]) and sum(map(math.isnan, values)) < len(values)


@pytest.mark.parametrize("many", [True, False])
def test_a_thinned_curve_keeps_its_trend_and_the_steps_of_nan(many):
    """The mean of a zigzag between 0 and 2 stays 1 after downsampling, and NaN values are not included in
    it.
    """
    curve, steps = Curve(16), [*range(1000)]
    values = [math.nan if 300 <= step < 310 else 2.0 * (step % 2) for step in steps]
    if many:
        curve.put_many(steps, values, [0.0] * 1000)
    else:
        for step, value in zip(steps, values):
            curve.put(step, value, 0.0)
    assert curve.width > 1 and len(curve.means) == len(curve.steps)
    assert all(0.9 < mean < 1.1 for mean in curve.means)
    assert curve.gaps.ranges == [[300, 309]]
    curve.keep([step < 500 for step in curve.steps])
    assert len(curve.means) == len(curve.steps)
    curve.gaps.drop_from(305)
    assert curve.gaps.ranges == [[300, 304]]


def test_a_restart_drops_what_is_trained_again():
    """The mark of a resume removes the points from its step on, also from a downsampled curve, before new
    points are added.
    """
    for most in (16, 4096):
        curve = Curve(most)
        for step in range(1000):
            curve.put(step, float(step), float(step))
        curve.keep([step < 500 for step in curve.steps])
        assert max(curve.steps) < 500
        for step in range(500, 1000):
            curve.put(step, -1.0, 2000.0)
        values = dict(zip(curve.steps, curve.values))
        assert all(value == (float(step) if step < 500 else -1.0) for step, value in values.items())
        assert list(curve.steps) == sorted(curve.steps) and curve.last == -1.0
        curve.keep([False] * len(curve.steps))
        curve.put(1, 1.0, 1.0)
        assert list(curve.steps) == [1]


def test_a_spike_stays_when_points_are_dropped_before_a_nan():
    """A NaN at the end of the kept points is not mistaken for their highest value."""
    curve = Curve(8)
    for step in range(1, 13):
        curve.put(step, float(step % 5), 0.0)
    for step, value in ((13, 7.0), (14, 1.0), (15, math.nan)):
        curve.put(step, value, 0.0)
    assert curve.width == 4
    curve.keep([True] * len(curve.steps))
    curve.put(16, 2.0, 0.0)
    assert dict(zip(curve.steps, curve.values))[13] == 7.0


@pytest.mark.slow
def test_a_range_is_read_again_in_detail(tmp_path, monkeypatch):
    """A short range is read with every point, and only from the blocks of the file that contain its steps."""
    monkeypatch.setattr(metrics_reader, "BLOCK_BYTES", 4096)
    long_run(tmp_path, 9000, spike=4321)
    reader = CurveReader(tmp_path, [LOSS])
    assert reader.refresh()
    curve = reader.series[LOSS]
    assert len(curve) == 9000 and len(curve.steps) <= 2050 and max(curve.values) == 99.0
    found = reader.detail([LOSS], 4000, 4500, 60.0)[LOSS]
    full = ScalarReader(tmp_path, [LOSS])
    full.refresh()
    wanted = [(s, v) for s, v in zip(full.series[LOSS].steps, full.series[LOSS].values) if 4000 <= s <= 4500]
    assert list(zip(found.steps, found.values)) == wanted and len(wanted) == 501
    read = []
    take = ScalarReader._take_block
    monkeypatch.setattr(
        ScalarReader,
        "_take_block",
        lambda self, file, content: read.append(len(content)) or take(self, file, content),
    )
    reader.detail([LOSS], 4000, 4500, 60.0)
    assert sum(read) < (tmp_path / "metrics.jsonl").stat().st_size / 8


def test_a_range_has_the_steps_that_were_written_late(tmp_path, monkeypatch):
    """Steps of a GPU are written after a line of a later step, which may end a block."""
    monkeypatch.setattr(metrics_reader, "BLOCK_BYTES", 1000)
    file = MetricsFile(tmp_path, 0)
    for first in range(0, 400, 10):
        file.write(first + 10, 0.0, 0, 0, {TOKENS: 1.0})
        for step in range(first, first + 10):
            file.write(step, 0.0, 0, 0, {LOSS: float(step)})
    file.flush()
    reader = CurveReader(tmp_path, [LOSS])
    reader.refresh()
    assert len(reader.files[1].places) > 10
    for first in range(0, 397, 3):
        found = reader.detail([LOSS], first, first + 3, 60.0)[LOSS]
        assert list(found.steps) == [*range(first, first + 4)]


def test_reading_stops_in_time_and_goes_on(tmp_path, monkeypatch):
    """When its time limit is over, a read stops after a block and reports how much is left; later calls
    continue there.
    """
    monkeypatch.setattr(metrics_reader, "BLOCK_BYTES", 4096)
    long_run(tmp_path, 500)
    reader = CurveReader(tmp_path, [LOSS])
    reader.refresh(1e-9)
    first = reader.behind_bytes
    assert first > 0
    while reader.behind_bytes:
        before = reader.behind_bytes
        reader.refresh(1e-9)
        assert reader.behind_bytes < before
    assert len(reader.series[LOSS]) == 500


def run_with(tmp_path, steps):
    run = RunDir(tmp_path / "gpt-long")
    run.path.mkdir()
    long_run(run.tensorboard, steps, spike=steps // 2)
    return run


def test_metrics_by_step_tokens_and_time(tmp_path):
    """Metrics can be requested by step, tokens or time; a range also includes one point on each side."""
    view = curve_view(run_with(tmp_path, 100))
    found = metrics(view, CurvesRequest(("loss", "grad_norm")))
    assert [tag["tag"] for tag in found["tags"]] == ["loss", "steps_vs_tokens"]
    assert found["tags"][0]["unit"] == "nats" and found["tags"][0]["num_points"] == 100
    loss = found["series"]["loss"]
    assert loss["step"] == [*range(1, 101)] and loss["tokens"] == [64 * step for step in range(1, 101)]
    assert loss["time"][:2] == [1001.0, 1002.0] and loss["value"][49] == 99.0
    assert found["series"]["grad_norm"] == {
        "step": [],
        "time": [],
        "tokens": [],
        "value": [],
        "num_points": 0,
    }
    assert (found["marks"], found["reading"]) == ([], 1.0)
    for x, first, last in (("step", 10, 12), ("tokens", 640, 768), ("time", 1010, 1012)):
        part = metrics(view, CurvesRequest(("loss",), x, first, last))["series"]["loss"]
        assert part["step"] == [9, 10, 11, 12, 13]
    assert metrics(view, CurvesRequest(("loss",), "step", 200, 300))["series"]["loss"]["step"] == []
    few = metrics(view, CurvesRequest(("loss",), points=10))["series"]["loss"]
    assert len(few["step"]) <= 10 and 99.0 in few["high"] and few["num_points"] == 100
    with pytest.raises(ConfigError, match=r"^'los' is not one of nbtrain's scalars\. Nearest: loss\.$"):
        metrics(view, CurvesRequest(("los",)))


@pytest.mark.slow
def test_a_narrow_range_of_a_long_run_has_every_point(tmp_path):
    """A long run is downsampled but keeps its spike; a narrow range of the run has every point."""
    view = curve_view(run_with(tmp_path, 9000))
    # On a busy machine each read covers a part of the file.
    while (answer := metrics(view, CurvesRequest(("loss",))))["reading"] < 1:
        pass
    whole = answer["series"]["loss"]
    assert len(whole["step"]) <= 500 and 99.0 in whole["high"] and whole["num_points"] == 9000
    assert (whole["step"][0], whole["step"][-1]) == (1, 9000)
    part = metrics(view, CurvesRequest(("loss",), "tokens", 64 * 2000, 64 * 2100))["series"]["loss"]
    assert set(range(2000, 2101)) <= set(part["step"])
    assert part["tokens"] == pytest.approx([64 * step for step in part["step"]])


def test_a_range_between_two_kept_points_is_read_from_the_files(tmp_path, monkeypatch):
    """A range between two kept points is read from the files; a range outside all points is empty."""
    monkeypatch.setattr(curves, "Curve", lambda: Curve(16))
    view = curve_view(run_with(tmp_path, 600))
    while metrics(view, CurvesRequest(("loss",)))["reading"] < 1:
        pass
    kept = list(view.reader.series[LOSS].steps)
    left, right = max(itertools.pairwise(kept), key=lambda pair: pair[1] - pair[0])
    assert right - left > 12
    first = left + 4
    for x, begin in (("step", 0), ("time", 1000)):
        part = metrics(view, CurvesRequest(("loss",), x, begin + first, begin + first + 3))["series"]["loss"]
        assert part["step"] == [*range(first - 1, first + 5)]
        for outside in ((-9, -1), (601, 700)):
            asked = CurvesRequest(("loss",), x, *(begin + at for at in outside))
            assert metrics(view, asked)["series"]["loss"]["step"] == []
        # Nothing was written between two steps.
        none = metrics(view, CurvesRequest(("loss",), x, begin + first + 0.25, begin + first + 0.75))
        assert none["series"]["loss"]["step"] == []


def test_csv_has_every_point_once(tmp_path):
    """The CSV has each step once, also a step that was trained again after a restart."""
    run = run_with(tmp_path, 5)
    view = curve_view(run)
    write(run.tensorboard, (2001.0, 4, {LOSS: 1.5}), resumed_from_step=3)
    lines = "".join(csv_pieces(view, ["loss"])).split("\r\n")
    assert lines[:2] == ["name,step,tokens,time,value", "loss,1,64,1970-01-01T00:16:41.000+00:00,3.019999"]
    assert [line.split(",")[1] for line in lines[1:-1]] == ["1", "2", "3", "4"]
    assert lines[-2:] == ["loss,4,256,1970-01-01T00:33:21.000+00:00,1.5", ""]


def test_a_picture_draws_the_ends_and_the_lowest_and_highest_of_every_column():
    """A long line is drawn with few points, none of which a reader of the picture would miss."""
    assert drawn_points([1.0, 2.0, 3.0], most=4) == [0, 1, 2]
    values = [loss_at(step) for step in range(10_000)]
    values[4_321], values[7_000], values[7_001] = 99.0, -5.0, math.nan
    at = drawn_points(values, most=100)
    assert len(at) <= 102 and at == sorted(set(at)) and (at[0], at[-1]) == (0, 9_999)
    assert 4_321 in at and 7_000 in at and 7_001 not in at
    for first in range(0, 10_000, 200):
        column = [value for value in values[first : first + 200] if value == value]
        drawn = [values[index] for index in at if first <= index < first + 200]
        assert min(column) == min(drawn) and max(column) == max(drawn)
    values[2_000:3_000] = [math.nan] * 1_000
    gap = [index for index in drawn_points(values, most=100) if 2_000 <= index < 3_000]
    assert gap and all(math.isnan(values[index]) for index in gap)
