"""A job's conditions, events and alerts, in the terms of a cluster's job page, for every backend.

A condition is a state that the job has been in: whether the job is in that state now, since when, and why.
States come from the events of the submitter and the supervisor, in the order in which they were written.
LOST, and SUSPENDED by a scheduler, are determined only when the job is read, so they are added last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.jobstate import (
    CANCELLED,
    FAILED,
    LOST,
    MEANING,
    QUEUED,
    RESTARTING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.monitor.status.life import told_state

REASONS = {
    QUEUED: "Submitted",
    STARTING: "RanksStarted",
    RUNNING: "Rank0Trains",
    RESTARTING: "RankFailed",
    SUSPENDED: "PausedOnRequest",
    SUCCEEDED: "AllTokensDone",
    FAILED: "Error",
    CANCELLED: "StoppedOnRequest",
    LOST: "NoSignOfLife",
}
"""{state: default reason of its condition}."""
SUCCEEDED_REASONS = {
    "full": REASONS[SUCCEEDED],
    "eval": "CheckpointEvaluated",
    "perf": "StepsMeasured",
}
"""{mode of the run: reason of the condition Succeeded}."""
# {reason in a restart event: reason of the condition}
RESTART_REASONS = {
    end_kinds.HANG: "Hang",
    end_kinds.KILLED: "RankKilled",
    end_kinds.DISK: "DiskFull",
    end_kinds.DEVICE: "DeviceLost",
    end_kinds.ROLLBACK: "BadStep",
    end_kinds.NO_RECORD: "RankGone",
    end_kinds.ALLOCATION: "AllocationLost",
}
NUM_EVENTS = 60
# Kinds of important events, which stay visible however many newer events of other kinds there are.
WEIGHTY = frozenset({"error", "restart", "rollback", "hang"})
# Kinds of events that are shown as warnings.
WARNINGS = frozenset({"warning", "error", "alert", "hang", "restart", "rollback", "preemption"})


@dataclass(frozen=True)
class Condition:
    """A state that the job is or was in."""

    type: str
    """Name of the state, for example Running."""
    status: bool
    """Whether the job is in this state now."""
    last_change: float
    """Time of the last change, in seconds since the epoch."""
    reason: str
    """Reason in one word; if `status` is false, the type of the condition that replaced this one."""
    message: str


@dataclass(frozen=True)
class JobEvent:
    """An event as a job page shows it."""

    time: float
    type: str
    """Normal or Warning."""
    reason: str
    object: str
    """Object of the event: "job", "replica 0", "rank 3", or a name from the scheduler."""
    message: str
    writer: str


def type_of(state: str) -> str:
    """Return a state's condition type, such as Running for RUNNING."""
    return state.capitalize()


def conditions(
    events: Iterable[Mapping[str, Any]], created_at: float, final: tuple[str, str | None, float, str | None]
) -> list[Condition]:
    """Return a condition for Submitted, and one for every state of the job.

    The conditions are in the order in which the job last entered the states. `final` is (state, cause, time
    of the last change, reason) of the job as it is now. If its reason is None, the reason comes from the
    events, otherwise from REASONS.
    """
    found = {"Submitted": Condition("Submitted", True, created_at, "Submitted", "the job was submitted")}
    current, restart_reason, preempted = "", None, False
    for event in events:
        preempted = preempted or event.get("kind") == "preemption"
        if event.get("kind") in ("restart", "rollback"):
            kind = event.get("reason") if event["kind"] == "restart" else end_kinds.ROLLBACK
            restart_reason = RESTART_REASONS.get(str(kind))
        state = told_state(event)
        if not isinstance(state, str) or state not in MEANING:
            continue
        reason = restart_reason if state == RESTARTING else None
        if preempted and state == QUEUED:
            reason = "Preempted"
        preempted = preempted and state == QUEUED
        message = str(event.get("cause") or MEANING[state])
        current = _enter(found, current, state, event["time"], reason, message)
    state, cause, since, reason = final
    if state in MEANING and type_of(state) != current:
        # If the supervisor has paused the job, an event has already said so; otherwise the scheduler holds
        # it.
        reason = "HeldByScheduler" if state == SUSPENDED else reason
        _enter(found, current, state, since, reason, cause or MEANING[state])
    elif reason and current in found:
        known = found[current]
        found[current] = Condition(known.type, True, known.last_change, reason, known.message)
    return list(found.values())


def failure_reason(state: str, cause: str | None, exit_codes: Iterable[int | None]) -> str | None:
    """Return the reason why a job FAILED: its deadline, or the first known exit code of its ranks.

    None for any other state, and if no exit code is known.
    """
    if state == FAILED and (cause or "").startswith("deadline:"):
        return "DeadlineExceeded"
    code = next((code for code in exit_codes if code is not None), None)
    return None if state != FAILED or code is None else f"ExitCode{code}"


def _enter(
    found: dict[str, Condition], current: str, state: str, time: float, reason: str | None, message: str
) -> str:
    """Record that the job enters `state`, and return the type of its condition."""
    entered = type_of(state)
    if current and current != entered:
        before = found[current]
        found[current] = Condition(current, False, time, entered, before.message)
    if current != entered:
        found.pop(entered, None)
        found[entered] = Condition(entered, True, time, reason or REASONS[state], message)
    return entered


def job_events(events: Iterable[Mapping[str, Any]]) -> list[JobEvent]:
    """Convert events for a job page. The type, reason and object of a scheduler's event are kept."""
    return [_event(event) for event in events]


def _event(event: Mapping[str, Any]) -> JobEvent:
    kind, writer = str(event.get("kind")), str(event.get("writer"))
    own = str(event.get("reason") or "")
    reason = type_of(str(event["state"])) if kind == "state" and event.get("state") else kind.capitalize()
    return JobEvent(
        time=float(event["time"]),
        type=str(event.get("type") or ("Warning" if kind in WARNINGS else "Normal")),
        # A scheduler's reason is one capitalized word. Other reasons are the supervisor's, for its own use.
        reason=own if own[:1].isupper() and own.isalnum() else reason,
        object=str(event.get("object") or _object(event, writer)),
        message=str(event.get("message") or ""),
        writer=writer,
    )


def _object(event: Mapping[str, Any], writer: str) -> str:
    if isinstance(event.get("rank"), int):
        return f"rank {event['rank']}"
    for prefix, noun in (("rank", "rank"), ("node", "replica")):
        if writer.startswith(prefix) and writer[len(prefix) :].isdigit():
            return f"{noun} {writer[len(prefix) :]}"
    return "job"


def event_part(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that a run's page shows."""
    return {key: event.get(key) for key in ("time", "kind", "writer", "message")}


def in_sight(events: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most `most` events in order: up to `most` / 2 important ones and the newest others."""
    weighty = [number for number, event in enumerate(events) if event.get("kind") in WEIGHTY][-(most // 2) :]
    others = [number for number in range(len(events)) if number not in weighty]
    return [events[number] for number in sorted([*weighty, *others[-(most - len(weighty)) :]])]


def alerts_part(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest alerts, oldest first. "raised" says whether the metric is beyond its threshold now.

    A rank reports an alert when a metric crosses its threshold, and alert_over when the metric returns. A new
    attempt starts without raised alerts.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        kind, state = event.get("kind"), event.get("state")
        if kind == "alert":
            found.append({**event_part(event), "name": event.get("alert"), "raised": True})
        elif kind == "alert_over" or (kind == "state" and state in (STARTING, RESTARTING)):
            for alert in found:
                alert["raised"] &= kind == "alert_over" and alert["name"] != event.get("alert")
    return found[-NUM_EVENTS:]
