"""Base class for fine-tuning sources: prompt_completion.py, alpaca.py, chat.py and preference.py.

    record -> pieces (text, whether it is in the loss) -> records.Example

Each piece is encoded separately. The end-of-document token follows the last piece, and is in the loss if that
piece is. Adjacent pieces of a prompt are joined, so that a prompt has the same tokens in training and at
inference.
"""

from abc import abstractmethod
from collections.abc import Callable, Container, Iterator
from functools import cached_property
from typing import Any

from nbtrain.corpus.files import json_line
from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources.keys import KeyPolicy, RecordNotes, RefusedKeys, holds_value, record_policy
from nbtrain.corpus.sources.record_files import RecordFileReader
from nbtrain.corpus.sources.shapes import way_forward

PART_KEYS = ("type", "text")
"""Keys that are read from one part of a content that is a list of parts."""
NO_LOSS = "no_loss"
"""Reason for dropping a record whose answers are all marked as outside the loss."""


class BrokenExample(ValueError):
    """Raised if a record is broken; the message describes the problem."""


class ExampleReader(RecordFileReader):
    """Reads records that are fine-tuning examples. Broken records are skipped and counted."""

    @cached_property
    def keys(self) -> KeyPolicy:
        """Rules for the keys of a record."""
        return record_policy(self.config)

    def is_read(self, column: str) -> bool:
        return not self.keys.is_counted(column)

    def bears_mask(self) -> bool:
        return True

    def read(self, part: SourcePart, tally: Tally) -> Iterator[Example | Preference]:
        for path, line, value in self.rows(part, tally):
            example = self.checked(value, path, line, tally)
            if example is not None:
                yield example

    def checked(
        self, value: dict[str, Any], path: str, line: int, tally: Tally
    ) -> Example | Preference | None:
        """Return the example of one record; None if the record is broken or has nothing in the loss.

        `tally` counts both cases.
        """
        notes = RecordNotes()
        try:
            example = self.example(value, notes)
            notes.check(self.kind)
        except (BrokenExample, RefusedKeys) as problem:
            tally.add_broken(path, line, str(problem))
            return None
        if notes.unread:
            tally.add_unread(notes.unread)
        if example is None:
            tally.dropped[NO_LOSS] += 1
        return example

    @abstractmethod
    def example(self, value: dict[str, Any], notes: RecordNotes) -> Example | Preference | None:
        """Return the example of one record; None if its marks leave nothing in the loss.

        Adds the keys that are not read to `notes`. Raises BrokenExample.
        """


def text_of(
    value: dict[str, Any],
    key: str,
    place: str = "",
    kind: str = "",
    look: Callable[[dict[str, Any], Container[str], str], None] | None = None,
) -> str:
    """Return the text under a key, or the joined texts of its parts.

    `place` is the location of `value` for messages. If `kind` (the kind of the source) is given, the message
    for a missing key suggests another way to read the record. For each part that has further keys,
    look(part, keys that were read, location of the part) is called; without `look`, the record is broken if
    these keys hold values. Raises BrokenExample.
    """
    if key not in value:
        forward = way_forward(value, kind) if kind else ""
        raise BrokenExample(
            f"{place and place + ' has '}no key {key!r} among {json_line.keys_of(value)}{forward}"
        )
    content = value[key]
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        other = next((part for part in content if not _is_text_part(part)), None)
        if other is None:
            for number, part in enumerate(content):
                if len(part) > len(PART_KEYS):
                    (look or _refuse_more)(part, PART_KEYS, f"{_shown(key, place)}[{number}]")
            return "".join(part["text"] for part in content)
        if isinstance(other, dict) and other.get("type") not in (None, "text"):
            raise BrokenExample(
                f"{_shown(key, place)} has a part of type {str(other['type'])[:40]!r}; only text is read"
            )
    raise BrokenExample(f"{_shown(key, place)} is not text but {json_line.kind_of(content)}")


def _refuse_more(part: dict[str, Any], read: Container[str], place: str) -> None:
    """Raise BrokenExample if a part has values under keys other than type and text."""
    for key, value in part.items():
        if key not in read and holds_value(value):
            raise BrokenExample(
                f"{place}.{key} holds a value, but only type and text are read from such a part"
            )


def _is_text_part(part: Any) -> bool:
    """Return whether a value is {"type": "text", "text": ...}, as in multimodal APIs."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def answer_of(value: dict[str, Any], key: str, place: str = "", kind: str = "") -> str:
    """Return the result of text_of(). An empty text, or one of only whitespace, also raises BrokenExample."""
    text = text_of(value, key, place, kind)
    if not text or text.isspace():
        raise BrokenExample(f"{_shown(key, place)} is empty")
    return text


def _shown(key: str, place: str) -> str:
    return f"{place}.{key}" if place else repr(key)


def joined(pieces: list[tuple[str, bool]]) -> Example:
    """Build an example from pieces: drop empty ones, and join adjacent ones with the same loss flag."""
    joined: list[tuple[str, bool]] = []
    for text, is_learnt in pieces:
        if joined and joined[-1][1] == is_learnt:
            joined[-1] = (joined[-1][0] + text, is_learnt)
        elif text:
            joined.append((text, is_learnt))
    return Example(tuple(joined))
