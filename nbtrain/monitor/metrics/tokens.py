"""The number of tokens that a run had trained at a step, from the scalar that counts tokens.

tokens_at(reader, [100, 200])  ->  [6400, 12800]
"""

import bisect
from collections.abc import Sequence

from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series

# Tag of the scalar with the number of tokens at each step.
TOKENS_TAG = BY_NAME["steps_vs_tokens"].tag


class TokensBySteps:
    """The number of tokens trained at each step, interpolated linearly between known steps."""

    def __init__(self, steps: list[int], tokens: list[float]):
        self.steps, self.tokens = steps, tokens

    @classmethod
    def of(cls, reader: ScalarReader) -> "TokensBySteps":
        """Create an object from the points that a reader has read so far."""
        points = reader.series.get(TOKENS_TAG, Series())
        return cls(list(points.steps), list(points.values))

    def at(self, steps: Sequence[int]) -> list[float | None]:
        """Return the number of tokens at each step; a list of None if no count is known."""
        return [self._at(step) for step in steps]

    def _at(self, step: int) -> float | None:
        if not self.steps:
            return None
        at = min(bisect.bisect_left(self.steps, step), len(self.steps) - 1)
        right = self.steps[at]
        # Before the first known step, the count starts at 0.
        left, least = (self.steps[at - 1], self.tokens[at - 1]) if at else (0, 0.0)
        if right == left:
            return self.tokens[at]
        return least + (self.tokens[at] - least) * (step - left) / (right - left)


def tokens_at(reader: ScalarReader, steps: Sequence[int]) -> list[int]:
    """Return the rounded number of tokens at each step; [] if no count is known."""
    counts = TokensBySteps.of(reader)
    return [round(count or 0) for count in counts.at(steps)] if counts.steps else []
