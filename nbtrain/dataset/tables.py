"""Small tables as text, with numbers right-aligned and words left-aligned; base/html_table.py makes HTML
tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nbtrain.base.html_table import is_number
from nbtrain.base.table import aligned
from nbtrain.base.terminal import printable

Table = tuple[list[str], list[list[str]]]
UNREAD_COLUMNS = ["source", "keys not read (records with a value)"]
SOURCE_COLUMNS = ["source", "documents", "bytes", "tokens", "bytes/token"]


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table for a terminal with aligned columns; each cell becomes one printable line."""
    header, *rows = [[printable(cell).replace("\n", "\\n") for cell in row] for row in (header, *rows)]
    numbers = {at for at in range(len(header)) if all(is_number(row[at]) for row in rows)}
    return "\n".join(aligned([header, *rows] if any(header) else rows, numbers))


def as_facts(table: Table) -> dict[str, str]:
    """Return {first cell of a row: its other cells with their headings}, to show different tables in one
    grid.
    """
    header, rows = table
    if not any(header):
        return {name: said for name, said in rows}
    return {
        row[0]: ", ".join(f"{title} {cell}" for title, cell in zip(header[1:], row[1:]) if cell)
        for row in rows
    }


def unread_rows(sources: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return [source, its unread keys with the number of records] for each source that has unread keys."""
    rows = []
    for source in sources:
        by_count: dict[int, list[str]] = {}
        for key, count in source["unread_keys"].items():
            by_count.setdefault(count, []).append(key)
        said = [
            f"{', '.join(sorted(by_count[count]))} ({count:,})" for count in sorted(by_count, reverse=True)
        ]
        if said:
            rows.append([source["name"], ", ".join(said)])
    return rows


def source_rows(sources: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the values of SOURCE_COLUMNS for each source of a manifest."""
    rows = []
    for source in sources:
        documents, num_bytes, tokens = source["documents"], source["bytes"], source["tokens"]
        rate = f"{num_bytes / tokens:.3f}" if num_bytes and tokens else ""
        rows.append([source["name"], f"{documents:,}", f"{num_bytes:,}", f"{tokens:,}", rate])
    return rows
