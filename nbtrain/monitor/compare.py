"""Comparison of runs: the settings in which they differ, and the results of each.

    compared([RunDir, ...])  ->  {"names", "active", "settings": {"heads", "rows"}, "figures": {...}}

Each table has one row for a setting or metric and one column for each run, as text. The curves of runs come
from metrics_range.metrics(), one run at a time.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base import amounts
from nbtrain.base.errors import ConfigError, NbtrainError, RecordError
from nbtrain.base.evaluation_files import EvaluationRecord, newest_evaluations
from nbtrain.base.jobstate import ACTIVE
from nbtrain.base.order import natural
from nbtrain.base.records import AttemptRecord, Heartbeat, JobRecord, TrainingProgress
from nbtrain.base.rundir import RunDir
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.load import flatten, load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.monitor.run_summary import NO_JOB, RunSummary
from nbtrain.monitor.runs import job_with_end, summary_of

# Maximum of runs that fit on a screen of 1,400 pixels with distinguishable curves.
MOST_RUNS = 12
UNKNOWN = "\N{EN DASH}"
# A run's own name differs by definition.
NOT_COMPARED = ("name", "schema_version", "extends")
HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class Compared:
    """A run's data for a comparison with other runs."""

    summary: RunSummary
    config: RunConfig | None
    """Configuration of the run; None if it cannot be read: then no setting of the run is compared."""
    progress: TrainingProgress | None
    train_seconds: float
    """Seconds of training over all attempts of all jobs."""
    device_seconds: float
    """Seconds of training times the ranks of each attempt."""
    evaluations: dict[str, EvaluationRecord]
    """Evaluations by name, each at the newest step that has one."""


def compared(runs: Sequence[RunDir]) -> dict[str, Any]:
    """Return the tables of runs. Raises ConfigError for fewer than two, more than MOST_RUNS or duplicates."""
    names = [run.name for run in runs]
    if not 2 <= len(runs) <= MOST_RUNS:
        raise ConfigError(f"{amounts.counted(len(runs), 'run')}: a comparison takes 2 to {MOST_RUNS}.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        folders = [run.path.resolve() for run in runs]
        if len(set(folders)) < len(folders):
            raise ConfigError(f"{', '.join(twice)}: named twice; a comparison takes each run once.")
        raise ConfigError(
            f"{', '.join(twice)}: runs of one name in different folders; a comparison tells runs apart "
            "by name. Give one of the folders another name."
        )
    now = time.time()
    read = [_read(run, now) for run in runs]
    return {
        "names": names,
        "active": any(run.summary.state in ACTIVE for run in read),
        "settings": {"heads": ["setting", *names], "rows": settings(read)},
        "figures": {"heads": ["figure", *names], "rows": figures(read)},
    }


def settings(runs: Sequence[Compared]) -> list[list[str]]:
    """Return [key, value of each run] for every setting in which two runs differ, in the schema's order."""
    values = [dict(flatten(run.config.model_dump())) if run.config else {} for run in runs]
    keys = dict.fromkeys(key for found in values for key in found)
    # A section that is null in one run is compared by its keys, which other runs have.
    sections = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "."}
    rows = []
    for key in keys:
        if key in NOT_COMPARED or key in sections:
            continue
        cells = [show(found[key]) if key in found else UNKNOWN for found in values]
        if len({cell for cell, one in zip(cells, runs) if one.config}) > 1:
            rows.append([key, *cells])
    return rows


def figures(runs: Sequence[Compared]) -> list[list[str]]:
    """Return [name, text of each run] for the metrics that at least one run has."""
    rows = [[name, *(_words(figure, run) for run in runs)] for name, figure in FIGURES.items()]
    return [row for row in rows if set(row[1:]) != {UNKNOWN}] + of_datasets(runs) + evaluations(runs)


def of_datasets(runs: Sequence[Compared]) -> list[list[str]]:
    """Return [name, text of each run] for validation loss and perplexity of each dataset of their blends."""
    losses = [run.progress.validation_losses if run.progress else {} for run in runs]
    names = sorted({name for found in losses for name in found}, key=natural)
    rows = []
    for name in names:
        own = [found.get(name) for found in losses]
        finite = [loss if loss is not None and math.isfinite(loss) else None for loss in own]
        cells = [UNKNOWN if loss is None else f"{loss:.4f}" for loss in finite]
        rows.append([f"validation loss, {name}", *cells])
        cells = [UNKNOWN if loss is None else f"{math.exp(min(loss, 20)):,.2f}" for loss in finite]
        rows.append([f"validation perplexity, {name}", *cells])
    return rows


def evaluations(runs: Sequence[Compared]) -> list[list[str]]:
    """Return [name and metric, text of each run] for the results of `nbtrain evaluate`."""
    keys = {
        (name, metric) for run in runs for name in run.evaluations for metric in run.evaluations[name].metrics
    }
    return [
        [f"{name}: {metric}", *(_evaluated(run.evaluations.get(name), metric) for run in runs)]
        for name, metric in sorted(keys, key=lambda key: (natural(key[0]), key[1]))
    ]


def _evaluated(record: EvaluationRecord | None, metric: str) -> str:
    if record is None or metric not in record.metrics:
        return UNKNOWN
    limit = f", first {record.limit:,}" if record.limit is not None else ""
    return f"{record.metrics[metric]} (step {record.step:,}{limit})"


def _words(figure: Callable[[Compared], str | None], one: Compared) -> str:
    return figure(one) or UNKNOWN


def _of_config(words: Callable[[RunConfig], str]) -> Callable[[Compared], str | None]:
    return lambda one: words(one.config) if one.config else None


def _of_progress(key: str, words: Callable[[float], str]) -> Callable[[Compared], str | None]:
    def figure(one: Compared) -> str | None:
        value = getattr(one.progress, key, None)
        return words(value) if value is not None and math.isfinite(value) else None

    return figure


def _perplexity(one: Compared) -> str | None:
    """Return the perplexity as text; None for a preference run, whose loss is not a loss over tokens."""
    if one.config is not None and one.config.dpo is not None:
        return None
    # exp(20) is larger than the vocabulary of any tokenizer: such a run has learned nothing.
    return _of_progress("validation_loss", lambda value: f"{math.exp(min(value, 20)):,.2f}")(one)


def _steps(one: Compared) -> str | None:
    step, total = one.summary.step, one.summary.total_steps
    return None if step is None else f"{step:,} / {total:,}" if total else f"{step:,}"


def _device_hours(one: Compared) -> str | None:
    if not one.device_seconds:
        return None
    device = "GPU" if one.config and one.config.resources.device == "gpu" else "CPU process"
    hours = one.device_seconds / HOUR_SECONDS
    return f"{f'{hours:,.0f}' if hours >= 100 else f'{hours:.3g}'} {device} hours"


FIGURES: dict[str, Callable[[Compared], str | None]] = {
    "state": lambda one: one.summary.state,
    "parameters": _of_config(lambda config: amounts.count(count_parameters(config).total)),
    "sequence length": _of_config(lambda config: f"{config.model.seq_length:,} tokens"),
    "steps": _steps,
    "trained tokens": _of_progress("consumed_tokens", amounts.count),
    "loss": _of_progress("loss", lambda value: f"{value:.4f}"),
    "validation loss": _of_progress("validation_loss", lambda value: f"{value:.4f}"),
    "validation perplexity": _perplexity,
    "best validation loss": _of_progress("best_validation_loss", lambda value: f"{value:.4f}"),
    "test loss": _of_progress("test_loss", lambda value: f"{value:.4f}"),
    # Both are means, because one slow step, such as the last one, is not representative.
    "tokens/s, mean of 100 steps": _of_progress("mean_tokens_per_second", lambda value: f"{value:,.0f}"),
    "samples/s, mean of 100 steps": _of_progress("samples_per_second", lambda value: f"{value:,.1f}"),
    "peak memory": _of_progress("memory_bytes", amounts.size),
    "training time": lambda one: amounts.elapsed(one.train_seconds) if one.train_seconds else None,
    "GPU or CPU-process hours": _device_hours,
    "restarts": lambda one: f"{one.summary.restarts:,}" if one.summary.state != NO_JOB else None,
}
"""Functions that format a metric of a run; None if the run does not have it."""


def _read(run: RunDir, now: float) -> Compared:
    summary = summary_of(run, now)
    config = None
    # A run that is damaged or of a later version still has a state and metrics.
    with contextlib.suppress(NbtrainError, OSError):
        config = load_resolved(run.config_yaml)
    progress = None
    with contextlib.suppress(RecordError):
        job = run.newest_job()
        beat = Heartbeat.read(job.heartbeat(0)) if job else None
        newest = JobRecord.read(job.job_json) if job and beat is None else None
        progress = beat.progress if beat else newest.goes_on_from if newest else None
    seconds = device_seconds = 0.0
    for job_id in run.job_ids():
        with contextlib.suppress(RecordError):
            record, state, _ = job_with_end(run.job(job_id), now)
            if record is None:
                continue
            until = now if state in ACTIVE else record.ended_at
            for attempt in record.attempts:
                lasted = _seconds(attempt, until)
                seconds += lasted
                device_seconds += lasted * attempt.world_size
    found: dict[str, EvaluationRecord] = {}
    with contextlib.suppress(RecordError):
        found = newest_evaluations(run)
    return Compared(summary, config, progress, seconds, device_seconds, found)


def _seconds(attempt: AttemptRecord, until: float | None) -> float:
    """Return the seconds that an attempt trained; without an end, it trained `until` its job's end or now."""
    if attempt.running_at is None:
        return 0.0
    return max(0.0, (attempt.ended_at or until or attempt.running_at) - attempt.running_at)
