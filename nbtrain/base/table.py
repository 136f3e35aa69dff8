"""Tables as text: read from a module, where a row of Python would take a line for each cell; and shown."""

import re
from collections.abc import Sequence


def rows(text: str) -> list[list[str]]:
    """The cells of each row, which | divides; an indented line goes on with the row above it."""
    lines = re.sub(r"\n +", " ", text.strip()).splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells in columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    form = "  ".join(f"%-{width}s" for width in widths)
    return [(form % tuple(row)).rstrip() for row in rows]
