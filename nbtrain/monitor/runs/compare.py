"""Comparison of runs: the settings that differ, and the results of each run.

    compared([RunDir, ...])  ->  {"names", "active", "settings": {"heads", "rows"}, "figures": {...}, ...}

    settings, figures  tables of text: one row per setting or metric, one column per run
    same               in settings: [key, value] for each setting that all runs share
    values, better     in figures: the numbers behind the texts, and whether low or high numbers are better
    scales             factors that convert a run's tokens to FLOPs and its time to money
    refused            {name: reason} for the runs that cannot be compared
    sweep              name of the sweep that all runs belong to; "" if there is no such sweep
    published          names of the columns with published figures (published.py), after the runs' columns

The curves of a run come from metrics_range.metrics().
"""

import contextlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, NbtrainError, RecordError
from nbtrain.base.run_directory.evaluation_files import EvaluationRecord, newest_evaluations
from nbtrain.base.run_directory.jobstate import ACTIVE, NO_JOB
from nbtrain.base.run_directory.records import AttemptRecord, DevicePrice, Provenance
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.text.order import natural
from nbtrain.config.arithmetic.flops import model_flops_per_token, peak_flops
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.config.load import flatten, load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.sweep_section import LABEL
from nbtrain.config.yaml_source import show
from nbtrain.monitor.runs.published import Published, row_of
from nbtrain.monitor.status.run_status import UNKNOWN, RunStatus
from nbtrain.monitor.status.spending import Spending, spending_of
from nbtrain.monitor.status.status_records import job_with_end, status_or_damage

# Maximum number of runs whose curves can be told apart on a screen of 1,400 pixels.
MOST_RUNS = 12
# Maximum number of runs in tables without curves, where each run is a row: as many as a sweep may have.
MOST_TABULATED = 500
# Settings that are not compared, such as the name, which differs by definition.
NOT_COMPARED = ("name", "schema_version", "extends")
HOUR_SECONDS = 3600.0
# Evaluation metrics for which a lower number is better. For all other metrics, a higher number is better.
LOWER_IS_BETTER = re.compile(r"loss|perplexity|bits_per|ppl")


@dataclass(frozen=True)
class Compared:
    """A run's data for a comparison with other runs."""

    status: RunStatus
    config: RunConfig | None
    """Configuration of the run; None if it cannot be read, in which case its settings are not compared."""
    train_seconds: float
    """Seconds of training, summed over all attempts of all jobs."""
    devices: int
    """Number of ranks in the newest attempt; 0 before the first attempt."""
    price: DevicePrice | None
    """Price and energy of a device per hour, from the newest job that has them; None if unknown."""
    spending: Spending | None
    """Device use of all jobs of the run; None if the run's records cannot be read."""
    evaluations: dict[str, EvaluationRecord]
    """{name of an evaluation: its result at the newest evaluated step}."""
    gpu: str | None = None
    """Name of rank 0's GPU in the newest attempt with a provenance record; None on a CPU."""
    code_sha256: str | None = None
    """SHA-256 of the Python file that `code` names; None if the run uses no such file."""


def compared(runs: Sequence[RunDir], published: Sequence[Published] = ()) -> dict[str, Any]:
    """Return the tables that compare runs.

    Raises ConfigError for duplicate names, for more than MOST_TABULATED runs, and for fewer than two runs
    (one run is enough if there are published figures).
    """
    names = [run.name for run in runs]
    least = 1 if published else 2
    if not least <= len(runs) <= MOST_TABULATED:
        raise ConfigError(
            f"cannot compare {amounts.counted(len(runs), 'run')}: choose {least} to {MOST_TABULATED} runs."
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        folders = [run.path.resolve() for run in runs]
        if len(set(folders)) < len(folders):
            raise ConfigError(f"{', '.join(twice)}: named more than once; name each run only once.")
        raise ConfigError(
            f"{', '.join(twice)}: runs in several folders have the same name, and a comparison identifies "
            "runs by name. Rename one of the folders."
        )
    return tables(runs, published=published)


def tables(
    runs: Sequence[RunDir],
    refused: Mapping[str, str] | None = None,
    published: Sequence[Published] = (),
) -> dict[str, Any]:
    """Return the tables that compare any number of runs.

    `refused` has the reasons why other runs are not compared, and is part of the result. Raises ConfigError
    if the published figures do not fit the table.
    """
    names, now = [run.name for run in runs], time.time()
    if entry := next((entry for entry in published if entry.name in names), None):
        raise ConfigError(
            f"{entry.place}: {entry.name} is also the name of a compared run. Give this published "
            "entry another name."
        )
    read = [read_compared(run, now) for run in runs]
    rows, (differing, same) = figures(read, published), settings(read)
    sweeps = {run.status.labels.get(LABEL, "") for run in read}
    return {
        "names": names,
        "active": any(run.status.active for run in read),
        "refused": dict(refused or {}),
        "sweep": sweeps.pop() if len(sweeps) == 1 else "",
        "published": [entry.name for entry in published],
        "scales": {run.name: _scale(one) for run, one in zip(runs, read)},
        "settings": {"heads": ["setting", *names], "rows": differing, "same": same},
        "figures": {
            "heads": ["result", *names, *(entry.name for entry in published)],
            "rows": [[row.name, *row.words] for row in rows],
            "values": [list(row.values) for row in rows],
            "better": [row.better for row in rows],
        },
    }


def settings(runs: Sequence[Compared]) -> tuple[list[list[str]], list[list[str]]]:
    """Return (settings that differ, settings that are the same), in the order of the schema.

    The first list has [key, value of each run], the second [key, value]. Runs without a configuration are
    ignored when settings are compared.
    """
    configured = [run.config is not None for run in runs]
    differing, same = [], []
    for key, *words in _all_settings(runs):
        distinct = set(itertools.compress(words, configured))
        if len(distinct) > 1:
            differing.append([key, *words])
        elif distinct:
            same.append([key, *distinct])
    return differing, same


def _all_settings(runs: Sequence[Compared]) -> Iterator[list[str]]:
    values = [dict(flatten(run.config.model_dump())) if run.config else {} for run in runs]
    for run, found in zip(runs, values, strict=True):
        if run.code_sha256 and found:
            # Files with the same name may have different contents.
            found["code"] = f"{found['code']}, SHA-256 {run.code_sha256[:12]}"
    keys = dict.fromkeys(key for found in values for key in found)
    # If a section is null in one run, compare its keys, which other runs have.
    sections = {key[:at] for key in keys for at, letter in enumerate(key) if letter == "."}
    for key in keys:
        if key not in NOT_COMPARED and key not in sections:
            # Most runs share most values, and formatting a value as YAML is slow.
            spelled: dict[str, str] = {}
            yield [key, *(_shown(found[key], spelled) if key in found else UNKNOWN for found in values)]


def _shown(value: Any, spelled: dict[str, str]) -> str:
    """Return show() of a value, cached in `spelled`."""
    written = repr(value)
    if written not in spelled:
        spelled[written] = show(value)
    return spelled[written]


def _scale(run: Compared) -> dict[str, Any]:
    """Return the factors that convert a run's tokens to model FLOPs, and its seconds to money."""
    money, currency = None, None
    if (price := run.price) and price.usual:
        devices, currency = run.devices * price.devices_per_rank, price.currency
        money = price.usual * devices / HOUR_SECONDS if devices else None
    return {
        "flops_per_token": model_flops_per_token(run.config) if run.config else None,
        "money_per_second": money,
        "currency": currency,
    }


@dataclass(frozen=True)
class Row:
    """A row of the results: a metric with its value for each run."""

    name: str
    words: Sequence[str]
    """Text for each run; UNKNOWN if the run does not have the metric."""
    values: Sequence[float | None]
    """Number for each run; None if the run does not have the metric or if the metric is text."""
    better: str = ""
    """Which numbers are better, "low" or "high"; "" for a metric that does not rank runs."""


def figures(runs: Sequence[Compared], published: Sequence[Published] = ()) -> list[Row]:
    """Return the rows of all metrics for which at least one run or published entry has a value."""
    rows = [figure.row(runs) for figure in FIGURES]
    rows += costs(runs) + of_datasets(runs) + evaluations(runs)
    if published:
        rows = _with_published(rows, published)
    return [row for row in rows if set(row.words) != {UNKNOWN}]


def _with_published(rows: Sequence[Row], published: Sequence[Published]) -> list[Row]:
    """Return the rows with one more value per published entry.

    A published figure that is none of the rows gets a new row at the end.
    """
    names, written = [row.name for row in rows], {figure.name: figure for figure in FIGURES}
    is_number = [not isinstance(written.get(name), TextFigure) for name in names]
    columns: list[dict[int, float | str]] = []
    more: dict[str, list[float | str | None]] = {}
    for number, entry in enumerate(published):
        columns.append({})
        for key, value in entry.figures.items():
            at = row_of(key, names, is_number, entry)
            if at is None:
                more.setdefault(key, [None] * len(published))[number] = value
            else:
                columns[-1][at] = value
    extended = []
    for at, row in enumerate(rows):
        figure, own = written.get(row.name), [column.get(at) for column in columns]
        words = [_published_words(value, getattr(figure, "words", None)) for value in own]
        values = [value if isinstance(value, int | float) else None for value in own]
        extended.append(replace(row, words=[*row.words, *words], values=[*row.values, *values]))
    num_runs = len(rows[0].words)
    for name, own in more.items():
        words = [UNKNOWN] * num_runs + [_published_words(value) for value in own]
        values = [value if isinstance(value, int | float) else None for value in own]
        extended.append(Row(name, words, [None] * num_runs + values))
    return extended


def _published_words(value: float | str | None, words: Callable[[float], str] | None = None) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value
    return words(value) if words else f"{value:,}" if isinstance(value, int) else f"{value:.10g}"


def costs(runs: Sequence[Compared]) -> list[Row]:
    """Return rows with the cost of the runs' device hours, one row per currency."""
    rows = []
    spent = [run.spending if run.spending and run.spending.money else None for run in runs]
    for currency in sorted({cost.currency for cost in spent if cost}):
        values = [
            spending.money if spending and spending.currency == currency else None for spending in spent
        ]
        words = [UNKNOWN if value is None else f"{value:,.2f}" for value in values]
        rows.append(Row(f"cost, {currency}", words, values, "low"))
    return rows


def of_datasets(runs: Sequence[Compared]) -> list[Row]:
    """Return rows with validation loss and perplexity for each dataset in the runs' blends."""
    losses = [run.status.progress.validation_losses if run.status.progress else {} for run in runs]
    rows = []
    for name in sorted({name for found in losses for name in found}, key=natural):
        own = [_finite(found.get(name)) for found in losses]
        words = [UNKNOWN if loss is None else f"{loss:.4f}" for loss in own]
        rows.append(Row(f"validation loss, {name}", words, own, "low"))
        perplexities = [_perplexity_of(run, loss) for run, loss in zip(runs, own)]
        words = [UNKNOWN if value is None else f"{value:,.2f}" for value in perplexities]
        rows.append(Row(f"validation perplexity, {name}", words, perplexities, "low"))
    return rows


def evaluations(runs: Sequence[Compared]) -> list[Row]:
    """Return rows with the results of `nbtrain evaluate`."""
    keys = {
        (name, metric) for run in runs for name in run.evaluations for metric in run.evaluations[name].metrics
    }
    rows = []
    for name, metric in sorted(keys, key=lambda key: (natural(key[0]), key[1])):
        records = [run.evaluations.get(name) for run in runs]
        values = [
            _finite(record.metrics[metric].value) if record and metric in record.metrics else None
            for record in records
        ]
        words = [_evaluated(record, metric) for record in records]
        better = "low" if LOWER_IS_BETTER.search(metric) else "high"
        rows.append(Row(f"{name}: {metric}", words, values, better))
    return rows


def _evaluated(record: EvaluationRecord | None, metric: str) -> str:
    if record is None or metric not in record.metrics:
        return UNKNOWN
    limit = f", first {record.limit:,}" if record.limit is not None else ""
    return f"{record.metrics[metric]} (step {record.step:,}{limit})"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _perplexity_of(run: Compared, loss: float | None) -> float | None:
    return perplexity(loss) if run.config is None or run.config.has_perplexity else None


@dataclass(frozen=True)
class Figure:
    """A metric that is a number: how to compute it from a run, and how to format it."""

    name: str
    value: Callable[[Compared], float | None]
    words: Callable[[float], str]
    better: str = ""

    def row(self, runs: Sequence[Compared]) -> Row:
        values = [_finite(self.value(run)) for run in runs]
        return Row(
            self.name,
            [UNKNOWN if value is None else self.words(value) for value in values],
            values,
            self.better,
        )


@dataclass(frozen=True)
class TextFigure:
    """A metric that is shown as text because it is not a single number."""

    name: str
    text: Callable[[Compared], str | None]

    def row(self, runs: Sequence[Compared]) -> Row:
        return Row(self.name, [self.text(run) or UNKNOWN for run in runs], [None] * len(runs))


def _of_config(value: Callable[[RunConfig], float]) -> Callable[[Compared], float | None]:
    return lambda run: value(run.config) if run.config else None


def _of_progress(key: str) -> Callable[[Compared], float | None]:
    return lambda run: getattr(run.status.progress, key, None)


def _perplexity(run: Compared) -> float | None:
    return _perplexity_of(run, run.status.validation_loss)


def _steps(run: Compared) -> str | None:
    return None if run.status.step is None else run.status.steps_text(" / ")


def _measured(value: float) -> str:
    return amounts.amount(value, digits=3)


def _hours_on(device: str) -> Callable[[Compared], float | None]:
    def hours_of(run: Compared) -> float | None:
        own = "gpu" if run.config and run.config.resources.device == "gpu" else "cpu"
        hours = run.spending.device_hours if run.spending else 0.0
        return hours if hours and own == device else None

    return hours_of


def _mfu(run: Compared) -> float | None:
    """Return the mean MFU; None if it is unknown, for example because a CPU has no known peak."""
    speed = run.status.progress and run.status.progress.mean_tokens_per_second
    if run.config is None or not speed or not run.devices:
        return None
    peak = peak_flops(run.config, run.gpu)
    return speed * model_flops_per_token(run.config) / (run.devices * peak) if peak else None


def _of_spending(name: str) -> Callable[[Compared], float | None]:
    return lambda run: getattr(run.spending, name) or None if run.spending else None


def _four_decimals(value: float) -> str:
    return f"{value:.4f}"


FIGURES: tuple[Figure | TextFigure, ...] = (
    TextFigure("state", lambda run: run.status.state),
    Figure("parameters", _of_config(lambda config: count_parameters(config).total), amounts.count),
    Figure("sequence length", _of_config(lambda config: config.model.seq_length), "{:,} tokens".format),
    TextFigure("steps", _steps),
    Figure("trained tokens", _of_progress("consumed_tokens"), amounts.count),
    Figure("loss", _of_progress("loss"), _four_decimals, "low"),
    Figure("validation loss", _of_progress("validation_loss"), _four_decimals, "low"),
    Figure("validation perplexity", _perplexity, "{:,.2f}".format, "low"),
    Figure("best validation loss", _of_progress("best_validation_loss"), _four_decimals, "low"),
    Figure("test loss", _of_progress("test_loss"), _four_decimals, "low"),
    # Both are means, because one slow step, such as the last one, is not representative.
    Figure("tokens/s, mean of 100 steps", _of_progress("mean_tokens_per_second"), "{:,.0f}".format, "high"),
    Figure("samples/s, mean of 100 steps", _of_progress("samples_per_second"), "{:,.1f}".format, "high"),
    Figure("MFU, mean of 100 steps", _mfu, "{:.1%}".format, "high"),
    Figure("peak memory", _of_progress("memory_bytes"), amounts.size, "low"),
    Figure("training time", lambda run: run.train_seconds or None, amounts.elapsed, "low"),
    Figure("GPU hours", _hours_on("gpu"), _measured, "low"),
    Figure("CPU process hours", _hours_on("cpu"), _measured, "low"),
    Figure("goodput", _of_spending("goodput"), "{:.1%}".format, "high"),
    Figure(
        "energy",
        _of_spending("energy_kwh"),
        lambda value: f"about {_measured(value)} kWh",
        "low",
    ),
    Figure(
        "restarts", lambda run: None if run.status.state == NO_JOB else run.status.restarts, "{:,}".format
    ),
)
"""Metrics of a run, in the order of the table's rows."""


def read_compared(run: RunDir, now: float) -> Compared:
    """Read a run's data for a comparison. Damaged or missing parts are left empty."""
    status = status_or_damage(run, now)
    config = None
    # If the configuration is damaged or from a newer version, the state and metrics can still be compared.
    with contextlib.suppress(NbtrainError, OSError):
        config = load_resolved(run.config_yaml)
    seconds, devices, price, provenance = 0.0, 0, None, None
    for job_id in run.job_ids():
        with contextlib.suppress(RecordError):
            record, state, _ = job_with_end(run.job(job_id), now)
            if record is None:
                continue
            until, price = now if state in ACTIVE else record.ended_at, record.price or price
            for attempt in record.attempts:
                seconds += _seconds(attempt, until)
                devices = attempt.world_size
                if (path := run.job(job_id).provenance(attempt.attempt)).is_file():
                    provenance = path
    found: dict[str, EvaluationRecord] = {}
    with contextlib.suppress(RecordError):
        found = newest_evaluations(run)
    gpu = None
    with contextlib.suppress(RecordError):
        if provenance is not None and (known := Provenance.read(provenance)) is not None:
            gpu = known.device.get("name") if known.device.get("kind") == "gpu" else None
    spending = spending_of(run, status, now)
    code = None
    with contextlib.suppress(RecordError):
        code = (files.read_json(run.own_code_json) or {}).get("sha256")
    return Compared(status, config, seconds, devices, price, spending, found, gpu, code)


def _seconds(attempt: AttemptRecord, until: float | None) -> float:
    """Return the seconds for which an attempt trained.

    If the attempt has no recorded end, `until` (the end of its job, or now) is used.
    """
    if attempt.running_at is None:
        return 0.0
    return max(0.0, (attempt.ended_at or until or attempt.running_at) - attempt.running_at)
