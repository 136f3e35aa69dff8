"""States of a job: their order, their meaning, and the tone in which every view shows them.

    QUEUED -> STARTING -> RUNNING -> SUCCEEDED
                 ^           |  \\-> FAILED
                 |           |   \\-> CANCELLED
                 +-RESTARTING+
                 +-SUSPENDED-+

LOST is derived by readers (observed_state.py) and never written; so is SUSPENDED if a scheduler holds the
job.

No other module spells a state; tests/test_architecture.py refuses such literals. This module imports nothing
of nbtrain, because the configuration and `nbtrain help` load it.
"""

from typing import Literal, get_args

QUEUED = "QUEUED"
STARTING = "STARTING"
RUNNING = "RUNNING"
RESTARTING = "RESTARTING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
LOST = "LOST"
SUSPENDED = "SUSPENDED"
NO_JOB = "NEW"
"""State of a run before its first job."""
DAMAGED = "DAMAGED"
"""State of a run with an unreadable record."""

MEANING = {
    QUEUED: "submitted; waiting for its devices or for its supervisor to start",
    STARTING: "the supervisor runs and has started the ranks",
    RUNNING: "the ranks are training",
    RESTARTING: "a rank failed; waiting before the next attempt",
    SUCCEEDED: "all tokens are trained and saved, or mode: eval or perf has done its work",
    FAILED: "ended by an error, which the cause names",
    CANCELLED: "stopped on request; can be resumed",
    SUSPENDED: "paused, or held by its scheduler, without devices; continues when it is resumed",
    LOST: "its supervisor is gone and left no message; can be resumed",
}
"""Meaning of each state of a job."""
RUN_MEANING = MEANING | {NO_JOB: "no job was submitted", DAMAGED: "cannot be read"}
"""Meaning of each state of a run: the state of its newest job, NEW or DAMAGED."""
ACTIVE = frozenset({QUEUED, STARTING, RUNNING, RESTARTING, SUSPENDED})
"""States of a job that has a supervisor, or will get one."""
FINAL = frozenset({SUCCEEDED, FAILED, CANCELLED, LOST})
FAILURES = frozenset({FAILED, LOST})
"""Final states that no user requested."""
RecordedEnd = Literal["SUCCEEDED", "FAILED", "CANCELLED"]
"""A final state that a supervisor records. LOST is not one of them: it means that the supervisor is gone."""
RECORDED_ENDS: tuple[RecordedEnd, ...] = get_args(RecordedEnd)

Tone = Literal["live", "good", "wait", "bad", "calm"]
TONES: dict[str, Tone] = {
    RUNNING: "live",
    SUCCEEDED: "good",
    QUEUED: "wait",
    STARTING: "wait",
    RESTARTING: "wait",
    FAILED: "bad",
    LOST: "bad",
}
"""Tone of a state, from which each view chooses its color; all other states are calm."""


def tone_of(state: str) -> Tone:
    """Return the tone of a state of a job or run."""
    return TONES.get(state, "calm")
