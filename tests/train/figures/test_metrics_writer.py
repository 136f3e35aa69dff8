"""tfevents: tags, counts in place of steps, and restarts without double points."""

import itertools
import time

import pytest

from nbtrain.base.metrics import SCALARS
from nbtrain.train.figures.metrics_writer import MetricsWriter


@pytest.fixture(autouse=True)
def seconds_apart(monkeypatch):
    """Files are ordered by the second in their names; a restart takes longer than one."""
    ticks = itertools.count(1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(ticks)))


def read(folder, tag):
    """[(step, value)] as TensorBoard shows them, restarts taken into account."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(point.step, round(point.value, 3)) for point in accumulator.Scalars(tag)]


def test_every_scalar_of_the_table_can_be_written(tmp_path):
    writer = MetricsWriter(tmp_path, 0, 0, 0)
    writer.write(1, 128, 4, **{scalar.name: 1.5 for scalar in SCALARS})
    writer.close()
    for scalar in SCALARS:
        assert read(tmp_path, scalar.tag) == [(1, 1.5)]
        if scalar.by_tokens:
            assert read(tmp_path / "by_tokens", f"{scalar.tag} vs tokens") == [(128, 1.5)]
            assert read(tmp_path / "by_samples", f"{scalar.tag} vs samples") == [(4, 1.5)]


def test_an_unknown_value_leaves_no_point(tmp_path):
    writer = MetricsWriter(tmp_path, 0, 0, 0)
    writer.write(1, 128, 4, loss=2.0, mfu=None)
    writer.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    assert accumulator.Tags()["scalars"] == ["lm-loss-training/lm loss"]


def test_after_a_restart_each_step_has_one_point_and_none_is_lost(tmp_path):
    """Three steps, death, and on from the checkpoint of step 2; the same by tokens and by samples."""
    first = MetricsWriter(tmp_path, 0, 0, 0)
    for step in (1, 2, 3):
        first.write(step, 128 * step, 4 * step, loss=float(step))
    first.close()
    second = MetricsWriter(tmp_path, 2, 256, 8)
    for step in (3, 4):
        second.write(step, 128 * step, 4 * step, loss=10.0 + step)
    second.close()
    expected = [1.0, 2.0, 13.0, 14.0]
    assert read(tmp_path, "lm-loss-training/lm loss") == list(zip((1, 2, 3, 4), expected))
    assert read(tmp_path / "by_tokens", "lm-loss-training/lm loss vs tokens") == list(
        zip((128, 256, 384, 512), expected)
    )
    assert read(tmp_path / "by_samples", "lm-loss-training/lm loss vs samples") == list(
        zip((4, 8, 12, 16), expected)
    )


def test_a_restart_before_the_first_checkpoint_starts_over(tmp_path):
    first = MetricsWriter(tmp_path, 0, 0, 0)
    first.write(1, 128, 4, loss=1.0)
    first.close()
    second = MetricsWriter(tmp_path, 0, 0, 0)
    second.write(1, 128, 4, loss=9.0)
    second.close()
    assert read(tmp_path, "lm-loss-training/lm loss") == [(1, 9.0)]


def test_a_scalar_of_a_family_has_the_name_in_its_tag(tmp_path):
    writer = MetricsWriter(tmp_path, 0, 0, 0)
    writer.write(1, 128, 4, **{"loss/wiki": 2.5, "loss/b/c#2": 3.5, "loss/none": None})
    writer.close()
    assert read(tmp_path, "lm-loss-training/lm loss/wiki") == [(1, 2.5)]
    assert read(tmp_path, "lm-loss-training/lm loss/b/c#2") == [(1, 3.5)]
    assert read(tmp_path / "by_tokens", "lm-loss-training/lm loss/wiki vs tokens") == [(128, 2.5)]
    with pytest.raises(KeyError):
        writer.write(1, 128, 4, losses=1.0)
