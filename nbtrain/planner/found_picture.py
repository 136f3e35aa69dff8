"""A layout search as a picture: time of a step against memory, the best layouts numbered."""

from typing import TYPE_CHECKING

from nbtrain.config.arithmetic.devices import GIB
from nbtrain.planner.picture import BLUE, GREY, ORANGE, RED, new_figure
from nbtrain.planner.search import Scored, SearchResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Layouts that take more than this multiple of the best time would squeeze the others to one point.
SLOWEST = 2.0


def draw(result: SearchResult, top: int) -> "Figure":
    """Every layout that fits as a point; the first `top` with their numbers."""
    figure = new_figure(9, 4.2)
    axes = figure.subplots()
    axes.set_xlabel("memory of the fullest GPU, GiB", fontsize=9)
    axes.set_ylabel("seconds of a step", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"Layouts of {result.name}", fontsize=11, loc="left")
    if result.best is None:
        axes.text(0.5, 0.5, "no layout fits", ha="center", transform=axes.transAxes)
        return figure
    most = SLOWEST * result.best.seconds
    shown = [one for one in result.ranked if one.seconds <= most]
    piped = [one for one in shown if one.layout.cut.pipeline > 1]
    plain = [one for one in shown if one.layout.cut.pipeline == 1]
    for group, color, label in ((plain, BLUE, "without a pipeline"), (piped, ORANGE, "pipeline")):
        across, up = [_gib(one) for one in group], [one.seconds for one in group]
        axes.scatter(across, up, s=14, color=color, alpha=0.45, label=label)
    for number, one in enumerate(result.ranked[:top], start=1):
        if one.seconds <= most:
            axes.scatter(_gib(one), one.seconds, s=46, facecolors="none", edgecolors="black", linewidths=0.9)
            axes.annotate(
                str(number), (_gib(one), one.seconds), (4, 4), textcoords="offset points", fontsize=8
            )
    memory = result.best.memory.device_bytes
    if memory:
        axes.axvline(memory / GIB, color=RED, linestyle="--", linewidth=1.2)
        axes.annotate(
            result.best.memory.device,
            (memory / GIB, 1),
            (-4, -10),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=RED,
        )
    axes.set_xlim(left=0)
    left_out = len(result.ranked) - len(shown)
    if left_out:
        words = f"{left_out} slower than {SLOWEST:g} times the best are not shown"
        axes.text(0.01, 0.01, words, fontsize=7, color=GREY, transform=axes.transAxes)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _gib(one: Scored) -> float:
    return one.memory.total_bytes / GIB
