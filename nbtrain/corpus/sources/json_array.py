"""A file that is one JSON array, as lines: one element per line, in the memory of the largest element.

The array is not parsed but cut where a comma stands outside of every string and inner bracket. So a broken
element costs no other, and each is parsed as a line is. The line of a problem counts elements from 1.
"""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.records import SourcePart
from nbtrain.corpus.sources import compression
from nbtrain.corpus.sources.files import line_pieces, open_lines, stream_pieces

READ_BYTES = 1 << 18
# Without a bound, a quote that is missing would fill the memory with the rest of the file.
MAX_ELEMENT_BYTES = 1 << 30

# The last alternatives of both: a string that has not ended yet begins with a quote.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_INNER = re.compile(_STRING + rb'|["\[\]{}]', re.DOTALL)
_OUTER = re.compile(_STRING + rb'|["\[\]{},]', re.DOTALL)
_ARRAY = re.compile(rb"\s*\[")
# A line of JSON lines may be an array too, which is broken; a file of one array goes on with an object.
_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*(\{|\]\s*$)")


def open_records(path: Path, where: str) -> io.BufferedReader:
    """A file of objects as lines, be it JSON lines or an array. Errors are those of open_lines."""
    stream = open_lines(path, where)
    if not _begins_array(stream, path):
        return stream
    return io.BufferedReader(ArrayLines(stream, path, where), READ_BYTES)


def _begins_array(stream: io.BufferedReader, path: Path) -> bool:
    """Whether a file is one array: a .json begins with a bracket, another with a bracket and an object."""
    begun = stream.peek(1024)[:1024].removeprefix(BOM_UTF8)
    name = path.name.lower()
    for suffix in compression.SUFFIXES:
        name = name.removesuffix(suffix)
    return bool((_ARRAY if name.endswith(".json") else _ARRAY_OF_OBJECTS).match(begun))


def record_pieces(path: Path, where: str) -> Iterator[SourcePart]:
    """The parts of a large file of objects; those of an array bring their content."""
    with open_records(path, where) as stream:
        is_array = isinstance(stream.raw, ArrayLines)
        yield from stream_pieces(path, stream) if is_array else line_pieces(path, where)


class ArrayLines(compression.BlockStream):
    """The elements of an array as lines. Reading raises DataError if it has no end or anything after it."""

    def __init__(self, stream: io.BufferedReader, path: Path, where: str):
        super().__init__()
        self._stream, self._where, self._name = stream, where, display(path)
        self._num_elements = 0
        self._elements = self._cut()

    @property
    def consumed_bytes(self) -> int:
        """Bytes of the file read so far."""
        raw: Any = self._stream.raw
        return raw.consumed_bytes if isinstance(raw, compression.Unpacked) else raw.tell()

    def next_block(self) -> bytes | None:
        element = next(self._elements, None)
        # A bare \r is white space as \n is, and as wrong inside a string; but it ends no line.
        return None if element is None else element.strip().replace(b"\n", b"\r") + b"\n"

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _cut(self) -> Iterator[bytes]:
        """The bytes between the commas of the array."""
        buffer = self._stream.read(READ_BYTES).removeprefix(BOM_UTF8)
        start = position = buffer.index(b"[") + 1
        depth = 1
        while depth:
            match = (_OUTER if depth == 1 else _INNER).search(buffer, position)
            if match is None or match[0] == b'"':
                # Twice as much each time: a long string is looked at again from its beginning.
                more = self._stream.read(max(READ_BYTES, len(buffer) - start))
                scanned = len(buffer) if match is None else match.start()
                buffer, position, start = buffer[start:] + more, scanned - start, 0
                if not more or len(buffer) > MAX_ELEMENT_BYTES:
                    what = f"is over {MAX_ELEMENT_BYTES:,} bytes" if more else "does not end"
                    raise DataError(
                        f"{self._where}: {self._name}: element {self._num_elements + 1:,} of the array "
                        f"{what}: the file is cut short, or a quote or bracket is missing. Fix the file, or "
                        f"write one object per line."
                    )
                continue
            position = match.end()
            mark = buffer[match.start()]
            if mark in b"[{":
                depth += 1
            elif mark in b"]}":
                depth -= 1
            if mark == b","[0] or not depth:
                element = buffer[start : match.start()]
                start = position
                if element and not element.isspace():
                    self._num_elements += 1
                    yield element
        if rest := (buffer[position:].strip() or self._stream.read(READ_BYTES).strip()):
            raise DataError(
                f"{self._where}: {self._name}: the array ends after element {self._num_elements:,}, but "
                f"{rest[:20].decode(errors='replace')!r} follows. Fix the file; JSON lines have one object "
                f"per line."
            )
