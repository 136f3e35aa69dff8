"""Scores continuations of a context, one after the other in a single cache slot.

    ScoreRequest("a", context=[3, 1, 4], continuations=[[1, 5], [9]])

The context's keys and values stay in the slot, so the model reads the context once for all continuations. It
never reads the last token of a continuation, because that token's probability is computed at the token
before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Event = dict[str, Any]
# Number of rows of logits whose log-softmax is computed at once: 50 MB in fp32 with GPT-2's vocabulary.
ROWS = 256


@dataclass(eq=False)
class ScoreRequest:
    """A context and the continuations to score. Each has at least one token."""

    id: str
    context: list[int]
    continuations: list[list[int]]


class Scores(NamedTuple):
    """Scores of consecutive tokens of a text."""

    logprobs: list[float]
    """Natural logarithms of the model's own probabilities."""
    are_likeliest: list[bool]
    """Whether each token is the likeliest one; among equal logits, the smallest id counts as likeliest."""


class Scored:
    """A scoring request in a slot, with the same interface to the engine as a Choice."""

    def __init__(self, request: ScoreRequest):
        self.request = request
        self.index = 0
        self.pending: list[int] = []
        """Tokens that the model has not read yet."""
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
        """Context tokens that need no logits, so their keys and values may be copied from another slot."""
        return self.request.context[:-1]

    def needs_logits(self, start: int, count: int) -> range:
        """Return the indices, among `count` tokens from position `start`, that precede a scored token."""
        return range(max(len(self.request.context) - 1 - start, 0), count)

    def labels(self, start: int, count: int) -> list[int]:
        """Return the tokens to score: each follows a token whose index needs_logits() returns."""
        first = len(self.request.context) - 1
        return [self._continuation[start + place - first] for place in self.needs_logits(start, count)]

    def take(self, scores: Scores) -> None:
        """Add scores to the current continuation."""
        self._logprobs += scores.logprobs
        self._is_greedy = self._is_greedy and all(scores.are_likeliest)

    def end_of_one(self) -> Event:
        """Return the event with the scores of the current continuation, which must be complete."""
        return {
            "id": self.request.id,
            "index": self.index,
            "logprobs": self._logprobs,
            "greedy": self._is_greedy,
        }

    def next(self) -> bool:
        """Start the next continuation, and return False if there are no more.

        The slot must keep the context except for its last token, which is read again.
        """
        self.index += 1
        if self.index == len(self.request.continuations):
            return False
        self._begin(self.request.context[-1:])
        return True


def scores_of(logits: torch.Tensor, labels: Sequence[int]) -> Scores:
    """Return the scores of `labels`, the tokens that follow the r rows of logits [r, v]."""
    logprobs: list[float] = []
    likeliest: list[bool] = []
    for first in range(0, len(labels), ROWS):
        rows = logits[first : first + ROWS].float()
        ids = torch.tensor(labels[first : first + ROWS], device=rows.device)
        own = rows.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        logprobs += own.tolist()
        likeliest += (rows.argmax(-1) == ids).tolist()
    return Scores(logprobs, likeliest)
