"""Tables of a dataset's sources, shown by prepare, inspect and the data card."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbtrain.base.printing.report import Column, Table

Source = Mapping[str, Any]


def sources_table(
    sources: Sequence[Source],
    title: str = "",
    is_grid: bool = False,
    **more: Callable[[Source], Any],
) -> Table:
    """Return a table with a row for each source: its documents, bytes, tokens and bytes per token.

    Each of `more` adds a column: the keyword is the heading, and the function returns the cell of a source.
    """
    columns: list[str | Column] = [
        "source",
        "documents",
        "bytes",
        "tokens",
        Column("bytes/token", "{:.3f}".format),
    ]
    rows = [
        [
            *(source[key] for key in ("name", "documents", "bytes", "tokens")),
            source["bytes"] / source["tokens"] if source["bytes"] and source["tokens"] else None,
            *(value(source) for value in more.values()),
        ]
        for source in sources
    ]
    return Table([*columns, *(name.replace("_", " ") for name in more)], rows, title, is_grid)


def unread_table(sources: Sequence[Source], title: str = "", is_grid: bool = False) -> Table:
    """Return a table of the keys that were not read, and how many records have a value under each key."""
    rows = []
    for source in sources:
        by_count: dict[int, list[str]] = {}
        for key, count in source["unread_keys"].items():
            by_count.setdefault(count, []).append(key)
        counted = [
            f"{', '.join(sorted(by_count[count]))} ({count:,})" for count in sorted(by_count, reverse=True)
        ]
        if counted:
            rows.append([source["name"], ", ".join(counted)])
    return Table(["source", "keys not read (records with a value)"], rows, title, is_grid)
