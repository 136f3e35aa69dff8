"""The phases of an attempt, and what is due in each of them: pure, from what was observed and the time.

    RUNNING -> LOSING_PEERS -> ENDED        a rank failed; the others wait for it in a collective that cannot
    end
       |            |
       +-> STOPPING +-> ENDED               asked to stop, or the launcher was killed, which tells the ranks
       to stop

All times are the supervisor's own monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum

# Peers of a dead rank wait in a collective that cannot end; this is for their last words.
PEER_GRACE_SECONDS = 10.0
# Before its first step a rank has nothing to save.
EARLY_STOP_SECONDS = 5.0
# A save in a busy machine, or one that meets another save, takes longer than the ones before.
SAVE_TIMES = 2.0
# Between the signal to the ranks and the kill, once their patience_seconds are over.
TERM_GRACE_SECONDS = 3.0
# A wrapper writes the record of its rank's end in much less; a wrapper that does not is gone itself.
RECORD_SECONDS = 2.0


class Phase(StrEnum):
    """Where an attempt stands."""

    RUNNING = "running"
    STOPPING = "stopping"
    LOSING_PEERS = "losing peers"
    ENDED = "ended"


class Action(StrEnum):
    """What is due."""

    KEEP = "keep"
    SIGNAL = "signal"
    """Send SIGTERM to every rank."""
    KILL = "kill"


@dataclass(frozen=True)
class Observed:
    """One look at an attempt."""

    patience_seconds: float
    """How long ranks may take to save and leave: patience_seconds()."""
    training: bool = False
    """Whether rank 0 is past loading: only then is there something to save."""
    launcher_ended: bool = False
    launcher_killed_at: float | None = None
    """Since when the launcher is known to be dead by a signal that was not the supervisor's."""
    processes_left: bool = True
    """Whether any process of the job is left after the launcher's end."""
    killed: bool = False
    """Whether the supervisor has killed the ranks."""
    stop_asked_at: float | None = None
    stop_now: bool = False
    signalled_at: float | None = None
    """When the ranks got SIGTERM."""
    failed_at: float | None = None
    """Since when a rank is known to have failed."""
    hangs: bool = False
    """Whether a rank makes no progress for longer than it may."""


def patience_seconds(shutdown_timeout_seconds: float, save_seconds: float) -> float:
    """How long ranks that are asked to stop may take: the limit that is set, or twice the longest save."""
    return max(shutdown_timeout_seconds, SAVE_TIMES * save_seconds)


def phase_of(observed: Observed) -> Phase:
    """The phase, from the most final one to RUNNING."""
    if observed.launcher_ended:
        may_save = observed.launcher_killed_at is not None and not observed.killed and observed.processes_left
        return Phase.STOPPING if may_save else Phase.ENDED
    if observed.stop_asked_at is not None:
        return Phase.STOPPING
    return Phase.RUNNING if observed.failed_at is None else Phase.LOSING_PEERS


def decide(observed: Observed, now: float) -> Action:
    """What is due now."""
    match phase_of(observed):
        case Phase.ENDED:
            return Action.KEEP
        case Phase.STOPPING:
            return _while_stopping(observed, now)
        case Phase.LOSING_PEERS:
            assert observed.failed_at is not None
            grace = min(PEER_GRACE_SECONDS, observed.patience_seconds)
            return Action.KILL if now - observed.failed_at > grace else Action.KEEP
        case Phase.RUNNING:
            return Action.KILL if observed.hangs else Action.KEEP


def _while_stopping(observed: Observed, now: float) -> Action:
    if observed.stop_now:
        return Action.KILL
    patience = observed.patience_seconds
    if not observed.training:
        patience = min(patience, EARLY_STOP_SECONDS)
    if observed.launcher_ended:
        # Its death was the signal.
        assert observed.launcher_killed_at is not None
        return Action.KILL if now - observed.launcher_killed_at > patience else Action.KEEP
    assert observed.stop_asked_at is not None
    over = now - observed.stop_asked_at >= patience
    if observed.signalled_at is None:
        # A rank that is still importing looks at control/ only after its first step.
        return Action.SIGNAL if over or not observed.training else Action.KEEP
    return Action.KILL if over and now - observed.signalled_at > TERM_GRACE_SECONDS else Action.KEEP
