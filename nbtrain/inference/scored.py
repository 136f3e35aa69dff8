"""Scores continuations of one context, one after the other in a single cache slot.

    ScoreRequest("a", context=[3, 1, 4], continuations=[[1, 5], [9]])

The keys of the context stay in the slot, so it is read once for all continuations. The last token of a
continuation is not read, because its probability is computed at the token before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Event = dict[str, Any]
# Rows of logits whose log-softmax is computed at once: 50 MB of fp32 with GPT-2's vocabulary.
ROWS = 256


@dataclass(eq=False)
class ScoreRequest:
    """A context and its possible continuations; each has at least one token."""

    id: str
    context: list[int]
    continuations: list[list[int]]


class Scores(NamedTuple):
    """The scores of some tokens at their positions in a text."""

    logprobs: list[float]
    """Natural logarithms of the model's own probabilities."""
    are_likeliest: list[bool]
    """Whether each token is the likeliest; among equal logits, the smallest id counts."""


class Scored:
    """A score request in a slot, with the same interface to the engine as a Choice."""

    def __init__(self, request: ScoreRequest):
        self.request = request
        self.index = 0
        self.pending: list[int] = []
        """Tokens that the model has not read."""
        self._logprobs: list[float] = []
        self._is_greedy = True
        self._begin(self.request.context)

    def _begin(self, from_context: list[int]) -> None:
        self.pending = [*from_context, *self._continuation[:-1]]
        self._logprobs, self._is_greedy = [], True

    @property
    def _continuation(self) -> list[int]:
        return self.request.continuations[self.index]

    @property
    def shareable(self) -> list[int]:
        """Return the tokens that need not be read if another slot holds them, because no scores are requested
        for them.
        """
        return self.request.context[:-1]

    def needs_logits(self, start: int, count: int) -> range:
        """Return which of `count` tokens from position `start` on precede a scored token."""
        return range(max(len(self.request.context) - 1 - start, 0), count)

    def labels(self, start: int, count: int) -> list[int]:
        """Return the token that follows each of the wanted tokens."""
        first = len(self.request.context) - 1
        return [self._continuation[start + place - first] for place in self.needs_logits(start, count)]

    def take(self, scores: Scores) -> None:
        """Add scores of the current continuation."""
        self._logprobs += scores.logprobs
        self._is_greedy = self._is_greedy and all(scores.are_likeliest)

    def end_of_one(self) -> Event:
        """Return the event of a continuation that was read completely."""
        return {
            "id": self.request.id,
            "index": self.index,
            "logprobs": self._logprobs,
            "greedy": self._is_greedy,
        }

    def next(self) -> bool:
        """Start the next continuation, after all of the context but its last token. Return False if there is
        none.
        """
        self.index += 1
        if self.index == len(self.request.continuations):
            return False
        self._begin(self.request.context[-1:])
        return True


def scores_of(logits: torch.Tensor, labels: Sequence[int]) -> Scores:
    """Return the scores for logits [r, v], given the token that follows in each row."""
    logprobs: list[float] = []
    likeliest: list[bool] = []
    for first in range(0, len(labels), ROWS):
        rows = logits[first : first + ROWS].float()
        ids = torch.tensor(labels[first : first + ROWS], device=rows.device)
        own = rows.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        logprobs += own.tolist()
        likeliest += (rows.argmax(-1) == ids).tolist()
    return Scores(logprobs, likeliest)
