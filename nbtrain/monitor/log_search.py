"""Searching the logs of a job: every rank and attempt, in blocks, so that a long log takes little memory.

The text is compared byte by byte, as it stands. A redrawn progress bar is shown as drawn with the text.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.rundir import JobDir
from nbtrain.monitor.logs import SUPERVISOR, log_attempts

# What is held of a log at a time, twice.
BLOCK_BYTES = 1 << 20
# Of a line that matches, this much is shown, around the match.
SHOWN_BYTES = 2000


@dataclass(frozen=True)
class Hit:
    """One line that holds the text."""

    log: str
    """The log's file name, such as 3.0.log: rank 3, attempt 0."""
    line_number: int
    """From 1."""
    text: str

    def __str__(self) -> str:
        return f"{self.log}:{self.line_number}: {self.text}"


def search(job: JobDir, text: str, rank: int | None = None, ignore_case: bool = False) -> Iterator[Hit]:
    """Lines with `text`, of one rank or of the supervisor and all ranks, attempt by attempt.

    `ignore_case` is about the letters of English.
    """
    if rank is None:
        yield from search_file(job.supervisor_log, text, ignore_case)
    for one, attempts in log_attempts(job).items():
        if rank in (None, one):
            for attempt in attempts:
                yield from search_file(job.log(one, attempt), text, ignore_case)


def search_file(path: Path, text: str, ignore_case: bool = False) -> Iterator[Hit]:
    """Lines of one file with `text`; of a line longer than a block, one hit for each block with the text."""
    needle = text.encode("utf-8", "replace")
    needle = needle.lower() if ignore_case else needle
    name = SUPERVISOR + ".log" if path.stem == SUPERVISOR else path.name
    try:
        stream = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with stream:
        lines, rest = 0, b""
        while added := stream.read(BLOCK_BYTES):
            block = rest + added
            end = block.rfind(b"\n") + 1
            if not end and len(block) < BLOCK_BYTES:
                rest = block
                continue
            # Within a line that fills a block, a text that the block's end cuts is found with the next one.
            whole, rest = (
                (block[:end], block[end:]) if end else (block, block[len(block) - len(needle) + 1 :])
            )
            yield from _hits(name, whole, needle, lines, ignore_case)
            lines += whole.count(b"\n")
        yield from _hits(name, rest, needle, lines, ignore_case)


def _hits(name: str, block: bytes, needle: bytes, lines_before: int, ignore_case: bool) -> Iterator[Hit]:
    compared = block.lower() if ignore_case else block
    counted, lines = 0, lines_before
    found = compared.find(needle)
    while found >= 0:
        lines += block.count(b"\n", counted, found)
        counted = found
        end = block.find(b"\n", found)
        end = len(block) if end < 0 else end
        yield Hit(name, lines + 1, _shown(block, found, end))
        found = compared.find(needle, end)


def _shown(block: bytes, found: int, end: int) -> str:
    """The line, or what is shown of it: from the last redrawing before the text to the next one."""
    start = max(block.rfind(b"\n", 0, found), block.rfind(b"\r", 0, found)) + 1
    redrawn = block.find(b"\r", found, end)
    end = end if redrawn < 0 else redrawn
    start = max(start, found - SHOWN_BYTES // 2)
    return block[start : min(end, start + SHOWN_BYTES)].decode("utf-8", "replace")
