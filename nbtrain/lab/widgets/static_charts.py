"""The charts of a static picture, as SVG in <img> data (static.py says why).

Ranges, ticks and labels are part of the chart (monitor/metrics/chart_data.py, monitor/job/usage_charts.py).
The live view draws the same charts (lab/ui/charts/chart.js).
"""

import base64
import bisect
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtrain.base.printing.report import DIM
from nbtrain.base.printing.theme import BLUE, DASHES, GREEN, GREY, LINE, ORANGE, RED, SERIES
from nbtrain.monitor.metrics.chart_data import smoothed

COLORS = {"a": BLUE, "b": ORANGE} | {f"c{number}": color for number, color in enumerate(SERIES)}
"""Colours of a chart's lines."""
BOUND_COLORS = {"request": GREEN, "limit": RED, "request = limit": RED}
MARK_COLORS = {"restart": ORANGE, "rollback": ORANGE, "resume": GREY, "nan": RED}
RIGHT, TOP, BOTTOM = 10, 16, 18
# Average width of a character on an axis, in pixels.
LETTER = 5.6
# Minimum width of the mark for a gap, in pixels.
LEAST_GAP = 3.0
# Curves with this many points or more are drawn without dots.
MOST_DOTS = 80
# (width, height) of the small charts on pages with many of them.
SMALL_SIZE = (270, 104)


def chart_image(
    chart: Mapping[str, Any],
    curves: Mapping[str, Mapping[str, Any]],
    width: int,
    height: int,
    marks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return a chart with its legend as HTML; "" without points."""
    if not chart["x"]:
        return ""
    lines = chart["lines"]
    data = base64.b64encode(chart_svg(chart, curves, width, height, marks).encode()).decode()
    names = "  ".join(
        f'<span style="color:{COLORS[line["color"]]}">{_sample(line)}</span> '
        f'<span style="{DIM}">{html.escape(line["label"])}</span>'
        for line in lines
    )
    bounds = "".join(
        f'  <span style="color:{BOUND_COLORS[one["word"]]}">&#9644;</span> '
        f'<span style="{DIM}">{one["word"]}</span>'
        for one in chart.get("bounds") or ()
    )
    title = f"<strong>{html.escape(chart['title'])}</strong>  " if chart.get("title") else ""
    said = html.escape(", ".join([*([chart["title"]] if title else []), *(line["label"] for line in lines)]))
    return (
        f'<div style="font-size:11px">{title}{names}{bounds}</div>'
        f'<img alt="{said}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    )


def _sample(line: Mapping[str, Any]) -> str:
    """Return the symbol of a line in the legend: a bar, or long or short dashes like the line's."""
    dash = line.get("dash")
    if not dash:
        return "&#9644;"
    return "&#9472;&nbsp;&#9472;" if dash == DASHES[1] else "&#8943;"


def charts_in_rows(
    charts: Iterable[tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]], Sequence[Mapping[str, Any]]]],
) -> str:
    """Return small charts, given as (chart, its curves, marks), side by side where the page has room."""
    cells = [
        beside(picture, SMALL_SIZE[0])
        for chart, curves, marks in charts
        if (picture := chart_image(chart, curves, *SMALL_SIZE, marks))
    ]
    return f'<div style="margin:4px 0">{"".join(cells)}</div>' if cells else ""


def beside(content: str, width: int) -> str:
    """Return `content` in an HTML box of `width` pixels. Boxes are side by side if the page has room."""
    # A legend longer than its chart is wrapped; otherwise it would cover the next chart.
    box = f"display:inline-block;vertical-align:top;width:{width}px;max-width:100%;margin:0 12px 6px 0"
    return f'<div style="{box}">{content}</div>'


def chart_svg(
    chart: Mapping[str, Any],
    curves: Mapping[str, Mapping[str, Any]],
    width: int,
    height: int,
    marks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return an SVG of a chart that has points."""
    (x0, x1), (y0, y1) = chart["x"], chart["y"]
    left = 10 + LETTER * max(2, *(len(label) for _, label in chart["y_ticks"]), 2)

    def across(step: float) -> float:
        return left + (step - x0) / (x1 - x0) * (width - left - RIGHT)

    def up(value: float) -> float:
        return TOP + (y1 - value) / (y1 - y0) * (height - TOP - BOTTOM)

    def rule(x: tuple[float, float], y: tuple[float, float], look: str) -> str:
        return f'<line x1="{x[0]:.1f}" x2="{x[1]:.1f}" y1="{y[0]:.1f}" y2="{y[1]:.1f}" {look}/>'

    whole = (left, float(width - RIGHT))
    parts = [f'<text x="2" y="9">{html.escape(chart.get("y_name") or "")}</text>']
    for value, label in chart["y_ticks"]:
        y = up(value)
        parts.append(rule(whole, (y, y), f'stroke="{LINE}" opacity=".4"'))
        parts.append(
            f'<text x="{left - 5:.1f}" y="{y + 3:.1f}" text-anchor="end">{html.escape(label)}</text>'
        )
    parts += _x_labels(chart, across, width, height)
    for bound in chart.get("bounds") or ():
        y = up(bound["value"])
        parts.append(rule(whole, (y, y), f'stroke="{BOUND_COLORS[bound["word"]]}" stroke-dasharray="5 4"'))
    for mark in marks:
        if x0 <= mark["step"] <= x1:
            x = across(mark["step"])
            look = f'stroke="{MARK_COLORS[mark["kind"]]}" stroke-dasharray="3 3"'
            parts.append(rule((x, x), (TOP, height - BOTTOM), look))
            parts.append(f'<path d="M{x - 4:.1f},{TOP} h8 l-4,6 z" fill="{MARK_COLORS[mark["kind"]]}"/>')
    for line in chart["lines"]:
        for first, last in curves[line["name"]].get("bad") or ():
            x = across(max(first, x0))
            width_nan = max(LEAST_GAP, across(min(last, x1)) - x)
            place = f'x="{x:.1f}" y="{TOP}" width="{width_nan:.1f}" height="{height - TOP - BOTTOM}"'
            parts.append(f'<rect {place} fill="{RED}" opacity=".22"><title>NaN or Inf</title></rect>')
    for line in chart["lines"]:
        parts += _line(line, curves[line["name"]], chart, across, up)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="10" '
        f'font-family="sans-serif" fill="{GREY}">{"".join(parts)}</svg>'
    )


def _x_labels(chart: Mapping[str, Any], across: Any, width: int, height: int) -> list[str]:
    """Return the labels of the x axis, without overlaps; the last one includes the axis's name."""
    parts, room = [], float(width)
    for number, (value, label) in enumerate(reversed(chart["x_ticks"])):
        words = f"{chart.get('x_name') or ''} {label}".strip() if number == 0 else label
        half, x = LETTER * len(words) / 2, across(value)
        anchor = "end" if x + half > width - RIGHT else "middle"
        end = width - RIGHT if anchor == "end" else x + half
        if end > room:
            continue
        room = end - 2 * half - 8
        place = f'x="{end if anchor == "end" else x:.1f}" y="{height - 4}" text-anchor="{anchor}"'
        parts.append(f"<text {place}>{html.escape(words)}</text>")
    return parts


def _line(
    line: Mapping[str, Any], curve: Mapping[str, Any], chart: Mapping[str, Any], across: Any, up: Any
) -> list[str]:
    color, steps = COLORS[line["color"]], curve["steps"]
    dash = f'stroke-dasharray="{line["dash"]}" ' if line.get("dash") else ""
    # In a thinned curve, a gap lies between two points; otherwise it is a point without a value.
    broken = {bisect.bisect_left(steps, first) for first, _ in curve.get("bad") or ()}

    def segments(values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
        found: list[list[tuple[float, float]]] = [[]]
        for at, (step, value) in enumerate(zip(steps, values)):
            if value is None or at in broken:
                found.append([])
            if value is not None:
                found[-1].append((across(step), up(value)))
        return [segment for segment in found if segment]

    def corners(points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)

    def paths(values: Sequence[float | None], look: str) -> list[str]:
        return [
            f'<polyline points="{corners(segment)}" fill="none" stroke="{color}" {dash}{look}/>'
            for segment in segments(values)
            if len(segment) > 1
        ]

    raw = [point for segment in segments(curve["values"]) for point in segment]
    weight = 0.0 if line["dots"] else chart.get("smoothing") or 0.0
    parts = []
    if "high" in curve:
        for above, below in zip(segments(curve["high"]), segments(curve["low"])):
            shape = corners([*above, *reversed(below)])
            parts.append(f'<polygon points="{shape}" fill="{color}" opacity=".16"/>')
    if weight and len(raw) > 2:
        parts += paths(curve["values"], 'stroke-width="1" opacity=".35"')
        parts += paths(smoothed(curve["values"], weight), 'stroke-width="1.8"')
    else:
        parts += paths(curve["values"], 'stroke-width="1.6"')
    if len(raw) == 1 or (line["dots"] and len(raw) < MOST_DOTS):
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}"/>' for x, y in raw]
    return parts
