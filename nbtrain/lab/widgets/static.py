"""Static picture of a run, without kernel, script and network: for papermill and exported HTML.

It shows everything that the live panel shows at one moment, with its tabs below each other. Styles are in
attributes and curves in <img> data, because JupyterLab removes <style>, <script> and inline <svg> from the
outputs of an untrusted notebook, such as one that papermill has executed. Texts and numbers come from the
run's description (monitor/run/run_description.py) and from the job page (monitor/job/job_tables.py).
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbtrain.base.printing.report import DIM, Bar, Bars, Table, heading
from nbtrain.base.printing.theme import BLUE, GREEN, GREY, LINE, ORANGE, PAGE_PIXELS, RED, progress_bar
from nbtrain.base.text.amounts import moment, utc
from nbtrain.lab.widgets.static_charts import beside, chart_image, charts_in_rows
from nbtrain.lab.widgets.static_pages import config_html, metrics_html, plan_html
from nbtrain.monitor.job.conditions import in_sight
from nbtrain.monitor.run.run_description import RunDescription
from nbtrain.monitor.status.life import COLORS as LIFE_COLORS
from nbtrain.monitor.status.run_status import RunStatus

TONE_COLORS = {"live": BLUE, "good": GREEN, "wait": ORANGE, "bad": RED, "calm": GREY}
FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"
NUMBERS = "font-variant-numeric:tabular-nums"
# (width, height) of the charts in pixels. The first one is the large chart, which fits a page of 420 pixels.
CHART_SIZES = ((420, 210), (270, 102), (270, 102))
MOST_ROWS = 32
MOST_EVENTS = 20
# Rows of a run's description that the job page shows in another form.
OF_JOB = ("backend", "command", "job")
# Rows of the job page that the top of the picture already shows.
OF_HEAD = ("state",)


def run_html(
    run: RunDescription,
    job: Mapping[str, Any] | None = None,
    pages: Mapping[str, Any] | None = None,
) -> str:
    """Return a run's description as HTML: state, progress, metrics, curves, ranks, events, job and log.

    With job_tables() of the newest job, it also has conditions, replicas, and the resources over time. With
    run_pages(), it also has all other curves, the plan and the configuration.
    """
    shown = run.texts
    parts = [_head(run), _note(run), _bar(run), _figures(shown["tiles"]), _curves(run)]
    trained = shown["job"]
    if job is None:
        ranks = [row["cells"] for row in shown["ranks"]["rows"]]
        parts += [_table("Ranks", shown["ranks"]["heads"], ranks), _events(run)]
        parts.append(_table("Job", ("", ""), trained))
    else:
        trained = [row for row in trained if row[0] not in OF_JOB]
        parts.append(_life(job["life"]))
        basics = [row for row in job["basics"] if row[0] not in OF_HEAD]
        parts.append(_table("Basic info", ("", ""), [*basics, *trained]))
        parts += [_timed("Conditions", job["conditions"]), _timed("Events", job["events"], MOST_EVENTS)]
        parts.append(_timed("Faults of the run", job["faults"]))
        parts += [_timed(title, job[title.lower()]) for title in ("Replicas", "Ranks")]
        parts.append(_usage(job["charts"]))
        parts += [f"<div>{html.escape(warning)}</div>" for warning in job["warnings"]]
        parts.append(_timed("Resources", job["figures"]))
    parts.append(_log(run.log))
    if pages is not None:
        made = (metrics_html(pages["metrics"]), plan_html(pages["plan"]), config_html(pages["config"]))
        parts += [heading(title) + part for title, part in zip(("Metrics", "Plan", "Config"), made) if part]
    frame = f"max-width:{PAGE_PIXELS}px;border:1px solid {LINE};border-radius:8px;padding:12px 16px"
    return f'<div style="{frame};font-size:13px;{FONT};{NUMBERS}">{"".join(parts)}</div>'


def run_text(status: RunStatus) -> str:
    """Return a run's status in two lines, for a front end that shows no HTML."""
    text = f"{status.name}: {status.state}"
    if status.progress:
        text += f", step {status.steps_text(' / ')}"
        if status.loss is not None and math.isfinite(status.loss):
            text += f", loss {status.loss:.4f}"
    return text + (f"\n{status.cause}" if status.cause else "")


def _head(run: RunDescription) -> str:
    words, tone = run.texts["pill"]
    color = TONE_COLORS[tone]
    as_of = f"as of {moment(run.time)}"
    about = "  ·  ".join(part for part in (run.texts["about"], as_of) if part)
    pill = f"border:1px solid {color};border-radius:10px;padding:0 8px;font-size:11px"
    return (
        f'<div><span style="{pill}"><span style="color:{color}">&#9679;</span> '
        f"<strong>{html.escape(words)}</strong></span> "
        f'<strong style="font-size:15px">{html.escape(run.status.name)}</strong> '
        f'<span style="{DIM}">{html.escape(about)}</span></div>'
    )


def _note(run: RunDescription) -> str:
    """Return the cause or an alert as HTML; a failure becomes a box that says what to do."""
    shown = run.texts
    if not shown["note"]:
        return ""
    if shown["tone"] != "error":
        return f'<div style="margin-top:4px">{html.escape(shown["note"])}</div>'
    bad = TONE_COLORS["bad"]
    box = (
        f"margin:6px 0;padding:6px 10px;border:1px solid {bad};border-left:4px solid {bad};border-radius:6px"
    )
    advice = f"<div>{html.escape(shown['advice'])}</div>" if shown["advice"] else ""
    return f'<div style="{box}"><div>{html.escape(shown["note"])}</div>{advice}</div>'


def _bar(run: RunDescription) -> str:
    shown = run.texts
    if not shown["line"]:
        return ""
    color = BLUE if run.status.active else TONE_COLORS[shown["pill"][1]]
    pairs = ((html.escape(label), html.escape(value)) for label, value in shown["line"])
    words = " &nbsp; ".join(f"{label} <strong>{value}</strong>".strip() for label, value in pairs)
    return f'{progress_bar(shown["fraction"], color)}<div style="{DIM};font-size:12px">{words}</div>'


def _figures(tiles: Sequence[Sequence[str]]) -> str:
    cells = [
        '<div style="display:inline-block;vertical-align:top;padding:2px 18px 2px 0">'
        f'<span style="{DIM};font-size:11px">{html.escape(label)}</span><br>'
        f'<strong style="font-size:15px">{html.escape(value)}</strong> '
        f'<span style="{DIM};font-size:11px">{html.escape(unit)}</span></div>'
        for label, value, unit in tiles
    ]
    return f'<div style="margin:8px 0 4px 0">{"".join(cells)}</div>'


def _curves(run: RunDescription) -> str:
    shown = run.texts
    images = [
        chart_image(chart, run.curves, *size, shown["marks"])
        for chart, size in zip(shown["charts"], CHART_SIZES)
    ]
    if not any(images):
        return ""
    marks = "".join(f"<div>{html.escape(mark['words'])}</div>" for mark in shown["marks"])
    large, small = beside(images[0], CHART_SIZES[0][0]), beside(images[1] + images[2], CHART_SIZES[1][0])
    return f'<div style="margin:4px 0">{large}{small}</div>' + (
        f'<div style="{DIM};font-size:11px">{marks}</div>' if marks else ""
    )


def _life(life: Mapping[str, Any]) -> str:
    """Return the job's life as a bar over time, with the total time of each kind."""
    bar = Bar("", [(end - begin, LIFE_COLORS[kind]) for kind, begin, end in life["spans"]])
    legend = [(f"{name} {words}", LIFE_COLORS[kind]) for kind, name, words in life["totals"]]
    title = f"Life of the job, {utc(life['begin'])} to {utc(life['end'])} UTC"
    return Bars([bar], legend, title, max_pixels=PAGE_PIXELS).html()


def _usage(charts: Sequence[Mapping[str, Any]]) -> str:
    """Return charts of resource use over time as HTML; "" if there are none."""
    rows = charts_in_rows([({**chart, "x_name": "time"}, chart["curves"], ()) for chart in charts])
    return heading("Resources over time") + rows if rows else ""


def _timed(title: str, table: Mapping[str, Any], most: int = MOST_ROWS) -> str:
    """Return a table of the job page as HTML, with at most `most` rows.

    If the rows have times, the last `most` rows are shown, which are the newest; otherwise the first ones.
    """
    rows, heads = table["rows"], table["heads"]
    timed = any(row["time"] is not None for row in rows)
    kept = rows[-most:] if timed else rows[:most]
    more = f" ({len(rows) - len(kept):,} more)" if len(kept) < len(rows) else ""
    cells = [([utc(row["time"])] if timed else []) + row["cells"] for row in kept]
    # Omit empty columns, which would take space from the message.
    said = [at for at in range(len(heads)) if any(row[at] for row in cells)]
    narrow = ([row[at] for at in said] for row in cells)
    return _table(f"{title}{more}{', UTC' if timed else ''}", [heads[at] for at in said], narrow)


def _events(run: RunDescription) -> str:
    """Return the important and the newest events of a run as an HTML table; "" without events."""
    shown = in_sight(run.events, MOST_EVENTS)
    times = (utc(event["time"]) for event in shown)
    rows = [[at, event["kind"], event["writer"], event["message"]] for at, event in zip(times, shown)]
    return _table("Events, UTC", ("time", "kind", "from", "message"), rows)


def _log(log: dict[str, Any]) -> str:
    if not log["lines"]:
        return ""
    text = html.escape("\n".join(log["lines"]))
    pre = "font-size:11px;margin:2px 0;white-space:pre-wrap"
    return heading("Log of " + log["source"]) + f'<pre style="{pre}">{text}</pre>'


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    return Table(heads, rows, caption, wraps_last=True).html() if rows else ""
