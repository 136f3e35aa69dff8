"""Search in the logs of a run: jobs, nodes, ranks and attempts, read in blocks to use little memory.

The text is compared byte by byte, without patterns. A progress bar is shown as it was when it had the text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.rundir import JobDir
from nbtrain.monitor.logs import log_attempts

# Bytes of a log in memory at a time, twice.
BLOCK_BYTES = 1 << 20
# Characters of a matching line that are shown, around the match.
SHOWN_BYTES = 2000


@dataclass(frozen=True)
class Hit:
    """One line that holds the text."""

    job: str
    """The job's id."""
    log: str
    """The log's file name, such as 3.0.log: rank 3, attempt 0."""
    line_number: int
    """Number of the line, from 1."""
    text: str
    offset_bytes: int = 0
    """Offset in the file at which the line begins, or for a very long line the block with the text."""

    def __str__(self) -> str:
        return f"{self.job}/{self.log}:{self.line_number}: {self.text}"


def search(
    jobs: Iterable[JobDir], text: str, rank: int | None = None, ignore_case: bool = False
) -> Iterator[Hit]:
    """Yield the lines with `text`, job by job, from one rank or from the supervisor, all nodes and all ranks.

    `ignore_case` applies to ASCII letters only.
    """
    for job in jobs:
        ranks = log_attempts(job)
        paths = [
            job.log(number, attempt)
            for number in ranks
            if rank in (None, number)
            for attempt in ranks[number]
        ]
        if rank is None:
            nodes = sorted(
                (job.path / "logs").glob("node*.log"), key=lambda path: (len(path.name), path.name)
            )
            paths = [job.supervisor_log, *nodes, *paths]
        for path in paths:
            yield from search_file(path, text, ignore_case, job.job_id)


def search_file(path: Path, text: str, ignore_case: bool = False, job_id: str = "") -> Iterator[Hit]:
    """Yield the lines of a file with `text`; for a line longer than a block, one hit per matching block."""
    needle = text.encode("utf-8", "replace")
    needle = needle.lower() if ignore_case else needle
    try:
        stream = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with stream:
        lines, rest, start = 0, b"", 0
        while added := stream.read(BLOCK_BYTES):
            block = rest + added
            end = block.rfind(b"\n") + 1
            if not end and len(block) < BLOCK_BYTES:
                rest = block
                continue
            # In a line longer than a block, a text that the block's end splits is found in the next block.
            whole, rest = (
                (block[:end], block[end:]) if end else (block, block[len(block) - len(needle) + 1 :])
            )
            yield from _hits(job_id, path.name, whole, needle, lines, start, ignore_case)
            lines += whole.count(b"\n")
            start += len(block) - len(rest)
        yield from _hits(job_id, path.name, rest, needle, lines, start, ignore_case)


def _hits(
    job_id: str, name: str, block: bytes, needle: bytes, lines_before: int, start: int, ignore_case: bool
) -> Iterator[Hit]:
    """Yield the hits of a block that begins at `start` in the file."""
    compared = block.lower() if ignore_case else block
    counted, lines = 0, lines_before
    found = compared.find(needle)
    while found >= 0:
        lines += block.count(b"\n", counted, found)
        counted = found
        end = block.find(b"\n", found)
        end = len(block) if end < 0 else end
        line_start = start + block.rfind(b"\n", 0, found) + 1
        yield Hit(job_id, name, lines + 1, _shown(block, found, end), line_start)
        found = compared.find(needle, end)


def _shown(block: bytes, found: int, end: int) -> str:
    """Return the part of a line to show: between the carriage returns (progress bars) around the match."""
    start = max(block.rfind(b"\n", 0, found), block.rfind(b"\r", 0, found)) + 1
    redrawn = block.find(b"\r", found, end)
    end = end if redrawn < 0 else redrawn
    start = max(start, found - SHOWN_BYTES // 2)
    return block[start : min(end, start + SHOWN_BYTES)].decode("utf-8", "replace")
