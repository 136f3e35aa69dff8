"""What the sources of fine-tuning examples share: prompt_completion.py, alpaca.py, chat.py.

    record -> pieces (text, whether it is learnt) -> records.Example

The encoding takes each piece by itself and puts the end-of-document token after the last piece, learnt if
that piece is. The pieces of a prompt are joined, so that it has the tokens that the model is asked with.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources import json_line
from nbtrain.corpus.sources.record_files import RecordFileReader


class BrokenExample(ValueError):
    """What is wrong with a record."""


class ExampleReader(RecordFileReader):
    """Objects that are examples. Broken ones are left out and counted."""

    def read(self, part: SourcePart, tally: Tally) -> Iterator[Example | Preference]:
        for path, line, value in self.rows(part, tally):
            try:
                example = self.example(value)
            except BrokenExample as problem:
                tally.add_broken(path, line, str(problem))
                continue
            yield example

    @abstractmethod
    def example(self, value: dict[str, Any]) -> Example | Preference:
        """The example of one object. Raises BrokenExample."""


def text_of(value: dict[str, Any], key: str, place: str = "") -> str:
    """The text under a key, or the joined texts of its parts. `place` names `value` in BrokenExample."""
    if key not in value:
        raise BrokenExample(f"{place and place + ' has '}no key {key!r} among {json_line.keys_of(value)}")
    found = value[key]
    if isinstance(found, list) and found and all(_is_text_part(part) for part in found):
        found = "".join(part["text"] for part in found)
    if not isinstance(found, str):
        raise BrokenExample(f"{_shown(key, place)} is not text but {json_line.kind_of(found)}")
    return found


def _is_text_part(part: Any) -> bool:
    """Whether it is {"type": "text", "text": ...}, as interfaces of several media write content."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def answer_of(value: dict[str, Any], key: str, place: str = "") -> str:
    """text_of, which must not be blank. Raises BrokenExample."""
    found = text_of(value, key, place)
    if not found or found.isspace():
        raise BrokenExample(f"{_shown(key, place)} is empty")
    return found


def _shown(key: str, place: str) -> str:
    return f"{place}.{key}" if place else repr(key)


def joined(pieces: list[tuple[str, bool]]) -> Example:
    """The example of some pieces without the empty ones; neighbours both learnt, or both not, become one."""
    joined: list[tuple[str, bool]] = []
    for text, is_learnt in pieces:
        if joined and joined[-1][1] == is_learnt:
            joined[-1] = (joined[-1][0] + text, is_learnt)
        elif text:
            joined.append((text, is_learnt))
    return Example(tuple(joined))
