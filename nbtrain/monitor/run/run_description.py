"""Description of a run: the JSON object that all views of a run are drawn from.

    RunView.describe()  ->  RunDescription  ->  to_dict()      `nbtrain status --json`, REST, the panel
                                            ->  run_html()     the static picture

The description is the run's status (run_status.py) plus curves, ranks, events, resources and the end of the
log. The JSON also contains every text of a page, such as labels, formatted numbers and table rows, so that
the panel and the static picture only have to draw them.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from nbtrain.base.run_directory.rank_phases import ERROR, activity_of
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.layout_words import layout_words
from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.monitor.job.job_description import JobStatus
from nbtrain.monitor.metrics.chart_data import charts
from nbtrain.monitor.run.rank_rows import heartbeat_text
from nbtrain.monitor.status.run_status import UNKNOWN, RunStatus

SCHEMA_VERSION = 1
STATUS_KEYS = ("name", "run_id", "state", "meaning", "cause", "active", "queued", "failed", "asked")
"""Keys of the JSON object that are taken from RunStatus."""


MOST_GPUS = 8
# amounts.count has no unit above this value, which the perplexity of a diverged run may exceed.
LARGEST_COUNT = 1e15
CONFIG_ROWS = (
    (
        "model",
        "{layers}, hidden {hidden_size}, {num_attention_heads} heads, sequence {seq_length}, "
        "vocabulary {vocab_size:,}",
    ),
    ("batch", "{global_batch_size} sequences in micro batches of {micro_batch_size}"),
    ("layout", "{layout}, ZeRO {zero_stage}, {precision}"),
    ("dataset", "{dataset}"),
)


def _step(seconds: float) -> str:
    """Format a step time with three significant digits, including trailing zeros."""
    return f"{seconds:#.3g} s" if seconds < 99.95 else amounts.step(seconds)


PREDICTED = {"step": ("step time", _step), "memory": ("peak memory, rank 0", amounts.size)}
"""{name of a prediction: (label of its tile, function that formats its numbers)}."""
RANK_HEADS = ("rank", "phase", "activity", "step", "pid", "CPU", "memory", "heartbeat", "message")


@dataclass(frozen=True)
class RunDescription:
    """Everything that nbtrain shows of a run at one moment.

    Values are in base units and can be written as JSON; unknown values, NaN and Inf are None.
    """

    status: RunStatus
    time: float
    """Time of the description, in seconds since the epoch."""
    job: JobStatus | None
    """The newest job; None if no job was submitted yet."""
    advice: str
    """Advice on what to do about a failure; "" without a failure."""
    remedies: list[dict[str, Any]]
    """Settings that let a run continue after a bad step ended it (advice.remedies())."""
    cost: str
    """Device hours, money, energy and goodput of all jobs in one line; "" if no device was used yet."""
    waiting: str
    """Text that says what a job between two attempts waits for; "" for any other job."""
    nan: str
    """Text that says since which step the training loss is NaN; "" if the newest loss is a number."""
    jobs: list[dict[str, Any]]
    """State and times of every job, oldest first."""
    marks: list[dict[str, Any]]
    """Marks for charts: resumes, restarts, rollbacks and steps with NaN."""
    config: dict[str, Any] | None
    """Summary of model, batch and layout; None if the run has no configuration yet."""
    progress: dict[str, Any] | None
    """Progress of training; None if no progress is known."""
    prediction: dict[str, Any] | None
    """Predicted and measured step time and memory; None without a prediction."""
    curves: dict[str, Any]
    """{name of a scalar: its curve, reduced to few points}."""
    reading: float
    """Fraction of the metrics files that has been read, 0 to 1."""
    resources: dict[str, Any] | None
    """CPU, memory and GPU use of an active job on this machine; None if the job is not active."""
    ranks: list[dict[str, Any]]
    failed_rank: int | None
    """Rank that failed first, or for which the other ranks waited.

    None if the rank is not known, or if the run did not fail.
    """
    log: dict[str, Any]
    """Last lines of a log: {"source", "lines"}."""
    events: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    warnings: list[str]

    @functools.cached_property
    def texts(self) -> dict[str, Any]:
        """All labels, numbers and rows as text, for pages and the static picture (see texts_of())."""
        return texts_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: the STATUS_KEYS of the status, the fields of this class, and the texts."""
        return {
            "schema_version": SCHEMA_VERSION,
            **{key: getattr(self.status, key) for key in STATUS_KEYS},
            **{part.name: getattr(self, part.name) for part in fields(self)[1:]},
            "job": vars(self.job) if self.job else None,
            "shown": self.texts,
        }


def progress_part(
    status: RunStatus, heartbeat: Heartbeat | None, config: Mapping[str, Any] | None, now: float
) -> dict[str, Any] | None:
    """Return the progress from rank 0's heartbeat or the checkpoint; None if neither has any progress."""
    known = status.progress
    if known is None:
        return None
    # With batch.max_steps, the run ends before train_tokens, and its progress bar must still reach the end.
    target = config["target_tokens"] if config else known.goal_tokens
    has_perplexity = config is None or config["has_perplexity"]
    in_phase = heartbeat is not None and status.active and status.ranks_run
    return {
        **vars(known),
        "step": status.step or 0,
        "phase": status.phase,
        "phase_seconds": heartbeat.seconds_since("phase_since", now) if heartbeat and in_phase else None,
        "target_tokens": target,
        "fraction": min(1.0, known.consumed_tokens / target) if target else None,
        "eta_seconds": status.eta_seconds,
        "tokens_per_second": status.tokens_per_second,
        "validation_perplexity": perplexity(known.validation_loss) if has_perplexity else None,
        "heartbeat_age_seconds": heartbeat.seconds_since("time", now) if heartbeat else None,
    }


def texts_of(run: RunDescription) -> dict[str, Any]:
    """Return the value of the key "shown": the texts of a run's page.

    about       model size, devices and job in one line
    pill        [label of the state, tone: live, good, wait, bad or calm]
    note        the cause of the state, what the job waits for, or the newest active alert
    tone        how the note is shown: "error", "alert" or ""
    advice      what to do about a failure
    fraction    fraction of the run that is done, 0 to 1
    line        [[label, value], ...] below the progress bar
    tiles       [[label, value, unit], ...]
    charts      see monitor/metrics/chart_data.py
    marks       see monitor/run/advice.py
    ranks       {"heads", "rows": [{"bad", "cells"}]}
    alerts      heading of the events, which includes the number of alerts
    job         [[label, text], ...]
    """
    bad = run.status.pill[1] == "bad"
    raised = [alert["message"] for alert in run.alerts if alert["raised"]] if run.status.active else []
    alert = raised[-1] if raised else ""
    num_alerts = len(run.alerts)
    return {
        "about": _about(run),
        "pill": list(run.status.pill),
        "note": _note(run, alert),
        "tone": "error" if bad else "alert" if run.waiting or (alert and not run.status.cause) else "",
        "advice": run.advice,
        "fraction": (run.progress or {}).get("fraction") or 0.0,
        "line": _line(run),
        "tiles": [list(tile) for tile in _tiles(run)],
        "charts": charts(run.curves),
        "marks": run.marks,
        "ranks": {"heads": list(RANK_HEADS), "rows": [_rank(row, run) for row in run.ranks]},
        "alerts": f"Events ({amounts.counted(num_alerts, 'alert')})" if num_alerts else "Events",
        "job": _job_rows(run),
    }


def _note(run: RunDescription, alert: str) -> str:
    """Return the page's note: what the job waits for, that the loss is NaN, the cause, or an alert."""
    cause, waiting, nan = run.status.cause or "", run.waiting, run.nan
    if waiting:
        return f"{waiting} Cause: {cause}" if cause else waiting
    if nan and run.status.active:
        return f"The training loss is {nan}." + (f" {cause}" if cause else "")
    return cause or (f"Alert: {alert}" if alert else "")


def _about(run: RunDescription) -> str:
    job, config, progress = run.job, run.config, run.progress or {}
    parts = []
    if progress.get("num_parameters"):
        parts.append(f"{amounts.count(progress['num_parameters'])} parameters")
    if config:
        ranks = job.world_size if job else config["world_size"]
        parts.append(f"{ranks} x {config['device']}, {config['precision']}, ZeRO {config['zero_stage']}")
    if job:
        parts.append(f"job {job.job_id}")
    return "  ·  ".join(parts)


def _line(run: RunDescription) -> list[list[str]]:
    progress, job = run.progress, run.job
    found = []
    if progress:
        tokens, target = progress["consumed_tokens"], progress["target_tokens"]
        found.append(["step", f"{progress['step']:,} / {progress['total_steps']:,}"])
        found.append(["tokens", f"{amounts.count(tokens)} / {amounts.count(target)}"])
        if progress["fraction"] is not None:
            found.append(["", f"{100 * progress['fraction']:.1f} %"])
        if run.status.active and progress["phase"] not in ("train", None):
            since = amounts.elapsed(progress["phase_seconds"] or 0.0)
            found.append(["activity", f"{activity_of(progress['phase'])}, {since}"])
    if job:
        found.append(["elapsed", job.elapsed_text])
        if job.restarts:
            found.append(["restarts", f"{job.restarts:,}"])
    if run.status.time_left:
        found.append(["time left", run.status.time_left])
    return found


def _figure(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def _tiles(run: RunDescription) -> list[tuple[str, str, str]]:
    """Return (label, value, unit) for each tile. A value that is not known yet is shown as a dash."""
    progress, curves = run.progress or {}, run.curves
    perplexity = progress.get("validation_perplexity")
    words = "" if perplexity is None else f"ppl {_perplexity(perplexity)}"
    # Split "NaN since step 121 (samples ...)": NaN is the tile's value, and the rest its unit.
    value, _, since = run.nan.partition(" ")
    loss = (value, since) if run.nan else (_figure(progress.get("loss"), ".4f"), "")
    found = [
        ("training loss", *loss),
        ("validation loss", _figure(progress.get("validation_loss"), ".4f"), words),
        ("learning rate", _rate(progress.get("learning_rate")), ""),
        ("throughput", _figure(progress.get("tokens_per_second"), ",.0f"), "tokens/s"),
        ("gradient norm", _figure(progress.get("grad_norm"), ".3f"), ""),
    ]
    if curves["mfu"]["values"]:
        found.append(("MFU", f"{100 * curves['mfu']['values'][-1]:.1f}", "%"))
    found += _predictions(run) + _use(run)
    best = progress.get("best_validation_loss")
    if best is not None and best != progress.get("validation_loss"):
        found.append(("best validation loss", f"{best:.4f}", ""))
    if progress.get("test_loss") is not None:
        found.append(("test loss", f"{progress['test_loss']:.4f}", ""))
    return found


def _predictions(run: RunDescription) -> list[tuple[str, str, str]]:
    """Return tiles with the measured step time and peak memory, their predictions and the ratios."""
    tiles = []
    for row in (run.prediction or {}).get("rows", ()):
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


def _use(run: RunDescription) -> list[tuple[str, str, str]]:
    """Return tiles with the CPU, memory and GPU use of an active job.

    After the job has ended, return only the memory that rank 0 reported last.
    """
    resources = run.resources or {}
    job = resources.get("job")
    if not job:
        memory = run.curves["host_memory_bytes"]["values"]
        return [("memory, rank 0", *_size(memory[-1]))] if memory else []
    machine = resources["machine"]
    found = [
        (
            f"CPU, of {amounts.counted(machine['num_cores'], 'core')}",
            _figure(job["cpu_cores"], ".2f"),
            "cores",
        ),
        (f"memory, of {amounts.size(machine['memory_total_bytes'])}", *_size(job["memory_bytes"])),
    ]
    for gpu in resources["gpus"][:MOST_GPUS]:
        use, power = gpu["utilization_fraction"], gpu["power_watts"]
        words = " ".join(_size(gpu["memory_used_bytes"])).strip()
        if power is not None:
            words += f", {power:.0f} W"
        found.append((f"GPU {gpu['index']}", UNKNOWN if use is None else f"{100 * use:.0f} %", words))
    return found


def _rank(row: Mapping[str, Any], run: RunDescription) -> dict[str, Any]:
    cells = [
        str(row["rank"]),
        row["phase"],
        row["activity"],
        "" if row["step"] is None else f"{row['step']:,}",
        "" if row["pid"] is None else str(row["pid"]),
        "" if row["cpu_cores"] is None else f"{row['cpu_cores']:.2f} cores",
        "" if row["memory_bytes"] is None else amounts.size(row["memory_bytes"]),
        heartbeat_text(row, run.status.active),
        row["message"],
    ]
    return {"bad": row["stale"] or row["phase"] == ERROR, "cells": cells}


def _job_rows(run: RunDescription) -> list[list[str]]:
    config, job = run.config, run.job
    rows = []
    if config:
        words = {
            **config,
            "layers": amounts.counted(config["num_layers"], "layer"),
            "layout": layout_words(config),
        }
        rows += [[name, form.format_map(words)] for name, form in CONFIG_ROWS]
    if job:
        size = f"{job.ranks_text}, attempt {job.attempt}, {job.restarts_text}"
        rows.append(["backend", f"{job.backend}, {size}"])
        if run.cost:
            rows.append(["cost", run.cost])
        if job.saving:
            rows.append(["saves", job.saving])
        if job.command:
            rows.append(["command", " ".join(job.command)])
    if basis := (run.prediction or {}).get("basis"):
        rows.append(["step time predicted from", basis])
    for entry in reversed(run.jobs):
        rows.append(
            ["job", f"{entry['job_id']}  {entry['state']}{': ' + entry['cause'] if entry['cause'] else ''}"]
        )
    return rows + [["warning", warning] for warning in run.warnings]
