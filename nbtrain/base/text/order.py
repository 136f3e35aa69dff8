"""Sort order of names in lists, tables and charts."""

import re


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """Return the key that sorts names in natural order: set-2 before set-10."""
    return tuple((words, int(digits or 0)) for words, digits in re.findall(r"([^0-9]*)([0-9]*)", name))
