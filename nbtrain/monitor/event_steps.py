"""Parsing of all events of a step at once, because a program usually writes the same tags at each step.

    shape = Shape(content, records, wanted)     the records of one step, as they were parsed one by one
    shape.take(content, at)  ->  (Columns of the following steps of this shape, their end)

A step of 40 scalars takes one call of struct and one comparison of the bytes that must not change. Any
difference, even one byte of a tag or of a length's checksum, ends the shape: then records are read one by
one.
"""

import operator
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Start of a record: its length and the length's checksum, then the tag of wall_time.
HEAD_BYTES = 13
WALL_BYTES = 8
VALUE_BYTES = CHECK_BYTES = 4
STEP_FIELD = 0x10


class Found(NamedTuple):
    """Position of a record with one scalar."""

    at: int
    step_at: int
    """Offset of the step's field, after the wall time."""
    step_end: int
    end: int
    """Offset of the end of the record's content, which ends with the value."""
    tag: bytes


@dataclass
class Columns:
    """One tag over several steps."""

    tag: bytes
    steps: Sequence[int]
    rising: bool
    """Whether each step is higher than the one before."""
    values: Sequence[float]
    wall_times: Sequence[float]


class Shape:
    """Layout of the records of one step: their tags, and the bytes of each part of a record."""

    def __init__(self, content: bytes, records: Sequence[Found], wanted: Callable[[bytes], bool]):
        """Describe the records of a step; `wanted` flags the tags to read. Other tags have only positions."""
        self.first_tag = records[0].tag
        self._tags = [record.tag for record in records if wanted(record.tag)]
        # A mask of the bytes that are equal in each step: all but time, step, value and checksum.
        begin, mask, form = records[0].at, bytearray(), "<"
        for record in records:
            width, rest = record.step_end - record.step_at, record.end - VALUE_BYTES - record.step_end
            mask += b"\xff" * HEAD_BYTES + bytes(WALL_BYTES + width) + b"\xff" * rest
            mask += bytes(VALUE_BYTES + CHECK_BYTES)
            fields = (
                f"d{width}s{rest}xf" if wanted(record.tag) else f"{WALL_BYTES + width + rest + VALUE_BYTES}x"
            )
            form += f"{HEAD_BYTES}x{fields}{CHECK_BYTES}x"
        self._struct = struct.Struct(form)
        # As integers, so that one operation compares all of them.
        self._mask = int.from_bytes(mask, "little")
        self._same = int.from_bytes(content[begin : begin + len(mask)], "little") & self._mask

    def take(self, content: bytes, at: int) -> tuple[list[Columns], int]:
        """Return (Columns of each wanted tag, end offset) for the complete steps of this shape from `at` on.

        Raises ValueError if a step is encoded in an unknown way.
        """
        size, unpack, mask, same = self._struct.size, self._struct.unpack_from, self._mask, self._same
        number, taken, last = int.from_bytes, [], len(content) - size
        while at <= last and number(content[at : at + size], "little") & mask == same:
            taken.append(unpack(content, at))
            at += size
        fields = list(zip(*taken))
        # Most tags of a step have the same step field.
        numbers: dict[tuple[bytes, ...], tuple[list[int], bool]] = {}
        columns = []
        for place, tag in enumerate(self._tags if fields else ()):
            walls, words, values = fields[3 * place : 3 * place + 3]
            if words not in numbers:
                steps = [_step(word) for word in words]
                numbers[words] = steps, all(map(operator.lt, steps, steps[1:]))
            columns.append(Columns(tag, *numbers[words], values, walls))
        return columns, at


def _step(field: bytes) -> int:
    """Return an event's step from its field: 0 if there is none. Raises ValueError for another field."""
    if not field:
        return 0
    value = 0
    for place, byte in enumerate(field):
        if place == 0:
            whole = byte == STEP_FIELD
        else:
            value |= (byte & 0x7F) << 7 * (place - 1)
            whole = (byte < 0x80) == (place == len(field) - 1)
        if not whole:
            raise ValueError(f"{field.hex()} is not the step of an event")
    return value if value < 1 << 63 else value - (1 << 64)
