"""Published figures of other models or machines, as columns of a comparison: a YAML of names and figures.

    345M on 8 NPUs:
      samples/s: 59.7
      validation perplexity: 26.485
      source: arXiv:2104.04473, table 1

A key is the name of a row of the comparison, without ", mean of 100 steps", or any other text, which then
gets a row at the end. Numbers are in the row's unit (docs/runs.md).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import printable, shortened
from nbtrain.config.yaml_source import Located, parse_yaml, read_yaml, show

# Checked before the YAML is parsed, which takes a second per megabyte.
MOST_BYTES = 64 << 10
MOST_ENTRIES = 24
MOST_FIGURES = 100
MOST_NAME_CHARS = 80
MOST_TEXT_CHARS = 200
# How similar an unknown key must be to a row's name to be refused as misspelt.
MISSPELT = 0.85
SHAPE = "published figures are a mapping from names to figures, such as `345M on 8 NPUs: {samples/s: 59.7}`"


@dataclass(frozen=True)
class Published:
    """The published figures of one model or machine."""

    name: str
    place: str
    """Place of the name in the file, as file:line."""
    figures: dict[str, float | str]
    """{name of a row, or of a new row: value}."""
    places: dict[str, str]
    """{key of figures: its place in the file}."""


def read_published(path: Path) -> list[Published]:
    """Return the entries of a file. Raises ConfigError with the place of every problem."""
    # read_yaml() refuses a path that is not a file.
    if path.is_file():
        _refuse_large(path.stat().st_size, path.name)
    return _entries(read_yaml(path, shape=SHAPE), path.name)


def parse_published(text: str, label: str) -> list[Published]:
    """Return the entries of a text, like read_published(); messages call the text `label`."""
    label = printable(shortened(label))
    try:
        _refuse_large(len(text.encode()), label)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{label}: character {error.start + 1} is half of a surrogate pair, which no UTF-8 file holds; "
            "leave it out."
        ) from None
    return _entries(parse_yaml(text, label, shape=SHAPE), label)


def _refuse_large(num_bytes: int, label: str) -> None:
    if num_bytes > MOST_BYTES:
        raise ConfigError(
            f"{label}: has {amounts.size(num_bytes)}; published figures may have at most "
            f"{amounts.size(MOST_BYTES)}. Keep the entries that you compare with, at most {MOST_ENTRIES}."
        )


def _entries(located: Located, label: str) -> list[Published]:
    entries = located.value
    if len(entries) > MOST_ENTRIES:
        raise ConfigError(
            f"{label}: has {len(entries):,} entries; a comparison shows at most {MOST_ENTRIES}. Remove some."
        )
    places = {name: located.where(name) or label for name in entries}
    refuse(
        (
            problem
            for name, figures in entries.items()
            for problem in _problems(located, name, figures, places[name])
        ),
        ConfigError,
    )
    return [
        Published(name, places[name], figures, _places(located, name, figures, places[name]))
        for name, figures in entries.items()
    ]


def _places(located: Located, name: str, figures: dict[str, Any], place: str) -> dict[str, str]:
    return {key: located.where(f"{name}.{key}") or place for key in figures}


def _problems(located: Located, name: str, figures: Any, place: str) -> Iterator[Finding]:
    """Yield the problems of one entry, whose name is written at `place`."""
    if not name.strip() or len(name) > MOST_NAME_CHARS:
        words = (
            f"the name {shortened(name)!r} has {len(name)} characters; it must have 1 to {MOST_NAME_CHARS}."
        )
        yield Finding("error", "published", "", place, words, cost=FATAL)
    if not isinstance(figures, dict) or not 1 <= len(figures) <= MOST_FIGURES:
        words = (
            f"{name} = {shortened(show(figures))} must be a mapping of 1 to {MOST_FIGURES} figures, such as "
        )
        yield Finding("error", "published", "", place, words + "{samples/s: 59.7}.", cost=FATAL)
        return
    for key, place_of_key in _places(located, name, figures, place).items():
        value = figures[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number and not (isinstance(value, str) and 0 < len(value) <= MOST_TEXT_CHARS):
            words = (
                f"{key} = {shortened(show(value))} must be a finite number, or a text of 1 to "
                f"{MOST_TEXT_CHARS} characters in quotes."
            )
            yield Finding("error", "published", key, place_of_key, words, cost=FATAL)


def row_of(key: str, rows: Sequence[str], numbers: Sequence[bool], entry: Published) -> int | None:
    """Return the index of the row that a key of an entry names; None if the key gets a separate row.

    `numbers` says which of the rows hold numbers. Raises ConfigError for a key that looks like a misspelt
    name of a row, and for text in a row of numbers.
    """
    short = [row.partition(", mean of")[0] for row in rows]
    at = rows.index(key) if key in rows else short.index(key) if key in short else None
    value = entry.figures[key]
    if at is None:
        if near := get_close_matches(key, short, n=1, cutoff=MISSPELT):
            raise ConfigError(
                f"{entry.places[key]}: {key!r} is not a row of a comparison. Write {near[0]!r}, or "
                "another name that is less similar, for a separate row."
            )
        return None
    if numbers[at] and isinstance(value, str):
        raise ConfigError(
            f"{entry.places[key]}: {key} = {show(value)} must be a number, because the runs have "
            "numbers in this row. Write the number alone, or give the row another name."
        )
    return at
