"""A run as one JSON object, which panels draw and `nbtrain status --json` prints."""

import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nbtrain.base.jobstate import ACTIVE, RESTARTING, STARTING
from nbtrain.base.observed_state import ranks_run, seconds_left
from nbtrain.base.records import Heartbeat, JobRecord, TrainingProgress
from nbtrain.monitor.curves import finite_mean
from nbtrain.monitor.life import paused_seconds
from nbtrain.monitor.series import Gaps

OWN_KEYS = (
    "schema_version",
    "name",
    "run_id",
    "time",
    "state",
    "meaning",
    "cause",
    "active",
    "queued",
    "failed",
)
PARTS = (
    "asked",
    "advice",
    "remedies",
    "waiting",
    "nan",
    "job",
    "jobs",
    "marks",
    "config",
    "progress",
    "prediction",
    "curves",
    "reading",
    "resources",
    "ranks",
    "failed_rank",
    "log",
    "events",
    "alerts",
)
SNAPSHOT_KEYS = (*OWN_KEYS, *PARTS, "warnings", "shown")
# Fields of the newest job's record.
JOB_KEYS = (
    *("job_id", "created_at", "started_at", "ended_at", "attempt", "restarts", "resumed_from_step"),
    *("world_size", "backend", "command"),
)

NUM_EVENTS = 60

# Important events, which stay visible however many newer events of other kinds there are.
WEIGHTY = frozenset({"error", "restart", "rollback", "hang"})


@dataclass
class Band:
    """A curve reduced to few points: means of intervals, with their lowest and highest value if it was
    thinned.
    """

    at: list[int]
    """Index of the middle point of each interval."""
    values: list[float]
    lows: list[float] | None = None
    highs: list[float] | None = None


def band(values: Sequence[float], most: int, means: Sequence[float] | None = None) -> Band:
    """Reduce a curve to at most `most` points. The first and the last point stay as they are.

    `means` has, for a curve that was thinned when it was read, the mean of the points that each value stands
    for. NaN and Inf do not count, unless an interval has nothing else.
    """
    num = len(values)
    if num <= 2 or (means is None and num <= most):
        return Band([*range(num)], list(values))
    inner = max(1, min(most - 2, num - 2, num // 2 if means is not None else num))
    ends = [0, *(1 + part * (num - 2) // inner for part in range(inner)), num - 1, num]
    known = values if means is None else means
    at, middle, lows, highs = [], [], [], []
    for first, last in itertools.pairwise(ends):
        part = values[first:last]
        if not math.isfinite(sum(part)):
            part = [value for value in part if math.isfinite(value)] or [math.nan]
        is_end = first in (0, num - 1)
        at.append((first + last) // 2)
        middle.append(values[first] if is_end else finite_mean(known[first:last]))
        lows.append(min(part))
        highs.append(max(part))
    return Band(at, middle, lows, highs)


def thinned_means(points: Any) -> Sequence[float] | None:
    """Return the means of a curve that was thinned while it was read (curves.py); None for other curves."""
    return points.means if getattr(points, "width", 1) > 1 else None


def curve_part(key: str, found: Band, gaps: Gaps) -> dict[str, Any]:
    """Return a curve's values under `key`; "low" and "high" if it was thinned; "bad", its ranges of NaN."""
    # A picture shows at most six digits, and more would triple the bytes sent each second.
    part: dict[str, Any] = {key: [six_digits(value) for value in found.values]}
    if found.lows is not None and found.highs is not None:
        part["low"] = [six_digits(value) for value in found.lows]
        part["high"] = [six_digits(value) for value in found.highs]
    return part | ({"bad": [list(steps) for steps in gaps.ranges]} if gaps.ranges else {})


def job_part(
    record: JobRecord, now: float, active: bool, events: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the snapshot's entry of the newest job. If the job is not active, the record includes its
    end.
    """
    begin = "started_at" if record.started_at else "created_at"
    elapsed = record.seconds_since(begin, now) if active else record.seconds_between(begin, "ended_at")
    paused = paused_seconds(events, record.created_at, now if active else record.ended_at or now)
    known = {key: getattr(record, key) for key in JOB_KEYS}
    return {**known, "elapsed_seconds": elapsed, "paused_seconds": paused}


def progress_part(
    heartbeat: Heartbeat | None,
    config: Mapping[str, Any] | None,
    now: float,
    state: str,
    saved: TrainingProgress | None = None,
) -> dict[str, Any] | None:
    """Return the progress of training from rank 0's heartbeat, else from the checkpoint; None if there is
    neither.
    """
    known = heartbeat.progress if heartbeat else saved
    if known is None:
        return None
    # A trial (batch.max_steps) ends before train_tokens, and its bar must still reach the end.
    active = state in ACTIVE
    gone = active and heartbeat is not None and not ranks_run(state, heartbeat)
    loss, target = known.validation_loss, config["target_tokens"] if config else known.goal_tokens
    if config is not None and not config["has_perplexity"]:
        loss = None  # a loss over preference pairs, not over tokens
    return {
        **vars(known),
        "step": heartbeat.step if heartbeat else known.checkpoint_step or 0,
        "phase": heartbeat.phase if heartbeat and not gone else None,
        "phase_seconds": heartbeat.seconds_since("phase_since", now)
        if heartbeat and active and not gone
        else None,
        "target_tokens": target,
        "fraction": min(1.0, known.consumed_tokens / target) if target else None,
        "eta_seconds": seconds_left(state, heartbeat),
        "tokens_per_second": None if gone else known.tokens_per_second,
        "validation_perplexity": math.exp(loss) if loss is not None and loss < 700 else None,
        "heartbeat_age_seconds": heartbeat.seconds_since("time", now) if heartbeat else None,
    }


def event_part(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that are shown."""
    return {key: event.get(key) for key in ("time", "kind", "writer", "message")}


def in_sight(events: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most `most` events in order: the newest important ones fill up to half of them, the newest
    others the rest.
    """
    weighty = [number for number, event in enumerate(events) if event.get("kind") in WEIGHTY][-(most // 2) :]
    others = [number for number in range(len(events)) if number not in weighty]
    return [events[number] for number in sorted([*weighty, *others[-(most - len(weighty)) :]])]


def alerts_part(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest alerts, oldest first. "raised" is true while the metric is beyond its threshold.

    A rank reports once that a metric has crossed its threshold, and once that it has returned (alert_over).
    A new attempt starts without alerts.
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


@functools.lru_cache(1 << 15)
def six_digits(value: float) -> float:
    """Round to six digits, because a picture shows no more, and curves are sent at each poll."""
    return float(f"{value:.6g}")


def finite(value: Any) -> Any:
    """Return `value` with None for NaN and Inf, which JSON does not support."""
    try:
        # Encoding and decoding takes a tenth of the time of visiting each part here.
        return orjson.loads(orjson.dumps(value))
    except TypeError:
        return _finite(value)


def encoded(value: Any) -> bytes:
    """Return the JSON of `value`, with NaN and Inf as null."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Values that orjson refuses: numeric keys, half a surrogate pair in a file's name.
        return json.dumps(_finite(value), separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
