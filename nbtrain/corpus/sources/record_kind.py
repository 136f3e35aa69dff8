"""Chooses the kind of source that reads some records, from their keys and the values of those keys.

Recognizes the formats in shapes.py, OpenAssistant's message trees, and text under any other key.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nbtrain.corpus.files.file_kinds import COLUMNS, suffix_of
from nbtrain.corpus.files.json_line import record_of
from nbtrain.corpus.sources.json_array import open_records
from nbtrain.corpus.sources.keys import MESSAGES_NAMES, OTHER_PROMPT_NAMES, holds_value
from nbtrain.corpus.sources.messages import holds_any_message
from nbtrain.corpus.sources.parquet import OpenParquet
from nbtrain.corpus.sources.shapes import SHAPES, Shape

LOOKED_AT_RECORDS = 200

# Keys of further text in a prompt: a record with one of them is more than a prompt and a completion.
FURTHER = ("context", "input", "history", "system", "system_prompt")
# Minimum share of the records that must hold the expected kind of value under a key.
USUAL_SHARE = 0.9


def source_of(records: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the settings of a source that reads the records; None if no kind of source fits.

    The result holds "kind", and the settings whose values differ from the defaults of that kind. For plain
    text, the kind is "jsonl" whatever file the records come from.
    """
    if not records:
        return None
    if _share(records, "prompt", _is_tree) >= USUAL_SHARE or _are_messages_of_trees(records):
        return {"kind": "chat"}
    for shape in SHAPES:
        if _fits(records, shape):
            return None if _has_more(records, shape) else {"kind": shape.kind} | _settings(records, shape)
    found = text_key(records)
    return None if found is None else {"kind": "jsonl", "text_key": found}


def _fits(records: Sequence[Mapping[str, Any]], shape: Shape) -> bool:
    """Return whether the records match a shape.

    Most records must have the expected kind of value under each key, and some records a non-empty one. The
    keys of a loose shape must hold the longest texts, because unrelated records may use the same names.
    """
    if shape.is_loose:
        questions = ("prompt", *OTHER_PROMPT_NAMES) if shape.kind == "preference" else ()
        if text_key(records) not in (None, *shape.keys, *questions):
            return False
    return all(
        _share(records, key, EXPECTED[shape.kind]) >= USUAL_SHARE and _share(records, key, holds_value) > 0
        for key in shape.keys
    )


def _has_more(records: Sequence[Mapping[str, Any]], shape: Shape) -> bool:
    """Return whether the records hold further text besides a prompt and its completion.

    If they do, their keys may match a prompt-completion shape only by chance.
    """
    if shape.kind != "prompt-completion":
        return False
    return any(_share(records, key, _is_filled) for key in FURTHER if key not in shape.keys)


def _settings(records: Sequence[Mapping[str, Any]], shape: Shape) -> dict[str, str]:
    """Return the settings of a source that reads records of a shape."""
    settings = dict(shape.settings)
    for name, key in shape.optional.items():
        if shape.kind == "tokens":
            applies = _share(records, key, _is_ids) >= USUAL_SHARE
        else:
            default = name.removesuffix("_key")
            applies = _share(records, key, _is_filled) > 0 and not _share(records, default, _is_filled)
        if applies:
            settings[name] = key
    if shape.kind == "chat" and not settings:
        [own] = shape.keys
        # A source reads the first of the usual names that holds a value.
        before = MESSAGES_NAMES[: MESSAGES_NAMES.index(own)]
        if any(_share(records, name, holds_value) for name in before):
            settings["messages_key"] = own
    return settings


def first_records(path: Path, where: str = "--text") -> list[dict[str, Any]]:
    """Return the first records of a .jsonl, .json or .parquet file; broken records are skipped."""
    if suffix_of(path.name) in COLUMNS:
        with OpenParquet(path, where) as file:
            batches = islice(file.batches(None, 0, 1), 1)
            return [row for batch in batches for row in batch.slice(0, LOOKED_AT_RECORDS).to_pylist()]
    records = []
    with open_records(path, where) as lines:
        for line in islice(lines, LOOKED_AT_RECORDS):
            if not line.isspace():
                try:
                    records.append(record_of(line))
                except ValueError:
                    continue
    return records


def text_key(records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the key with the longest texts; None if no key holds text in most records."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    texts = [key for key in keys if _share(records, key, _is_text) >= USUAL_SHARE]
    return max(texts, key=lambda key: sum(len(record.get(key) or "") for record in records), default=None)


def _share(records: Sequence[Mapping[str, Any]], key: str, holds: Any) -> float:
    return sum(1 for record in records if key in record and holds(record[key])) / len(records)


def _are_messages_of_trees(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the records are messages of OpenAssistant trees; parent_id may be null, as in a root."""
    return all(_share(records, key, lambda value: True) >= USUAL_SHARE for key in ("message_id", "parent_id"))


def _is_tree(value: Any) -> bool:
    return isinstance(value, Mapping) and "replies" in value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_filled(value: Any) -> bool:
    return bool(value) and not (isinstance(value, str) and value.isspace())


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value[:16])


def _is_answer(value: Any) -> bool:
    return value is None or isinstance(value, str | list | Mapping)


EXPECTED: dict[str, Callable[[Any], bool]] = {
    "chat": holds_any_message,
    "preference": _is_answer,
    "alpaca": lambda value: True,
    "prompt-completion": _is_text,
    "tokens": _is_ids,
    "jsonl": _is_text,
}
"""Test of the values under a shape's keys, by kind of source.

A test accepts the values that the kind can read, and values that the kind should report as broken.
"""
