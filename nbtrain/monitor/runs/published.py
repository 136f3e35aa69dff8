"""Published figures of other models or machines, read from YAML and shown as columns of a comparison.

    345M on 8 NPUs:
      samples/s: 59.7
      validation perplexity: 26.485
      source: arXiv:2104.04473, table 1

A key may name a row of the comparison; ", mean of 100 steps" can be omitted. Any other key gets a new row at
the end. Numbers are in the row's unit (docs/runs.md).
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

# Checked before the YAML is parsed, because parsing takes a second per megabyte.
MOST_BYTES = 64 << 10
MOST_ENTRIES = 24
MOST_FIGURES = 100
MOST_NAME_CHARS = 80
MOST_TEXT_CHARS = 200
# An unknown key that is at least this similar to a row's name is refused as a misspelling.
MISSPELT = 0.85
SHAPE = "published figures are a mapping from names to figures, such as `345M on 8 NPUs: {samples/s: 59.7}`"


@dataclass(frozen=True)
class Published:
    """The published figures of one model or machine."""

    name: str
    place: str
    """Position of the name in the file, as file:line."""
    figures: dict[str, float | str]
    """{name of an existing or new row: value}."""
    places: dict[str, str]
    """{key in `figures`: its position in the file, as file:line}."""


def read_published(path: Path) -> list[Published]:
    """Return the entries in a YAML file. Raises ConfigError, which lists every problem with its position."""
    # read_yaml() refuses a path that is not a file.
    if path.is_file():
        _refuse_large(path.stat().st_size, path.name)
    return _entries(read_yaml(path, shape=SHAPE), path.name)


def parse_published(text: str, label: str) -> list[Published]:
    """Return the entries in a YAML text, like read_published(). Messages refer to the text as `label`."""
    label = printable(shortened(label))
    try:
        _refuse_large(len(text.encode()), label)
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{label}: character {error.start + 1} is half of a surrogate pair and cannot be written as "
            "UTF-8. Remove it."
        ) from None
    return _entries(parse_yaml(text, label, shape=SHAPE), label)


def _refuse_large(num_bytes: int, label: str) -> None:
    if num_bytes > MOST_BYTES:
        raise ConfigError(
            f"{label}: the file has {amounts.size(num_bytes)}, but a file of published figures may have "
            f"at most {amounts.size(MOST_BYTES)}. Keep only the entries to compare with, at most "
            f"{MOST_ENTRIES}."
        )


def _entries(located: Located, label: str) -> list[Published]:
    entries = located.value
    if len(entries) > MOST_ENTRIES:
        raise ConfigError(
            f"{label}: the file has {len(entries):,} entries, but a comparison shows at most {MOST_ENTRIES}. "
            "Remove some entries."
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
    """Yield the problems of one entry, whose name is at `place` in the file."""
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
                f"{key} = {shortened(show(value))} must be a finite number or a quoted text of 1 to "
                f"{MOST_TEXT_CHARS} characters."
            )
            yield Finding("error", "published", key, place_of_key, words, cost=FATAL)


def row_of(key: str, rows: Sequence[str], numbers: Sequence[bool], entry: Published) -> int | None:
    """Return the index of the row that a key names; None if the key gets a new row.

    `numbers` has, for each row, whether it contains numbers. Raises ConfigError for a key that looks like a
    misspelled row name, and for text in a row of numbers.
    """
    short = [row.partition(", mean of")[0] for row in rows]
    at = rows.index(key) if key in rows else short.index(key) if key in short else None
    value = entry.figures[key]
    if at is None:
        if near := get_close_matches(key, short, n=1, cutoff=MISSPELT):
            raise ConfigError(
                f"{entry.places[key]}: {key!r} is not a row of the comparison. Write {near[0]!r} or, "
                "for a new row, a name that is less similar to it."
            )
        return None
    if numbers[at] and isinstance(value, str):
        raise ConfigError(
            f"{entry.places[key]}: {key} = {show(value)} must be a number, because this row contains numbers "
            "for the runs. Write only the number, or use another row name."
        )
    return at
