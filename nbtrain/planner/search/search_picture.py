"""A layout search as a plot: the time of a step against memory, with the best layouts numbered.

The best layouts are close together, so their numbers are in a row below all points, and a line connects each
number to its point.
"""

from typing import TYPE_CHECKING

from nbtrain.base.printing.theme import BLUE, GREY, ORANGE, RED, themed
from nbtrain.config.arithmetic.devices import GIB
from nbtrain.planner.picture import new_figure
from nbtrain.planner.search.search import ScoredLayout, SearchResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Layouts slower than this multiple of the best time are not drawn: the others would shrink to one point.
SLOWEST = 2.0
# Horizontal distance between two numbers, and vertical distance from the fastest layout's point to the row of
# numbers, as fractions of the plot's width and height.
NUMBER_GAP, NUMBER_DROP = 0.022, 0.09


def draw(result: SearchResult, top: int) -> "Figure":
    """Draw every layout that fits as a point, and number the first `top` of them."""
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    axes.set_xlabel("memory of the fullest GPU, GiB", fontsize=9)
    axes.set_ylabel("seconds of a step", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Layouts of {result.name}", fontsize=11, loc="left")
    if result.best is None:
        axes.text(0.5, 0.5, "no layout fits", ha="center", transform=axes.transAxes)
        return themed(figure)
    most = SLOWEST * result.best.seconds
    shown = [one for one in result.ranked if one.seconds <= most]
    piped = [one for one in shown if one.layout.cut.pipeline > 1]
    plain = [one for one in shown if one.layout.cut.pipeline == 1]
    for group, color, label in ((plain, BLUE, "without a pipeline"), (piped, ORANGE, "pipeline")):
        across, up = [_gib(one) for one in group], [one.seconds for one in group]
        axes.scatter(across, up, s=14, color=color, alpha=0.45, label=label)
    _number(axes, {number: one for number, one in enumerate(result.ranked[:top], start=1) if one in shown})
    memory = result.best.memory.device_bytes
    if memory:
        axes.axvline(memory / GIB, color=RED, linestyle="--", linewidth=1.2)
        # The label is above the axes, where no layout is drawn.
        axes.annotate(
            f"{result.best.memory.device}: {memory / GIB:.1f} GiB",
            (memory / GIB, 1),
            (0, 4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=RED,
        )
    axes.set_xlim(left=0)
    omitted = len(result.ranked) - len(shown)
    if omitted:
        axes.set_xlabel(
            f"{axes.get_xlabel()} (not shown: {omitted} layouts that take over {SLOWEST:g} x the best time)",
            fontsize=9,
        )
    axes.legend(fontsize=8, frameon=False)
    return themed(figure)


def _number(axes: "Axes", numbered: dict[int, ScoredLayout]) -> None:
    """Draw a ring around each layout in `numbered`, and the layout's number below all points."""
    (left, right), (bottom, top) = (0.0, axes.get_xlim()[1]), axes.get_ylim()
    fastest = min(one.seconds for one in numbered.values())
    low = fastest - NUMBER_DROP * (top - bottom)
    order = sorted(numbered, key=lambda number: _gib(numbered[number]))
    gap = min(NUMBER_GAP, 1 / len(order)) * (right - left)
    places = spread([_gib(numbered[number]) for number in order], gap)
    for number, place in zip(order, places):
        point = _gib(numbered[number]), numbered[number].seconds
        axes.scatter(*point, s=46, facecolors="none", edgecolors=GREY, linewidths=0.9)
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(str(number), point, (place, low), ha="center", va="top", fontsize=8, arrowprops=line)
    axes.set_ylim(bottom=min(bottom, low - NUMBER_DROP / 2 * (top - bottom)))


def spread(wanted: list[float], gap: float) -> list[float]:
    """Return positions that are at least `gap` apart and as close as possible to `wanted`.

    `wanted` must be ascending. Positions that are too close are spread evenly around their mean.
    """
    groups: list[list[float]] = []
    for index, place in enumerate(wanted):
        groups.append([place - index * gap])
        while len(groups) > 1 and _mean(groups[-2]) > _mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    means = [_mean(group) for group in groups for _ in group]
    return [mean + index * gap for index, mean in enumerate(means)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _gib(one: ScoredLayout) -> float:
    return one.memory.total_bytes / GIB
