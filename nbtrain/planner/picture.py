"""Figure of a plan: memory by part next to the device's memory, and batch and learning rate over the run.

Matplotlib is imported only when a figure is drawn, and without pyplot, so that no display is needed.
"""

import io
from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.theme import BLUE, GREY, MEMORY_COLORS, ORANGE, RED, themed
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.planner.memory import MemoryEstimate, stage_parts
from nbtrain.planner.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST_RATIO = 5
MOST_BARS = 8
SCHEDULE_POINTS = 400


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure that a notebook can show without pyplot; width and height are in inches."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A figure that renders itself as PNG."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png")
            return buffer.getvalue()

    return Picture(figsize=(width, height), layout="constrained", dpi=100)


def plan_picture(plan: Plan) -> "Figure":
    """Return a figure of a plan's memory and schedule; a notebook shows it, savefig() writes it to a file."""
    figure = new_figure(11, 3.6)
    memory, schedule = figure.subplots(1, 2, width_ratios=(1, 1.1))
    figure.suptitle(f"{plan.config.name}: {amounts.count(plan.parameters.total)} parameters", fontsize=12)
    _draw_memory(memory, plan)
    _draw_schedule(schedule, plan)
    return themed(figure)


def _draw_memory(axes: "Axes", plan: Plan) -> None:
    """Draw a stacked bar for each of the MOST_BARS fullest pipeline stages, and the device's limit."""
    memory, setup = plan.memory, plan.speed.setup
    stages = setup.pipeline_parallel_size
    by_stage = {stage: stage_parts(setup, stage) for stage in range(stages)}
    fullest = sorted(by_stage, key=lambda stage: -sum(by_stage[stage].values()))[:MOST_BARS]
    # Draw the first stage at the top.
    shown = sorted(fullest, reverse=True)
    device = memory.device_bytes
    # Omit the device's line if it would leave the bar too narrow to see. The title gives the device's memory.
    has_line = device is not None and device <= LARGEST_RATIO * memory.total_bytes
    unit, name = (GIB, "GiB") if memory.total_bytes > GIB else (2**20, "MiB")
    for row, stage in enumerate(shown):
        left = 0.0
        for part, value in by_stage[stage].items():
            if value:
                is_named = stage == memory.stage
                label = f"{part.replace('_', ' ')} {amounts.size(value)}" if is_named else None
                axes.barh(row, value / unit, left=left, height=0.6, color=MEMORY_COLORS[part], label=label)
                left += value / unit
        if device is not None and has_line and left < device / unit:
            headroom = device / unit - left
            axes.barh(row, headroom, left=left, height=0.6, color="none", edgecolor=GREY, linewidth=0.6)
            if headroom > 0.15 * device / unit:
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": GREY}
                axes.text(left + headroom / 2, row, f"{amounts.size(headroom * unit)} free", **style)
    # The legend shows the sizes of the fullest stage's parts. Parts that only other stages have, such as the
    # logits, are listed without sizes.
    elsewhere = {part for stage in shown for part, value in by_stage[stage].items() if value}
    for part in sorted(elsewhere - {part for part, value in by_stage[memory.stage].items() if value}):
        axes.barh(0, 0, color=MEMORY_COLORS[part], label=f"{part.replace('_', ' ')}, other stages")
    if device is not None and has_line:
        _draw_limit(axes, device / unit, -0.5, len(shown) - 0.4)
        style = {"ha": "right", "fontsize": 8, "color": RED, "textcoords": "offset points"}
        words = f"{memory.device}: {amounts.size(device)}"
        axes.annotate(words, (device / unit, len(shown) - 0.6), xytext=(0, 3), **style)
    of_device = f" of {amounts.size(device)}" if device is not None else ""
    title = f"Memory of one rank: {amounts.size(memory.total_bytes)}{of_device} ({memory.device})"
    if memory.total_host_bytes:
        of_host = f" of {amounts.size(memory.host_bytes)}" if memory.host_bytes is not None else ""
        title += f"\nHost memory of one rank: {amounts.size(memory.total_host_bytes)}{of_host}"
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(name, fontsize=9)
    names = [f"stage {stage}" for stage in shown] if stages > 1 else ["GPU"]
    ticks = list(enumerate(names)) if stages > 1 else []
    if memory.total_host_bytes:
        _draw_host(axes, memory, unit)
        ticks = [(-1, "host"), *enumerate(names)]
    bars = len(shown) + bool(memory.total_host_bytes)
    # Leave room for the legend below the bars.
    axes.set_ylim(len(shown) - bars - 1.6 - 0.9 * bars, len(shown) - 0.2)
    axes.set_yticks([row for row, _ in ticks], [label for _, label in ticks])
    axes.tick_params(labelsize=8, left=False)
    axes.legend(fontsize=8, frameon=False, ncols=2, loc="lower left")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_host(axes: "Axes", memory: MemoryEstimate, unit: int) -> None:
    """Draw the fullest rank's host memory as a hatched bar below the other bars, with the limit as a line."""
    left = 0.0
    for part, value in memory.host_parts.items():
        if value:
            label = f"host: {part.replace('_', ' ')} {amounts.size(value)}"
            style: dict[str, Any] = {
                "color": MEMORY_COLORS[part],
                "hatch": "////",
                "edgecolor": "white",
                "linewidth": 0,
            }
            axes.barh(-1, value / unit, left=left, height=0.6, label=label, **style)
            left += value / unit
    have = memory.host_bytes
    if have is not None and have <= LARGEST_RATIO * max(memory.total_host_bytes, memory.total_bytes):
        _draw_limit(axes, have / unit, -1.5, -0.5)


def _draw_limit(axes: "Axes", limit: float, bottom: float, top: float) -> None:
    """Draw a memory limit as a vertical dashed line from `bottom` to `top`."""
    axes.plot([limit, limit], [bottom, top], color=RED, linewidth=1.5, linestyle="--")


def _draw_schedule(axes: "Axes", plan: Plan) -> None:
    from matplotlib.ticker import MaxNLocator

    config = plan.config
    batches, rates = config.batch_schedule, LrSchedule.of(config)
    total = config.scheduled_steps
    steps = sorted({round(total * point / SCHEDULE_POINTS) for point in range(SCHEDULE_POINTS + 1)})
    tokens = [batches.tokens_after(step) for step in steps]
    axes.plot(tokens, [rates.learning_rate(at) for at in tokens], color=BLUE, linewidth=1.5)
    axes.set_title("Learning rate and batch", fontsize=10, loc="left")
    axes.set_xlabel("tokens", fontsize=9)
    axes.set_ylabel("learning rate", fontsize=9, color=BLUE)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: amounts.count(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(True, linewidth=0.6)
    batch = axes.twinx()
    sizes = [batches.size_at(batches.samples_after(step)) for step in steps]
    batch.plot(tokens, sizes, color=ORANGE, linewidth=1.2, drawstyle="steps-post")
    batch.set_ylabel("batch, sequences", fontsize=9, color=ORANGE)
    batch.set_ylim(0, 1.15 * max(sizes))
    batch.yaxis.set_major_locator(MaxNLocator(integer=True))
    if config.train_steps < total:
        axes.axvline(batches.tokens_after(config.train_steps), color=GREY, linestyle=":", linewidth=1)
    for each in (axes, batch):
        each.tick_params(labelsize=8)
        each.spines["top"].set_visible(False)
