"""Text for a terminal: made printable, measured in columns, shortened, and wrapped to the terminal's width.

An escape sequence in a document or in a file name would color, move or rename the terminal, and a Unicode
direction mark would reverse the text after it. HTML pages and JSON files have their own escapes.
"""

import re
import unicodedata

# Harmless characters that are unprintable for str.isprintable(): spaces of all widths, and joiners.
HARMLESS = re.compile("[\n\t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000\u200c\u200d]")

# Maximum number of characters of a value that a message quotes.
MOST_QUOTED_CHARS = 80


def shortened(text: str, most: int = MOST_QUOTED_CHARS) -> str:
    """Return the text, or its first 77 characters and "..." if it is too long to be quoted in a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: str) -> str:
    """Return the text with control characters escaped, such as \\x1b and \\u202e; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or HARMLESS.match(one) else one.encode("unicode_escape").decode()
        for one in text
    )


def columns(text: str) -> int:
    """Return the number of columns that a printable text needs.

    A Chinese character needs 2, a combining accent 0.
    """
    return len(text) if text.isascii() else sum(map(_character_columns, text))


def padded(text: str, width: int, is_right: bool = False) -> str:
    """Return the text padded with spaces to `width` columns. With `is_right`, it is aligned to the right."""
    space = " " * (width - columns(text))
    return space + text if is_right else text + space


def _character_columns(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf") else 1


# A line's indentation, with the mark of a list item or with a title that ends in two spaces.
HANGING = re.compile(r" *(?:- |\S+(?: \S+)* {2,})?")
# A command in a message is wrapped only if it is longer than a line.
COMMAND = re.compile(r"`[^`\n]+`")
NO_BREAK = "\x00"
# Stands for the second column of a wide character while a text is wrapped.
SECOND_COLUMN = "\x01"
QUOTE = "  | "


def folded(text: str, width: int | None) -> str:
    """Wrap lines that are longer than `width` columns at their spaces; with None, nothing is wrapped.

    Continuation lines begin below the text that follows a list mark or a title; otherwise, they are indented
    by two more columns. Paths and other words that are longer than a line are not broken.
    """
    if width is None or all(columns(line) <= width for line in text.splitlines()):
        return text
    return "\n".join(part for line in text.split("\n") for part in _folded_line(line, width))


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text without line ends to lines of at most `width` columns.

    Single longer words are not broken.
    """
    import textwrap

    kept = COMMAND.sub(lambda found: _unbroken(found[0], width), text)
    if not kept.isascii():
        kept = "".join(one + SECOND_COLUMN * (_character_columns(one) - 1) for one in kept)
    lines = textwrap.wrap(kept, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ").replace(SECOND_COLUMN, "") for line in lines]


def _folded_line(line: str, width: int) -> list[str]:
    # A quoted line of a document is not wrapped here; the terminal wraps it.
    if columns(line) <= width or line.startswith(QUOTE):
        return [line]
    hanging = HANGING.match(line)
    assert hanging is not None  # every part of the pattern is optional
    start = hanging.end()
    indent = len(line) - len(line.lstrip(" "))
    margin = columns(line[:start])
    if start == indent or margin > width // 2:
        # The line has no mark and no title, or a title after which too little room is left.
        start = indent
        first, *_ = wrapped(line[start:], width - start) or [""]
        rest = line[start + len(first) :].lstrip(" ")
        more = indent + 2 if indent else 0
        return [line[:start] + first, *(" " * more + part for part in wrapped(rest, width - more))]
    first, *parts = wrapped(line[start:], width - margin) or [""]
    return [line[:start] + first, *(" " * margin + part for part in parts)]


def _unbroken(command: str, width: int) -> str:
    return command.replace(" ", NO_BREAK) if columns(command) <= width else command
