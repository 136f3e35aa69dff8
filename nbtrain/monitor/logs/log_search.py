"""Searches the logs of a run block by block, so that large logs need little memory.

    search(jobs, text)                     searches for a text, byte by byte
    search(jobs, pattern, is_pattern=True) searches for a regular expression, line by line
    search_in_time(jobs, pattern)          the same in another process, with a time limit

If a progress bar matches, the hit shows the state of the bar that contains the match.
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

# Bytes read at a time. A chunk of this size stays in the CPU cache while it is searched and its
# lines are counted.
READ_BYTES = 1 << 16
# Longest line that is searched as a whole; such a line is in memory twice.
BLOCK_BYTES = 1 << 20
# Maximum number of bytes of a matching line that are shown, around the match.
SHOWN_BYTES = 2000
# Maximum number of matches marked in a line.
MOST_SPANS = 50
# Time limit in seconds of a search for a regular expression, which can take hours on a single line and blocks
# the interpreter meanwhile.
PATTERN_SECONDS = 10.0
# A search process whose parent was killed ends itself this long after its time limit.
ORPHAN_SECONDS = 5.0


@dataclass(frozen=True)
class Hit:
    """A matching line."""

    job: str
    """Id of the job."""
    log: str
    """File name of the log; 3.0.log is rank 3, attempt 0."""
    line_number: int
    """Line number, starting at 1."""
    text: str
    offset_bytes: int = 0
    """Offset of the line in the file; in a very long line, the offset of the block with the match."""
    spans: tuple[tuple[int, int], ...] = ()
    """Start and end of each match in `text`, in characters; at most MOST_SPANS."""

    def __str__(self) -> str:
        return f"{self.job}/{self.log}:{self.line_number}: {self.text}"


def compiled(pattern: str, ignore_case: bool = False) -> re.Pattern[str]:
    """Compile a regular expression. Raises ConfigError, with the position of the error, if it is invalid."""
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
    """Yield the matching lines, job by job.

    With `rank`, only that rank's logs are searched; otherwise the logs of the supervisor, all nodes and all
    ranks. `ignore_case` applies only to ASCII letters, unless `text` is a regular expression (`is_pattern`).
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
    """Search for a regular expression in another process, which is ended after `seconds`.

    Return (at most `most` hits, whether the search finished in time). Raises ConfigError if the pattern is
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
                f"the search for {pattern[:80]!r} ended with exit code {done.returncode}; its "
                "error is in the output of the process that started the search."
            )
        content, is_complete = done.stdout, True
    except subprocess.TimeoutExpired as error:
        content, is_complete = error.stdout or b"", False
    # A process that was ended may have written only part of its last line.
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [Hit(**json.loads(line)) for line in lines], is_complete


def search_file(
    path: Path, text: str, ignore_case: bool = False, job_id: str = "", is_pattern: bool = False
) -> Iterator[Hit]:
    """Yield the matching lines of a file.

    A line longer than a block yields one hit per matching block. In such a line, a match of a regular
    expression that spans two blocks is not found.
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
            # In a line longer than a block, carry over enough bytes to find a text that the block's end
            # splits.
            overlap = max(0, len(needle) - 1)
            whole, rest = (block[:end], block[end:]) if end else (block, block[len(block) - overlap :])
            yield from _hits(job_id, path.name, whole, needle, pattern, lines, start, ignore_case)
            # replace() jumps from line break to line break; count() compares every byte and takes twice as
            # long.
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
    """Yield the hits in a block that begins at offset `start`.

    With an empty needle, search for the pattern.
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
    """Yield (first match, end of the line) for each line that contains the needle."""
    compared = block.lower() if ignore_case else block
    found = compared.find(needle)
    while found >= 0:
        end = block.find(b"\n", found)
        end = len(block) if end < 0 else end
        yield found, end
        found = compared.find(needle, end)


def _matching_lines(block: bytes, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield (first match, end of the line) for each line that matches the pattern.

    The states of a progress bar, which are separated by carriage returns, are matched one by one.
    """
    at = 0
    # The text after the last line break is not an empty line.
    for line in block.removesuffix(b"\n").split(b"\n"):
        begin = at
        for state in line.split(b"\r"):
            text = state.decode("utf-8", "replace")
            if match := pattern.search(text):
                # Invalid bytes were replaced by a character with more bytes, so the position is only
                # approximate.
                before = min(len(text[: match.start()].encode()), len(state))
                yield begin + before, at + len(line)
                break
            begin += len(state) + 1
        at += len(line) + 1


def _shown(block: bytes, found: int, end: int) -> str:
    """Return the part of a line to show: the text between the carriage returns around the match."""
    start = max(block.rfind(b"\n", 0, found), block.rfind(b"\r", 0, found)) + 1
    redrawn = block.find(b"\r", found, end)
    end = end if redrawn < 0 else redrawn
    start = max(start, found - SHOWN_BYTES // 2)
    return block[start : min(end, start + SHOWN_BYTES)].decode("utf-8", "replace")


def main() -> None:
    """Run the search that search_in_time() sends on stdin, and print each hit as a line of JSON."""
    asked = json.load(sys.stdin)
    # The default action of SIGALRM ends the process even in the middle of a match.
    signal.setitimer(signal.ITIMER_REAL, asked["seconds"] + ORPHAN_SECONDS)
    folders = [Path(path) for path in asked["jobs"]]
    jobs = [RunDir(folder.parent.parent).job(folder.name) for folder in folders]
    hits = search(jobs, asked["pattern"], asked["rank"], asked["ignore_case"], is_pattern=True)
    for _, hit in zip(range(asked["most"]), hits, strict=False):
        print(json.dumps(asdict(hit)), flush=True)


if __name__ == "__main__":
    main()
