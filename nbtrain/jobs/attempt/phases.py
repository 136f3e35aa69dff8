"""The phases of an attempt, and the action that is due in each, derived from observations and the time.

    RUNNING -> LOSING_PEERS -> ENDED        a rank failed; the others wait for it in a collective that
       |            |                       cannot end
       +-> STOPPING +-> ENDED               a stop was requested, or the launcher was killed, which makes the
                                            ranks stop

All times are on the supervisor's own monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum

from nbtrain.base.run_directory.checkpoint_files import measured_save_seconds
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.schema import RunConfig

# Seconds for the peers of a dead rank to write their last log lines; their collective cannot end.
PEER_GRACE_SECONDS = 10.0
# Seconds for a rank to exit before its first step, when it has nothing to save.
EARLY_STOP_SECONDS = 5.0
# Factor on the longest measured save: a save on a busy machine, or one that overlaps another, takes longer.
SAVE_TIMES = 2.0
# Factor on patience_seconds: the largest total time for ranks that are still writing a checkpoint.
CAP_TIMES = 10.0
# Seconds between SIGTERM to the ranks and the kill, once their patience_seconds are over.
TERM_GRACE_SECONDS = 3.0
# Seconds for a wrapper to record its rank's end. It needs much less; after that, the wrapper itself is gone.
RECORD_SECONDS = 2.0


class Phase(StrEnum):
    """Phase of an attempt; the diagram above shows which phase can follow which."""

    RUNNING = "running"
    STOPPING = "stopping"
    LOSING_PEERS = "losing peers"
    ENDED = "ended"


class Action(StrEnum):
    """Action that is due; KEEP leaves the ranks alone, and KILL kills them."""

    KEEP = "keep"
    SIGNAL = "signal"
    """Send SIGTERM to every rank."""
    KILL = "kill"


@dataclass(frozen=True)
class Observed:
    """One observation of an attempt."""

    patience_seconds: float
    """Seconds that ranks may take to save and exit; see patience_seconds()."""
    saving_at: float | None = None
    """Time at which a rank last showed that it is saving or exiting; None if no rank is."""
    training: bool = False
    """Whether rank 0 has finished loading. Before that, there is nothing to save."""
    launcher_ended: bool = False
    launcher_killed_at: float | None = None
    """Time at which the launcher was found killed by another process's signal; None if it was not killed."""
    processes_left: bool = True
    """Whether any process of the job is left after the launcher has ended."""
    killed: bool = False
    """Whether the supervisor has killed the ranks."""
    stop_asked_at: float | None = None
    stop_now: bool = False
    signalled_at: float | None = None
    """Time at which SIGTERM was sent to the ranks."""
    failed_at: float | None = None
    """Time at which a failed rank was first seen; None if no rank has failed."""
    hangs: bool = False
    """Whether a rank has made no progress for longer than its limit."""


def patience_seconds(shutdown_timeout_seconds: float, save_seconds: float) -> float:
    """Return the seconds that ranks may take to stop: the larger of the limit and twice the longest save."""
    return max(shutdown_timeout_seconds, SAVE_TIMES * save_seconds)


def stop_patience_seconds(run: RunDir, config: RunConfig) -> float:
    """Return patience_seconds() of a run, from the saves measured so far."""
    return patience_seconds(config.backend.shutdown_timeout_seconds, measured_save_seconds(run))


def cap_seconds(patience: float) -> float:
    """Return the seconds after which ranks are killed even if they are still writing."""
    return CAP_TIMES * patience


def time_is_over(now: float, asked_at: float, patience: float, saving_at: float | None) -> bool:
    """Return whether ranks that were asked to exit have used up their time.

    They have `patience` seconds from the request or from the last sign that they are still saving, but no
    more than cap_seconds() in all.
    """
    if saving_at is not None and now - asked_at < cap_seconds(patience):
        asked_at = max(asked_at, saving_at)
    return now - asked_at >= patience


def phase_of(observed: Observed) -> Phase:
    """Return the phase of an attempt.

    Once the launcher has ended, the phase is ENDED, or STOPPING while ranks may still save because another
    process killed the launcher. Before that, a requested stop takes precedence over a failed rank.
    """
    if observed.launcher_ended:
        may_save = observed.launcher_killed_at is not None and not observed.killed and observed.processes_left
        return Phase.STOPPING if may_save else Phase.ENDED
    if observed.stop_asked_at is not None:
        return Phase.STOPPING
    return Phase.RUNNING if observed.failed_at is None else Phase.LOSING_PEERS


def decide(observed: Observed, now: float) -> Action:
    """Return the action that is due at the time `now`."""
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
    since = observed.launcher_killed_at if observed.launcher_ended else observed.stop_asked_at
    assert since is not None
    over = time_is_over(now, since, patience, observed.saving_at)
    if observed.launcher_ended:
        # The ranks have already been signalled by the launcher's death.
        return Action.KILL if over else Action.KEEP
    if observed.signalled_at is None:
        # A rank that is still importing reads control/ only after its first step.
        return Action.SIGNAL if over or not observed.training else Action.KEEP
    return Action.KILL if over and now - observed.signalled_at > TERM_GRACE_SECONDS else Action.KEEP
