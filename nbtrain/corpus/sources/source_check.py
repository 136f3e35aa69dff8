"""Finds mistakes in data.sources by a look at the first records, before any file is read completely.

no such file or folder        reported, unless the dataset exists already
no record has the key         the kind of source that reads the records, as a line for the YAML
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
"""Kinds whose records have one key of text."""


def source_problems(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield (the problem with a source, the fix) for the sources of a run."""
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
                "Put it there, or correct the path: it is relative to the workspace.",
            )
        elif source.kind in PLAIN and (fitting := fitting_source(source)):
            yield f"{where}: {fitting[0]}", fitting[1]


def fitting_source(source: Any) -> tuple[str, str] | None:
    """Return (the keys that the records have instead of the text key, the source entry that would read them).

    None if the text key is there, or if the files cannot be read: their reader reports why.
    """
    try:
        reader: Any = open_source(source)
        path: Path = reader.files()[0]
        records = first_records(path)
    except (DataError, OSError):
        return None
    if not records or any(source.text_key in record for record in records):
        return None
    keys = keys_of(records[0])
    found = f"no record of {display(path)} has the key {source.text_key!r}; the records have {keys}."
    fitting = source_of(records)
    if fitting is None:
        return found, "Set text_key to the one that holds the text."
    if fitting["kind"] == "jsonl":
        fitting["kind"] = source.kind
    entry = {"kind": fitting.pop("kind"), "path": source.path, **fitting}
    packing = " with data.packing: best_fit" if entry["kind"] not in (*PLAIN, "tokens") else ""
    return found, f"The source that reads them is {spelled(entry)}{packing}."
