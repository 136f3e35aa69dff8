"""Results of a sweep: tables of its runs and settings, the best setting, and loss curves over the seeds.

sweep_results() reads the runs' records; 50 runs take well under a second.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base import files
from nbtrain.base.errors import JobError, JobFailed
from nbtrain.base.printing.report import Block, Picture, Report, Result, Sentence, Table
from nbtrain.base.run_directory.jobstate import LOST, NO_JOB, SUCCEEDED
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.jobs.sweep.sweep_record import (
    SEED_KEYS,
    has_ended,
    is_to_start,
    known_sweeps,
    read_record,
    sweep_folder,
)
from nbtrain.monitor.metrics.finite_json import finite
from nbtrain.monitor.status.run_status import UNKNOWN, RunStatus
from nbtrain.monitor.status.spending import Spending, spending_of, total
from nbtrain.monitor.status.spending_tables import (
    FAULT_KIND_HEADS,
    PURPOSE_HEADS,
    fault_kind_rows,
    fault_sums,
    purpose_rows,
)
from nbtrain.monitor.status.status_records import listed_status
from nbtrain.monitor.status.steps_left import has_steps_left

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("STATE", "STEPS", "LOSS", "VALIDATION", "DEVICE HOURS", "MONEY", "GOODPUT")


@dataclass(frozen=True)
class SweepRow:
    """A run of a sweep with its results."""

    name: str
    settings: dict[str, Any]
    status: RunStatus | None
    """Status of the run; None before its submission."""
    spending: Spending | None
    """Device hours, money and goodput of the run; None before submission or if its records are damaged."""
    stopped: str
    """Why the sweep has stopped the run; "" if it has not stopped the run."""
    metric: str = "validation_loss"
    """Metric by which the sweep's runs are compared: "loss" if no run has a validation loss."""
    has_steps_left: bool = False
    """Whether the newest job only evaluated an earlier checkpoint (mode: eval), so training can continue."""
    error: str = ""
    """Why the run could not be submitted or resumed when the sweep was last called; "" if it could."""

    @property
    def value(self) -> float | None:
        """Newest value of the metric; None if there is no value yet or it is not finite."""
        loss = getattr(self.status, self.metric, None)
        return loss if loss is not None and math.isfinite(loss) else None

    @property
    def state(self) -> str:
        if self.status is None:
            return "could not start" if self.error else "to start"
        if self.stopped and not self.status.active and not self.has_succeeded:
            return "stopped by the rule"
        return "only evaluated before its last step" if self.has_steps_left else self.status.state

    @property
    def has_succeeded(self) -> bool:
        return self.status is not None and self.status.state == SUCCEEDED and not self.has_steps_left

    @property
    def is_done(self) -> bool:
        """Whether the run was submitted and has either succeeded or been stopped by the rule."""
        return self.status is not None and (self.has_succeeded or bool(self.stopped))

    @property
    def is_left(self) -> bool:
        """Whether the rule has stopped the run, or it could not be submitted or resumed in the last call."""
        return bool(self.stopped or self.error)

    @property
    def trouble(self) -> str:
        """A sentence about why the run could not be started; "" if it could, or was started later."""
        if not self.error or self.is_done or (self.status is not None and self.status.active):
            return ""
        return f"{self.name} could not be {'started' if self.status is None else 'resumed'}: {self.error}"

    def to_dict(self) -> dict[str, Any]:
        status = self.status
        return {
            "name": self.name,
            "settings": self.settings,
            "state": status.state if status else None,
            "stopped": self.stopped,
            "error": self.error if self.trouble else "",
            "step": status.step if status else None,
            "loss": status.loss if status else None,
            "validation_loss": status.validation_loss if status else None,
            "cost": self.spending.to_dict() if self.spending else {},
        }


@dataclass(frozen=True)
class Setting:
    """A setting of a sweep: all runs that differ only in their seeds."""

    settings: dict[str, Any]
    runs: Sequence[SweepRow]

    @property
    def values(self) -> list[float]:
        return [run.value for run in self.runs if run.value is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def words(self) -> str:
        return ", ".join(f"{key}={_text(value)}" for key, value in self.settings.items()) or "all runs"


@dataclass(frozen=True, repr=False)
class SweepResults(Result):
    """The runs of a sweep with their results, the best setting first."""

    name: str
    varied: Sequence[str]
    rows: Sequence[SweepRow]

    @property
    def settings(self) -> list[Setting]:
        """The settings, ordered by their mean loss; settings without a loss come last."""
        grouped: dict[str, list[SweepRow]] = {}
        for row in self.rows:
            kept = {key: value for key, value in row.settings.items() if key not in SEED_KEYS}
            grouped.setdefault(repr(sorted(kept.items(), key=str)), []).append(row)
        found = [
            Setting({key: value for key, value in rows[0].settings.items() if key not in SEED_KEYS}, rows)
            for rows in grouped.values()
        ]
        return sorted(found, key=lambda setting: (setting.mean is None, setting.mean or 0.0))

    @property
    def best(self) -> Setting | None:
        """The setting with the lowest mean loss; None if no run has a loss yet."""
        first = self.settings[0] if self.rows else None
        return first if first is not None and first.mean is not None else None

    @property
    def spending(self) -> Spending:
        """Device hours, money and goodput of all runs together."""
        return total([row.spending for row in self.rows if row.spending is not None])

    @property
    def succeeded(self) -> bool:
        """Whether every run has succeeded or was stopped by the rule."""
        return all(row.is_done for row in self.rows)

    def must_succeed(self) -> None:
        """Raise JobFailed with the names of the runs that neither succeeded nor were stopped by the rule."""
        if not self.succeeded:
            names = [f"{row.name} ({row.state})" for row in self.rows if not row.is_done]
            troubles = "".join(f"\n{row.trouble}" for row in self.rows if row.trouble)
            raise JobFailed(
                f"sweep {self.name}: {amounts.counted(len(names), 'run')} did not succeed: "
                f"{', '.join(names)}. `nbtrain status RUN` shows why; to resume these runs, run the sweep "
                f"again with --again (in a notebook, again=True).{troubles}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the results as a JSON object."""
        best, cost = self.best, self.spending
        faults = {kind: value.to_dict() for kind, value in fault_sums(cost.faults).items()}
        return finite(
            {
                "name": self.name,
                "varied": list(self.varied),
                "cost": {**cost.to_dict(), "faults": faults},
                "runs": [row.to_dict() for row in self.rows],
                "best": None if best is None else {"settings": best.settings, "mean": best.mean},
            }
        )

    def as_report(self) -> Report:
        """Return the best setting, the tables of runs, settings and costs, and in HTML the curves."""
        blocks: list[Block] = [Sentence(self._summary())]
        if best := self.best:
            blocks.append(Sentence(f"Best: {best.words}, {self._loss_words(best)}."))
        blocks.append(Picture(lambda: picture_of(self), f"loss of the sweep {self.name}"))
        ordered = [row for setting in self.settings for row in setting.runs]
        blocks.append(Table(("RUN", *self.varied, *HEADS), [self._row(row) for row in ordered], "Runs"))
        if len(self.settings) < len(self.rows):
            rows = [(setting.words, str(len(setting.runs)), *_spread(setting)) for setting in self.settings]
            heads = ("SETTING", "RUNS", "MEAN", "LOWEST", "HIGHEST")
            blocks.append(Table(heads, rows, "Loss of each setting over its seeds"))
        spending = self.spending
        if costs := purpose_rows(spending):
            blocks.append(Table(PURPOSE_HEADS, costs, "Cost of all runs"))
        if faults := fault_kind_rows(spending):
            blocks.append(Table(FAULT_KIND_HEADS, faults, "Cost of the faults"))
        stopped = [Sentence(f"{row.name} was stopped: {row.stopped}.") for row in self.rows if row.stopped]
        troubles = [Sentence(row.trouble) for row in self.rows if row.trouble]
        return Report(f"Sweep {self.name}", [*blocks, *stopped, *troubles])

    def _summary(self) -> str:
        states = [(row.status.state if row.status else NO_JOB, row.is_left) for row in self.rows]
        words = f"{sum(has_ended(*state) for state in states)} of {amounts.counted(len(states), 'run')} ended"
        # Only the sweep itself resumes lost runs, the next time that it is run.
        if lost := sum(state == LOST and is_to_start(state, is_left) for state, is_left in states):
            words += f", {lost} lost"
        if troubled := sum(bool(row.trouble) for row in self.rows):
            words += f", {troubled} could not be started"
        spending = self.spending
        used = spending.words()
        paid = [row.spending for row in self.rows if row.spending is not None and row.spending.device_hours]
        priced = [entry for entry in paid if entry.money is not None]
        if spending.money is None and priced:
            # The runs have prices in several currencies, or some runs have no price.
            sums = {
                entry.currency: total([each for each in priced if each.currency == entry.currency]).money
                for entry in priced
            }
            money = " and ".join(
                f"{amounts.amount(value or 0.0, digits=3)} {currency}" for currency, value in sums.items()
            )
            used += f", {money}"
            if len(priced) < len(paid):
                used += f" for the {len(priced)} of {amounts.counted(len(paid), 'run')} with a known price"
        return f"{words}, {used}." if used else f"{words}."

    def _loss_words(self, setting: Setting) -> str:
        number = len(setting.values)
        if number == 1:
            return f"loss {setting.values[0]:.4f}"
        low, high = min(setting.values), max(setting.values)
        return f"mean loss {setting.mean:.4f} over {number} seeds ({low:.4f} to {high:.4f})"

    def _row(self, row: SweepRow) -> tuple[str, ...]:
        status, spending = row.status, row.spending
        money, goodput = (spending.money, spending.goodput) if spending is not None else (None, None)
        return (
            row.name,
            *(_text(row.settings[key]) if key in row.settings else "" for key in self.varied),
            row.state,
            status.steps_text() if status else UNKNOWN,
            _loss(status.loss if status else None),
            _loss(status.validation_loss if status else None),
            amounts.amount(spending.device_hours, digits=3)
            if spending is not None and spending.device_hours
            else UNKNOWN,
            UNKNOWN
            if money is None or spending is None
            else f"{amounts.amount(money, digits=3)} {spending.currency}",
            UNKNOWN if goodput is None else f"{goodput:.0%}",
        )


def sweep_results(name: str) -> SweepResults:
    """Return the results of a sweep so far. Raises JobError if no sweep with this name was started."""
    record = read_record(name)
    if record is None:
        there = (
            f"Sweeps: {', '.join(known)}."
            if (known := known_sweeps())
            else "To start one, run `nbtrain sweep FILE`."
        )
        raise JobError(f"{display(sweep_folder(name))}: there is no such sweep. {there}")
    now, rows = time.time(), []
    runs = [RunDir.named(run_name) for run_name in record.runs]
    found = [listed_status(run.path.parent, run.name, now) if run.path.is_dir() else None for run in runs]
    is_validated = any(status is not None and status.validation_loss is not None for status in found)
    metric = "validation_loss" if is_validated else "loss"
    for run, status, settings in zip(runs, found, record.settings):
        spending = None if status is None else spending_of(run, status, now)
        stopped = record.stopped.get(run.name, "")
        is_left = status is not None and has_steps_left(run, status.state)
        error = record.errors.get(run.name, "")
        rows.append(SweepRow(run.name, settings, status, spending, stopped, metric, is_left, error))
    varied = list(dict.fromkeys(key for settings in record.settings for key in settings))
    return SweepResults(name, varied, rows)


def write_page(results: SweepResults) -> Path:
    """Write the sweep's HTML page, page.html in its folder, and return the path."""
    path = sweep_folder(results.name) / "page.html"
    report = results.as_report()
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>Sweep {results.name}</title></head>"
        '<body style="font:14px/1.5 sans-serif;max-width:1100px;margin:16px auto;padding:0 16px">'
        f"{report.html()}</body></html>\n"
    )
    files.write_text(path, page)
    return path


def picture_of(results: SweepResults) -> bytes:
    """Return the curves as a PNG image; b"" if there are no points yet."""
    import io

    if (figure := sweep_figure(results)) is None:
        return b""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def sweep_figure(results: SweepResults) -> "Figure | None":
    """Return a figure with the validation loss of each setting by tokens; None if there are no points yet.

    A curve is the mean over a setting's seeds, with a band from the lowest to the highest loss. If no run has
    a validation loss, the training loss is drawn.
    """
    from nbtrain.base.printing.theme import plot_look, themed
    from nbtrain.jobs.sweep.stop_rule import read_curve
    from nbtrain.monitor.run.pictures import shown_figure

    for metric in ("validation_loss", "loss"):
        read = {row.name: read_curve(RunDir.named(row.name), metric) for row in results.rows}
        if any(curve.tokens for curve in read.values()):
            break
    else:
        return None
    figure = shown_figure("", 4.0)
    axes = figure.subplots()
    for at, setting in enumerate(results.settings):
        curves = [read[row.name] for row in setting.runs if read[row.name].tokens]
        if not curves:
            continue
        look = plot_look(at)
        longest = max(curves, key=lambda curve: curve.tokens[-1]).tokens
        points = [
            [value for curve in curves if (value := curve.at(tokens)) is not None] for tokens in longest
        ]
        tokens = [count for count, values in zip(longest, points) if values]
        kept = [values for values in points if values]
        axes.plot(tokens, [statistics.fmean(values) for values in kept], label=setting.words, **look)
        if len(curves) > 1:
            low, high = [min(values) for values in kept], [max(values) for values in kept]
            axes.fill_between(tokens, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.set_xlabel("tokens", fontsize=9)
    axes.set_ylabel(metric.replace("_", " "), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True)
    axes.legend(fontsize=8, frameon=False)
    return themed(figure)


def _spread(setting: Setting) -> tuple[str, str, str]:
    values = setting.values
    if not values:
        return UNKNOWN, UNKNOWN, UNKNOWN
    return f"{setting.mean:.4f}", f"{min(values):.4f}", f"{max(values):.4f}"


def _loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
