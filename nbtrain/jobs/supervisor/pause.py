"""A paused job: its ranks have saved and left, and its supervisor waits until it is resumed or stopped.

It is the same job before and after: the pause is no restart and no end. While it is paused, the job has no
process but its supervisor, so its devices and memory are free for others. If the supervisor dies meanwhile
(a restart of the machine), the job is LOST like any other, and a resume goes on as a new job.

On Kubernetes the pods would keep the devices: once the ranks have saved, whoever asked for the pause has the
engine end the pods, this supervisor with them, and the job is handed over to the pods of its resume.
"""

from nbtrain.base.jobstate import CANCELLED, SUSPENDED
from nbtrain.base.rundir import JobDir
from nbtrain.jobs.control import asked_pause
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.signals import ALLOCATION, ENGINE, LOOK_SECONDS, PAUSE, REQUEST, Asked
from nbtrain.jobs.supervisor.verdict import Verdict


def is_paused(asked: Asked, verdict: Verdict) -> bool:
    """Whether the ranks left for a pause; an attempt that ended the run, or failed, is no pause."""
    return asked.why == PAUSE and verdict.state == CANCELLED


def look(job: JobDir, journal: Journal, asked: Asked) -> None:
    """Show that the supervisor lives, and see whether another machine asks for its end."""
    journal.sign_of_life()
    asked.read_ask(job)


def hold(job: JobDir, journal: Journal, asked: Asked, verdict: Verdict) -> Verdict | None:
    """SUSPENDED, until the job is resumed; its end if it is stopped meanwhile."""
    asked.stop, asked.why = False, ""
    cause = verdict.cause.replace("stopped on request", "paused on request", 1)
    journal.set_state(SUSPENDED, f"{cause}; `nbtrain resume {job.run.name}` goes on")
    while asked_pause(job):
        asked.save = False  # there is nothing newer than what the pause has saved
        if asked.stop_within(LOOK_SECONDS, lambda: look(job, journal, asked)):
            asked.why = asked.why if asked.why in (ALLOCATION, ENGINE) else REQUEST
            return Verdict(CANCELLED, f"stopped on request while it was paused; before: {cause}")
    journal.event("state", "resumed after a pause")
    return None
