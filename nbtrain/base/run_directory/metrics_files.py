"""Files metrics.jsonl, metrics.2.jsonl, ... next to a run's event files: its scalars as lines of JSON.

    {"format": "nbtrain metrics", "version": 1, "resumed_from_step": 0, "wall_time": 1764391200.5}
    {"step": 1, "wall_time": 1764391203.25, "tokens": 8192, "samples": 8, "lm-loss-training/lm loss": 8.31}

The first line is the header. Each other line holds scalars of one step by their tags in the event files, with
the tokens and samples that the run had consumed. A step may have several lines, such as one for its
validation. JSON has no NaN and no infinity: they are the strings "NaN", "Infinity" and "-Infinity", as in
Protocol Buffers' JSON. Loss and gradient norm are exact: read as doubles, they are equal to the trainer's
values to the last bit. Other floats have nine digits, which identify every float32.

Each start of the trainer creates a file with the next number, and no other process writes to it. Its header
says from which step it resumed. Later steps in files with lower numbers no longer count, even if a slow
writer adds them afterwards. Files are ordered by number, never by a clock. Lines are flushed to the operating
system but not fsynced, like event files. A line without its end is incomplete and is not read.
"""

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.metrics import scalar

FORMAT, FORMAT_VERSION = "nbtrain metrics", 1
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Strings that stand for values that are not finite. float() parses them."""
KEYS = ("step", "wall_time", "tokens", "samples")
"""Keys of a line that are not tags. Each tag contains a slash."""
EXACT_TAGS = frozenset(scalar(name).tag for name in ("loss", "grad_norm"))
"""Tags of scalars that are written with all of their digits, for the certificate of a run."""
_NAME = re.compile(r"metrics(?:\.(\d{1,9}))?\.jsonl")


def metrics_files(folder: Path) -> list[tuple[int, Path]]:
    """Return (number, path) of each metrics file of a folder, in the order in which they were created."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.glob("metrics*.jsonl"))
    return sorted((int(match[1] or 1), path) for match, path in matches if match)


def file_name(number: int) -> str:
    return f"metrics.{number}.jsonl" if number > 1 else "metrics.jsonl"


class MetricsFile:
    """A new metrics file of a run, written by one process."""

    def __init__(self, folder: Path, resumed_from_step: int, wall_time: float | None = None):
        """Create the file with the next number; `resumed_from_step` is 0 for a run that starts."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = _next_file(folder)
        self._lines: list[str] = []
        # The rest of the content that a flush could not write.
        self._unwritten = memoryview(b"")
        self._add(
            {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "resumed_from_step": resumed_from_step,
                "wall_time": time.time() if wall_time is None else wall_time,
            }
        )
        self.flush()

    def write(
        self, step: int, wall_time: float, tokens: int, samples: int, scalars: Mapping[str, float]
    ) -> None:
        """Add a line with one step's scalars, keyed by tag. `wall_time` is in seconds since the epoch."""
        values = {tag: _encoded(value, tag in EXACT_TAGS) for tag, value in scalars.items()}
        self._add(dict(zip(KEYS, (step, round(wall_time, 6), tokens, samples))) | values)

    def flush(self) -> None:
        """Write the lines so far to the file.

        Raises OSError if the disk is full. The next call then writes the rest, including the rest of a line
        that was only partly written.
        """
        if self._lines:
            self._unwritten = memoryview(bytes(self._unwritten) + "".join(self._lines).encode())
            self._lines = []
        if self._unwritten:
            # Unbuffered, so that the lines are one write.
            with files.naming(self._path), self._path.open("ab", buffering=0) as stream:
                while self._unwritten:
                    self._unwritten = self._unwritten[stream.write(self._unwritten) :]

    def _add(self, value: dict[str, Any]) -> None:
        self._lines.append(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")


def _next_file(folder: Path) -> Path:
    """Create the file with the next number, and return its path."""
    number = max((number for number, _ in metrics_files(folder)), default=0) + 1
    while True:
        path = folder / file_name(number)
        try:
            path.touch(exist_ok=False)
            return path
        except FileExistsError:
            # Another process has just created it.
            number += 1


def _encoded(value: float, exact: bool) -> float | int | str:
    if isinstance(value, int):
        return value
    value = float(value)
    if math.isfinite(value):
        return value if exact else float(f"{value:.9g}")
    return NOT_FINITE[0] if math.isnan(value) else NOT_FINITE[1 if value > 0 else 2]
