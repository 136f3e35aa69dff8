"""The charts of a snapshot: ranges, round ticks, and labels that distinguish adjacent ticks."""

from typing import Any

import pytest

from nbtrain.monitor.metrics.chart_data import charts, ticks


def curves(**points: list[float | None]) -> dict[str, dict[str, Any]]:
    """Return {name: curve} with the given values at steps 1, 2, ..."""
    names = ("loss", "validation_loss", "learning_rate", "tokens_per_second")
    return {
        name: {"steps": list(range(1, 1 + len(points.get(name, [])))), "values": points.get(name, [])}
        for name in names
    }


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (2.63, 8.43, 5, [4.0, 6.0, 8.0]),
        (0.0, 1.06e-3, 2, [0.0, 5e-4, 1e-3]),
        (-1.0, 1.0, 4, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (119.9, 120.1, 2, [119.9, 120.0, 120.1]),
        (0.0, 3e-14, 3, [0.0, 1e-14, 2e-14, 3e-14]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, expected: list[float]) -> None:
    """Ticks are multiples of 1, 2 or 5 times a power of ten, even in a very small range."""
    assert ticks(low, high, count) == pytest.approx(expected, abs=0)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([8.4, 2.6], ["4", "6", "8"]),
        ([2.45, 2.55], ["2.45", "2.50", "2.55"]),
        ([2.0, 4.0], ["2.0", "2.5", "3.0", "3.5", "4.0"]),
    ],
)
def test_labels_of_the_loss_tell_neighbours_apart(values: list[float], labels: list[str]) -> None:
    assert [label for _, label in charts(curves(loss=values))[0]["y_ticks"]] == labels


def test_learning_rate_and_throughput_begin_at_zero() -> None:
    """The axes of learning rate and throughput start at zero, one in powers of ten and the other in
    thousands.
    """
    _, rate, speed = charts(curves(learning_rate=[1.5e-4, 3e-4], tokens_per_second=[4900.0, 5100.0]))
    assert (rate["y"][0], speed["y"][0]) == (0.0, 0.0)
    assert [label for _, label in rate["y_ticks"]] == ["0", "1e-4", "2e-4", "3e-4"]
    assert [label for _, label in speed["y_ticks"]] == ["0", "2k", "4k"]


def test_a_chart_holds_every_point_of_its_curves() -> None:
    """The range of a chart covers all finite values of its curves; a chart without points has no range."""
    values = [None, 3.0, float("inf"), 1.0]
    loss, rate, _ = charts(curves(loss=values, validation_loss=[7.0]))
    assert loss["x"] == [1, 4]
    assert loss["y"][0] < 1.0 and 7.0 < loss["y"][1] < 8.0
    assert (rate["x"], rate["y"], rate["x_ticks"], rate["y_ticks"]) == (None, None, [], [])


def test_one_point_and_a_flat_curve_have_a_frame() -> None:
    """For a single point or a flat curve, both axes still have a nonzero length, so that nothing divides by
    zero.
    """
    for values in ([2.0], [0.0, 0.0], [5.0] * 9):
        loss = charts(curves(loss=values))[0]
        assert loss["x"][0] < loss["x"][1] and loss["y"][0] < loss["y"][1]
        assert loss["y_ticks"] and loss["x_ticks"]
