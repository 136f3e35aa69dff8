"""Tables that are written as text in a module, where a row of Python would take a line for each cell."""

import re


def rows(text: str) -> list[list[str]]:
    """The cells of each row, which | divides; an indented line goes on with the row above it."""
    lines = re.sub(r"\n +", " ", text.strip()).splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines]
