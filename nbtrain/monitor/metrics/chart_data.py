"""The charts in a run's description: the curves of each chart, its range, and its labeled ticks.

The static picture draws these charts unchanged. The live view starts with them and repeats the calculations
in JavaScript when a user zooms or changes an axis (lab/ui/charts/numbers.js). tests/lab/ui/numbers.json
contains results that both implementations must return.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base.text import amounts

# Margin between a curve and the frame, as a fraction of the curve's range.
MARGIN_FRACTION = 0.06
# Weight of the previous value in the smoothed loss. The raw line stays faintly visible.
SMOOTHING = 0.6
# Minimum number of ticks; with fewer labels, values between them cannot be read.
LEAST_Y_TICKS = 3
LEAST_X_TICKS = 2
# Minimum upper end of an axis of bytes, so that the axis has three labels.
LEAST_BYTES = 4.0


def _decimals(value: float, step: float) -> str:
    """Format a value with just enough decimals to distinguish ticks that are `step` apart."""
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def scientific(value: float, step: float = 0.0) -> str:
    """Format 0.00015 as "1.5e-4", with enough digits to distinguish ticks that are `step` apart."""
    if not value:
        return "0"
    digits = 1
    if step:
        apart = math.floor(math.log10(abs(value)) + 1e-9) - math.floor(math.log10(step) + 1e-9)
        digits = min(6, max(1, apart))
    mantissa, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def _number(value: float, step: float) -> str:
    """Format any number with enough decimals to distinguish ticks that are `step` apart."""
    if step < 1e-3:
        return scientific(value, step)
    if step >= 1000:
        return amounts.count(value)
    return f"{float(_decimals(value, step)):,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _counted(value: float, step: float) -> str:
    return amounts.count(value)


def whole_number(value: float, step: float) -> str:
    """Format a whole number: 1200 as "1,200", and 12000 as "12k" if all ticks are thousands."""
    return amounts.count(value) if value >= 10_000 and step % 1000 == 0 else f"{round(value):,}"


def share(value: float, step: float) -> str:
    """Format 0.125 as "12 %", or as "12.5 %" if ticks are half a percent apart."""
    return f"{_decimals(100 * value, 100 * step)} %"


def _bytes(value: float, step: float) -> str:
    return amounts.size(value).replace(".0 ", " ")


FORMS: dict[str, Callable[[float, float], str]] = {
    "decimals": _decimals,
    "scientific": scientific,
    "number": _number,
    "count": _counted,
    "whole": whole_number,
    "share": share,
    "bytes": _bytes,
}
"""{name, as in lab/ui/charts/numbers.js: function(value, step) that labels a tick}."""


def _curve(name: str, label: str, color: str = "a", dots: bool = False) -> dict[str, Any]:
    return {"name": name, "label": label, "color": color, "dots": dots}


@dataclass(frozen=True)
class ChartKind:
    """The appearance of a chart in a run's description (CHARTS) or in the tab Metrics (metric_charts.py)."""

    lines: list[dict[str, Any]]
    y_name: str
    form: str
    from_zero: bool = True
    smoothing: float = 0.0
    num_y: int = 3
    num_x: int = 4


LOSS = [_curve("loss", "training loss"), _curve("validation_loss", "validation loss", "b", dots=True)]
CHARTS = (
    ChartKind(LOSS, "nats", "decimals", from_zero=False, smoothing=SMOOTHING, num_y=5, num_x=6),
    ChartKind([_curve("learning_rate", "learning rate")], "", "scientific"),
    ChartKind([_curve("tokens_per_second", "throughput")], "tokens/s", "count"),
)


def charts(curves: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the charts of a panel, the large one first.

    lines    [{"name": name of a curve, "label", "color": a or b, "dots": whether to mark each point}]
    x, y     [lowest, highest value] of the frame; None if no curve has a point
    x_ticks, y_ticks
             [[value, label], ...]
    x_name, y_name
             names of the axes
    form     how the labels of y are formatted (FORMS)
    from_zero, smoothing
             whether y begins at 0, and the weight for smoothed()
    """
    return [chart(curves, kind) for kind in CHARTS]


def chart(curves: Mapping[str, Mapping[str, Any]], kind: ChartKind) -> dict[str, Any]:
    """Return one chart in the form of charts()."""
    found = {
        "lines": kind.lines,
        **dict.fromkeys(("x", "y")),
        **{key: [] for key in ("x_ticks", "y_ticks")},
        "x_name": "step",
        **{key: getattr(kind, key) for key in ("y_name", "form", "from_zero", "smoothing")},
    }
    steps: list[int] = []
    values: list[float] = []
    for line in kind.lines:
        there = curves[line["name"]]
        known = [value is not None and math.isfinite(value) for value in there["values"]]
        steps.extend(itertools.compress(there["steps"], known))
        for key in ("values", "low", "high"):
            values.extend(itertools.compress(there.get(key) or (), known))
        # Steps at which a curve is NaN belong to the frame too.
        steps.extend(last for _, last in there.get("bad") or ())
    if not values:
        return found
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    margin = (high - low) * MARGIN_FRACTION or abs(high) * 0.05 or 1.0
    low, high = (min(0.0, low) if kind.from_zero else low - margin), high + margin
    left, right = (left, right) if right > left else (left - 1, left + 1)
    across = ticks(left, right, kind.num_x, LEAST_X_TICKS, integer=True)
    binary, integer = kind.form == "bytes", kind.form == "whole"
    high = max(high, LEAST_BYTES) if binary else high
    up = byte_ticks(high) if binary else ticks(low, high, kind.num_y, integer=integer)
    return found | {
        "x": [left, right],
        "y": [low, high],
        "x_ticks": _labelled(across, whole_number),
        "y_ticks": _labelled(up, FORMS[kind.form]),
    }


def _labelled(at: list[float], label: Callable[[float, float], str]) -> list[list[Any]]:
    step = at[1] - at[0] if len(at) > 1 else abs(at[0]) if at and at[0] else 1.0
    return [[value, label(value, step)] for value in at]


def ticks(
    low: float, high: float, most: int, least: int = LEAST_Y_TICKS, integer: bool = False
) -> list[float]:
    """Return about `most` round ticks from `low` to `high`, 1, 2 or 5 times a power of ten apart.

    If that gives fewer than `least` ticks, a smaller step is used. With `integer`, the step is at least 1.
    """
    for wanted in range(most, most + 13):
        rough = (high - low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
        if integer:
            step = max(1.0, float(round(step)))
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 >= least or (integer and step == 1):
            break
    return [float(f"{at * step:.12g}") for at in range(first, last + 1)]


def byte_ticks(top: float) -> list[float]:
    """Return ticks from 0 to `top` at round numbers of a binary unit."""
    step = 2.0 ** max(0, math.ceil(math.log2(max(top, 1.0) / 5)))
    return [number * step for number in range(int(top / step) + 1)]


def smoothed(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Return the exponential moving average, corrected for its start so that the first value is unchanged."""
    if weight <= 0:
        return list(values)
    total, share, found = 0.0, 1.0, []
    for value in values:
        if value is not None:
            total = weight * total + (1 - weight) * value
            share *= weight
        found.append(None if value is None else total / (1 - share))
    return found
