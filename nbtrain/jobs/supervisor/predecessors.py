"""Leftovers of a run's earlier jobs and of killed processes: ended and removed before ranks start."""

import itertools
import signal
import time

from nbtrain.base import last_words
from nbtrain.base.jobstate import RESTARTING, SIGN_OF_LIFE_SECONDS
from nbtrain.base.records import JobRecord
from nbtrain.jobs.supervisor import leftovers, processes
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.ranks import Patience
from nbtrain.jobs.supervisor.reserve import READ_ONLY_ERRORS, RESERVE_SUFFIX

# A supervisor that has lost its job reads so in job.json within SIGN_OF_LIFE_SECONDS, and kills its ranks.
DISPLACED_SECONDS = 2 * SIGN_OF_LIFE_SECONDS
LOOK_SECONDS = 0.1


def wait_for_displaced(journal: Journal) -> None:
    """The supervisor that has lost this job may still live: its ranks and ours must not share model/.

    On another host it cannot be seen to leave, and has DISPLACED_SECONDS.
    """
    displaced, deadline = journal.displaced, time.monotonic() + DISPLACED_SECONDS
    if displaced is None or displaced.gone():
        return
    named = f"supervisor {displaced.pid} on {displaced.host}, which had this job"
    waits = f"waits up to {DISPLACED_SECONDS:g} s for {named}, to kill its ranks and leave"
    journal.set_state(RESTARTING, waits)
    while not displaced.gone():
        if time.monotonic() >= deadline:
            if not displaced.elsewhere():
                journal.event("warning", f"{named}, has not left in {DISPLACED_SECONDS:g} s")
            return
        time.sleep(LOOK_SECONDS)


def wait_for_predecessors(journal: Journal, seconds: float) -> None:
    """Ranks of an earlier job whose supervisor died may still be saving; two jobs must not share model/."""
    job = journal.job
    others = [job_id for job_id in job.run.job_ids() if job_id != job.job_id]
    if left := processes.marked_pids(others):
        said = f"{len(left)} processes of a lost job are asked to save and leave; waits up to {seconds:g} s"
        journal.event("warning", said)
        # Of backend local the kernel has asked them; an agent keeps its ranks until it misses the supervisor.
        processes.send(left, signal.SIGTERM)
        beats = (job.run.job(other).heartbeats() for other in others)
        patience = Patience(itertools.chain.from_iterable(beats), seconds)
        killed = processes.end_marked(others, patience.over)
        journal.event("warning", f"they are gone, {len(killed)} of them killed")
    sweep(journal, "an earlier job", None)
    for job_id in others:
        if record := JobRecord.read(job.run.job(job_id).job_json):
            last_words.forget(record)


def sweep(journal: Journal, author: str, killed_since: float | None) -> None:
    """Remove what killed processes have left half-written."""
    keep = journal.reserve.path if journal.reserve else None
    try:
        for path in leftovers.sweep(journal.job.run, killed_since, keep=keep):
            # A reserve is what every process that was killed leaves: it holds nothing.
            if not path.endswith(RESERVE_SUFFIX):
                journal.event("warning", f"removed {path}, left half-written by {author}")
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
