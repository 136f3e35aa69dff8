"""Finds the traceback of a failed job, usually in the log of the rank that failed first.

If the rank could report its failure, the traceback is in exit/<rank>.<attempt>.json; otherwise it may be in
the rank's log. For a rank that hung, the stack is in the supervisor's event. If no rank has started, the
launcher may have written a traceback to the supervisor's log or, with several machines, to a node's log.
"""

import time

from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ExitRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.monitor.logs.logs import SUPERVISOR, log_attempts, log_path, read_log
from nbtrain.monitor.status.status_records import job_with_end

TRACEBACK = "Traceback (most recent call last):"
# Number of bytes searched at the end of a log.
SEARCHED_BYTES = 1 << 20


def failed_rank(job: JobDir) -> int | str:
    """Return the rank that failed first in a job's newest attempt; 0 if unknown or if it has no log.

    If no rank has a log, return the name of a log with a traceback, or of one that is not empty: "supervisor"
    or a node such as "node0". If there is no such log, return 0.
    """
    attempts = log_attempts(job)
    if not attempts:
        nodes = [path.stem for path in job.node_logs()]
        said = [log for log in (SUPERVISOR, *nodes) if read_log(log_path(job, log), limit_bytes=1).size_bytes]
        return next((log for log in said if last_traceback(job, log)), said[0] if said else 0)
    record = job_with_end(job, time.time())[0]
    newest = record.newest_attempt if record else None
    return newest.failed_rank if newest and newest.failed_rank in attempts else 0


def whose(rank: int | str) -> str:
    """Name a rank or log in a sentence: "rank 0", "the supervisor's log" or "the log of node0"."""
    if rank == SUPERVISOR:
        return "the supervisor's log"
    return f"rank {rank}" if isinstance(rank, int) else f"the log of {rank}"


def last_traceback(job: JobDir, rank: int | str) -> str | None:
    """Return the newest traceback of a rank, or the stack of a rank that hung; None if neither exists.

    For "supervisor" or a machine such as "node0", return the last traceback in its log.
    """
    if isinstance(rank, str):
        return traceback_in(read_log(log_path(job, rank), limit_bytes=SEARCHED_BYTES).text)
    for attempt in reversed(log_attempts(job).get(rank, [])):
        ended = ExitRecord.read(job.exit_record(rank, attempt))
        if ended and ended.detail.startswith("Traceback"):
            return ended.detail.rstrip()
        if logged := traceback_in(read_log(job.log(rank, attempt), limit_bytes=SEARCHED_BYTES).text):
            return logged
        hung = [event for event in read_events(job) if event["kind"] == "hang" and event.get("rank") == rank]
        if hung and hung[-1].get("stack"):
            frames = "\n".join(f"  {frame}" for frame in hung[-1]["stack"])
            return f"Stack of the hanging rank, innermost frame first:\n{frames}"
    return None


def traceback_in(text: str) -> str | None:
    """Return the last traceback in a text, including the line with its exception; None without one."""
    start = text.rfind(TRACEBACK)
    if start < 0:
        return None
    # If the first line has a prefix, every line of the traceback has it; lines of other threads differ.
    before = text[text.rfind("\n", 0, start) + 1 : start]
    lines = []
    for line in text[start - len(before) :].splitlines():
        said = line.removeprefix(before)
        lines.append(said)
        if len(lines) > 1 and not said.startswith(" "):
            break
    return "\n".join(lines)
