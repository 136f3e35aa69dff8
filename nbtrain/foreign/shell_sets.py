"""Statements that set a variable to a value that only the shell knows: read, let, ((X++)), X[1]=."""

import re
from collections.abc import Sequence

from nbtrain.foreign.shell_words import RawWord

# Commands that begin an assignment; their options are not assignments.
DECLARING = ("export", "declare", "local", "readonly", "typeset")
ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]\+?=")
# X=3, X += 2, X++ and ++X of arithmetic; == <= >= != compare.
SUM_SETS = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)"
)
# Commands that name the variables they set -> their options that take a value.
NAMING = {"read": "dinNptu", "mapfile": "CcdnOsu", "readarray": "CcdnOsu", "unset": ""}
PLAIN_NAME = re.compile(r"[A-Za-z_]\w*$")


def without_options(raws: Sequence[RawWord]) -> list[RawWord]:
    """Return the words after declare, local or export that are not options: `-a X=(...)`, `-x X=1`."""
    return [raw for raw in raws if not re.match(r"[-+][A-Za-z]+$", raw.plain)]


def names_set(raws: Sequence[RawWord]) -> list[str]:
    """Return the variables that a statement sets to values that are not evaluated here."""
    if not raws:
        return []
    head, first = raws[0].plain, raws[0].pieces[0] if raws[0].pieces else None
    if first is None:
        return []
    if len(raws) == 1 and first.kind == "sum":
        return _of_sum(first.text)
    if first.kind == "text" and not first.quoted and (match := ELEMENT.match(first.text)):
        return [match.group(1)]
    if head == "let":
        return [name for raw in raws[1:] for name in _of_sum("".join(piece.text for piece in raw.pieces))]
    texts = [raw.plain for raw in raws[1:]]
    if head == "printf":
        return [texts[at + 1] for at, text in enumerate(texts[:-1]) if text == "-v"]
    if head == "getopts":
        return texts[1:2]
    if head not in NAMING:
        return []
    valued = {at + 1 for at, text in enumerate(texts) if text[:1] == "-" and text[-1:] in NAMING[head]}
    return [text for at, text in enumerate(texts) if at not in valued and PLAIN_NAME.match(text)]


def _of_sum(text: str) -> list[str]:
    return [one or other for one, other in SUM_SETS.findall(text)]
