"""What earlier jobs of a run, and killed processes, have left: it is ended and removed before ranks start."""

import itertools
import signal

from nbtrain.base import last_words
from nbtrain.base.records import JobRecord
from nbtrain.jobs.supervisor import leftovers, processes
from nbtrain.jobs.supervisor.journal import Journal
from nbtrain.jobs.supervisor.ranks import Patience
from nbtrain.jobs.supervisor.reserve import READ_ONLY_ERRORS, RESERVE_SUFFIX


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
