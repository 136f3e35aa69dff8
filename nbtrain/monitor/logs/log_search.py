"""Search the logs of a run by job, node, rank and attempt, in blocks, to use little memory.

    search(jobs, text)                     a text, compared byte by byte
    search(jobs, pattern, is_pattern=True) a regular expression, line by line
    search_in_time(jobs, pattern)          the same in another process, ended after some seconds

A progress bar is shown as it was when it had the text.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.monitor.logs.logs import log_attempts

# Bytes that are read at a time: they stay in the cache while they are searched and their lines counted.
READ_BYTES = 1 << 16
# Longest line that is searched as a whole; it is in memory twice.
BLOCK_BYTES = 1 << 20
# Characters of a matching line that are shown, around the match.
SHOWN_BYTES = 2000
# Matches within a line that are marked.
MOST_SPANS = 50
# Python's regular expressions can take hours for a line, and hold the interpreter meanwhile.
PATTERN_SECONDS = 10.0
# The process of a search ends itself this long after its time, if the process that started it was killed.
ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class Hit:
    """A line that contains the text."""

    job: str
    """Id of the job."""
    log: str
    """File name of the log; 3.0.log is rank 3, attempt 0."""
    line_number: int
    """Number of the line, from 1."""
    text: str
    offset_bytes: int = 0
    """Offset of the line in the file; for a very long line, offset of the block that contains the match."""
    spans: tuple[tuple[int, int], ...] = ()
    """Start and end of each match in `text`, in characters."""

    def __str__(self) -> str:
        return f"{self.job}/{self.log}:{self.line_number}: {self.text}"


def compiled(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a regular expression. Raises ConfigError with the error and its position."""
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{pattern[:80]!r} is not a regular expression: {error}.") from None


def search(
    jobs: Iterable[JobDir],
    text: str,
    rank: int | None = None,
    ignore_case: bool = False,
    is_pattern: bool = False,
) -> Iterator[Hit]:
    """Yield the lines that contain `text`, job by job: of one rank, of the supervisor, or of all nodes and
    ranks.

    `ignore_case` applies to ASCII letters only, unless `text` is a regular expression (`is_pattern`).
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
            paths = [job.supervisor_log, *job.node_logs(), *paths]
        for path in paths:
            yield from search_file(path, text, ignore_case, job.job_id, is_pattern)


def search_in_time(
    jobs: Iterable[JobDir],
    pattern: str,
    rank: int | None = None,
    ignore_case: bool = False,
    most: int = 1000,
    seconds: float = PATTERN_SECONDS,
) -> tuple[list[Hit], bool]:
    """Search for a regular expression in another process that is ended after `seconds`.

    Returns at most `most` hits, and whether the search came to its end. Raises ConfigError if the pattern is
    not a regular expression, and JobError if the other process fails.
    """
    compiled(pattern, ignore_case)
    paths = [str(job.path) for job in jobs]
    asked = {
        "jobs": paths,
        "pattern": pattern,
        "rank": rank,
        "ignore_case": ignore_case,
        "most": most,
        "seconds": seconds,
    }
    command = [sys.executable, "-m", "nbtrain.monitor.logs.log_search"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked).encode(), stdout=subprocess.PIPE, timeout=seconds
        )
        if done.returncode != 0:
            raise JobError(
                f"the search for {pattern[:80]!r} ended with exit code {done.returncode}; the log of this "
                "process has the error."
            )
        content, is_complete = done.stdout, True
    except subprocess.TimeoutExpired as error:
        content, is_complete = error.stdout or b"", False
    # A process that is ended may have written a part of its last line.
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [Hit(**json.loads(line)) for line in lines], is_complete


def search_file(
    path: Path, text: str, ignore_case: bool = False, job_id: str = "", is_pattern: bool = False
) -> Iterator[Hit]:
    """Yield the lines of a file that contain `text`; of a line longer than a block, yield one hit per
    matching block.

    A match of a regular expression that continues in the next block of such a line is not found.
    """
    needle = b"" if is_pattern else text.encode("utf-8", "replace")
    needle = needle.lower() if ignore_case else needle
    if is_pattern:
        pattern = compiled(text, ignore_case)
    else:
        pattern = re.compile(re.escape(text), re.IGNORECASE | re.ASCII if ignore_case else 0)
    try:
        stream = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with stream:
        lines, rest, start = 0, b"", 0
        while added := stream.read(min(READ_BYTES, BLOCK_BYTES)):
            block = rest + added
            end = block.rfind(b"\n") + 1
            if not end and len(block) < BLOCK_BYTES:
                rest = block
                continue
            # In a line longer than a block, a text that the block's end splits is found in the next block.
            overlap = max(0, len(needle) - 1)
            whole, rest = (block[:end], block[end:]) if end else (block, block[len(block) - overlap :])
            yield from _hits(job_id, path.name, whole, needle, pattern, lines, start, ignore_case)
            # replace() jumps from one line's end to the next; count() compares every byte, in twice the time.
            lines += len(whole) - len(whole.replace(b"\n", b""))
            start += len(block) - len(rest)
        if rest:
            yield from _hits(job_id, path.name, rest, needle, pattern, lines, start, ignore_case)


def _hits(
    job_id: str,
    name: str,
    block: bytes,
    needle: bytes,
    pattern: re.Pattern[str],
    lines_before: int,
    start: int,
    ignore_case: bool,
) -> Iterator[Hit]:
    """Yield the hits of a block that begins at offset `start`; with an empty needle, search for the
    pattern.
    """
    places = _places(block, needle, ignore_case) if needle else _matching_lines(block, pattern)
    counted, lines = 0, lines_before
    for found, end in places:
        lines += block.count(b"\n", counted, found)
        counted = found
        line_start = start + block.rfind(b"\n", 0, found) + 1
        text = _shown(block, found, end)
        spans = tuple(match.span() for match in pattern.finditer(text) if match.group())[:MOST_SPANS]
        yield Hit(job_id, name, lines + 1, text, line_start, spans)


def _places(block: bytes, needle: bytes, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Yield the first match of each line that contains the needle, and the end of the line."""
    compared = block.lower() if ignore_case else block
    found = compared.find(needle)
    while found >= 0:
        end = block.find(b"\n", found)
        end = len(block) if end < 0 else end
        yield found, end
        found = compared.find(needle, end)


def _matching_lines(block: bytes, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the first match of each line that matches the pattern, and the end of the line.

    The states of a progress bar, which carriage returns separate, are matched one by one.
    """
    at = 0
    # What follows the last line's end is not an empty line.
    for line in block.removesuffix(b"\n").split(b"\n"):
        begin = at
        for state in line.split(b"\r"):
            text = state.decode("utf-8", "replace")
            if match := pattern.search(text):
                # Bytes that are not UTF-8 were replaced by a longer character.
                before = min(len(text[: match.start()].encode()), len(state))
                yield begin + before, at + len(line)
                break
            begin += len(state) + 1
        at += len(line) + 1


def _shown(block: bytes, found: int, end: int) -> str:
    """Return the part of a line that is shown: the text between the carriage returns around the match."""
    start = max(block.rfind(b"\n", 0, found), block.rfind(b"\r", 0, found)) + 1
    redrawn = block.find(b"\r", found, end)
    end = end if redrawn < 0 else redrawn
    start = max(start, found - SHOWN_BYTES // 2)
    return block[start : min(end, start + SHOWN_BYTES)].decode("utf-8", "replace")


def main() -> None:
    """Run the search that search_in_time() sends on stdin, and write each hit as one line of JSON."""
    asked = json.load(sys.stdin)
    # The signal's default action ends the process within a match too.
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + ORPHAN_SECONDS)
    folders = [Path(path) for path in asked["jobs"]]
    jobs = [RunDir(folder.parent.parent).job(folder.name) for folder in folders]
    hits = search(jobs, asked["pattern"], asked["rank"], asked["ignore_case"], is_pattern=True)
    for _, hit in zip(range(asked["most"]), hits, strict=False):
        print(json.dumps(asdict(hit)), flush=True)


if __name__ == "__main__":
    main()
