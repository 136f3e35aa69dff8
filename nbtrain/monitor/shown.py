"""Texts of a snapshot: every label, number and row of a panel. The panel and static.py only draw them."""

from collections.abc import Mapping
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.jobstate import FAILURES, SUSPENDED, tone_of
from nbtrain.monitor.chart_data import charts
from nbtrain.monitor.life import elapsed_words

UNKNOWN = "\N{EN DASH}"
MOST_GPUS = 8
# Above this value amounts.count has no unit: the perplexity of a run that has diverged.
LARGEST_COUNT = 1e15
CONFIG_ROWS = (
    (
        "model",
        "{layers}, hidden {hidden_size}, {num_attention_heads} heads, sequence {seq_length}, "
        "vocabulary {vocab_size:,}",
    ),
    ("batch", "{global_batch_size} sequences in micro batches of {micro_batch_size}"),
    (
        "layout",
        "data {data_parallel_size} x pipeline {pipeline_parallel_size} x tensor {tensor_parallel_size}, "
        "ZeRO {zero_stage}, {precision}",
    ),
    ("dataset", "{dataset}"),
)


def _step(seconds: float) -> str:
    """Format the time of a step with three digits, also for a round number."""
    return f"{seconds:#.3g} s" if seconds < 99.95 else amounts.step(seconds)


PREDICTED = {"step": ("step time", _step), "memory": ("peak memory, rank 0", amounts.size)}
"""Label of a prediction's tile, and the format of its numbers."""
RANK_HEADS = ("rank", "phase", "step", "pid", "CPU", "memory", "heartbeat", "last words")


def shown(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key "shown" of a snapshot, from its other keys.

    about       what is trained and where, in one line
    pill        [the state's words, its tone: live, good, wait, bad or calm]
    note, tone  the cause, or the newest alert that still holds; "error", "alert" or ""
    advice      what to do about a failure
    fraction    how much of the run is done, 0 to 1
    line        [[label, value], ...] below the bar
    tiles       [[label, value, unit], ...]
    charts      see monitor/chart_data.py
    marks       see monitor/advice.py
    ranks       {"heads", "rows": [{"bad", "cells"}]}
    alerts      the title of the events' page
    job         [[label, text], ...]
    """
    bad = snapshot["state"] in FAILURES
    raised = (
        [alert["message"] for alert in snapshot["alerts"] if alert["raised"]] if snapshot["active"] else []
    )
    alert = raised[-1] if raised else ""
    num_alerts = len(snapshot["alerts"])
    return {
        "about": _about(snapshot),
        "pill": list(pill(snapshot["state"], snapshot["asked"])),
        "note": _note(snapshot, alert),
        "tone": "error"
        if bad
        else "alert"
        if snapshot["waiting"] or (alert and not snapshot["cause"])
        else "",
        "advice": snapshot["advice"],
        "fraction": (snapshot["progress"] or {}).get("fraction") or 0.0,
        "line": _line(snapshot),
        "tiles": [list(tile) for tile in _tiles(snapshot)],
        "charts": charts(snapshot["curves"]),
        "marks": snapshot["marks"],
        "ranks": {"heads": list(RANK_HEADS), "rows": [_rank(row, snapshot) for row in snapshot["ranks"]]},
        "alerts": f"Events ({amounts.counted(num_alerts, 'alert')})" if num_alerts else "Events",
        "job": _job_rows(snapshot),
    }


def _note(snapshot: Mapping[str, Any], alert: str) -> str:
    """Return what the job waits for and the cause of its state, or an alert."""
    cause, waiting, nan = snapshot["cause"] or "", snapshot["waiting"], snapshot["nan"]
    if waiting:
        return f"{waiting} Cause: {cause}" if cause else waiting
    if nan and snapshot["active"]:
        return f"The training loss is {nan}." + (f" {cause}" if cause else "")
    return cause or (f"Alert: {alert}" if alert else "")


def pill(state: str, asked: str | None = None) -> tuple[str, str]:
    """Return the text and tone of a state: "Stopping..." from a stop request until the job has ended."""
    if asked == "stop":
        return "Stopping...", "wait"
    if asked == "pause" and state != SUSPENDED:
        return "Pausing...", "wait"
    return state, tone_of(state)


def _about(snapshot: Mapping[str, Any]) -> str:
    job, config, progress = snapshot["job"], snapshot["config"], snapshot["progress"] or {}
    parts = []
    if progress.get("num_parameters"):
        parts.append(f"{amounts.count(progress['num_parameters'])} parameters")
    if config:
        ranks = (job or config)["world_size"]
        parts.append(f"{ranks} x {config['device']}, {config['precision']}, ZeRO {config['zero_stage']}")
    if job:
        parts.append(f"job {job['job_id']}")
    return "  ·  ".join(parts)


def _line(snapshot: Mapping[str, Any]) -> list[list[str]]:
    progress, job = snapshot["progress"], snapshot["job"]
    found = []
    if progress:
        tokens, target = progress["consumed_tokens"], progress["target_tokens"]
        found.append(["step", f"{progress['step']:,} / {progress['total_steps']:,}"])
        found.append(["tokens", f"{amounts.count(tokens)} / {amounts.count(target)}"])
        if progress["fraction"] is not None:
            found.append(["", f"{100 * progress['fraction']:.1f} %"])
        if snapshot["active"] and progress["phase"] not in ("train", None):
            since = amounts.elapsed(progress["phase_seconds"] or 0.0)
            found.append(["phase", f"{progress['phase']}, {since}"])
    if job:
        found.append(["elapsed", elapsed_words(job["elapsed_seconds"], job["paused_seconds"])])
        if job["restarts"]:
            found.append(["restarts", f"{job['restarts']:,}"])
    if progress and progress["eta_seconds"] is not None:
        found.append(["time left", amounts.elapsed(progress["eta_seconds"])])
    return found


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _tiles(snapshot: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (label, value, unit) for each tile; a value that is not known yet is a dash."""
    progress, curves = snapshot["progress"] or {}, snapshot["curves"]
    perplexity = progress.get("validation_perplexity")
    words = "" if perplexity is None else f"ppl {_perplexity(perplexity)}"
    # "NaN since step 121 (samples ...)": the number's place has NaN, the rest is its note.
    value, _, since = snapshot["nan"].partition(" ")
    loss = (value, since) if snapshot["nan"] else (_figure(progress.get("loss"), ".4f"), "")
    found = [
        ("training loss", *loss),
        ("validation loss", _figure(progress.get("validation_loss"), ".4f"), words),
        ("learning rate", _rate(progress.get("learning_rate")), ""),
        ("throughput", _figure(progress.get("tokens_per_second"), ",.0f"), "tokens/s"),
        ("gradient norm", _figure(progress.get("grad_norm"), ".3f"), ""),
    ]
    if curves["mfu"]["values"]:
        found.append(("MFU", f"{100 * curves['mfu']['values'][-1]:.1f}", "%"))
    found += _predictions(snapshot) + _use(snapshot)
    best = progress.get("best_validation_loss")
    if best is not None and best != progress.get("validation_loss"):
        found.append(("best validation loss", f"{best:.4f}", ""))
    if progress.get("test_loss") is not None:
        found.append(("test loss", f"{progress['test_loss']:.4f}", ""))
    return found


def _predictions(snapshot: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the measured step time and peak memory, each next to its prediction, with their ratio."""
    tiles = []
    for row in (snapshot["prediction"] or {}).get("rows", ()):
        label, form = PREDICTED[row["name"]]
        words = f"predicted {form(row['predicted'])}"
        if row["measured"] is None:
            tiles.append((label, UNKNOWN, words))
        else:
            tiles.append((label, form(row["measured"]), f"{words}, ratio {row['ratio']:.2f}"))
    return tiles


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else amounts.rate(value)


def _perplexity(value: float) -> str:
    if value >= LARGEST_COUNT:
        return f"{value:.1e}"
    return f"{value:.1f}" if value < 1000 else amounts.count(value)


def _size(num_bytes: float | None) -> tuple[str, str]:
    if num_bytes is None:
        return UNKNOWN, ""
    number, _, unit = amounts.size(num_bytes).partition(" ")
    return number, unit


def _use(snapshot: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the use of CPU, memory and GPUs while the job is active, later the memory that rank 0 reported
    last.
    """
    resources = snapshot["resources"]
    job = resources["job"] if resources else None
    if not job:
        memory = snapshot["curves"]["host_memory_bytes"]["values"]
        return [("memory, rank 0", *_size(memory[-1]))] if memory else []
    machine = resources["machine"]
    found = [
        (f"CPU, of {machine['num_cores']} cores", _figure(job["cpu_cores"], ".2f"), "cores"),
        (f"memory, of {amounts.size(machine['memory_total_bytes'])}", *_size(job["memory_bytes"])),
    ]
    for gpu in resources["gpus"][:MOST_GPUS]:
        use, power = gpu["utilization_fraction"], gpu["power_watts"]
        words = " ".join(_size(gpu["memory_used_bytes"])).strip()
        if power is not None:
            words += f", {power:.0f} W"
        found.append((f"GPU {gpu['index']}", UNKNOWN if use is None else f"{100 * use:.0f} %", words))
    return found


def _rank(row: Mapping[str, Any], snapshot: Mapping[str, Any]) -> dict[str, Any]:
    age = row["heartbeat_age_seconds"]
    cells = [
        str(row["rank"]),
        row["phase"],
        "" if row["step"] is None else f"{row['step']:,}",
        "" if row["pid"] is None else str(row["pid"]),
        "" if row["cpu_cores"] is None else f"{row['cpu_cores']:.2f} cores",
        "" if row["memory_bytes"] is None else amounts.size(row["memory_bytes"]),
        "" if age is None or not snapshot["active"] else f"{amounts.elapsed(age)} ago",
        row["message"],
    ]
    return {"bad": row["stale"] or row["phase"] in ("failed", "killed"), "cells": cells}


def _job_rows(snapshot: Mapping[str, Any]) -> list[list[str]]:
    config, job = snapshot["config"], snapshot["job"]
    rows = []
    if config:
        words = {**config, "layers": amounts.counted(config["num_layers"], "layer")}
        rows += [[name, form.format_map(words)] for name, form in CONFIG_ROWS]
    if job:
        ranks = amounts.counted(job["world_size"], "rank")
        restarts = amounts.counted(job["restarts"], "restart")
        rows.append(["backend", f"{job['backend']}, {ranks}, attempt {job['attempt']}, {restarts}"])
        if job["command"]:
            rows.append(["command", " ".join(job["command"])])
    if basis := (snapshot["prediction"] or {}).get("basis"):
        rows.append(["step time predicted from", basis])
    for entry in reversed(snapshot["jobs"]):
        rows.append(
            ["job", f"{entry['job_id']}  {entry['state']}{': ' + entry['cause'] if entry['cause'] else ''}"]
        )
    return rows + [["warning", warning] for warning in snapshot["warnings"]]
