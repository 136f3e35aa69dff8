"""JSON lines: one object per line, the document under one key."""

import gzip
import logging
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator

import orjson

from nbtrain.data.sources.base import FileReader
from nbtrain.errors import DataError
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

NAMED_BROKEN_LINES = 3


class JsonlReader(FileReader):
    """.jsonl and .jsonl.gz files. Broken lines are left out, counted, and bounded by max_broken_fraction."""

    kind = "jsonl"
    suffixes = (".jsonl", ".jsonl.gz")

    def documents(self) -> Iterator[str]:
        self.dropped.clear()
        lines = broken = 0
        named: list[str] = []
        key = self.config.text_key
        for path in self.files():
            with self.open(path) as stream:
                try:
                    for number, line in enumerate(stream, start=1):
                        if number == 1:
                            line = line.removeprefix(BOM_UTF8)
                        if not line or line.isspace():
                            continue
                        lines += 1
                        text, problem = _text(line, key)
                        if problem is None:
                            yield text
                            continue
                        broken += 1
                        self.dropped["broken_line"] += 1
                        if len(named) < NAMED_BROKEN_LINES:
                            named.append(f"{display(path)}:{number}: {problem}")
                            logger.warning("%s; the line is left out.", named[-1])
                except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                    raise DataError(f"{self.where}: {display(path)}: damaged gzip file: {error}.") from error
        if lines and broken / lines > self.config.max_broken_fraction:
            raise DataError(
                f"{self.where}: {broken:,} of {lines:,} lines ({broken / lines:.2%}) cannot be read, at most "
                f"max_broken_fraction = {self.config.max_broken_fraction:.2%} may be. First: {'; '.join(named)}. "
                "Mend the file, or set text_key or max_broken_fraction."
            )


def _text(line: bytes, key: str) -> tuple[str, str | None]:
    """(document, what is wrong with the line or None)."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return "", f"not JSON ({error.msg})"
    if not isinstance(value, dict):
        return "", f"not an object but {type(value).__name__}"
    text = value.get(key)
    if isinstance(text, str):
        return text, None
    if key not in value:
        return "", f"no key {key!r} among {', '.join(map(repr, list(value)[:5])) or 'no keys'}"
    return "", f"{key!r} is not text but {type(text).__name__}"
