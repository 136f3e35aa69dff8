"""End an earlier job's processes and remove the leftovers of killed processes, before ranks start."""

import itertools
import signal
import time

from nbtrain.base.run_directory import final_record
from nbtrain.base.run_directory.jobstate import RESTARTING
from nbtrain.base.run_directory.observed_state import SIGN_OF_LIFE_SECONDS
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.jobs.attempt import leftovers
from nbtrain.jobs.attempt.ranks import Patience
from nbtrain.jobs.attempt.reserve import READ_ONLY_ERRORS, RESERVE_SUFFIX
from nbtrain.jobs.machine import processes
from nbtrain.jobs.supervisor.journal import Journal

# A supervisor that lost its job reads that in job.json within SIGN_OF_LIFE_SECONDS, and kills its ranks.
DISPLACED_SECONDS = 2 * SIGN_OF_LIFE_SECONDS
POLL_SECONDS = 0.1


def wait_for_displaced(journal: Journal) -> None:
    """Wait for the supervisor that lost this job to exit: its ranks and ours must not write to the same
    model/.

    On another host its end cannot be seen, so it gets DISPLACED_SECONDS.
    """
    displaced, deadline = journal.displaced, time.monotonic() + DISPLACED_SECONDS
    if displaced is None or displaced.gone():
        return
    named = f"supervisor {displaced.pid} on {displaced.host}, which had this job"
    waits = f"waiting up to {DISPLACED_SECONDS:g} s for {named}, to kill its ranks and exit"
    journal.set_state(RESTARTING, waits)
    while not displaced.gone():
        if time.monotonic() >= deadline:
            if not displaced.elsewhere():
                journal.event("warning", f"{named}, has not left in {DISPLACED_SECONDS:g} s")
            return
        time.sleep(POLL_SECONDS)


def wait_for_predecessors(journal: Journal, seconds: float) -> None:
    """Wait for the ranks of a job without a supervisor, which may still save: two jobs must not write to the
    same model/.
    """
    job = journal.job
    others = [job_id for job_id in job.run.job_ids() if job_id != job.job_id]
    if left := processes.marked_pids(others):
        many = f"{len(left)} processes of a lost job are" if len(left) > 1 else "1 process of a lost job is"
        said = f"{many} asked to save and exit; waiting up to {seconds:g} s"
        journal.event("warning", said)
        # With backend local the kernel has signalled them; an agent ends its ranks once its supervisor is
        # silent.
        processes.send(left, signal.SIGTERM)
        beats = (job.run.job(other).heartbeats() for other in others)
        patience = Patience(itertools.chain.from_iterable(beats), seconds)
        killed = processes.end_marked(others, patience.over)
        gone = f"they are gone, {len(killed)} of them killed"
        if len(left) == 1:
            gone = "it was killed" if killed else "it has ended by itself"
        journal.event("warning", gone)
    sweep(journal, "an earlier job", None)
    for job_id in others:
        if record := JobRecord.read(job.run.job(job_id).job_json):
            final_record.forget(record)


def sweep(journal: Journal, author: str, killed_since: float | None) -> None:
    """Remove incomplete files of killed processes."""
    keep = journal.reserve.path if journal.reserve else None
    try:
        for path in leftovers.sweep(journal.job.run, killed_since, keep=keep):
            # Every killed process leaves a reserve, which holds no data.
            if not path.endswith(RESERVE_SUFFIX):
                journal.event("warning", f"removed {path}, left half-written by {author}")
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
