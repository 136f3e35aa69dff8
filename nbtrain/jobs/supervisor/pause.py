"""A paused job: its ranks have saved and exited, and its supervisor waits until it is resumed or stopped.

It stays the same job: a pause is neither a restart nor an end. While the job is paused, its supervisor is its
only process, so its devices and memory are free for other jobs. If the supervisor dies meanwhile, for example
because the machine restarts, the job is LOST like any other, and a resume starts a new job.

On Kubernetes, the pods would keep the devices. Therefore, once the ranks have saved, the process that
requested the pause makes the cluster delete the pods, including this supervisor's, and new pods continue the
job on resume. In a Slurm allocation, the supervisor exits by itself, and a resume submits the job again.
"""

import time

from nbtrain.base.run_directory.end_kinds import ALLOCATION as ALLOCATION_LOST
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import CANCELLED, RESTARTING, RUNNING, STARTING, SUSPENDED
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.jobs.attempt.verdict import STOPPED, Verdict
from nbtrain.jobs.control.control import asked_pause
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.signals import ALLOCATION, ENGINE, PAUSE, POLL_SECONDS, REQUEST, SignalRequests

# States in which a job has its devices: its ranks are running, or will be restarted.
WITH_RANKS = (STARTING, RUNNING, RESTARTING)


def is_paused(requests: SignalRequests, verdict: Verdict) -> bool:
    """Return whether the ranks exited because of a pause, and not because the run ended or failed."""
    return requests.why == PAUSE and verdict.state == CANCELLED


def poll_requests(job: JobDir, journal: Journal, requests: SignalRequests) -> None:
    """Renew the sign of life, and read requests from other machines to end the job."""
    journal.sign_of_life()
    requests.read_ask(job)


def paused_words(job: JobDir, verdict: Verdict) -> str:
    """Return the cause that is shown with SUSPENDED."""
    cause = verdict.cause.replace(STOPPED, "paused on request", 1)
    return f"{cause}; `nbtrain resume {job.run.name}` continues it"


def stopped_while_paused(cause: str) -> Verdict:
    """Return the verdict on a job that was stopped while paused; `cause` is the cause of its pause."""
    pause = cause.partition("; `nbtrain resume")[0]
    return Verdict(CANCELLED, f"{STOPPED} while the job was paused ({pause})")


def paused_before(job: JobDir, record: JobRecord) -> float:
    """Return the seconds for which the job was paused or waited for its devices under earlier supervisors.

    A job waits for its devices after a preemption, and after its allocation has ended or was lost, until the
    ranks start again. Time counts once even if the job was paused during such a wait.
    """
    now = time.time()
    preempted = [(preemption.preempted_at, preemption.resumed_at or now) for preemption in record.preemptions]
    spans = [*preempted, *_without_ranks(job, now), *_lost_allocations(record, now)]
    seconds, counted_until = 0.0, now if record.started_at is None else record.started_at
    for begin, end in sorted(spans):
        seconds += max(0.0, end - max(begin, counted_until))
        counted_until = max(counted_until, end)
    return seconds


def _without_ranks(job: JobDir, now: float) -> list[tuple[float, float]]:
    """Return the spans (begin, end) during which the job had no ranks; a span that still lasts ends now."""
    told = [event for event in read_events(job) if event["kind"] == "state" and "state" in event]
    spans = []
    began: float | None = None
    for state, at in [*((event["state"], event["time"]) for event in told), (STARTING, now)]:
        if state not in WITH_RANKS:
            began = at if began is None else began
        elif began is not None:
            spans.append((began, at))
            began = None
    return spans


def _lost_allocations(record: JobRecord, now: float) -> list[tuple[float, float]]:
    """Return the spans (begin, end) between the loss of an allocation and the next attempt.

    A span begins at the lost allocation's last sign of life, and ends now if no attempt has followed.
    """
    starts = [*(attempt.started_at for attempt in record.attempts[1:]), now]
    return [
        (attempt.ended_at, start)
        for attempt, start in zip(record.attempts, starts)
        if attempt.reason == ALLOCATION_LOST and attempt.ended_at is not None
    ]


def hold(job: JobDir, journal: Journal, requests: SignalRequests, verdict: Verdict) -> Verdict | None:
    """Stay SUSPENDED until the job is resumed, and return None.

    If the job is stopped first, return its verdict instead.
    """
    if requests.why == PAUSE:
        # A stop may have been requested since the ranks exited, for example while devices were released.
        requests.stop, requests.why = False, ""
    journal.forget_request()
    cause = paused_words(job, verdict)
    journal.set_state(SUSPENDED, cause)
    while asked_pause(job):
        requests.save = False  # the pause has saved everything
        if requests.stop_within(POLL_SECONDS, lambda: poll_requests(job, journal, requests)):
            requests.why = requests.why if requests.why in (ALLOCATION, ENGINE) else REQUEST
            return stopped_while_paused(cause)
    journal.event("state", "resumed after a pause")
    return None
