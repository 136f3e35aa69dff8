"""Plan of a sweep: hours, money and disk space of every run, and their sums compared with the limits.

The workspace's limits apply to each run and to all runs together.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import stops
from nbtrain.base.printing.report import Facts, Report, Result, Sentence, Table
from nbtrain.base.text import amounts
from nbtrain.jobs.machine.device_needs import needs_of
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.request.initial_weights import with_new_tokens
from nbtrain.jobs.sweep.sweep_file import Sweep, SweepRun
from nbtrain.planner.budget.limits import amount_of, workspace_limits
from nbtrain.planner.plan import Plan, plan

SUMMED = ("gpu_hours", "money", "energy_kwh", "disk_bytes")
"""Limits that apply to the sum over all runs; limits on days and epochs apply to each run."""


@dataclass(frozen=True, repr=False)
class SweepPlan(Result):
    """The plans of all runs of a sweep."""

    sweep: Sweep
    plans: Sequence[Plan]
    at_once: int
    """Number of runs that are active at the same time."""

    @property
    def totals(self) -> dict[str, float]:
        """Sums over all runs, as {name of a limit: sum}, such as {"gpu_hours": 12.5}.

        A sum is omitted if one run's value is not known.
        """
        known: dict[str, list[float | None]] = {
            "gpu_hours": [plan.cost.device_hours for plan in self.plans],
            "money": [
                0.0 if plan.cost.device_hours == 0 else plan.cost.money if plan.cost.price else None
                for plan in self.plans
            ],
            "energy_kwh": [plan.cost.energy_kwh for plan in self.plans],
            "disk_bytes": [float(plan.disk.checkpoints_bytes) for plan in self.plans],
        }
        # Runs that train on the same dataset share its files.
        datasets = {plan.config.data.name: plan.disk.dataset_bytes or 0 for plan in self.plans}
        known["disk_bytes"] += map(float, datasets.values())
        return {
            key: sum(value for value in values if value is not None)
            for key, values in known.items()
            if all(value is not None for value in values)
        }

    @property
    def problems(self) -> list[str]:
        """Reasons why the sweep cannot start: runs that exceed a limit, and sums above a workspace limit."""
        found = []
        for run, planned in zip(self.sweep.runs, self.plans):
            if over := [limit.words for limit in planned.limits if limit.refuses]:
                found.append(f"{run.name}: {', '.join(over)}")
        limits = workspace_limits()
        for key in SUMMED:
            total, limit = self.totals.get(key), limits.get(key)
            if total is not None and limit is not None and total > limit[0]:
                words = f"{amount_of(key, total)}, limit {amount_of(key, limit[0])} ({limit[1]})"
                found.append(f"all runs together: {words}")
        return found

    def refuse(self) -> None:
        """Raise ConfigError if the sweep is planned to exceed a limit."""
        if self.problems:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            raise ConfigError(
                f"the sweep {self.sweep.name} exceeds limits:\n{lines}\nUse fewer or shorter runs, or raise "
                "the limits."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plans as a JSON object."""
        runs = [
            {"name": run.name, "settings": dict(run.settings), "plan": planned.to_dict()}
            for run, planned in zip(self.sweep.runs, self.plans)
        ]
        return {
            "name": self.sweep.name,
            "at_once": self.at_once,
            "runs": runs,
            "totals": self.totals,
            "problems": self.problems,
        }

    def as_report(self) -> Report:
        """Return a row for each run, the sums, and the exceeded limits."""
        rows = [self._row(run, planned) for run, planned in zip(self.sweep.runs, self.plans)]
        heads = ("RUN", *self.sweep.varied, "STEPS", "FITS", "TIME", "GPU HOURS", "MONEY", "CHECKPOINTS")
        blocks = [Table(heads, rows, "Runs"), Facts(self._sums(), "Together")]
        said = [Sentence(f"Over the limit: {problem}") for problem in self.problems]
        return Report(
            f"Plan of the sweep {self.sweep.name}: {amounts.counted(len(rows), 'run')}", [*blocks, *said]
        )

    def _row(self, run: SweepRun, planned: Plan) -> tuple[str, ...]:
        cost, seconds = planned.cost, planned.duration.seconds
        money = cost.money if cost.price is not None else None
        return (
            run.name,
            *(str(run.settings.get(key, "")) for key in self.sweep.varied),
            f"{planned.config.train_steps:,}",
            "no" if stops(planned.findings) else planned.headline["fits"],
            "not known" if seconds is None else amounts.duration(seconds),
            amounts.amount(cost.device_hours) if cost.device_hours else "",
            "" if money is None or cost.price is None else f"{amounts.amount(money)} {cost.price.currency}",
            amounts.size(planned.disk.checkpoints_bytes),
        )

    def _sums(self) -> dict[str, str]:
        seconds = [run.duration.seconds for run in self.plans if run.duration.seconds is not None]
        at_once = min(self.at_once, len(self.plans), *map(_most_here, self.plans))
        rows = {}
        if len(seconds) == len(self.plans):
            # A sweep takes at least as long as its longest run.
            total = max(sum(seconds) / at_once, *seconds)
            rows["time"] = f"about {amounts.duration(total)} with {at_once} at once"
        words = {key: amount_of(key, value) for key, value in self.totals.items() if value}
        currency = next((planned.cost.price.currency for planned in self.plans if planned.cost.price), "")
        if "money" in words:
            words["money"] = f"{words['money']} {currency}"
        return rows | {key.replace("_", " ").removesuffix(" bytes"): text for key, text in words.items()}


def _most_here(plan: Plan) -> int:
    """Return how many runs of this size this machine can train at once; other runs wait in its queue.

    There is no such limit for a run that trains elsewhere or shares devices.
    """
    config = plan.config
    if config.backend.kind != "local" or config.backend.share_devices:
        return sys.maxsize
    slots, needed = needs_of(config, Queue())
    # A machine without these devices only plans the sweep.
    return len(slots) // needed if 0 < needed <= len(slots) else sys.maxsize


def plan_sweep(sweep: Sweep, at_once: int | None = None) -> SweepPlan:
    """Return the plan of a sweep, with the plans of its runs; `at_once` overrides the value in the file."""
    plans = [plan(with_new_tokens(run.config)) for run in sweep.runs]
    return SweepPlan(sweep, plans, at_once or sweep.config.at_once)
