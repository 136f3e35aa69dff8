"""Figures of a run for notebooks and reports: curves drawn with matplotlib, a table of the newest scalars.

The functions accept a RunView, a run directory, or a folder with metrics or TensorBoard event files. Event
files that Megatron-DeepSpeed wrote use the same tags. matplotlib is imported when a figure is created.
Figures are created without pyplot, so they need no display, appear only once in a notebook, and are freed
with their last reference.
"""

import io
import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.report import Report, Result, Sentence, Table
from nbtrain.base.printing.theme import BLUE, GREY, ORANGE, PURPLE, RED, TEAL, themed
from nbtrain.base.run_directory.metrics import BY_NAME, Scalar, name_of
from nbtrain.base.run_directory.metrics import scalar as scalar_named
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.text.order import natural
from nbtrain.base.workspace import resolve
from nbtrain.monitor.metrics.curves import drawn_points
from nbtrain.monitor.metrics.event_files import read_event_files
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.run.run_view import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Source = RunView | RunDir | str | os.PathLike[str]

PARTS = {
    "data_seconds": ORANGE,
    "forward_seconds": BLUE,
    "backward_seconds": TEAL,
    "optimizer_seconds": PURPLE,
    "pipeline_seconds": RED,
}
"""Parts of a step and their colors, from the bottom of the stack to the top."""


def scalars_of(source: Source) -> dict[str, Series]:
    """Return {name in metrics.SCALARS, otherwise tag: Series} for a run or a folder.

    Raises DataError if the folder has neither metrics nor event files.
    """
    if isinstance(source, RunDir):
        source = RunView(source)
    if isinstance(source, RunView):
        return {name: source.scalars(name) for name in source.scalar_names()}
    folder = Path(source) if Path(source).is_dir() else resolve(source)
    if (folder / "run.json").is_file():
        return scalars_of(RunDir(folder))
    reader = ScalarReader(folder)
    by_tag = reader.series if reader.refresh() else read_event_files(folder)
    return {name_of(tag) or tag: series for tag, series in by_tag.items()}


def training_curves(source: Source) -> "Figure":
    """Draw loss, validation perplexity, learning rate and throughput over the steps.

    A preference run (dpo) has the reward margin instead of the perplexity. A run without validation has
    neither, so its three plots are in one row. If the files have no throughput, it is computed (see
    throughput()).
    """
    series = scalars_of(source)
    margin = [name for name in ("reward_margin", "validation_reward_margin") if name in series]
    perplexity = series.get("validation_perplexity")
    figure = shown_figure(_title(source), 6.2 if margin or perplexity else 3.4)
    if margin or perplexity:
        loss, second, rate, speed = figure.subplots(2, 2).flat
    else:
        loss, rate, speed = figure.subplots(1, 3)

    _curve(loss, series.get("loss"), BLUE, "training", smooth=True)
    _curve(loss, series.get("validation_loss"), ORANGE, "validation", marker="o")
    _dress(loss, "Loss", "nats per token")
    if margin:
        _curve(second, series.get("reward_margin"), BLUE, "training", smooth=True)
        _curve(second, series.get("validation_reward_margin"), ORANGE, "validation", marker="o")
        _dress(second, "Reward margin", "beta x nats")
    elif perplexity:
        _curve(second, perplexity, ORANGE, "validation", marker="o")
        _dress(second, "Validation perplexity", "exp(loss)")
        if max(perplexity.values) > 20 * max(min(perplexity.values), 1e-9):
            second.set_yscale("log")
    _curve(rate, series.get("learning_rate"), BLUE, "learning rate")
    _dress(rate, "Learning rate", "")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    _curve(speed, throughput(series), BLUE, "tokens/s", smooth=True)
    _dress(speed, "Throughput", "tokens/s")
    speed.set_ylim(bottom=0)
    return themed(figure)


def loss_png(view: RunView) -> bytes:
    """Draw training and validation loss as a small PNG image, for viewers that do not show HTML."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.4), dpi=80)
    axes = figure.add_axes((0.08, 0.2, 0.9, 0.68))
    _curve(axes, view.scalars("loss"), BLUE, "training", smooth=True)
    _curve(axes, view.scalars("validation_loss"), ORANGE, "validation", marker="o")
    _dress(axes, f"Loss of {view.name}", "")
    buffer = io.BytesIO()
    themed(figure).savefig(buffer, format="png")
    return buffer.getvalue()


def timing(source: Source) -> "Figure":
    """Draw the parts of the step time, and the computing time of the slowest, median and fastest rank."""
    series = scalars_of(source)
    figure = shown_figure(_title(source), 3.6)
    parts, ranks = figure.subplots(1, 2)
    _stacked(parts, series)
    _dress(parts, "Time of a step", "s")
    for name, color, label in (
        ("compute_max_seconds", ORANGE, "slowest rank"),
        ("compute_median_seconds", BLUE, "median"),
        ("compute_min_seconds", GREY, "fastest rank"),
    ):
        _curve(ranks, series.get(name), color, label, marker="o")
    slowest, slowdown = series.get("slowest_rank"), series.get("rank_slowdown")
    title = "Compute time of the ranks"
    if slowest and slowdown:
        title += f": rank {slowest.values[-1]:.0f} is {slowdown.values[-1]:.0%} slower than its stage"
    _dress(ranks, title, "s")
    ranks.set_ylim(bottom=0)
    return themed(figure)


def _stacked(axes: "Axes", series: dict[str, Series]) -> None:
    """Draw the parts of each step as a stack, and the whole step as a line.

    A gap between the stack and the line is time that belongs to no part.
    """
    whole = series.get("iteration_time")
    if not whole:
        return
    at = drawn_points(whole.values)
    steps, values = [whole.steps[index] for index in at], [whole.values[index] for index in at]
    base = [0.0] * len(steps)
    for name, color in PARTS.items():
        if name not in series:
            continue
        own = dict(zip(series[name].steps, series[name].values))
        top = [below + own.get(step, 0.0) for below, step in zip(base, steps)]
        label = name.removesuffix("_seconds")
        axes.fill_between(steps, base, top, color=color, linewidth=0, label=label)
        base = top
    axes.plot(steps, values, color=GREY, linewidth=0.8, label="whole step")
    axes.set_ylim(bottom=0)


def shown_figure(title: str, height: float, width: float = 11.0) -> "Figure":
    """Create an empty figure that a notebook can show. Sizes are in inches."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure that a notebook can show without pyplot."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    figure = NotebookFigure(figsize=(width, height), layout="constrained", dpi=100)
    figure.suptitle(title, fontsize=12)
    return figure


def throughput(series: dict[str, Series]) -> Series | None:
    """Return tokens per second as written, otherwise computed from batch size, length and iteration time.

    Returns None if a part of the computation is missing.
    """
    if "tokens_per_second" in series:
        return series["tokens_per_second"]
    parts = [part for name in ("batch_size", "seq_length", "iteration_time") if (part := series.get(name))]
    if len(parts) < 3:
        return None
    batch, length, seconds = (dict(zip(part.steps, part.values)) for part in parts)
    steps = [step for step in seconds if step in batch and step in length and seconds[step] > 0]
    values = [batch[step] * length[step] / seconds[step] for step in steps]
    return Series(steps, values, [0.0] * len(steps))


def scalars_table(source: Source) -> "ScalarsTable":
    """Return a table of the newest value of every scalar, with unit, step and meaning."""
    return ScalarsTable(_title(source), scalars_of(source))


class ScalarsTable(Result):
    """The newest value of each scalar. A notebook shows an HTML table, print() a text table."""

    def __init__(self, title: str, series: dict[str, Series]):
        self.title = title
        self.rows: list[tuple[str, str, str, str]] = []
        others = sorted(series.keys() - BY_NAME.keys(), key=natural)
        for name in [*(name for name in BY_NAME if name in series), *others]:
            points = series[name]
            if points.last is None:
                continue
            try:
                known = scalar_named(name)
            except KeyError:
                known = Scalar(name, name, "", "")  # a tag from another program's event files
            self.rows.append((name, _value(points.last, known.unit), f"{points.steps[-1]:,}", known.meaning))

    def as_report(self) -> Report:
        """Return a report with the table."""
        if not self.rows:
            return Report("", [Sentence(f"{self.title}: no scalars yet")])
        return Report("", [Table(("scalar", "newest", "step", "meaning"), self.rows)])


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return amounts.size(value)
    if unit in ("tokens", "samples", "sequences", "ranks"):
        return f"{value:,.0f} {unit}"
    text = f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.5g}"
    return f"{text} {unit}".strip()


def _title(source: Source) -> str:
    return source.name if isinstance(source, RunView | RunDir) else Path(source).name


def _curve(
    axes: "Axes", series: Series | None, color: str, label: str, smooth: bool = False, marker: str = ""
) -> None:
    if not series:
        return
    steps, values = series.steps, series.values
    if not math.isfinite(sum(values)):
        finite = [at for at, value in enumerate(values) if math.isfinite(value)]
        steps, values = [steps[at] for at in finite], [values[at] for at in finite]
    if not steps:
        return
    num, at = len(steps), drawn_points(values)
    shown_steps, shown_values = [steps[index] for index in at], [values[index] for index in at]
    style: dict[str, Any] = {"marker": marker, "markersize": 3.5} if marker and num <= 100 else {}
    if smooth and num >= 50:
        means = _running_means(values, at, num // 25)
        axes.plot(shown_steps, shown_values, color=color, linewidth=0.7, alpha=0.35)
        axes.plot(shown_steps, means, color=color, linewidth=1.6, label=label)
    else:
        axes.plot(shown_steps, shown_values, color=color, linewidth=1.5, label=label, **style)


def _running_means(values: Sequence[float], at: Sequence[int], window: int) -> list[float]:
    """Return, for each index in `at`, the mean of that value and the `window` - 1 values before it."""
    sums = [0.0, *itertools.accumulate(values)]
    first = [max(0, index + 1 - window) for index in at]
    return [(sums[last + 1] - sums[begin]) / (last + 1 - begin) for begin, last in zip(first, at)]


def _dress(axes: "Axes", title: str, unit: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amounts.count(value)))
    axes.grid(True, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_lines()) == 0:
        axes.text(0.5, 0.5, "no points", ha="center", va="center", transform=axes.transAxes, color=GREY)
    elif len(set(axes.get_legend_handles_labels()[1])) > 1:
        axes.legend(fontsize=8, frameon=False)
