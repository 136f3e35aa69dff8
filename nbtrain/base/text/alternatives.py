"""Alternatives of a sentence: "a", "a or b", "a, b or c"."""

from collections.abc import Sequence


def alternatives(texts: Sequence[str], last: str = " or ") -> str:
    """Return the texts as alternatives; `last` stands before the last of several."""
    *others, end = texts
    return f"{', '.join(others)}{last}{end}" if others else end
