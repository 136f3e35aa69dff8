"""Text tables: parsed from a module's text, one line per row, and printed in aligned columns."""

import re
from collections.abc import Collection, Sequence
from itertools import zip_longest

from nbtrain.base.text import terminal

GAP = "  "
# Minimum width of the last column. If less room is left, it is printed below its row, so that sentences stay
# readable.
LEAST_LAST_COLUMNS = 30
BELOW = "    "

Rows = Sequence[Sequence[str]]


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row, separated by |; an indented line continues the row above it."""
    lines = re.sub(r"\n +", " ", text.strip()).splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def fitted(rows: Rows, right: Collection[int] = (), width: int | None = None) -> list[str]:
    """Return the lines of a table that is at most `width` columns wide, unless single words are wider.

    If little room is left for a last column of sentences, it is printed below its row. Other cells are
    wrapped between words, the widest column first. If single words still need more room, the table is divided
    into several tables with fewer columns, each of which begins with the first column.
    """
    widths = [max(map(terminal.columns, column)) for column in zip(*rows)]
    if width is None or _total(widths) <= width:
        return [_line(row, widths, right) for row in rows]
    room = width - _total(widths[:-1]) - len(GAP)
    num = len(widths) - 1 if widths[-1] > LEAST_LAST_COLUMNS > room else len(widths)
    least = [max(_longest_word(cell) for cell in column) for column in zip(*rows)]
    if _total(least[:num]) > width and num > 2:
        return _divided(rows, right, width, least)
    widths = _narrowed(widths[:num], least, width)
    lines = []
    for row in rows:
        # A row that only continues the last column of the row above it has empty cells before that column.
        lines += _broken(row[:num], widths, right) if any(row[:num]) or not row[num:] else []
        lines += [BELOW + part for cell in row[num:] for part in terminal.wrapped(cell, width - len(BELOW))]
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _line(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> str:
    cells = (
        terminal.padded(cell, width, is_right=at in right)
        for at, (cell, width) in enumerate(zip(row, widths))
    )
    return GAP.join(cells).rstrip()


def _longest_word(cell: str) -> int:
    return max(map(terminal.columns, cell.split()), default=0)


def _narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return column widths that fit, by reducing the widest columns.

    No column becomes narrower than its longest word.
    """
    narrowed = list(widths)
    while _total(narrowed) > width:
        wider = [at for at, (now, need) in enumerate(zip(narrowed, least)) if now > need]
        if not wider:
            break
        narrowed[max(wider, key=narrowed.__getitem__)] -= 1
    return narrowed


def _broken(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    """Return the lines of one row, with its cells wrapped between words."""
    cells = (
        [cell] if terminal.columns(cell) <= width else terminal.wrapped(cell, width)
        for cell, width in zip(row, widths)
    )
    return [_line(parts, widths, right) for parts in zip_longest(*cells, fillvalue="")]


def _divided(rows: Rows, right: Collection[int], width: int, least: Sequence[int]) -> list[str]:
    """Return the lines of several narrower tables, separated by empty lines.

    Each table begins with the first column.
    """
    parts: list[list[int]] = [[0]]
    for at in range(1, len(least)):
        if len(parts[-1]) > 1 and _total([least[column] for column in (*parts[-1], at)]) > width:
            parts.append([0])
        parts[-1].append(at)
    lines: list[str] = []
    for part in parts:
        sides = [place for place, column in enumerate(part) if column in right]
        lines += ["", *fitted([[row[column] for column in part] for row in rows], sides, width)]
    return lines[1:]
