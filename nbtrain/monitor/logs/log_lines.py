"""Line numbers of logs, counted once and cached, so that polling does not read gigabytes again.

LINES.read(path)             the end of a log, with the number of its first line
LINES.read(path, line=1200)  the part of a log around a line
"""

import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from nbtrain.monitor.logs.logs import LogPart, read_log

# Line breaks are counted in blocks of this size.
BLOCK_BYTES = 1 << 20
# Maximum number of bytes that one request reads to number a log's last lines, which takes a tenth of a
# second. Later requests continue counting.
MOST_COUNTED_BYTES = 128 << 20
# Bytes before a requested line that are read with it.
BEFORE_BYTES = 20_000
# Maximum number of logs whose counts are cached.
MOST_LOGS = 256


@dataclass
class _Counted:
    """Number of line breaks before each block of a log."""

    inode: int
    before: list[int] = field(default_factory=lambda: [0])


class LineNumbers:
    """A cache of line counts for the logs that were read last. Thread-safe."""

    def __init__(self) -> None:
        self._logs: OrderedDict[Path, _Counted] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, offset_bytes: int | None = None, line: int | None = None) -> LogPart:
        """Read part of a log like read_log(), with the number of its first line if it has been counted.

        With `line`, read the part that begins BEFORE_BYTES before that line. If the log has fewer lines, read
        its end.
        """
        if line is None:
            part = read_log(path, offset_bytes)
            most = MOST_COUNTED_BYTES
        else:
            start = self._offset_of(path, line)
            part = read_log(path, max(0, start - BEFORE_BYTES)) if start is not None else read_log(path)
            most = part.size_bytes
        before = self._before(path, part.start_bytes, most)
        return replace(part, first_line=None if before is None else before + 1)

    def _before(self, path: Path, offset_bytes: int, most_bytes: int) -> int | None:
        """Return the number of line breaks before an offset.

        Returns None if counting them would read more than `most_bytes`.
        """
        if not offset_bytes:
            return 0
        last = offset_bytes // BLOCK_BYTES
        with path.open("rb") as stream:
            before = self._counted(path, stream)
            for _ in range(min(last + 1 - len(before), most_bytes // BLOCK_BYTES)):
                self._count_block(stream, before)
            if len(before) <= last:
                return None
            stream.seek(last * BLOCK_BYTES)
            return before[last] + stream.read(offset_bytes - last * BLOCK_BYTES).count(b"\n")

    def _offset_of(self, path: Path, line: int) -> int | None:
        """Return the offset of a line; None if the log has fewer lines."""
        if line <= 1:
            return 0
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            return None
        with stream:
            before = self._counted(path, stream)
            while before[-1] < line - 1 and self._count_block(stream, before):
                pass
            # The line begins after line break number `line - 1`, which is in block `at`.
            at = bisect_left(before, line - 1) - 1
            stream.seek(at * BLOCK_BYTES)
            block, found = stream.read(BLOCK_BYTES), -1
            for _ in range(line - 1 - before[at]):
                found = block.find(b"\n", found + 1)
                if found < 0:
                    return None
            return at * BLOCK_BYTES + found + 1

    def _counted(self, path: Path, stream: BinaryIO) -> list[int]:
        """Return a log's cached counts, or empty counts if the file is new, replaced or truncated."""
        status = os.fstat(stream.fileno())
        with self._lock:
            found = self._logs.get(path)
            if (
                found is None
                or found.inode != status.st_ino
                or len(found.before) - 1 > status.st_size // BLOCK_BYTES
            ):
                found = self._logs[path] = _Counted(status.st_ino)
            self._logs.move_to_end(path)
            while len(self._logs) > MOST_LOGS:
                self._logs.popitem(last=False)
            return found.before

    def _count_block(self, stream: BinaryIO, before: list[int]) -> bool:
        """Count the line breaks in the next block. Return False if that block is not complete yet.

        The lock is not held during reading, because a log of gigabytes must not block other readers.
        """
        at = len(before) - 1
        stream.seek(at * BLOCK_BYTES)
        block = stream.read(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            return False
        line_ends = block.count(b"\n")
        with self._lock:
            # Another thread may have counted this block in the meantime.
            if len(before) == at + 1:
                before.append(before[at] + line_ends)
        return True


LINES = LineNumbers()
