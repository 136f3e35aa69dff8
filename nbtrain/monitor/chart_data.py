"""The charts of a snapshot: which curves each holds, its range, and its ticks with their labels.

The live panel and the static picture both draw these charts; all counting, rounding and wording is done here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from nbtrain.base import amounts

# Air between a curve and the frame, as a share of the curve's own range.
MARGIN_FRACTION = 0.06


def _one_scale(value: float, step: float) -> str:
    """`value` with just enough decimals to differ from its neighbour, `step` away."""
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _scientific(value: float, step: float) -> str:
    """0.00015 as "1.5e-4"."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}" if value else "0"


def _counted(value: float, step: float) -> str:
    return amounts.count(value)


def _curve(name: str, label: str, color: str = "a", dots: bool = False) -> dict[str, Any]:
    return {"name": name, "label": label, "color": color, "dots": dots}


LOSS = [_curve("loss", "training loss (nats)"), _curve("validation_loss", "validation loss", "b", dots=True)]

# curves; whether the chart begins at 0; label of a value on its axis; ticks down and across
CHARTS: tuple[tuple[list[dict[str, Any]], bool, Callable[[float, float], str], int, int], ...] = (
    (LOSS, False, _one_scale, 5, 6),
    ([_curve("learning_rate", "learning rate")], True, _scientific, 2, 4),
    ([_curve("tokens_per_second", "throughput (tokens/s)")], True, _counted, 2, 4),
)


def charts(curves: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One object per chart of a panel, the large one first.

    lines    [{"name" of a curve, "label", "color" a or b, "dots": whether each point gets one}]
    x, y     [lowest, highest value] of the frame; None if no curve has a point
    x_ticks  [[value, label], ...], and y_ticks
    """
    return [_chart(curves, *chart) for chart in CHARTS]


def _chart(
    curves: Mapping[str, Mapping[str, Any]],
    lines: list[dict[str, Any]],
    from_zero: bool,
    label: Callable[[float, float], str],
    num_y: int,
    num_x: int,
) -> dict[str, Any]:
    points = [
        (step, value)
        for line in lines
        for step, value in zip(curves[line["name"]]["steps"], curves[line["name"]]["values"])
        if value is not None and math.isfinite(value)
    ]
    if not points:
        return {"lines": lines, "x": None, "y": None, "x_ticks": [], "y_ticks": []}
    (left, right), (low, high) = ((min(found), max(found)) for found in zip(*points))
    margin = (high - low) * MARGIN_FRACTION or abs(high) * 0.05 or 1.0
    low, high = (min(0.0, low) if from_zero else low - margin), high + margin
    right = right if right > left else left + 1
    return {
        "lines": lines,
        "x": [left, right],
        "y": [low, high],
        "x_ticks": _labelled(ticks(left, right, num_x), _counted),
        "y_ticks": _labelled(ticks(low, high, num_y), label),
    }


def _labelled(at: list[float], label: Callable[[float, float], str]) -> list[list[Any]]:
    step = at[1] - at[0] if len(at) > 1 else abs(at[0]) if at and at[0] else 1.0
    return [[value, label(value, step)] for value in at]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{at * step:.12g}") for at in range(first, math.floor(high / step + 1e-9) + 1)]
