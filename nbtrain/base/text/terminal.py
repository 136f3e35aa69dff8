"""Text for a terminal: made printable, shortened, and wrapped to the terminal's width.

An escape sequence in a document or in the name of a file would colour, move or rename the terminal, and a
mark of direction would show what follows backwards. HTML pages and JSON files have their own escapes.
"""

import re
from collections.abc import Iterable

# Harmless characters that str.isprintable() calls unprintable: spaces of every width, and joiners.
HARMLESS = re.compile("[\n\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u200c\u200d]")

# Maximum number of characters of a value that a message quotes.
MOST_QUOTED_CHARS = 80


def shortened(text: str, most: int = MOST_QUOTED_CHARS) -> str:
    """Return the text, or its first 77 characters and "..." if it is too long to be quoted in a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def nearest(word: str, known: Iterable[str], count: int = 1) -> str:
    """Return a sentence, after a space, with the known words most similar to `word`; "" if there are none."""
    # Imported here, because only a wrong word needs it.
    import difflib

    near = difflib.get_close_matches(word, list(known), n=count)
    return f" Nearest: {', '.join(near)}." if near else ""


def printable(text: str) -> str:
    """Return the text with control characters escaped, such as \\x1b and \\u202e; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or HARMLESS.match(one) else one.encode("unicode_escape").decode()
        for one in text
    )


# A line's indentation, with the mark of a list item or with a title that ends in two spaces.
HANGING = re.compile(r" *(?:- |\S+(?: \S+)* {2,})?")
# A command in a message is wrapped only if it is longer than a line.
COMMAND = re.compile(r"`[^`\n]+`")
NO_BREAK = "\x00"
QUOTE = "  | "


def folded(text: str, width: int | None) -> str:
    """Wrap lines that are longer than `width` columns at their spaces; with None, nothing is wrapped.

    The rest of a line begins under the words after its list mark or its title, else two columns further in.
    Paths and other words that are longer than a line stay whole.
    """
    if width is None or all(len(line) <= width for line in text.splitlines()):
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded_line(line, width))


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text without line ends to lines of at most `width` columns, if no single word is longer."""
    import textwrap

    kept = COMMAND.sub(lambda found: _unbroken(found[0], width), text)
    lines = textwrap.wrap(kept, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _folded_line(line: str, width: int) -> list[str]:
    # A quoted line of a document is not wrapped here; the terminal wraps it.
    if len(line) <= width or line.startswith(QUOTE):
        return [line]
    hanging = HANGING.match(line)
    assert hanging is not None  # every part of the pattern is optional
    start = hanging.end()
    indent = len(line) - len(line.lstrip(" "))
    if start == indent or start > width // 2:
        # No mark and no title, or a title after which too little room is left.
        start = indent
        first, *_ = wrapped(line[start:], width - start) or [""]
        rest = line[start + len(first) :].lstrip(" ")
        more = indent + 2 if indent else 0
        return [line[:start] + first, *(" " * more + part for part in wrapped(rest, width - more))]
    first, *parts = wrapped(line[start:], width - start) or [""]
    return [line[:start] + first, *(" " * start + part for part in parts)]


def _unbroken(command: str, width: int) -> str:
    return command.replace(" ", NO_BREAK) if len(command) <= width else command
