"""The cost of a run: the devices that it used, its goodput, and the cost of each fault.

    run_spending(RunDir, now)  ->  Spending      device hours, money, energy, goodput, and the faults
    total([Spending, ...])     ->  Spending      the sum over several runs, such as a sweep's

A job pays for its devices from its start to its end, except while it is queued or paused; life.py returns the
spans. Goodput is the share of the paid time that became steps of the final model: training, without the steps
that were trained again after a fault. The repeated steps are those between the checkpoint that the next
attempt loaded and the last step that was reached. Their time is their share of the attempt's training time.

Each job keeps the price and energy of its plan at submission in job.json, so a later job with other prices
does not change the cost of an earlier one. If a job's plan had no price, its cost in money is unknown.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.checkpoint_files import newest_saved_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.run_directory.records import AttemptRecord, DevicePrice, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.monitor.status.life import Span, life_spans
from nbtrain.monitor.status.run_status import RunStatus
from nbtrain.monitor.status.status_records import job_with_end

HOUR_SECONDS = 3600.0
UNPAID = frozenset({"waiting", "paused"})
"""Kinds of spans during which a job holds no devices."""
DOWN = frozenset({"restarting", "starting", "building", "loading"})
"""Kinds of spans before an attempt's first step, during which devices are held but nothing is trained."""
SUPERVISOR_GONE = "its supervisor was gone"
"""Cause of a fault whose end no process has recorded."""
FIRST_START = "first start"
"""Key in Spending.hours for starts that did not follow a fault."""
RESTART, REPEATED = "restart", "repeated"
"""Keys in Spending.hours for starts after faults, and for steps that were trained again."""


@dataclass(frozen=True)
class Fault:
    """An attempt that ended before the run was done, with the cost of its end."""

    job_id: str
    attempt: int
    time: float
    """End of the attempt, in seconds since the epoch."""
    cause: str
    lost_steps: int
    """Steps that were trained again."""
    repeated_seconds: float
    """Training time of the steps that were trained again."""
    down_seconds: float
    """Time with devices between the end of the attempt and the first step of the next one."""
    waited_seconds: float
    """Time without devices between the two attempts: in the queue, or paused."""
    device_hours: float
    """Device hours of repeated_seconds and down_seconds."""
    repeated_device_hours: float = 0.0
    """Device hours of repeated_seconds alone."""
    money: float | None = None
    """Price of `device_hours` in the run's currency; None if it is not known."""
    preempted: bool = False
    """Whether the devices were taken away (preemption)."""


@dataclass(frozen=True)
class Spending:
    """Device use of all jobs of a run, from the run's records."""

    device_hours: float
    """Hours during which devices were held, summed over devices."""
    goodput: float | None
    """Share of the paid time that became steps of the final model; None if no time was paid yet."""
    seconds: dict[str, float]
    """Seconds by kind of span, as in life.py, but with "repeated" separate from "training"."""
    faults: list[Fault] = field(default_factory=list)
    money: float | None = None
    """Price of the device hours; None if unknown, as for CPUs."""
    currency: str = ""
    energy_kwh: float | None = None
    """Planned energy of the device hours; None if unknown, as for CPUs."""
    hours: dict[str, float] = field(default_factory=dict)
    """Device hours by purpose; their sum is device_hours.

    The keys are "training" (steps that were kept), REPEATED, RESTART, FIRST_START and the other kinds of
    life.py.
    """

    @classmethod
    def of_dict(cls, value: Mapping[str, Any]) -> "Spending":
        """Create a Spending from a dict of to_dict(). Raises TypeError if the dict has other keys."""
        return cls(**{**value, "faults": [Fault(**fault) for fault in value["faults"]]})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def paid_seconds(self) -> float:
        return sum(seconds for kind, seconds in self.seconds.items() if kind not in UNPAID)

    def words(self, device: str = "device") -> str:
        """Format as "12.3 GPU hours, 36 USD, about 9 kWh, goodput 87%"; "" if no time was paid yet."""
        if self.goodput is None:
            return ""
        parts = [f"{amounts.amount(self.device_hours, digits=3)} {device} hours"]
        if self.money is not None:
            parts.append(f"{amounts.amount(self.money, digits=3)} {self.currency}")
        if self.energy_kwh is not None:
            parts.append(f"about {amounts.amount(self.energy_kwh, digits=3)} kWh")
        return ", ".join([*parts, f"goodput {self.goodput:.0%}"])


def fault_words(fault: Fault) -> str:
    """Describe the cost of a fault in one phrase."""
    parts = []
    if fault.lost_steps:
        steps = amounts.counted(fault.lost_steps, "step")
        parts.append(f"{steps} trained again ({amounts.elapsed(fault.repeated_seconds)})")
    if fault.down_seconds:
        parts.append(f"{amounts.elapsed(fault.down_seconds)} to restart")
    if fault.waited_seconds:
        parts.append(f"{amounts.elapsed(fault.waited_seconds)} without devices")
    return ", ".join(parts) or "nothing"


@dataclass(frozen=True)
class _Attempt:
    job_id: str
    record: AttemptRecord
    spans: list[Span]
    begin: float
    end: float
    reached: int
    devices: float
    price: DevicePrice | None
    is_preempted: bool
    """Whether the attempt ended because its devices were taken away."""

    def money(self, device_hours: float) -> float | None:
        """Return the price of device hours in this attempt's job; None if it is not known."""
        return None if self.price is None or self.price.usual is None else device_hours * self.price.usual

    def of_kinds(self, kinds: frozenset[str]) -> float:
        return _within(self.spans, kinds, self.begin, self.end)


def run_spending(run: RunDir, now: float, current: tuple[str, JobRecord, str] | None = None) -> Spending:
    """Return the device use of all jobs of a run until `now`.

    `current` is (id, record, state) of a job whose record on disk is outdated, such as a job that is just
    ending. Jobs with a damaged record are not counted.
    """
    attempts: list[_Attempt] = []
    seconds: dict[str, float] = {}
    hours: dict[str, float] = {}
    jobs: list[tuple[float, DevicePrice | None]] = []
    finished = False
    for job_id in run.job_ids():
        job = run.job(job_id)
        if current is not None and current[0] == job_id:
            record, state = current[1], current[2]
        else:
            try:
                found, state, _ = job_with_end(job, now)
            except RecordError:
                continue
            if found is None:
                continue
            record = found
        active = state in ACTIVE
        finished = state == SUCCEEDED
        until = now if active else record.ended_at or now
        spans = _spans(job, record, until)
        for kind, begin, end in spans:
            seconds[kind] = seconds.get(kind, 0.0) + end - begin
        price = record.price
        own = _attempts(job, record, spans, until, price)
        held = _device_seconds(spans, own, record.world_size * (price.devices_per_rank if price else 1.0))
        for kind, device_seconds in held.items():
            hours[kind] = hours.get(kind, 0.0) + device_seconds / HOUR_SECONDS
        jobs.append((sum(held.values()) / HOUR_SECONDS, price))
        attempts += own
    if not attempts and not any(hours.values()):
        return Spending(0.0, None, seconds)
    faults = _faults(run, attempts, finished)
    repeated = sum(fault.repeated_seconds for fault in faults)
    if repeated:
        seconds["training"] = max(0.0, seconds.get("training", 0.0) - repeated)
        seconds[REPEATED] = repeated
    paid = sum(spent for kind, spent in seconds.items() if kind not in UNPAID)
    money, currency = _money(jobs)
    return Spending(
        sum(hours.values()),
        seconds.get("training", 0.0) / paid if paid else None,
        seconds,
        faults if money is not None else _without_money(faults),
        money,
        currency,
        _energy_kwh(jobs),
        _by_purpose(hours, faults),
    )


def spending_line(run: RunDir, device: str, now: float) -> str:
    """Return a run's device use in one line, as in Spending.words(); "" if a record cannot be read.

    `device` is the run's resources.device.
    """
    with contextlib.suppress(RecordError):
        return run_spending(run, now).words("GPU" if device == "gpu" else "process")
    return ""


def spending_of(run: RunDir, status: RunStatus, now: float) -> Spending | None:
    """Return a run's device use; None if the run's records cannot be read.

    If the newest job has ended and wrote summary.json, that file is used, which is much faster.
    """
    with contextlib.suppress(RecordError, OSError, TypeError, KeyError):
        if not status.active:
            summary = files.read_json(run.summary_json) or {}
            if (summary["job_id"], summary["state"]) == (status.job_id, status.state):
                return Spending.of_dict(summary["cost"])
    with contextlib.suppress(RecordError, OSError):
        return run_spending(run, now)
    return None


def _spans(job: JobDir, record: JobRecord, until: float) -> list[Span]:
    """Return the spans of a job's life, or spans derived from its attempts if its events were deleted."""
    spans = life_spans(read_events(job), record.created_at, until)
    if not record.attempts or any(kind not in UNPAID for kind, _, _ in spans):
        return spans
    found: list[Span] = []
    for attempt in record.attempts:
        end = attempt.ended_at or until
        running = min(attempt.running_at or end, end)
        found += [("starting", attempt.started_at, running), ("training", running, end)]
    return [(kind, begin, end) for kind, begin, end in found if end > begin]


def _money(jobs: Sequence[tuple[float, DevicePrice | None]]) -> tuple[float | None, str]:
    """Return (price of all jobs, currency), from (device hours, price) for each job.

    The result is (None, "") if the price of a job is unknown or the jobs have different currencies.
    """
    paid = [(hours, price) for hours, price in jobs if hours]
    currencies = {price.currency for _, price in paid if price is not None}
    money = 0.0
    for hours, price in paid:
        if price is None or price.usual is None or len(currencies) > 1:
            return None, ""
        money += hours * price.usual
    return (money, currencies.pop()) if currencies else (None, "")


def _energy_kwh(jobs: Sequence[tuple[float, DevicePrice | None]]) -> float | None:
    """Return the energy of all jobs, from (device hours, price) for each; None if one is not known."""
    energies = [
        None if price is None or price.kwh_per_hour is None else hours * price.kwh_per_hour
        for hours, price in jobs
        if hours
    ]
    known = [energy for energy in energies if energy is not None]
    return sum(known) if known and len(known) == len(energies) else None


def _attempts(
    job: JobDir, record: JobRecord, spans: list[Span], until: float, price: DevicePrice | None
) -> list[_Attempt]:
    found = []
    per_rank = price.devices_per_rank if price else 1.0
    preempted = {preemption.attempt for preemption in record.preemptions}
    for attempt, following in zip(record.attempts, [*record.attempts[1:], None]):
        end = attempt.ended_at or (following.started_at if following else until)
        reached = attempt.reached_step
        if reached is None and attempt is record.attempts[-1]:
            # Without a readable heartbeat, assume that the attempt reached no step.
            with contextlib.suppress(RecordError):
                beat = Heartbeat.read(job.heartbeat(0))
                reached = beat.step if beat is not None and beat.attempt == attempt.attempt else None
        begin = attempt.started_at
        step = attempt.first_step or 0
        devices, last = per_rank * attempt.world_size, max(step, reached or 0)
        is_preempted = attempt.attempt in preempted
        found.append(_Attempt(job.job_id, attempt, spans, begin, end, last, devices, price, is_preempted))
    return found


def _device_seconds(spans: Sequence[Span], attempts: Sequence[_Attempt], devices: float) -> dict[str, float]:
    """Return {kind of span: device seconds} of a job.

    Time between two attempts counts with the number of devices of the later attempt. A job without an attempt
    has used its `devices` only for DeepSpeed's autotuner.
    """
    found: dict[str, float] = {}
    if not attempts:
        tuned = _within(spans, frozenset({"tuning"}), float("-inf"), float("inf"))
        return {"tuning": devices * tuned} if tuned else {}
    start = float("-inf")
    for attempt in attempts:
        until = float("inf") if attempt is attempts[-1] else attempt.end
        for kind, begin, end in spans:
            held = max(0.0, min(end, until) - max(begin, start))
            if held and kind not in UNPAID:
                found[kind] = found.get(kind, 0.0) + attempt.devices * held
        start = attempt.end
    return found


def _by_purpose(hours: Mapping[str, float], faults: Sequence[Fault]) -> dict[str, float]:
    """Convert device hours by kind of span (life.py) to device hours by purpose (Spending.hours)."""
    repeated = sum(fault.repeated_device_hours for fault in faults)
    restart = sum(fault.device_hours - fault.repeated_device_hours for fault in faults)
    found = {kind: value for kind, value in hours.items() if kind not in DOWN}
    found["training"] = max(0.0, found.get("training", 0.0) - repeated)
    found |= {REPEATED: repeated, RESTART: restart}
    found[FIRST_START] = max(0.0, sum(hours.get(kind, 0.0) for kind in DOWN) - restart)
    return {kind: value for kind, value in found.items() if value}


def _faults(run: RunDir, attempts: Sequence[_Attempt], finished: bool) -> list[Fault]:
    """Return the faults of a run, one for each attempt that did not complete the run, oldest first.

    These are the attempts that another attempt followed and, unless the run has `finished`, the last attempt
    if it has ended. A requested pause or stop that lost no steps is not a fault.
    """
    found = []
    for attempt, following in zip(attempts, [*attempts[1:], None]):
        record = attempt.record
        if following is None and (finished or record.ended_at is None):
            continue
        first = record.first_step or 0
        if following is not None:
            resumed = following.record.resumed_from_step
            resumed = following.record.first_step if resumed is None else resumed
        else:
            resumed = newest_saved_step(run)
        lost = max(0, attempt.reached - max(first, resumed or 0))
        trained = attempt.of_kinds(frozenset({"training"}))
        repeated = trained * lost / (attempt.reached - first) if lost else 0.0
        down = waited = 0.0
        if following is not None:
            running = following.record.running_at or following.end
            down = _within(attempt.spans, DOWN, attempt.end, running)
            waited = _within(attempt.spans, UNPAID, attempt.end, running)
            if following.spans is not attempt.spans:
                down += _within(following.spans, DOWN, attempt.end, running)
                waited += _within(following.spans, UNPAID, attempt.end, running)
        is_recorded = record.ended_at is not None
        if record.cause is None and is_recorded and not lost:
            continue  # a requested pause or stop that lost no steps
        restarted = following or attempt
        again = attempt.devices * repeated / HOUR_SECONDS
        restart = restarted.devices * down / HOUR_SECONDS
        prices = [own.money(hours) for own, hours in ((attempt, again), (restarted, restart))]
        found.append(
            Fault(
                attempt.job_id,
                record.attempt,
                attempt.end,
                record.cause or ("stopped" if is_recorded else SUPERVISOR_GONE),
                lost,
                repeated,
                down,
                waited,
                again + restart,
                again,
                None if None in prices else sum(price for price in prices if price is not None),
                attempt.is_preempted,
            )
        )
    return found


def total(spendings: Sequence[Spending]) -> Spending:
    """Return the sum of the spending of several runs.

    Goodput is the mean weighted by device hours. Money and energy are None if they are unknown for a run that
    used devices. If the money is unknown or in different currencies, the money of the faults is None too.
    """
    paid = [spending for spending in spendings if spending.device_hours]
    device_hours = sum(spending.device_hours for spending in paid)
    kept = sum((spending.goodput or 0.0) * spending.device_hours for spending in paid)
    currencies = {spending.currency for spending in paid}
    money = [spending.money for spending in paid if spending.money is not None]
    energy = [spending.energy_kwh for spending in paid if spending.energy_kwh is not None]
    has_price = bool(paid) and len(money) == len(paid) and len(currencies) == 1
    faults = [fault for spending in spendings for fault in spending.faults]
    return Spending(
        device_hours,
        kept / device_hours if device_hours else None,
        _added([spending.seconds for spending in spendings]),
        faults if has_price else _without_money(faults),
        sum(money) if has_price else None,
        currencies.pop() if has_price else "",
        sum(energy) if paid and len(energy) == len(paid) else None,
        _added([spending.hours for spending in spendings]),
    )


def _without_money(faults: Sequence[Fault]) -> list[Fault]:
    """Return the faults without their prices, because a common price is unknown."""
    return [replace(fault, money=None) for fault in faults]


def _added(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for value in values for key in value)
    return {key: sum(value.get(key, 0.0) for value in values) for key in keys}


def _within(spans: Sequence[Span], kinds: frozenset[str], begin: float, end: float) -> float:
    """Return the total seconds of the spans of some kinds between two times."""
    return sum(max(0.0, min(last, end) - max(first, begin)) for kind, first, last in spans if kind in kinds)
