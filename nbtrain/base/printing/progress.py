"""Progress of long work: one bar that is readable in a notebook, a terminal and a log.

On a terminal, tqdm redraws one line. Elsewhere (papermill, a file, a pipe) carriage returns would produce one
endless line, so a complete line with rate and ETA is written every few seconds instead. In a notebook with a
live front end, one output shows a bar in nbtrain's style (base/printing/theme.py).
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from nbtrain.base.printing.notebook import Bar, is_kernel, is_watched
from nbtrain.base.text.amounts import count, count_of, elapsed

LOG_INTERVAL_SECONDS = 5.0
PAINT_INTERVAL_SECONDS = 0.5


class Progress:
    """A progress bar over `total` units (None if unknown), used as a context manager.

    Call update(n, **figures) to advance it.
    """

    def __init__(self, description: str, total: float | None, unit: str, stream: TextIO | None = None):
        self.description = description
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.figures = ""
        # A notebook shows output to stderr as an error.
        self._stream = stream or (sys.stdout if is_kernel() else sys.stderr)
        self._started = self._last_line = time.monotonic()
        self._lines = 0
        self._bar = None
        self._paint: Bar | None = None

    def __enter__(self) -> "Progress":
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                desc=self.description, total=self.total, unit=self.unit, unit_scale=True, file=self._stream
            )
        else:
            self._paint = Bar() if is_watched() else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif kind is None:
            self._write_line(final=True)

    def update(self, amount: float = 1, **figures: str) -> None:
        """Add `amount` units. `figures` (name=text) are shown after the rate."""
        self.done += amount
        if figures:
            self.figures = ", ".join(f"{name} {text}" for name, text in figures.items())
        if self._bar is not None:
            self._bar.set_postfix_str(self.figures, refresh=False)
            self._bar.update(amount)
        elif time.monotonic() - self._last_line >= (
            PAINT_INTERVAL_SECONDS if self._paint else LOG_INTERVAL_SECONDS
        ):
            self._write_line()

    def say(self, text: str) -> None:
        """Print `text` on a separate line above the bar, after the description."""
        line = f"{self.description}: {text}"
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def _write_line(self, final: bool = False) -> None:
        self._last_line = time.monotonic()
        seconds = self._last_line - self._started
        rate = self.done / seconds if seconds > 0 else 0.0
        unit = self.unit if self.unit == "B" else f" {self.unit}"  # "5MB" without a space, but "5k documents"
        amount = count_of(self.done, self.total) if self.total else count(self.done)
        if self.unit == "B":  # count() writes a billion as B, which for bytes is G
            amount, speed = amount.replace("B", "G"), count(round(rate, 1)).replace("B", "G")
        else:
            speed = count(round(rate, 1))
        parts = [f"{amount}{unit}", f"{speed}{unit}/s"]
        if self.total and not final:
            parts[0] += f" ({self.done / self.total:.0%})"
        if final:
            parts.append(f"{elapsed(seconds)} in all")
        elif self.total and rate:
            parts.append(f"ETA {elapsed((self.total - self.done) / rate)}")
        if self.figures:
            parts.append(self.figures)
        words = ", ".join(parts)
        if self._paint is not None:
            fraction = self.done / self.total if self.total else None
            self._paint(self.description, 1.0 if final else fraction, words)
        else:
            print(f"{self.description}: {words}", file=self._stream, flush=True)


Say = Callable[[str, str], None]
