"""Before ranks start: end an earlier job's processes, and remove the leftovers of killed processes."""

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

# Seconds to wait for a supervisor that lost its job: it reads that in job.json within SIGN_OF_LIFE_SECONDS,
# then kills its ranks.
DISPLACED_SECONDS = 2 * SIGN_OF_LIFE_SECONDS
POLL_SECONDS = 0.1


def wait_for_displaced(journal: Journal) -> None:
    """Wait until the supervisor that lost this job has exited.

    Otherwise, its ranks and the new ones could write to the same model/ folder. On another host its exit
    cannot be observed, so the wait takes DISPLACED_SECONDS.
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
                said = f"{named}, has not exited within {DISPLACED_SECONDS:g} s; the job continues without it"
                journal.event("warning", f"{said}. If it is still running, kill process {displaced.pid}")
            return
        time.sleep(POLL_SECONDS)


def wait_for_predecessors(journal: Journal, seconds: float) -> None:
    """End the processes of the run's earlier jobs; wait up to `seconds` for ranks that are still saving.

    Two jobs must not write to the same model/ folder.
    """
    job = journal.job
    others = [job_id for job_id in job.run.job_ids() if job_id != job.job_id]
    if left := processes.marked_pids(others):
        many = f"{len(left)} processes of a lost job are" if len(left) > 1 else "1 process of a lost job is"
        said = f"{many} asked to save and exit; waiting up to {seconds:g} s"
        journal.event("warning", said)
        # With backend local, the kernel has already signalled the ranks; with other backends, an agent ends
        # its ranks once its supervisor is silent.
        processes.send(left, signal.SIGTERM)
        beats = (job.run.job(other).heartbeats() for other in others)
        patience = Patience(itertools.chain.from_iterable(beats), seconds)
        killed = processes.end_marked(others, patience.over)
        gone = f"the processes of the lost job have exited; {len(killed)} of them had to be killed"
        if not killed:
            gone = "the processes of the lost job have exited by themselves"
        if len(left) == 1:
            how = "had to be killed" if killed else "has exited by itself"
            gone = f"the process of the lost job {how}"
        journal.event("warning", gone)
    sweep(journal, "an earlier job", None)
    # The job's previous allocation may have been lost while the run's first checkpoint was being written. The
    # next attempt would find no complete checkpoint and fail.
    if (lost := journal.lost_attempt) is not None:
        sweep(journal, f"attempt {lost.attempt}", lost.started_at)
    for job_id in others:
        if record := JobRecord.read(job.run.job(job_id).job_json):
            final_record.forget(record)


def sweep(journal: Journal, author: str, since: float | None) -> None:
    """Remove the incomplete files of ended processes, and report them as events that name `author`.

    Incomplete checkpoints are removed if they were written at or after the time `since`; None keeps them.
    """
    keep = journal.reserve.path if journal.reserve else None
    try:
        for path in leftovers.sweep(journal.job.run, since, keep=keep):
            # Every killed process leaves a reserve file, which contains no data.
            if not path.endswith(RESERVE_SUFFIX):
                journal.event("warning", f"removed {path}, left half-written by {author}")
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
