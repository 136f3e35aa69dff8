"""Colors and bars of all outputs, and matplotlib figures that are readable in a light and in a dark theme.

A saved output does not know the theme that it is shown in. So every color here contrasts with white and with
JupyterLab's dark backgrounds (#111111, #212121). The contrast ratio of text is at least 4.2 with white and
#111111; the ratio of lines and areas is at least 3.0 with all three (tests/base/printing/test_theme.py). No
color can have a ratio of 4.5 with both white and #111111.
"""

import html
from typing import Any

GREY = "#777b82"
"""Color of text, axes and ticks in a figure."""
LINE = "#8d939c"
SERIES = ("#1976d2", "#e8710a", "#2e9e4f", "#9b6bd0", "#b5654a", "#d6569f", "#0f8fa0", "#8f8f18")
"""Colors of curves and areas, in this order: blue, orange, green, purple, brown, pink, teal, olive."""
BLUE, ORANGE, GREEN, PURPLE, BROWN, PINK, TEAL, OLIVE = SERIES
LINE_COLORS = 4
"""Number of SERIES colors that a chart's lines use. The first four are distinguishable for color-blind
readers.
"""
DASHES = ("", "7 3", "2 3")
"""Dash patterns of a chart's lines, as in SVG. The first LINE_COLORS lines are solid, the next ones
dashed.
"""
RED = "#e04444"
MEMORY_COLORS = {
    "weights": BLUE,
    "gradients": "#5b93c4",
    "master_copy": "#6573c9",
    "optimizer": PURPLE,
    "activations": ORANGE,
    "logits": "#b8862b",
    "communication": GREEN,
    "buffers": GREEN,
    "pipeline": OLIVE,
    "workspace": "#bc6c9b",
    "snapshot": "#bc6c9b",
    "runtime": GREY,
    "reserve": LINE,
}
"""Color of each part of memory. The parts buffers and snapshot exist only in host memory."""
TIME_COLORS = {
    "compute": BLUE,
    "recomputation": "#5b93c4",
    "bubble": LINE,
    "communication": GREEN,
    "optimizer and host": PURPLE,
}
"""Color of each part of a step's time. A part that MEMORY_COLORS has too has the same color in both."""
WORD_COLORS = {"good": GREEN, "tight": ORANGE, "bad": RED}
BAR_HEIGHT_PIXELS = 6
PAGE_PIXELS = 1000
"""Maximum width of an output with a frame or a bar. On a narrower page, the output is as wide as the page."""


def line_look(number: int) -> dict[str, str]:
    """Return the look of a chart's line as {"color": "c0" to "c3", "dash": a pattern of DASHES}.

    lab/ui/charts/chart_spec.js has the same rule.
    """
    dash = DASHES[number // LINE_COLORS % len(DASHES)]
    return {"color": f"c{number % LINE_COLORS}", "dash": dash}


def plot_look(number: int) -> dict[str, Any]:
    """Return the look of a chart's line as arguments of matplotlib's plot()."""
    dashes = line_look(number)["dash"].split()
    style = (0.0, tuple(map(float, dashes))) if dashes else "-"
    return {"color": SERIES[number % LINE_COLORS], "linestyle": style}


def progress_bar(fraction: float, color: str = BLUE) -> str:
    """Return a progress bar as HTML, as wide as its container."""
    bar = f"height:{BAR_HEIGHT_PIXELS}px;border-radius:{BAR_HEIGHT_PIXELS // 2}px"
    filled = min(1.0, max(0.0, fraction))
    return (
        f'<div style="{bar};background-color:rgba(128,134,144,.3);margin:8px 0 4px 0">'
        f'<div style="{bar};width:{100 * filled:.2f}%;background-color:{color}"></div></div>'
    )


def progress_line(name: str, fraction: float | None, said: str) -> str:
    """Return a progress bar as HTML, with `name` and the text `said` below it. Without a fraction, there is
    no bar.
    """
    bar = progress_bar(fraction) if fraction is not None else ""
    words = f"<strong>{html.escape(name)}</strong> &nbsp; {html.escape(said)}"
    return f'<div style="max-width:{PAGE_PIXELS}px;font-size:12px">{bar}<div>{words}</div></div>'


def themed(figure: Any) -> Any:
    """Make a finished matplotlib figure transparent, with its text and axes in GREY, and return it."""
    figure.patch.set_alpha(0)
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    for text in [*figure.texts, *legends, *([figure._suptitle] if figure._suptitle else [])]:
        text.set_color(GREY)
    for legend in figure.legends:
        legend.get_frame().set(alpha=0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.tick_params(which="both", colors=GREY)
        for spine in axes.spines.values():
            spine.set_color(GREY)
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_offset_text().set_color(GREY)
        titles = (axes.title, axes._left_title, axes._right_title, axes.xaxis.label, axes.yaxis.label)
        for text in (*titles, *axes.texts):
            if text.get_color() == "black":  # a label in its curve's color keeps that color
                text.set_color(GREY)
        for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
            line.set(color=LINE, alpha=0.35)
        if (legend := axes.get_legend()) is not None:
            legend.get_frame().set(alpha=0)
            for text in legend.get_texts():
                text.set_color(GREY)
    return figure
