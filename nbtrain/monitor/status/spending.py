"""Cost of a run: the devices that it held, its goodput, and the cost of each fault.

    run_spending(RunDir, now)  ->  Spending      device hours, money, energy, goodput, and the faults

A job pays for its devices from its start to its end, except while it is queued or paused; life.py gives the
spans. Goodput is the share of the paid time that became steps of the final model: training, without the
steps that were trained again after a fault. The repeated steps lie between the checkpoint that the next
attempt loaded and the last step that was reached; their time is their share of the attempt's training time.

Prices and energy come from the plan that was made at the submission (plan.json).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import ACTIVE, SUCCEEDED
from nbtrain.base.run_directory.records import AttemptRecord, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.monitor.status.life import Span, life_spans
from nbtrain.monitor.status.status_records import job_with_end

HOUR_SECONDS = 3600.0
UNPAID = frozenset({"waiting", "paused"})
"""Kinds of spans in which a job holds no devices."""
DOWN = frozenset({"restarting", "starting", "building", "loading"})
"""Kinds of spans in which devices are held and nothing is trained, before the first step of an attempt."""


@dataclass(frozen=True)
class DevicePrice:
    """Price of one device for an hour, and its energy, from the plan of the run."""

    usual: float | None
    currency: str
    kwh_per_hour: float | None
    devices_per_rank: float = 1.0
    """Devices that are paid for each rank: more than 1 if a machine has more GPUs than ranks."""


@dataclass(frozen=True)
class Fault:
    """An attempt that did not train to the end, and what its end cost."""

    job_id: str
    attempt: int
    time: float
    """End of the attempt, in seconds since the epoch."""
    cause: str
    lost_steps: int
    """Steps that were trained again."""
    repeated_seconds: float
    """Time of these steps."""
    down_seconds: float
    """Time from the end of the attempt to the first step of the next one, with the devices held."""
    waited_seconds: float
    """Time without devices: in the queue, or paused."""
    device_hours: float
    """Device hours of repeated_seconds and down_seconds."""
    money: float | None = None
    """Their price; None if it is not known."""


@dataclass(frozen=True)
class Spending:
    """Use of devices by all jobs of a run, from its records."""

    device_hours: float
    """Hours of all devices that were held."""
    goodput: float | None
    """Share of the paid time that became steps of the final model; None before any time was paid."""
    seconds: dict[str, float]
    """Seconds by kind: the kinds of life.py, with "repeated" apart from "training"."""
    faults: list[Fault] = field(default_factory=list)
    money: float | None = None
    """Price of the device hours; None if it is not known, and for CPUs."""
    currency: str = ""
    energy_kwh: float | None = None
    """Energy of the device hours as planned; None if it is not known, and for CPUs."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def paid_seconds(self) -> float:
        return sum(seconds for kind, seconds in self.seconds.items() if kind not in UNPAID)

    def words(self, device: str = "device") -> str:
        """Return one line: "12.3 GPU hours, 36 USD, about 9 kWh, goodput 87 %"; "" before any was paid."""
        if self.goodput is None:
            return ""
        parts = [f"{amounts.amount(self.device_hours, digits=3)} {device} hours"]
        if self.money is not None:
            parts.append(f"{amounts.amount(self.money, digits=3)} {self.currency}")
        if self.energy_kwh is not None:
            parts.append(f"about {amounts.amount(self.energy_kwh, digits=3)} kWh")
        return ", ".join([*parts, f"goodput {self.goodput:.0%}"])


def fault_words(fault: Fault) -> str:
    """Return what a fault cost, in one phrase."""
    parts = []
    if fault.lost_steps:
        steps = amounts.counted(fault.lost_steps, "step")
        parts.append(f"{steps} again ({amounts.elapsed(fault.repeated_seconds)})")
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

    def of_kinds(self, kinds: frozenset[str]) -> float:
        return _within(self.spans, kinds, self.begin, self.end)


def run_spending(run: RunDir, now: float, current: tuple[str, JobRecord, str] | None = None) -> Spending:
    """Return what all jobs of a run have used until `now`.

    `current` is (id, record, state) of a job whose record on the disk is older, such as one that is just
    ending. A job whose record is damaged is not counted.
    """
    price = planned_price(run)
    attempts: list[_Attempt] = []
    seconds: dict[str, float] = {}
    device_seconds = 0.0
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
        own = _attempts(job, record, spans, until, price.devices_per_rank if price else 1.0)
        device_seconds += _device_seconds(spans, own)
        attempts += own
    if not attempts and not device_seconds:
        return Spending(0.0, None, seconds)
    faults = _faults(run, attempts, finished, price)
    repeated = sum(fault.repeated_seconds for fault in faults)
    if repeated:
        seconds["training"] = max(0.0, seconds.get("training", 0.0) - repeated)
        seconds["repeated"] = repeated
    paid = sum(spent for kind, spent in seconds.items() if kind not in UNPAID)
    hours = device_seconds / HOUR_SECONDS
    return Spending(
        hours,
        seconds.get("training", 0.0) / paid if paid else None,
        seconds,
        faults,
        None if price is None or price.usual is None else hours * price.usual,
        price.currency if price else "",
        None if price is None or price.kwh_per_hour is None else hours * price.kwh_per_hour,
    )


def spending_line(run: RunDir, device: str, now: float) -> str:
    """Return what a run has used in one line, as Spending.words() has it; "" if a record cannot be read.

    `device` is the run's resources.device. The place of a job names the record that cannot be read.
    """
    with contextlib.suppress(RecordError):
        return run_spending(run, now).words("GPU" if device == "gpu" else "process")
    return ""


def _spans(job: JobDir, record: JobRecord, until: float) -> list[Span]:
    """Return the spans of a job's life; from its attempts alone if its events were deleted."""
    spans = life_spans(read_events(job), record.created_at, until)
    if not record.attempts or any(kind not in UNPAID for kind, _, _ in spans):
        return spans
    found: list[Span] = []
    for attempt in record.attempts:
        end = attempt.ended_at or until
        running = min(attempt.running_at or end, end)
        found += [("starting", attempt.started_at, running), ("training", running, end)]
    return [(kind, begin, end) for kind, begin, end in found if end > begin]


def planned_price(run: RunDir) -> DevicePrice | None:
    """Return the price of a device and its energy for an hour, from the plan of the run; None without one."""
    try:
        plan = files.read_json(run.plan_json) or {}
    except RecordError:
        return None
    cost = plan.get("cost") or {}
    hours, energy, price = cost.get("device_hours"), cost.get("energy_kwh"), cost.get("price") or {}
    kwh_per_hour = energy / hours if hours and energy is not None else None
    if kwh_per_hour is None and not price:
        return None
    seconds, ranks = (plan.get("duration") or {}).get("seconds"), plan.get("world_size")
    per_rank = max(1.0, hours * HOUR_SECONDS / seconds / ranks) if hours and seconds and ranks else 1.0
    return DevicePrice(price.get("usual"), price.get("currency", ""), kwh_per_hour, per_rank)


def _attempts(
    job: JobDir, record: JobRecord, spans: list[Span], until: float, per_rank: float
) -> list[_Attempt]:
    found = []
    for attempt, following in zip(record.attempts, [*record.attempts[1:], None]):
        end = attempt.ended_at or (following.started_at if following else until)
        reached = attempt.reached_step
        if reached is None and attempt is record.attempts[-1]:
            # Without a readable heartbeat, the attempt counts as one that has reached no step.
            with contextlib.suppress(RecordError):
                beat = Heartbeat.read(job.heartbeat(0))
                reached = beat.step if beat is not None and beat.attempt == attempt.attempt else None
        begin = attempt.started_at
        step = attempt.first_step or 0
        devices = per_rank * attempt.world_size
        found.append(_Attempt(job.job_id, attempt, spans, begin, end, max(step, reached or 0), devices))
    return found


def _device_seconds(spans: Sequence[Span], attempts: Sequence[_Attempt]) -> float:
    """Return the device seconds of a job. The time between two attempts has the devices of the later one, and
    a job without an attempt has held none.
    """
    total, start = 0.0, float("-inf")
    paid = [(begin, end) for kind, begin, end in spans if kind not in UNPAID]
    for attempt in attempts:
        until = float("inf") if attempt is attempts[-1] else attempt.end
        total += attempt.devices * sum(max(0.0, min(end, until) - max(begin, start)) for begin, end in paid)
        start = attempt.end
    return total


def _faults(
    run: RunDir, attempts: Sequence[_Attempt], finished: bool, price: DevicePrice | None
) -> list[Fault]:
    """Return the attempts that another one had to follow, or that ended a run which has not succeeded."""
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
            resumed = newest_checkpoint_step(run)
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
            continue  # a requested pause or stop, which lost nothing
        restarted = following or attempt
        hours = (attempt.devices * repeated + restarted.devices * down) / HOUR_SECONDS
        found.append(
            Fault(
                attempt.job_id,
                record.attempt,
                attempt.end,
                record.cause or ("stopped" if is_recorded else "its supervisor was gone"),
                lost,
                repeated,
                down,
                waited,
                hours,
                None if price is None or price.usual is None else hours * price.usual,
            )
        )
    return found


def _within(spans: Sequence[Span], kinds: frozenset[str], begin: float, end: float) -> float:
    """Return the seconds that spans of some kinds have between two times."""
    return sum(max(0.0, min(last, end) - max(first, begin)) for kind, first, last in spans if kind in kinds)
