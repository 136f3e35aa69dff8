"""Text of others on its way to a terminal: made printable, and cut if it is long.

An escape sequence in a document or in the name of a file would colour, move or rename the terminal, and a
mark of direction would show what follows backwards. A page in HTML and a file in JSON have escapes of their
own.
"""

import re
from collections.abc import Iterable

# What str.isprintable() takes for unprintable and is harmless: blanks of every width, and what joins letters.
HARMLESS = re.compile("[\n\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u200c\u200d]")

# Characters of a value that a message quotes.
MOST_QUOTED_CHARS = 80


def shortened(text: str, most: int = MOST_QUOTED_CHARS) -> str:
    """The text, or its first 77 characters and "..." if it is longer than a message should quote."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def nearest(word: str, known: Iterable[str], count: int = 1) -> str:
    """A sentence with the known words that look like `word`, a blank in front; "" if none does."""
    # Imported here: only a word that is wrong needs it.
    import difflib

    near = difflib.get_close_matches(word, list(known), n=count)
    return f" Nearest: {', '.join(near)}." if near else ""


def printable(text: str) -> str:
    """The text with \\x1b for an escape, \\u202e for a change of direction, ...; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or HARMLESS.match(one) else one.encode("unicode_escape").decode()
        for one in text
    )
