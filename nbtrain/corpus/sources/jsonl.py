"""Reads text under one key of JSON objects: one object per line, one array, or consecutive objects."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from nbtrain.corpus.files import json_line
from nbtrain.corpus.files.file_kinds import RECORDS
from nbtrain.corpus.records import SourcePart, Tally, Texts
from nbtrain.corpus.sources.files import FileReader
from nbtrain.corpus.sources.json_array import open_records, record_pieces
from nbtrain.corpus.sources.keys import KeyCounter, RecordNotes, record_policy
from nbtrain.corpus.sources.shapes import way_forward


class JsonlReader(FileReader):
    """Reads files of objects. Skips and counts broken lines, and drops texts with a lone surrogate."""

    kind = "jsonl"
    suffixes = RECORDS
    gives_unicode = True
    drops_empty = False

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        return record_pieces(path, self.where)

    def open_file(self, path: Path) -> io.BufferedReader:
        return open_records(path, self.where)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str | Texts]:
        key, extra_keys = self.config.text_key, self.extra_keys
        policy, read = record_policy(self.config), (key, *extra_keys)
        num_read, counter = len(read), KeyCounter(policy, read)
        loads, drops_empty = orjson.loads, self.drops_empty
        for path, lines in self.opened(part):
            number = blank = 0
            record: Any = None
            try:
                for number, line in enumerate(lines, start=1):
                    try:
                        record = loads(line)
                        text = record[key]
                        extras = tuple([record[extra] for extra in extra_keys]) if extra_keys else ()
                        is_wide = len(record) > num_read and type(text) is str
                        if is_wide and not counter.add(record, tally):
                            text = None
                    except (orjson.JSONDecodeError, KeyError, TypeError):
                        text = None
                    # A long document is released before the next one is read.
                    record = None
                    if type(text) is not str or (extras and not all(type(extra) is str for extra in extras)):
                        if not line or line.isspace():
                            blank += 1
                            continue
                        try:
                            record = json_line.record_of(line)
                            texts = texts_of(record, read, self.kind)
                            notes = RecordNotes()
                            policy.note_unread(record, read, notes)
                            notes.check(self.kind)
                            tally.add_unread(notes.unread)
                        except ValueError as problem:
                            tally.add_broken(path, number, str(problem))
                            continue
                        if not all(map(json_line.is_unicode, texts)):
                            tally.dropped["not_unicode"] += 1
                            continue
                        text, extras, texts, record = texts[0], texts[1:], (), None
                    line = b""
                    if drops_empty and not text:
                        tally.dropped["empty"] += 1
                        continue
                    yield Texts(text, extras) if extra_keys else text
                    text = None
            finally:
                counter.finish(tally)
                tally.records += number - blank
                tally.lines += number if part.path else 0


def texts_of(record: dict[str, Any], keys: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Return the text under each of `keys`. Raises ValueError with a description if the record is broken."""
    for key in keys:
        if key not in record:
            forward = way_forward(record, kind)
            raise ValueError(f"no key {key!r} among {json_line.keys_of(record)}{forward}")
        if not isinstance(record[key], str):
            raise ValueError(f"{key!r} is not text but {json_line.kind_of(record[key])}")
    return tuple(record[key] for key in keys)
