"""A snapshot as a picture that needs no kernel, no script and no network: for papermill and exported HTML.

Everything the live panel shows, at one moment. Styles stand in attributes and curves in <img> data, because
JupyterLab strips <style>, <script> and inline <svg> from the outputs of a notebook that it does not trust,
and an executed notebook from papermill is one. Words and numbers come with the snapshot (monitor/shown.py).
"""

import base64
import html
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtrain.monitor.snapshot import in_sight

COLORS = {"a": "#1976d2", "b": "#e8710a"}
_USAGE = ("#1976d2", "#e8710a", "#2e9e4f", "#9b6bd0", "#b5654a", "#d6569f", "#0f9fb0", "#9a9a1a")
COLORS |= {f"c{number}": color for number, color in enumerate(_USAGE)}
"""Of a chart's lines."""
BOUND_COLORS = {"request": "#2e9e4f", "limit": "#d32f2f"}
GREY, LINE = "#7a828e", "#9aa2ad"
STATE_COLORS = dict.fromkeys(("RUNNING", "SUCCEEDED"), "#2e9e4f")
STATE_COLORS |= dict.fromkeys(("FAILED", "LOST"), "#d32f2f")
STATE_COLORS |= dict.fromkeys(("QUEUED", "STARTING", "RESTARTING"), COLORS["b"])
FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"
NUMBERS = "font-variant-numeric:tabular-nums"
LEFT = "text-align:left"
TILES_IN_A_ROW = 8
# (width, height) in pixels of a snapshot's charts, the large one first.
CHART_SIZES = ((560, 190), (360, 88), (360, 88))
USAGE_SIZE = (300, 96)
USAGE_IN_A_ROW = 3
MOST_RANKS = 32
MOST_EVENTS = 8


def run_html(snapshot: dict[str, Any], job: Mapping[str, Any] | None = None) -> str:
    """Complete HTML of RunView.snapshot(): state, progress, figures, curves, ranks, events, job, log.

    With job_shown() of its newest job also the conditions, and the resources over time.
    """
    shown = snapshot["shown"]
    parts = [_head(snapshot), _bar(snapshot), _figures(shown["tiles"]), _curves(snapshot)]
    if job is not None:
        parts += [_usage(job["charts"]), _conditions(job["conditions"])]
    parts += [_ranks(shown["ranks"]), _events(snapshot), _table("Job", ("", ""), shown["job"])]
    parts.append(_log(snapshot["log"]))
    frame = f"max-width:1000px;border:1px solid {LINE};border-radius:8px;padding:12px 16px"
    return f'<div style="{frame};font-size:13px;{FONT};{NUMBERS}">{"".join(parts)}</div>'


def run_text(snapshot: dict[str, Any]) -> str:
    """The snapshot in two lines, for a terminal and a log."""
    progress = snapshot["progress"]
    words = f"{snapshot['name']}: {snapshot['state']}"
    if progress:
        words += f", step {progress['step']:,} / {progress['total_steps']:,}"
        if progress["loss"] is not None:
            words += f", loss {progress['loss']:.4f}"
    return words + (f"\n{snapshot['cause']}" if snapshot["cause"] else "")


def _head(snapshot: dict[str, Any]) -> str:
    color = STATE_COLORS.get(snapshot["state"], GREY)
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot["time"]))
    about = "  ·  ".join(part for part in (snapshot["shown"]["about"], f"as of {moment}") if part)
    note = snapshot["shown"]["note"]
    said = f'<div style="margin-top:2px">{html.escape(note)}</div>' if note else ""
    return (
        f'<div><span style="color:{color};font-size:16px">&#9679;</span> '
        f'<strong style="font-size:15px">{html.escape(snapshot["name"])}</strong> '
        f'<strong style="color:{color}">{html.escape(snapshot["state"])}</strong> '
        f'<span style="color:{GREY}">{html.escape(about)}</span>{said}</div>'
    )


def _bar(snapshot: dict[str, Any]) -> str:
    shown = snapshot["shown"]
    if not shown["line"]:
        return ""
    color = COLORS["a"] if snapshot["active"] else STATE_COLORS.get(snapshot["state"], GREY)
    pairs = ((html.escape(label), html.escape(value)) for label, value in shown["line"])
    words = " &nbsp; ".join(f"{label} <strong>{value}</strong>".strip() for label, value in pairs)
    bar, percent = "height:6px;border-radius:3px", 100 * shown["fraction"]
    return (
        f'<div style="{bar};background-color:{LINE};margin:8px 0 4px 0">'
        f'<div style="{bar};width:{percent:.2f}%;background-color:{color}"></div></div>'
        f'<div style="color:{GREY};font-size:12px">{words}</div>'
    )


def _figures(tiles: Sequence[Sequence[str]]) -> str:
    cells = [
        f'<td style="{LEFT};padding:2px 18px 2px 0">'
        f'<span style="color:{GREY};font-size:11px">{html.escape(label)}</span><br>'
        f'<strong style="font-size:15px">{html.escape(value)}</strong> '
        f'<span style="color:{GREY};font-size:11px">{html.escape(unit)}</span></td>'
        for label, value, unit in tiles
    ]
    rows = ("".join(cells[at : at + TILES_IN_A_ROW]) for at in range(0, len(cells), TILES_IN_A_ROW))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table style="margin:8px 0 4px 0">{body}</table>'


def _curves(snapshot: dict[str, Any]) -> str:
    images = [
        _image(chart_svg(chart, snapshot["curves"], *size), chart["lines"]) if chart["x"] else ""
        for chart, size in zip(snapshot["shown"]["charts"], CHART_SIZES)
    ]
    if not any(images):
        return ""
    return (
        f'<table style="margin:4px 0"><tr>'
        f'<td style="{LEFT};vertical-align:top;padding:0 16px 0 0">{images[0]}</td>'
        f'<td style="{LEFT};vertical-align:top;padding:0">{images[1]}{images[2]}</td></tr></table>'
    )


def _usage(charts: Sequence[Mapping[str, Any]]) -> str:
    """Resources over time, by the files that the job keeps."""
    cells = []
    for chart in charts:
        lines = (
            chart["lines"]
            if chart["named"]
            else [{**chart["lines"][0], "label": f"{len(chart['lines'])} lines"}]
        )
        title = f'<strong style="font-size:11px">{html.escape(chart["title"])}</strong>'
        picture = _image(chart_svg(chart, chart["curves"], *USAGE_SIZE, left=64), lines)
        cells.append(f'<td style="{LEFT};vertical-align:top;padding:0 12px 6px 0">{title}{picture}</td>')
    # A table for each row: JupyterLab paints every second row of a table grey.
    rows = ("".join(cells[at : at + USAGE_IN_A_ROW]) for at in range(0, len(cells), USAGE_IN_A_ROW))
    return "".join(f'<table style="margin:4px 0"><tr>{row}</tr></table>' for row in rows)


def _conditions(table: Mapping[str, Any]) -> str:
    rows = [
        [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["time"])), *row["cells"]] for row in table["rows"]
    ]
    return _table("Conditions (UTC)", table["heads"], rows)


def _image(svg: str, lines: Sequence[Mapping[str, Any]]) -> str:
    data = base64.b64encode(svg.encode()).decode()
    legend = "  ".join(
        f'<span style="color:{COLORS[line["color"]]}">&#9644;</span> {html.escape(line["label"])}'
        for line in lines
    )
    title = html.escape(", ".join(line["label"] for line in lines))
    return (
        f'<div style="color:{GREY};font-size:11px">{legend}</div>'
        f'<img alt="{title}" src="data:image/svg+xml;base64,{data}">'
    )


def _ranks(ranks: dict[str, Any]) -> str:
    more = len(ranks["rows"]) - MOST_RANKS
    caption = f"Ranks ({more} more)" if more > 0 else "Ranks"
    return _table(caption, ranks["heads"], [row["cells"] for row in ranks["rows"][:MOST_RANKS]])


def _events(snapshot: dict[str, Any]) -> str:
    # Alerts stay however old they are; of the other events the weighty and the newest.
    newest = in_sight(snapshot["events"], MOST_EVENTS)
    shown = [alert for alert in snapshot["alerts"][-MOST_EVENTS:] if alert not in newest] + newest
    shown.sort(key=lambda event: event["time"])
    times = (time.strftime("%H:%M:%S", time.gmtime(event["time"])) for event in shown)
    rows = [[at, event["kind"], event["writer"], event["message"]] for at, event in zip(times, shown)]
    return _table("Events (UTC)", ("time", "kind", "from", "message"), rows)


def _log(log: dict[str, Any]) -> str:
    if not log["lines"]:
        return ""
    text = html.escape("\n".join(log["lines"]))
    return (
        f'<div style="color:{GREY};font-size:11px;margin-top:8px">Log of {html.escape(log["source"])}</div>'
        f'<pre style="font-size:11px;margin:2px 0;white-space:pre-wrap">{text}</pre>'
    )


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cell = f"{LEFT};padding:1px 14px 1px 0;font-size:12px;vertical-align:top"
    body = "".join(
        "<tr>" + "".join(f'<td style="{cell}">{html.escape(str(value))}</td>' for value in row) + "</tr>"
        for row in rows
    )
    if not body:
        return ""
    titles = "".join(f'<th style="{cell};color:{GREY};font-weight:500">{title}</th>' for title in heads)
    head = f"<tr>{titles}</tr>" if any(heads) else ""
    return (
        f'<div style="color:{GREY};font-size:11px;margin-top:8px">{html.escape(caption)}</div>'
        f'<table style="margin:0">{head}{body}</table>'
    )


def chart_svg(
    chart: Mapping[str, Any], curves: Mapping[str, Mapping[str, Any]], width: int, height: int, left: int = 48
) -> str:
    """An SVG of a chart of chart_data.py or usage_charts.py. Readable on white and on black."""
    (x0, x1), (y0, y1) = chart["x"], chart["y"]
    right, top, bottom = 10, 6, 18

    def across(step: float) -> float:
        return left + (step - x0) / (x1 - x0) * (width - left - right)

    def up(value: float) -> float:
        return top + (y1 - value) / (y1 - y0) * (height - top - bottom)

    parts = []
    for value, label in chart["y_ticks"]:
        y = up(value)
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LINE}" opacity=".4"/>'
        )
        parts.append(f'<text x="{left - 5}" y="{y + 3:.1f}" text-anchor="end">{html.escape(label)}</text>')
    for step, label in chart["x_ticks"]:
        anchor = "end" if across(step) > width - 25 else "middle"
        parts.append(f'<text x="{across(step):.1f}" y="{height - 4}" text-anchor="{anchor}">{label}</text>')
    for bound in chart.get("bounds") or ():
        place = (
            f'x1="{left}" x2="{width - right}" y1="{up(bound["value"]):.1f}" y2="{up(bound["value"]):.1f}"'
        )
        parts.append(f'<line {place} stroke="{BOUND_COLORS[bound["word"]]}" stroke-dasharray="5 4"/>')
    for line in chart["lines"]:
        color, curve = COLORS[line["color"]], curves[line["name"]]
        values = zip(curve["steps"], curve["values"])
        points = [(across(step), up(value)) for step, value in values if value is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if line["dots"] and len(points) < 80:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{color}"/>' for x, y in points]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="10" '
        f'font-family="sans-serif" fill="{GREY}">{"".join(parts)}</svg>'
    )
