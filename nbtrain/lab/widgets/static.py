"""A snapshot as a picture that needs no kernel, no script and no network: for papermill and exported HTML.

Everything the live panel shows, at one moment. Styles stand in attributes and curves in <img> data, because
JupyterLab strips <style>, <script> and inline <svg> from the outputs of a notebook that it does not trust, and an
executed notebook from papermill is one.
"""

import base64
import html
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

from nbtrain.base import amounts
from nbtrain.monitor.snapshot import in_sight

BLUE, ORANGE, GREY, LINE = "#1976d2", "#e8710a", "#7a828e", "#9aa2ad"
STATE_COLORS = {
    "RUNNING": "#2e9e4f",
    "SUCCEEDED": "#2e9e4f",
    "FAILED": "#d32f2f",
    "LOST": "#d32f2f",
    "QUEUED": ORANGE,
    "STARTING": ORANGE,
    "RESTARTING": ORANGE,
}
FONT = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"
NUMBERS = "font-variant-numeric:tabular-nums"
LEFT = "text-align:left"


def run_html(snapshot: dict[str, Any]) -> str:
    """Complete HTML of RunView.snapshot(): state, progress, figures, curves, ranks, events, log."""
    parts = [_head(snapshot), _bar(snapshot), _figures(snapshot), _curves(snapshot)]
    parts += [_ranks(snapshot), _events(snapshot), _log(snapshot)]
    style = f"max-width:1000px;border:1px solid {LINE};border-radius:8px;padding:12px 16px;font-size:13px;{FONT};{NUMBERS}"
    return f'<div style="{style}">{"".join(part for part in parts if part)}</div>'


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
    job, config, progress = snapshot["job"], snapshot["config"], snapshot["progress"] or {}
    about = []
    if progress.get("num_parameters"):
        about.append(f"{amounts.count(progress['num_parameters'])} parameters")
    if config:
        world_size = job["world_size"] if job else config["data_parallel_size"]
        about.append(f"{world_size} x {config['device']}, {config['precision']}, ZeRO {config['zero_stage']}")
    if job:
        about.append(f"job {job['job_id']}")
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(snapshot["time"]))
    about.append(f"as of {moment}")
    cause = f'<div style="margin-top:2px">{html.escape(snapshot["cause"])}</div>' if snapshot["cause"] else ""
    return (
        f'<div><span style="color:{color};font-size:16px">&#9679;</span> '
        f'<strong style="font-size:15px">{html.escape(snapshot["name"])}</strong> '
        f'<strong style="color:{color}">{html.escape(snapshot["state"])}</strong> '
        f'<span style="color:{GREY}">{html.escape("  ·  ".join(about))}</span>{cause}</div>'
    )


def _bar(snapshot: dict[str, Any]) -> str:
    progress, job = snapshot["progress"], snapshot["job"]
    if not progress:
        return ""
    fraction = progress["fraction"] or 0.0
    color = STATE_COLORS.get(snapshot["state"], GREY) if not snapshot["active"] else BLUE
    words = [
        f"step <strong>{progress['step']:,} / {progress['total_steps']:,}</strong>",
        f"tokens <strong>{amounts.count(progress['consumed_tokens'])} / {amounts.count(progress['target_tokens'])}</strong>",
        f"<strong>{fraction:.1%}</strong>",
    ]
    if job:
        words.append(f"elapsed <strong>{amounts.elapsed(job['elapsed_seconds'])}</strong>")
        if job["restarts"]:
            words.append(f"restarts <strong>{job['restarts']}</strong>")
    if progress["eta_seconds"] is not None:
        words.append(f"time left <strong>{amounts.elapsed(progress['eta_seconds'])}</strong>")
    return (
        f'<div style="height:6px;border-radius:3px;background-color:{LINE};margin:8px 0 4px 0">'
        f'<div style="height:6px;border-radius:3px;width:{100 * fraction:.2f}%;background-color:{color}"></div></div>'
        f'<div style="color:{GREY};font-size:12px">{" &nbsp; ".join(words)}</div>'
    )


def _figures(snapshot: dict[str, Any]) -> str:
    progress, curves, resources = snapshot["progress"] or {}, snapshot["curves"], snapshot["resources"]
    pairs: list[tuple[str, str]] = []

    def add(label: str, value: float | None, form: str, unit: str = "") -> None:
        if value is not None:
            pairs.append((label, f"{value:{form}} {unit}".strip()))

    add("training loss", progress.get("loss"), ".4f")
    add("validation loss", progress.get("validation_loss"), ".4f")
    add("validation perplexity", progress.get("validation_perplexity"), ",.1f")
    add("best validation loss", progress.get("best_validation_loss"), ".4f")
    add("test loss", progress.get("test_loss"), ".4f")
    add("learning rate", progress.get("learning_rate"), ".2e")
    add("throughput", progress.get("tokens_per_second"), ",.0f", "tokens/s")
    add("gradient norm", progress.get("grad_norm"), ".3f")
    add("MFU", curves["mfu"]["values"][-1] if curves["mfu"]["values"] else None, ".1%")
    use = resources["job"] if resources else None
    if use:
        add("CPU", use["cpu_cores"], ".2f", "cores")
        pairs.append(("memory", amounts.size(use["memory_bytes"])))
    elif curves["host_memory_bytes"]["values"]:
        pairs.append(("memory of rank 0", amounts.size(curves["host_memory_bytes"]["values"][-1])))
    for gpu in resources["gpus"] if resources else ():
        if gpu["utilization_fraction"] is not None:
            pairs.append((f"GPU {gpu['index']}", f"{gpu['utilization_fraction']:.0%}"))
    if not pairs:
        return ""
    cells = "".join(
        f'<td style="{LEFT};padding:2px 18px 2px 0"><span style="color:{GREY};font-size:11px">{html.escape(label)}</span>'
        f'<br><strong style="font-size:15px">{html.escape(value)}</strong></td>'
        for label, value in pairs
    )
    return f'<table style="margin:8px 0 4px 0"><tr>{cells}</tr></table>'


def _curves(snapshot: dict[str, Any]) -> str:
    curves = snapshot["curves"]
    loss = [(BLUE, curves["loss"], False), (ORANGE, curves["validation_loss"], True)]
    charts = [
        (
            chart_svg(loss, 560, 190, fixed),
            "training loss (blue) and validation loss (orange), nats",
        ),
        (
            chart_svg([(BLUE, curves["learning_rate"], False)], 360, 88, scientific, zero=True),
            "learning rate",
        ),
        (
            chart_svg([(BLUE, curves["tokens_per_second"], False)], 360, 88, amounts.count, zero=True),
            "tokens/s",
        ),
    ]
    if not any(svg for svg, _ in charts):
        return ""
    images = [_image(svg, title) if svg else "" for svg, title in charts]
    return (
        f'<table style="margin:4px 0"><tr><td style="{LEFT};vertical-align:top;padding:0 16px 0 0">{images[0]}</td>'
        f'<td style="{LEFT};vertical-align:top;padding:0">{images[1]}{images[2]}</td></tr></table>'
    )


def _image(svg: str, title: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    text = html.escape(title)
    return (
        f'<div style="color:{GREY};font-size:11px">{text}</div>'
        f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
    )


def _ranks(snapshot: dict[str, Any]) -> str:
    rows = [
        (
            str(rank["rank"]),
            rank["phase"],
            f"{rank['step']:,}" if rank["step"] is not None else "",
            amounts.size(rank["memory_bytes"]) if rank["memory_bytes"] else "",
            rank["message"],
        )
        for rank in snapshot["ranks"][:32]
    ]
    more = len(snapshot["ranks"]) - len(rows)
    caption = f"Ranks ({more} more)" if more > 0 else "Ranks"
    return _table(caption, ("rank", "phase", "step", "memory", "last words"), rows)


def _events(snapshot: dict[str, Any]) -> str:
    # Alerts stay however old they are; of the rest the weighty and the newest.
    newest = in_sight(snapshot["events"], 8)
    shown = [alert for alert in snapshot["alerts"][-8:] if alert not in newest] + newest
    rows = [
        (
            time.strftime("%H:%M:%S", time.gmtime(event["time"])),
            event["kind"],
            event["writer"],
            event["message"],
        )
        for event in sorted(shown, key=lambda event: event["time"])
    ]
    return _table("Events (UTC)", ("time", "kind", "from", "message"), rows)


def _log(snapshot: dict[str, Any]) -> str:
    lines = snapshot["log"]["lines"]
    if not lines:
        return ""
    text = html.escape("\n".join(lines))
    return (
        f'<div style="color:{GREY};font-size:11px;margin-top:8px">Log of {html.escape(snapshot["log"]["source"])}</div>'
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
    head = "".join(f'<th style="{cell};color:{GREY};font-weight:500">{title}</th>' for title in heads)
    return (
        f'<div style="color:{GREY};font-size:11px;margin-top:8px">{html.escape(caption)}</div>'
        f'<table style="margin:0"><tr>{head}</tr>{body}</table>'
    )


def fixed(value: float) -> str:
    return f"{value:.2f}"


def scientific(value: float) -> str:
    return f"{value:.0e}" if value else "0"


def chart_svg(
    lines: Sequence[tuple[str, dict[str, Any], bool]], width: int, height: int, form: Any, zero: bool = False
) -> str:
    """An SVG of curves over steps; "" where there is no point. Readable on white and on black.

    `lines`: (color, {"steps", "values"}, whether each point gets a dot).
    """
    points = [
        [(step, value) for step, value in zip(curve["steps"], curve["values"]) if value is not None]
        for _, curve, _ in lines
    ]
    flat = [point for line in points for point in line]
    if not flat:
        return ""
    x0, x1 = min(x for x, _ in flat), max(x for x, _ in flat)
    y0, y1 = min(y for _, y in flat), max(y for _, y in flat)
    x1 = x1 if x1 > x0 else x0 + 1
    margin = (y1 - y0) * 0.06 or abs(y1) * 0.05 or 1.0
    y0, y1 = (min(0.0, y0) if zero else y0 - margin), y1 + margin
    left, right, top, bottom = 48, 10, 6, 18

    def across(step: float) -> float:
        return left + (step - x0) / (x1 - x0) * (width - left - right)

    def up(value: float) -> float:
        return top + (y1 - value) / (y1 - y0) * (height - top - bottom)

    parts = []
    for value in ticks(y0, y1, 5 if height > 120 else 2):
        y = up(value)
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{LINE}" opacity=".4"/>'
        )
        parts.append(
            f'<text x="{left - 5}" y="{y + 3:.1f}" text-anchor="end">{html.escape(form(value))}</text>'
        )
    for step in ticks(x0, x1, 6 if width > 400 else 4):
        anchor = "end" if across(step) > width - 25 else "middle"
        parts.append(
            f'<text x="{across(step):.1f}" y="{height - 4}" text-anchor="{anchor}">{amounts.count(step)}</text>'
        )
    for (color, _, dotted), line in zip(lines, points):
        path = " ".join(f"{across(step):.1f},{up(value):.1f}" for step, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"/>')
        if dotted and len(line) < 80:
            parts += [
                f'<circle cx="{across(s):.1f}" cy="{up(v):.1f}" r="2.4" fill="{color}"/>' for s, v in line
            ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="10" '
        f'font-family="sans-serif" fill="{GREY}">{"".join(parts)}</svg>'
    )


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1)]
