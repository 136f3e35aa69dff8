"""Finds mistakes in data.sources from the first records, before any file is read completely.

the file or folder is missing   reports the full path
no record has the text key      suggests the source entry that would read the records
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display, resolve
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import spelled
from nbtrain.corpus.files.json_line import keys_of
from nbtrain.corpus.sources.base import open_source
from nbtrain.corpus.sources.record_kind import first_records, source_of

PLAIN = ("jsonl", "parquet")
"""Kinds of source that read the text under one key of each record."""


def source_problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield (problem, fix) for each source of a run whose settings contain a mistake."""
    for number, source in enumerate(config.data.sources):
        path = getattr(source, "path", None)
        if path is None:
            continue
        where = f"data.sources[{number}].path = {path}"
        try:
            is_there = resolve(path).exists()
        except OSError:
            is_there = False
        if not is_there:
            place = display(resolve(path))
            named = "" if place == path else f" ({place})"
            yield (
                f"{where}: no such file or folder{named}.",
                "Create it, or correct the path. Relative paths start at the workspace.",
            )
        elif source.kind in PLAIN and (fitting := fitting_source(source)):
            yield f"{where}: {fitting[0]}", fitting[1]


def fitting_source(source: Any) -> tuple[str, str] | None:
    """Return (problem, fix) if none of the first records has the text key.

    The fix is a source entry that reads the records, if there is one. Returns None if a record has the text
    key, or if the files cannot be read; their reader reports why.
    """
    try:
        reader: Any = open_source(source)
        path: Path = reader.files()[0]
        records = first_records(path)
    except (DataError, OSError):
        return None
    if not records or any(source.text_key in record for record in records):
        return None
    keys = f"the keys {keys_of(records[0])}" if records[0] else "no keys"
    found = f"no record in {display(path)} has the key {source.text_key!r}; the first record has {keys}."
    fitting = source_of(records)
    if fitting is None:
        return found, "Set text_key to the key that holds the text."
    if fitting["kind"] == "jsonl":
        fitting["kind"] = source.kind
    entry = {"kind": fitting.pop("kind"), "path": source.path, **fitting}
    packing = " with data.packing: best_fit" if entry["kind"] not in (*PLAIN, "tokens") else ""
    return found, f"To read these records, use the source {spelled(entry)}{packing}."
