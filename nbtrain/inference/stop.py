"""Cuts a streamed text at stop strings, without releasing any part of them, however the text is split."""

from collections.abc import Sequence


class StopStrings:
    """Filters streamed text: `add(piece)` returns the text that can no longer be part of a stop string."""

    def __init__(self, stops: Sequence[str] = ()):
        self.stops = tuple(stops)
        self.found: str | None = None
        """Stop string that ended the text; None before."""
        self._held = ""

    def add(self, piece: str) -> str:
        """Add a piece and return the text that can be released; once `found` is set, do not add more."""
        if not self.stops:
            return piece
        text = self._held + piece
        ends = [(place + len(stop), place, stop) for stop in self.stops if (place := text.find(stop)) >= 0]
        if ends:
            # The stop string that is complete first counts, however the text is split; if two end together,
            # the longer one.
            _, place, self.found = min(ends)
            self._held = ""
            return text[:place]
        kept = max(_overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def held_back(self) -> str:
        """Return the text that is still held back, after the last piece."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(stop) - 1, len(text))
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)
