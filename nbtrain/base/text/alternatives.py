"""Alternatives within a sentence: "a", "a or b", "a, b or c"."""

from collections.abc import Sequence


def alternatives(texts: Sequence[str], last: str = " or ") -> str:
    """Return the texts joined as alternatives. `last` is placed before the last of several texts."""
    *others, end = texts
    return f"{', '.join(others)}{last}{end}" if others else end
