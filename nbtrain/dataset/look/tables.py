"""Small tables as text and as HTML: numbers to the right, words to the left."""

from collections.abc import Mapping, Sequence
from typing import Any

from nbtrain.base.terminal import printable

Table = tuple[list[str], list[list[str]]]
SOURCE_COLUMNS = ["source", "documents", "bytes", "tokens", "bytes/token"]


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned columns for a terminal: a cell is one line of what can be printed."""
    header, *rows = [[printable(cell).replace("\n", "\\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    numbers = [all(is_number(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers)
        ).rstrip()
        for row in ([header, *rows] if any(header) else rows)
    )


def html_table(header: list[str], rows: list[list[str]]) -> str:
    """A <table>; every cell is escaped. Two columns without a heading are facts: all to the left."""
    import html

    facts = not any(header)

    def line(cells: list[str], tag: str) -> str:
        # In attributes: widgets and pages have no style sheet for tables, and a saved notebook may lose one.
        sides = ("right" if is_number(cell) and not facts else "left" for cell in cells)
        styled = (
            f'<{tag} style="text-align:{side};padding:2px 14px 2px 0">{html.escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides)
        )
        return f"<tr>{''.join(styled)}</tr>"

    head = "" if facts else line(header, "th")
    return f"<table>{head}{''.join(line(row, 'td') for row in rows)}</table>"


def is_number(cell: str) -> bool:
    """Whether a cell is a figure, such as 1,234 or 5.6 or 7%."""
    return bool(cell) and all(character in "0123456789.,%-" for character in cell)


def source_rows(sources: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """SOURCE_COLUMNS of each source of a manifest; "" for a figure that it does not have."""
    rows = []
    for source in sources:
        num_bytes, tokens = source.get("bytes"), source.get("tokens")
        rate = f"{num_bytes / tokens:.3f}" if num_bytes and tokens else ""
        figures = (source.get("documents"), num_bytes, tokens)
        shown = ["" if figure is None else f"{figure:,}" for figure in figures]
        rows.append([source.get("name") or source.get("kind") or "", *shown, rate])
    return rows
