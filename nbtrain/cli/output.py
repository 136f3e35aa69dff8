"""Output of the verbs: folded to the terminal's width, with colours for states, verdicts and findings.

Only on a terminal. A pipe or a file gets the text unchanged, so that `nbtrain runs | grep` sees one line for
each row. NO_COLOR (https://no-color.org) and TERM=dumb turn the colours off.
"""

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from nbtrain.base import terminal

RED, GREEN, YELLOW, BLUE = 31, 32, 33, 34
"""Colours of ANSI terminals, which every theme keeps readable on its own background."""

LEVELS = {"ok": GREEN, "note": BLUE, "warning": YELLOW, "WARN": YELLOW, "error": RED, "FAIL": RED}
"""Levels of findings and of doctor's lines."""
VERDICTS = {
    "fits: yes": GREEN,
    "fits: no": RED,
    "does not fit": RED,
    "valid": GREEN,
    "not valid": RED,
    "cannot work": RED,
    "passed": GREEN,
    "failed": RED,
    "complete": GREEN,
    "incomplete": RED,
}


def show(result: Any = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Print what a verb has found, fitted to the terminal that `file` (default: stdout) is, if it is one.

    `result` is anything that prints itself, or a function that returns the text. Both are called with the
    width known, so that tables fit.
    """
    stream = sys.stdout if file is None else file
    terminal.columns = columns_of(stream)
    try:
        text = terminal.folded(str(result() if callable(result) else result), terminal.columns)
    finally:
        terminal.columns = None
    print(colored(text) if has_colors(stream) else text, file=stream, flush=flush)


def show_text(text: str, end: str = "") -> None:
    """Print a model's text at once: unchanged to a pipe, with escapes instead of controls on a terminal."""
    print(terminal.printable(text) if sys.stdout.isatty() else text, end=end, flush=True)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def columns_of(stream: TextIO) -> int | None:
    """The width of a terminal; None for a stream that is not one."""
    if not stream.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def has_colors(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not turned colours off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def colored(text: str) -> str:
    """The text with ANSI colours for its states, verdicts, findings' levels and an error's name."""
    for pattern, colors in _patterns():
        text = pattern.sub(functools.partial(_painted, colors), text)
    return text


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], Mapping[str, int]], ...]:
    """(pattern whose one group is a word, the words' colours); any other word is red: an error's name."""
    from nbtrain.base import jobstate  # which takes as long to load as all the rest of `nbtrain help`

    states = dict.fromkeys(jobstate.ACTIVE, YELLOW) | dict.fromkeys(jobstate.FINAL, RED)
    states |= {jobstate.STARTING: BLUE, jobstate.RUNNING: BLUE}
    states |= {jobstate.SUCCEEDED: GREEN, jobstate.CANCELLED: YELLOW}
    # The job page spells them so, after the run's name in its first line.
    phases = {state.capitalize(): color for state, color in states.items()}
    return (
        (re.compile(rf"\b({_any_of(states)})\b"), states),
        (re.compile(rf"^\S+ ({_any_of(phases)})(?=: job )"), phases),
        # Phases of replicas and ranks, as cells of a table; its other cells need no attention.
        (re.compile(r"  (Error|Gone|Failed)(?=  | \(|$)", re.M), {}),
        (re.compile(rf"^ *(?:- )?({_any_of(LEVELS)})(?=[:,]|  )", re.M), LEVELS),
        # After the name of what is judged, or as a cell of a table: never inside a sentence.
        (re.compile(rf"(?:: |  |^)({_any_of(VERDICTS)})(?=[;,:.]|  |$)", re.M), VERDICTS),
        (re.compile(r"^(\w*Error|JobFailed)(?=: )"), {}),
    )


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _painted(colors: Mapping[str, int], found: re.Match[str]) -> str:
    word = found[1]
    return f"{found[0].removesuffix(word)}\x1b[{colors.get(word, RED)}m{word}\x1b[0m"
