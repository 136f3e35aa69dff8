"""A job's life as a bar of spans: waiting, tuning, loading, training, validating, saving, restarting, paused.

    life(events, created_at, now, phase)  ->  {"begin", "end", "spans": [[kind, begin, end], ...], "totals"}

States come from events (told_state), mostly the supervisor's. Phases within a state come from rank 0's
events, which are written when a phase ends. DeepSpeed's autotuner runs before the supervisor starts, so its
times come from the events of its trials.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nbtrain.base.printing.theme import BLUE, BROWN, GREEN, LINE, OLIVE, ORANGE, PINK, PURPLE, RED, TEAL
from nbtrain.base.run_directory.jobstate import QUEUED, RESTARTING, RUNNING, STARTING, SUSPENDED
from nbtrain.base.run_directory.rank_phases import ACTIVITIES
from nbtrain.base.text import amounts

KINDS = {
    "waiting": "waiting",
    "tuning": "trials of DeepSpeed's autotuner",
    "starting": ACTIVITIES["start"],
    "building": ACTIVITIES["build"],
    "loading": ACTIVITIES["load"],
    "training": ACTIVITIES["train"],
    "validating": ACTIVITIES["evaluate"],
    "saving": ACTIVITIES["save"],
    "restarting": "restarting",
    "paused": "paused",
}
"""{kind of span: its name}, in the order of the legend."""
COLORS = {
    "waiting": LINE,
    "tuning": BROWN,
    "starting": OLIVE,
    "building": PURPLE,
    "loading": TEAL,
    "training": BLUE,
    "validating": PINK,
    "saving": GREEN,
    "restarting": RED,
    "paused": ORANGE,
}
"""{kind of span: its color}, as in lab/ui/elements/style.js."""
_OF_STATES = {
    QUEUED: "waiting",
    STARTING: "starting",
    RUNNING: "training",
    RESTARTING: "restarting",
    SUSPENDED: "paused",
}
_OF_PHASES = {
    "build": "building",
    "load": "loading",
    "evaluate": "validating",
    "test": "validating",
    "save": "saving",
}
# Maximum number of spans; a bar has fewer pixels than this.
MOST_SPANS = 400

Span = tuple[str, float, float]


def life(
    events: Sequence[Mapping[str, Any]],
    created_at: float,
    now: float,
    phase: tuple[str, float] | None = None,
) -> dict[str, Any]:
    """Return the spans of a job's life in order, without gaps, and the total time of each kind.

    For a job that has ended, `now` is its end. `phase` is (rank 0's unfinished phase, time of its start).
    "totals" is [[kind, name, text with time and share], ...].
    """
    spans = life_spans(events, created_at, now, phase)
    seconds = {kind: sum(end - begin for of, begin, end in spans if of == kind) for kind in KINDS}
    whole = max(now - created_at, 1e-9)
    totals = [
        [kind, KINDS[kind], f"{amounts.elapsed(spent)}, {100 * spent / whole:.1f} %"]
        for kind, spent in seconds.items()
        if spent > 0
    ]
    if len(spans) > MOST_SPANS:
        spans = _coarse(spans, created_at, now)
    return {"begin": created_at, "end": now, "spans": [list(span) for span in spans], "totals": totals}


def life_spans(
    events: Sequence[Mapping[str, Any]],
    created_at: float,
    now: float,
    phase: tuple[str, float] | None = None,
) -> list[Span]:
    """Return all spans of a job's life as (kind, begin, end), in order and without gaps."""
    inner = [
        (_OF_PHASES[event["phase"]], event["time"] - event["seconds"], event["time"])
        for event in events
        if event.get("kind") == "phase" and event.get("phase") in _OF_PHASES
    ]
    if phase is not None and phase[0] in _OF_PHASES:
        inner.append((_OF_PHASES[phase[0]], phase[1], now))
    return _with_phases(_with_trials(_states(events, created_at, now), events), inner)


def told_state(event: Mapping[str, Any]) -> str | None:
    """Return the state that an event reports; None if the event does not report a state.

    If a job is paused in its scheduler's queue, its supervisor exits and records QUEUED with "paused"; this
    counts as SUSPENDED.
    """
    if event.get("kind") != "state":
        return None
    return SUSPENDED if event.get("paused") else event.get("state")


def paused_seconds(events: Sequence[Mapping[str, Any]], created_at: float, now: float) -> float:
    """Return the seconds for which a job was paused. For a job that has ended, `now` is its end."""
    return sum(end - begin for kind, begin, end in _states(events, created_at, now) if kind == "paused")


def elapsed_words(elapsed_seconds: float, paused: float) -> str:
    """Format the time since a job's start and the paused part of it: "3 h 2 min (40 min paused)"."""
    words = amounts.elapsed(elapsed_seconds)
    return f"{words} ({amounts.elapsed(paused)} paused)" if paused >= 1 else words


def _states(events: Sequence[Mapping[str, Any]], created_at: float, now: float) -> list[Span]:
    changes = [(QUEUED, created_at)]
    changes += [
        (state, min(max(event["time"], created_at), now))
        for event in events
        if (state := told_state(event)) in _OF_STATES
    ]
    ends = [time for _, time in changes[1:]] + [now]
    return [
        (_OF_STATES[state], begin, end)
        for (state, begin), end in zip(changes, ends, strict=True)
        if end > begin
    ]


def _with_trials(states: Sequence[Span], events: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Insert the time of the autotuner's trials into the waiting states.

    The trials last from the first trial until the supervisor starts or, if no supervisor has started, until
    the end of the last trial.
    """
    trials = [event for event in events if event.get("kind") == "trial"]
    found: list[Span] = []
    for number, (kind, begin, end) in enumerate(states):
        inside = [event for event in trials if begin <= event["time"] < end] if kind == "waiting" else []
        if not inside:
            found.append((kind, begin, end))
            continue
        is_over = number == len(states) - 1 and inside[-1].get("ended")
        first, last = inside[0]["time"], inside[-1]["time"] if is_over else end
        found += [("waiting", begin, first), ("tuning", first, last), ("waiting", last, end)]
    return [(kind, begin, end) for kind, begin, end in found if end > begin]


def _with_phases(states: Sequence[Span], phases: Sequence[Span]) -> list[Span]:
    """Insert rank 0's phases into the starting and training states, and merge adjacent spans of one kind."""
    found: list[Span] = []
    phases = sorted(phases, key=lambda span: span[1])
    number = 0
    for kind, begin, end in states:
        at = begin
        while number < len(phases) and phases[number][1] < end:
            phase, first, last = phases[number]
            first, until = max(first, at), min(last, end)
            if until > first and kind in ("starting", "training"):
                found += [(kind, at, first), (phase, first, until)]
                at = until
            if last > end:
                break  # the rest of the phase is in the next state
            number += 1
        found.append((kind, at, end))
    return _merged(found)


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for kind, begin, end in spans:
        if end <= begin:
            continue
        if merged and merged[-1][0] == kind:
            merged[-1] = (kind, merged[-1][1], end)
        else:
            merged.append((kind, begin, end))
    return merged


def _coarse(spans: Sequence[Span], begin: float, end: float) -> list[Span]:
    """Return at most MOST_SPANS spans that replace many short ones.

    The life is divided into MOST_SPANS parts of equal length. Each part gets the kind that takes most of its
    time, and adjacent parts of the same kind are merged.
    """
    width = (end - begin) / MOST_SPANS
    shares: list[dict[str, float]] = [{} for _ in range(MOST_SPANS)]
    for kind, first, last in spans:
        for part in range(int((first - begin) / width), min(MOST_SPANS, int((last - begin) / width) + 1)):
            low = begin + part * width
            inside = min(last, low + width) - max(first, low)
            shares[part][kind] = shares[part].get(kind, 0.0) + max(0.0, inside)
    kinds = [max(share, key=lambda kind: share[kind], default="training") for share in shares]
    return _merged([(kind, begin + at * width, begin + (at + 1) * width) for at, kind in enumerate(kinds)])
