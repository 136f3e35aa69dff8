"""Phases of a rank, and the words with which text, HTML, JSON and the browser show them.

A rank has a phase, named as on a cluster's job page, and an activity:

    phase        activity              shown if, or taken from
    Pending, Starting                  no heartbeat yet
    Running      training, saving ...  the phase of its heartbeat, in words: ACTIVITIES
    Succeeded                          the outcome of its exit record: OUTCOMES
    Stopped      on request
    Error        killed by a signal
    Gone         training              its process ended without an exit record; its last activity
    Not started                        its job ended before the rank began
"""

from typing import NamedTuple

from nbtrain.base.run_directory import outcomes
from nbtrain.base.run_directory.jobstate import ACTIVE, LOST, STARTING
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat

PENDING_RANK, STARTING_RANK, NOT_STARTED = "Pending", "Starting", "Not started"
RUNNING_RANK, GONE = "Running", "Gone"
SUCCEEDED_RANK, STOPPED, ERROR = "Succeeded", "Stopped", "Error"
WAITING_PHASES = (PENDING_RANK, STARTING_RANK)
"""Phases of a rank that has not reported anything yet, while its job is active."""

ACTIVITIES = {
    "start": "starting",
    "build": "building the model",
    "load": "loading",
    "train": "training",
    "evaluate": "validating",
    "test": "testing",
    "save": "saving",
    "end": "shutting down",
}
"""Text of each phase of a heartbeat."""
LEAVING_PHASES = ("save", "end")
"""Phases of a heartbeat in which a rank that was asked to stop is stopping."""
OUTCOMES = {
    outcomes.FINISHED: (SUCCEEDED_RANK, ""),
    outcomes.STOPPED: (STOPPED, "on request"),
    outcomes.ROLLBACK: (STOPPED, "to resume from a checkpoint"),
    outcomes.FAILED: (ERROR, ""),
    outcomes.KILLED: (ERROR, "killed by a signal"),
}
"""{outcome of an exit record (outcomes.py): (phase of the rank, text about its end)}."""


class RankPhase(NamedTuple):
    """The phase of a rank with its activity."""

    phase: str
    """Phase of the rank, such as "Running"."""
    activity: str
    """Activity of the rank, such as "training", or how the rank ended; "" if the phase says it all."""

    @property
    def words(self) -> str:
        """The phase with its activity: "Running (training)"."""
        return f"{self.phase} ({self.activity})" if self.activity else self.phase

    @property
    def short(self) -> str:
        """The activity of a running rank, and the phase of any other."""
        return self.activity if self.phase == RUNNING_RANK and self.activity else self.phase


def activity_of(phase: str) -> str:
    """Return the words for a phase of a heartbeat.

    A phase of another version of nbtrain is returned unchanged.
    """
    return ACTIVITIES.get(phase, phase)


def phase_of_rank(state: str, attempt: int, beat: Heartbeat | None, ended: ExitRecord | None) -> RankPhase:
    """Return the phase of a rank, from its newest heartbeat and its exit record of the newest attempt.

    `state` is the state of the rank's job, and `attempt` is the job's newest attempt.
    """
    if ended is not None:
        return RankPhase(*OUTCOMES.get(ended.outcome, (STOPPED, ended.outcome)))
    active = state in ACTIVE
    # The heartbeat of an earlier attempt says nothing about this attempt.
    if beat is not None and (beat.attempt == attempt or not active):
        live = active and not beat.process.gone()
        return RankPhase(RUNNING_RANK if live else GONE, activity_of(beat.phase))
    if active:
        return RankPhase(STARTING_RANK if state == STARTING else PENDING_RANK, "")
    return RankPhase(GONE if state == LOST else NOT_STARTED, "")
