"""Output of the verbs: folded to the terminal's width, with colours for states, verdicts and findings.

This applies only to a terminal. A pipe or a file gets the text unchanged, so that `nbtrain runs | grep` sees
one line for each row. NO_COLOR (https://no-color.org) and TERM=dumb turn the colours off.
"""

import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from nbtrain.base.text import terminal

RED, GREEN, YELLOW, BLUE = 31, 32, 33, 34
"""ANSI codes of the foreground colours that terminal themes keep readable on their background."""

TONE_COLORS = {"live": BLUE, "good": GREEN, "wait": YELLOW, "calm": YELLOW, "bad": RED}
"""{tone: colour}. base/run_directory/jobstate.py assigns a tone to each state of a job."""
LEVELS = {"ok": GREEN, "note": BLUE, "warning": YELLOW, "error": RED}
"""{level of a finding: colour}."""
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
    """Print a Result (base/printing/report.py) or a text, fitted to the width of `file` if it is a terminal.

    `file` is stdout by default.
    """
    stream = sys.stdout if file is None else file
    # Checking for the class would import it, which `nbtrain help` does not need.
    if hasattr(result, "as_report"):
        text = result.as_report().text(columns_of(stream), has_colors(stream))
    else:
        text = terminal.folded(str(result), columns_of(stream))
    print(colored(text) if has_colors(stream) else text, file=stream, flush=flush)


def show_text(text: str, end: str = "") -> None:
    """Print text that a model generated, and flush it.

    On a terminal, control characters are printed as escapes; a pipe or a file gets the text unchanged.
    """
    print(terminal.printable(text) if sys.stdout.isatty() else text, end=end, flush=True)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def columns_of(stream: TextIO) -> int | None:
    """Return the width of a terminal; None for other streams."""
    if not stream.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def has_colors(stream: TextIO) -> bool:
    """Return whether a stream is a terminal and the user has not turned colours off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def colored(text: str) -> str:
    """Return the text with ANSI colours for states, verdicts, levels of findings and the name of an error."""
    for pattern, colors in _patterns():
        text = pattern.sub(functools.partial(_painted, colors), text)
    return text


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], Mapping[str, int]], ...]:
    """Return pairs of a pattern and {word: colour}.

    Group 1 of the pattern is the word to colour. A word that the dict lacks becomes red.
    """
    from nbtrain.base.run_directory import jobstate

    states = {state: TONE_COLORS[jobstate.tone_of(state)] for state in jobstate.MEANING}
    return (
        (re.compile(rf"\b({_any_of(states)})\b"), states),
        # Phases of replicas and ranks, as table cells; the other cells are not coloured.
        (re.compile(r"  (Error|Gone|Failed)(?=  | \(|$)", re.M), {}),
        (re.compile(rf"^ *(?:- )?({_any_of(LEVELS)})(?=[:,]|  )", re.M), LEVELS),
        # After the name of a checked item, or as a table cell, but never inside a sentence.
        (re.compile(rf"(?:: |  |^)({_any_of(VERDICTS)})(?=[;,:.]|  |$)", re.M), VERDICTS),
        (re.compile(r"^(\w*Error|JobFailed)(?=: )"), {}),
    )


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _painted(colors: Mapping[str, int], found: re.Match[str]) -> str:
    word = found[1]
    return f"{found[0].removesuffix(word)}\x1b[{colors.get(word, RED)}m{word}\x1b[0m"
