"""Converts JSON arrays, and objects that span several lines, to lines with one element each.

    [{...}, {...}]              one array: split at the commas outside all strings and inner brackets
    {                           objects over several lines, one after another: split where an object ends
      "text": ...
    }

Only one element is in memory at a time. Elements are parsed later, line by line, so that a broken element
does not affect the others. The line number in a message is the number of the element, counted from 1.
"""

import io
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.files import compression
from nbtrain.corpus.files.file_kinds import suffix_of
from nbtrain.corpus.records import SourcePart
from nbtrain.corpus.sources.files import line_pieces, open_lines, stream_pieces

READ_BYTES = 1 << 18
# Without a limit, a missing quote would make the rest of the file one element and fill the memory.
MAX_ELEMENT_BYTES = 1 << 30

# In _INNER and _OUTER, the last alternative also matches the quote of a string whose end is not yet read.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_INNER = re.compile(_STRING + rb'|["\[\]{}]', re.DOTALL)
_OUTER = re.compile(_STRING + rb'|["\[\]{},]', re.DOTALL)
_ARRAY = re.compile(rb"\s*\[")
# A JSON lines file may have a broken line that is an array. In a file that is one array, an object follows
# the bracket.
_ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*(\{|\]\s*$)")
# The first line of an object as json.dumps(indent=...) or jq writes it, and what follows it.
_INDENTED_OBJECT = re.compile(rb'\s*\{[ \t\r]*\n\s*("|\})')


def open_records(path: Path, where: str) -> io.BufferedReader:
    """Open a file of objects as lines: JSON lines, one array, or objects over several lines.

    Raises the errors of open_lines.
    """
    stream = open_lines(path, where)
    begun = stream.peek(1024)[:1024].removeprefix(BOM_UTF8)
    # A .json file that begins with a bracket is one array. Any other file is one array only if an object
    # follows the bracket.
    if (_ARRAY if suffix_of(path.name) == ".json" else _ARRAY_OF_OBJECTS).match(begun):
        return io.BufferedReader(ArrayLines(stream, path, where), READ_BYTES)
    if _INDENTED_OBJECT.match(begun):
        return io.BufferedReader(ObjectLines(stream, path, where), READ_BYTES)
    return stream


def record_pieces(path: Path, where: str) -> Iterator[SourcePart]:
    """Yield the parts of a large file of objects, with their content unless the file is JSON lines."""
    with open_records(path, where) as stream:
        is_cut = isinstance(stream.raw, ArrayLines)
        yield from stream_pieces(path, stream) if is_cut else line_pieces(path, where)


class ArrayLines(compression.BlockStream):
    """Stream of an array's elements, one per line.

    Reading raises DataError if the array is not closed, or if more text follows it.
    """

    _of_what = "the array"

    def __init__(self, stream: io.BufferedReader, path: Path, where: str):
        super().__init__()
        self._stream, self._where, self._name = stream, where, display(path)
        self._num_elements = 0
        self._elements = self._cut()

    @property
    def consumed_bytes(self) -> int:
        """Number of bytes of the file that have been read."""
        raw: Any = self._stream.raw
        return raw.consumed_bytes if isinstance(raw, compression.Unpacked) else raw.tell()

    def next_block(self) -> bytes | None:
        element = next(self._elements, None)
        # Put the element on one line. In JSON, \r is whitespace like \n and equally invalid inside a string,
        # but it does not end a line.
        return None if element is None else element.strip().replace(b"\n", b"\r") + b"\n"

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _cut(self) -> Iterator[bytes]:
        """Yield the bytes of each element, without the commas and brackets of the array around it."""
        buffer = self._stream.read(READ_BYTES).removeprefix(BOM_UTF8)
        start = position = buffer.index(b"[") + 1
        depth = 1
        while depth:
            match = (_OUTER if depth == 1 else _INNER).search(buffer, position)
            if match is None or match[0] == b'"':
                # The buffer doubles each time, because a long string is scanned again from its beginning.
                more = self._stream.read(max(READ_BYTES, len(buffer) - start))
                scanned = len(buffer) if match is None else match.start()
                buffer, position, start = buffer[start:] + more, scanned - start, 0
                if not more or len(buffer) > MAX_ELEMENT_BYTES:
                    what = f"is larger than {MAX_ELEMENT_BYTES:,} bytes" if more else "does not end"
                    raise self._without_end(what)
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
                f"{rest[:20].decode(errors='replace')!r} follows. Fix the file: it must be a single array, "
                f"or JSON lines with one object per line."
            )

    def _without_end(self, what: str) -> DataError:
        return DataError(
            f"{self._where}: {self._name}: element {self._num_elements + 1:,} of {self._of_what} {what}: the "
            "file is truncated, or a quote or bracket is missing. Fix the file, or write one object per line."
        )


class ObjectLines(ArrayLines):
    """Stream of consecutive objects, one per line. Reading raises DataError if the last one is not closed."""

    _of_what = "the file"

    def _cut(self) -> Iterator[bytes]:
        buffer = self._stream.read(READ_BYTES).removeprefix(BOM_UTF8)
        start = position = depth = 0
        while True:
            match = _INNER.search(buffer, position)
            if match is None or match[0] == b'"':
                more = self._stream.read(max(READ_BYTES, len(buffer) - start))
                scanned = len(buffer) if match is None else match.start()
                buffer, position, start = buffer[start:] + more, scanned - start, 0
                if more and len(buffer) <= MAX_ELEMENT_BYTES:
                    continue
                if buffer and not buffer.isspace():
                    what = f"is larger than {MAX_ELEMENT_BYTES:,} bytes" if more else "does not end"
                    raise self._without_end(what)
                return
            position = match.end()
            mark = buffer[match.start()]
            if mark in b"[{":
                depth += 1
            elif mark in b"]}":
                depth -= 1
                if depth <= 0:
                    depth = 0
                    element, start = buffer[start:position], position
                    self._num_elements += 1
                    yield element
