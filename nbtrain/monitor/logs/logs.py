"""A job's logs: lists them, reads their ends, and follows them as they grow."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts

SUPERVISOR = "supervisor"
NODE = re.compile(r"node(\d+)")

# Maximum number of bytes read at a time, about 2,000 lines.
READ_LIMIT_BYTES = 256 * 1024
# Bytes that tail_lines() reads per requested line; few lines are longer.
TAIL_LINE_BYTES = 1024
FOLLOW_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class LogPart:
    """Part of a log file."""

    text: str
    start_bytes: int
    """Offset of the part in the file."""
    end_bytes: int
    """Offset from which to continue reading."""
    size_bytes: int
    """Current size of the whole file."""
    first_line: int | None = None
    """Line number of the part's first line, starting at 1; None if it was not counted (log_lines.py)."""


def log_attempts(job: JobDir) -> dict[int, list[int]]:
    """Return {rank: attempts that have a log}, both in ascending order."""
    found: dict[int, list[int]] = {}
    for path in job.logs.glob("*.*.log"):
        rank, attempt, _ = path.name.split(".")
        if rank.isdigit() and attempt.isdigit():
            found.setdefault(int(rank), []).append(int(attempt))
    return {rank: sorted(found[rank]) for rank in sorted(found)}


def checked_rank(run: str, rank: int, world_size: int) -> int:
    """Return `rank` if the run has it. Raises ConfigError if it does not."""
    if not 0 <= rank < world_size:
        numbers = f"0 to {world_size - 1}" if world_size > 1 else "0"
        raise ConfigError(
            f"rank {rank} does not exist: {run} has {amounts.counted(world_size, 'rank')} ({numbers}). "
            "Instead of a rank, you can name `supervisor` or, with several machines, a node such as node0."
        )
    return rank


def log_of_attempt(job: JobDir, rank: int, attempt: int) -> Path:
    """Return the path of a rank's log in an attempt. Raises ConfigError if there is no such log."""
    attempts = log_attempts(job).get(rank, [])
    if attempt not in attempts:
        numbers = ", ".join(map(str, attempts))
        noun = "attempt" if len(attempts) == 1 else "attempts"
        known = f"it has logs of {noun} {numbers}" if attempts else "it has no logs"
        raise ConfigError(f"rank {rank} of job {job.job_id} has no log of attempt {attempt}; {known}.")
    return job.log(rank, attempt)


def log_path(job: JobDir, rank: int | str = 0, attempt: int | None = None) -> Path:
    """Return the path of a log: of a rank, of "supervisor", or of a machine such as "node0".

    For a rank, the default is the newest attempt. The file need not exist.
    """
    if rank == SUPERVISOR:
        return job.supervisor_log
    if match := NODE.fullmatch(str(rank)):
        return job.node_log(int(match[1]))
    attempts = log_attempts(job).get(int(rank), [])
    return job.log(int(rank), attempt if attempt is not None else attempts[-1] if attempts else 0)


def read_log(path: Path, offset_bytes: int | None = None, limit_bytes: int = READ_LIMIT_BYTES) -> LogPart:
    """Read at most `limit_bytes` of a log from an offset; without an offset, read the end of the file.

    If possible, the part begins and ends at line breaks. A missing file is treated as empty. Invalid UTF-8
    becomes U+FFFD.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            start = max(0, size - limit_bytes) if offset_bytes is None else min(max(0, offset_bytes), size)
            stream.seek(start)
            content = stream.read(limit_bytes)
    except FileNotFoundError:
        return LogPart("", 0, 0, 0)
    if offset_bytes is None and start > 0 and b"\n" in content:
        first = content.index(b"\n") + 1
        start, content = start + first, content[first:]
    if start + len(content) < size and b"\n" in content:
        # The file has more: stop at a line break, so that no character is split.
        content = content[: content.rindex(b"\n") + 1]
    return LogPart(content.decode("utf-8", "replace"), start, start + len(content), size)


def tail_lines(path: Path, num_lines: int) -> list[str]:
    """Return the last non-empty lines of a log, without line breaks.

    A progress bar is one line, in its last state. If lines are longer than TAIL_LINE_BYTES on average, fewer
    lines are returned.
    """
    text = read_log(path, limit_bytes=TAIL_LINE_BYTES * max(1, num_lines)).text
    lines = [line for line in _lines(text) if line.strip()]
    return lines[-num_lines:] if num_lines > 0 else []


def _lines(text: str) -> list[str]:
    """Split a log into lines. Keep only the last state of a progress bar, which rewrites its line."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")]


def follow(run: RunDir, rank: int | str = 0, from_start: bool = False) -> Iterator[str]:
    """Yield the lines that are added to a rank's log, until the newest job ends.

    When a new attempt or job begins, its log is followed from the start; with `from_start`, the first log is
    too. At most READ_LIMIT_BYTES are in memory at a time; a longer line is yielded in pieces.
    """
    path, offset = None, 0
    while (job := run.newest_job()) is not None:
        # Read the state before the log, so that no line written before the end is missed.
        active = read_state(job, time.time())[0] in ACTIVE
        newest = log_path(job, rank)
        if path is None:
            path, offset = newest, 0 if from_start else read_log(newest, limit_bytes=1).size_bytes
        # A newer log means that the attempt of this log has ended, perhaps in the middle of a line.
        ended = newest != path
        while content := _added(path, offset, to_the_end=ended or not active):
            offset += len(content)
            yield from _lines(content.decode("utf-8", "replace"))
        if ended:
            path, offset = newest, 0
            continue
        if not active:
            return
        time.sleep(FOLLOW_POLL_SECONDS)


def _added(path: Path, offset_bytes: int, to_the_end: bool) -> bytes:
    """Read complete lines after an offset, at most READ_LIMIT_BYTES; b"" if there are no complete lines.

    With `to_the_end`, an unfinished last line is read too.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(offset_bytes)
            content = stream.read(READ_LIMIT_BYTES)
    except FileNotFoundError:
        return b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole or len(content) == READ_LIMIT_BYTES:
        return whole or content
    return content if to_the_end else b""
