"""Displays text with some tokens in the loss so that a wrong mask is visible at a glance.

pieces (text, kind) -> a terminal: green and grey
                    -> plain text: [[tokens in the loss]] tokens outside the loss <EOD>
                    -> HTML: coloured by style attributes, which an untrusted notebook keeps
kinds of positions  -> a strip of one line, or an image of it
"""

import html
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from nbtrain.base.printing.theme import GREEN, LINE
from nbtrain.base.text.terminal import printable

Kind = Literal["loss", "read", "padding"]
"""Role of a position in training: a label in the loss, a token that is only read, or padding."""
Piece = tuple[str, Kind]
KINDS: tuple[Kind, ...] = ("read", "loss", "padding")
END_OF_DOCUMENT = "<EOD>"
"""Text shown for the end-of-document token."""
LEGEND_COLOUR = "tokens in the loss are green, the others grey"
LEGEND_PLAIN = "tokens in the loss are between [[ and ]]"
LEGEND_HTML = "tokens in the loss are coloured"
STRIP_CELLS = 96
STRIP_CHARACTERS = {"loss": "#", "read": "-", "padding": "."}
SOME_LOSS = "+"
STRIP_LEGEND = "strip: # in the loss, + in part, - without a loss, | where a document begins, . padding"
_ANSI = {"loss": "\x1b[32m", "read": "\x1b[90m", "padding": "\x1b[90m"}
_STYLES = {
    "loss": "background-color:rgba(46,158,79,.18)",
    "read": "color:#7a828e",
    "padding": "color:#7a828e;font-style:italic",
}
_STRIP_COLOURS = {"loss": GREEN, "read": LINE, "padding": "none"}


def lines_of(text: str) -> str:
    """Return the text as printable lines, each terminated by a line feed."""
    end = "\n" if text[-1:] in ("\n", "\r") else ""
    return printable("\n".join(text.splitlines()) + end)


def text_of(pieces: Sequence[Piece], colour: bool = False) -> str:
    """Return printable text in which the tokens in the loss are in brackets or, with `colour`, coloured."""
    parts = []
    for kind, group in groupby(pieces, key=lambda piece: piece[1]):
        shown = lines_of("".join(text for text, _ in group))
        if colour:
            # Each line gets its own escape sequence: pagers and indents reset the colour at each line start.
            parts.append(
                "\n".join(f"{_ANSI[kind]}{line}\x1b[0m" if line else "" for line in shown.split("\n"))
            )
        else:
            parts.append(f"[[{shown}]]" if kind == "loss" else shown)
    return "".join(parts)


def html_of(pieces: Sequence[Piece]) -> str:
    """Return the pieces as HTML spans."""
    return "".join(f'<span style="{_STYLES[kind]}">{html.escape(text)}</span>' for text, kind in pieces)


def strip_text(kinds: np.ndarray, begins: Sequence[int]) -> str:
    """Return a line with up to STRIP_CELLS characters that show the roles of all positions.

    `kinds` holds an index into KINDS for each position, `begins` the positions at which documents begin.
    """
    cells = min(STRIP_CELLS, len(kinds))
    bounds = np.linspace(0, len(kinds), cells + 1).astype(int)
    characters = []
    for start, stop in pairwise(bounds):
        counts = np.bincount(kinds[start:stop], minlength=len(KINDS))
        most: Kind = KINDS[int(counts.argmax())]
        has_some = counts[KINDS.index("loss")] > 0 and most != "loss"
        characters.append(SOME_LOSS if has_some else STRIP_CHARACTERS[most])
    for begin in begins:
        characters[min(cells - 1, int(np.searchsorted(bounds, begin, side="right")) - 1)] = "|"
    return "".join(characters)


def strip_svg(kinds: np.ndarray, begins: Sequence[int]) -> str:
    """Return the strip as an inline SVG, as wide as its parent element."""
    length = len(kinds)
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), length]
    bars = "".join(
        f'<rect x="{start}" y="2" width="{stop - start}" height="12" '
        f'fill="{_STRIP_COLOURS[KINDS[int(kinds[start])]]}"/>'
        for start, stop in pairwise(edges)
    )
    width = max(1.0, length / 600)
    lines = "".join(
        f'<rect x="{begin}" y="0" width="{width:.1f}" height="16" fill="currentColor"/>' for begin in begins
    )
    frame = f'<rect x="0" y="2" width="{length}" height="12" fill="none" stroke="{LINE}" stroke-width="1"/>'
    return (
        f'<svg role="img" aria-label="{html.escape(STRIP_LEGEND)}" viewBox="0 0 {length} 16" '
        f'preserveAspectRatio="none" style="width:100%;height:16px">{bars}{frame}{lines}</svg>'
    )
