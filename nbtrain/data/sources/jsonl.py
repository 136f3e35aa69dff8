"""JSON lines: one object per line, the document under one key. wikiextractor writes the same in folders of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from nbtrain.data.records import Part, Tally, Texts
from nbtrain.data.sources.files import FileReader, line_pieces, with_compressed


class JsonlReader(FileReader):
    """.jsonl files, compressed ones too. Broken lines are left out and counted."""

    kind = "jsonl"
    suffixes = with_compressed(".jsonl")
    has_extra_keys = True
    drops_empty = False

    def pieces(self, path: Path) -> Iterator[Part]:
        return line_pieces(path, self.where)

    def read(self, part: Part, tally: Tally) -> Iterator[str | Texts]:
        key, extra_keys = self.config.text_key, self.extra_keys
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
                    except (orjson.JSONDecodeError, KeyError, TypeError):
                        text = None
                    # A long document is not held here while the next one is read.
                    record = None
                    if type(text) is not str or (extras and not all(type(extra) is str for extra in extras)):
                        if not line or line.isspace():
                            blank += 1
                        else:
                            tally.add_broken(path, number, problem_of(line, (key, *extra_keys)))
                        continue
                    line = b""
                    if drops_empty and not text:
                        tally.dropped["empty"] += 1
                        continue
                    yield Texts(text, extras) if extra_keys else text
                    text = None
            finally:
                tally.records += number - blank
                tally.lines += number if part.path else 0


class WikiextractorReader(JsonlReader):
    """What wikiextractor --json has written: AA/wiki_00, AA/wiki_01, ..., with -c as .bz2."""

    kind = "wikiextractor"
    # Its articles without text are redirects and pages of templates alone.
    drops_empty = True

    def is_wanted(self, name: str) -> bool:
        return name.startswith("wiki_")

    def nothing_found(self) -> str:
        return "no file wiki_00, wiki_01, ... as wikiextractor writes them"


def problem_of(line: bytes, keys: tuple[str, ...]) -> str:
    """What is wrong with a line that is no object with text under each of `keys`."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return not_utf8(line) or f"not JSON ({error.msg})"
    if not isinstance(value, dict):
        return f"not an object but {type(value).__name__}"
    for key in keys:
        if key not in value:
            return f"no key {key!r} among {', '.join(map(repr, list(value)[:5])) or 'no keys'}"
        if not isinstance(value[key], str):
            return f"{key!r} is not text but {type(value[key]).__name__}"
    return "cannot be read"


def not_utf8(content: bytes) -> str | None:
    """What is wrong with bytes that are no UTF-8; None where they are."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte 0x{content[error.start]:02x})"
    return None
