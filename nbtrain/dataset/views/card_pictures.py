"""Draws the plots of the data card as SVG that is readable on white and on black."""

import io
import itertools
from collections.abc import Sequence
from typing import Any

from nbtrain.base.printing.theme import BLUE, GREY, ORANGE, themed
from nbtrain.base.text.amounts import count


def histogram_svg(edges: Sequence[int], counts: Sequence[int], seq_length: int | None = None) -> bytes:
    """Return a histogram of document lengths in tokens, with a line at the sample length."""
    figure, axes = _figure(6.4, 2.6)
    axes.bar(range(len(counts)), counts, width=0.92, color=BLUE)
    axes.set_xlim(-0.6, max(len(counts), 6) - 0.4)
    axes.set_xticks(
        [place - 0.5 for place in range(len(edges))], [f"{edge:,}" for edge in edges], rotation=45, fontsize=7
    )
    axes.set_xlabel("tokens in a document")
    axes.set_ylabel("documents")
    if seq_length is not None and (place := _place(edges, seq_length)) is not None:
        label = f"seq_length {seq_length:,}"
        axes.axvline(place, color=ORANGE, linestyle="--", linewidth=1.2, label=label)
        axes.legend(fontsize=7, frameon=False, labelcolor=GREY)
    return _svg(figure)


def bars_svg(names: Sequence[str], values: Sequence[float], label: str) -> bytes:
    """Return a bar chart with a horizontal bar and its value for each name, from top to bottom."""
    figure, axes = _figure(6.4, 0.9 + 0.28 * len(names))
    places = range(len(names))
    bars = axes.barh(places, values, color=BLUE, height=0.7)
    axes.set_yticks(places, [name if len(name) <= 28 else f"{name[:27]}…" for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.bar_label(bars, [count(value) for value in values], fontsize=7, padding=3, color=GREY)
    axes.margins(x=0.12)
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(lambda value, _: count(value))
    return _svg(figure)


def _place(edges: Sequence[int], value: int) -> float | None:
    """Return the x position of a length on the histogram's axis, or None if the axis does not reach it."""
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        if low <= value <= high:
            return place - 0.5 + (value - low) / (high - low)
    return None


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    return figure, axes


def _svg(figure: Any) -> bytes:
    from matplotlib import rc_context

    themed(figure)
    content = io.BytesIO()
    # A fixed salt and no date, so that equal cards have equal bytes.
    with rc_context({"svg.hashsalt": "nbtrain"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
