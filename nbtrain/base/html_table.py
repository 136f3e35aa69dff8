"""HTML tables in one style: plan, check, prepare, the data card, a run's static plots.

Styles are attributes, because JupyterLab removes <style> from the outputs of untrusted notebooks. Text has
the theme's color, dimmed by opacity. The live views get the same style from lab/ui/style.js.
"""

import html
from collections.abc import Iterable, Mapping, Sequence

from nbtrain.base.look import LINE, WORD_COLORS

TABLE = "border-collapse:collapse;table-layout:auto;width:auto;margin:2px 0 10px 0;font-size:12px"
DIM = "opacity:.7"
CELL = "padding:3px 14px 3px 0;vertical-align:top;font-size:12px;border:0"
HEAD = f"padding:3px 14px 3px 0;vertical-align:top;font-size:11px;font-weight:500;{DIM}"
RULE = f"border:0;border-bottom:1px solid {LINE}"
# A cell of at most this many characters, such as "74.2 GiB", is not wrapped.
SHORT_CHARACTERS = 10
# A table that is wider than its page scrolls in its own frame.
SCROLLED = "overflow-x:auto;max-width:100%"
# Least width of the last column, which wraps its lines, on a narrow page.
LAST_COLUMN = "min-width:160px"
# JupyterLab paints every second row of a table.
ROW = "background-color:transparent"


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "", whole: bool = False
) -> str:
    """Return a <table> with escaped cells and right-aligned columns of numbers.

    With `whole`, only the last column wraps its lines. Without headings (all of them ""), the rows are facts:
    a dimmed name and its value.
    """
    rows = [[str(cell) for cell in row] for row in rows]
    facts = not any(head)
    sides = [
        "right" if not facts and all(is_number(row[column]) for row in rows) else "left"
        for column in range(len(head))
    ]
    titles = "".join(
        f'<th style="text-align:{side};{HEAD};{RULE}">{html.escape(title)}</th>'
        for title, side in zip(head, sides)
    )
    lines = "".join(
        f'<tr style="{ROW}">{"".join(_cell(row, at, sides, facts, whole) for at in range(len(row)))}</tr>'
        for row in rows
    )
    above = "" if facts else f'<thead><tr style="{ROW}">{titles}</tr></thead>'
    said = f'<div style="font-size:11px;{DIM};margin-top:8px">{html.escape(caption)}</div>'
    table = f'<table style="{TABLE}">{above}<tbody>{lines}</tbody></table>'
    return f'{said if caption else ""}<div style="{SCROLLED}">{table}</div>'


def grouped_table(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Return one <table> of {title of a group: {name: value}}; a name with a leading space is indented."""
    lines = []
    for title, facts in groups.items():
        heading = f"text-align:left;padding:8px 0 2px 0;font-size:12px;font-weight:600;{RULE}"
        lines.append(f'<tr style="{ROW}"><th colspan="2" style="{heading}">{html.escape(title)}</th></tr>')
        for name, said in facts.items():
            indent = 16 if name.startswith(" ") else 0
            left = f"text-align:left;white-space:nowrap;{CELL};padding-left:{indent}px;{DIM}"
            lines.append(
                f'<tr style="{ROW}"><td style="{left}">{html.escape(name.strip())}</td>'
                f'<td style="text-align:left;white-space:normal;overflow-wrap:anywhere;{CELL}">'
                f"{html.escape(str(said))}</td></tr>"
            )
    return f'<table style="{TABLE}"><tbody>{"".join(lines)}</tbody></table>'


def words_row(words: Iterable[tuple[str, str, str]]) -> str:
    """Return the main results side by side: (name, word, kind: good, tight, bad or "")."""
    cells = "".join(
        f'<div style="display:inline-block;vertical-align:top;padding:2px 34px 6px 0">'
        f'<span style="font-size:11px;{DIM}">{html.escape(name)}</span><br>'
        f'<strong style="font-size:19px;color:{WORD_COLORS.get(kind, "inherit")}">'
        f"{html.escape(word)}</strong></div>"
        for name, word, kind in words
    )
    return f'<div style="margin:2px 0 10px 0">{cells}</div>'


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, such as 1,234 or 5.6 or 7%."""
    return bool(cell) and all(character in "0123456789.,%-" for character in cell)


def _cell(row: Sequence[str], at: int, sides: Sequence[str], facts: bool, whole: bool) -> str:
    is_unbroken = (whole and at < len(row) - 1) or (not facts and len(row[at]) <= SHORT_CHARACTERS)
    unbroken = ";white-space:nowrap" if is_unbroken else ""
    if whole and not facts and at == len(row) - 1 and len(row[at]) > SHORT_CHARACTERS:
        unbroken = f";{LAST_COLUMN}"
    dim = f";{DIM}" if facts and at == 0 else ""
    return f'<td style="text-align:{sides[at]};{CELL}{unbroken}{dim}">{html.escape(row[at])}</td>'
