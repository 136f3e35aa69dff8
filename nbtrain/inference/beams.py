"""Beam search: extends the most likely continuations of a prompt in parallel, one token in each step.

Scores and the end of the search follow transformers' generate (num_beams, early_stopping=False,
length_penalty). The score of a finished text is its log-probability divided by n ** length_penalty, where n
is its number of new tokens including the end token. The search is over when no beam can beat the worst of
num_beams finished texts.

Shapes: b beams, v vocabulary
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from nbtrain.config.generation import Generation


class Ended(NamedTuple):
    """A finished text: its score, its new tokens, and whether it ended with an end token."""

    score: float
    tokens: list[int]
    at_eod: bool


class Step(NamedTuple):
    """For each new beam, the old beam that it continues and its next token."""

    sources: list[int]
    tokens: list[int]


@dataclass
class Beams:
    """The beam search for one prompt."""

    generation: Generation
    end_ids: frozenset[int]
    """Ids of the tokens that end a text."""
    room: int
    """Number of positions that the model has left for new tokens."""
    prompt: tuple[int, ...] = ()
    tokens: list[list[int]] = field(default_factory=lambda: [[]])
    """New tokens of each beam. The search starts with a single beam without new tokens."""
    ended: list[Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scores = torch.zeros(1)
        self.is_done = min(self.room, self.generation.max_new_tokens) == 0

    @property
    def count(self) -> int:
        return self.generation.num_beams

    def advance(self, logits: torch.Tensor) -> Step:
        """Choose the next beams from logits [b, v] of the current beams.

        Returns, for each new beam, the beam that it continues and its next token. After the first step there
        are num_beams beams.
        """
        values = logits.float().log_softmax(-1)
        if self.generation.repetition_penalty != 1:
            values = self._penalized(values)
        scores = self._scores.to(values.device).unsqueeze(-1) + values
        vocabulary = scores.shape[-1]
        # One candidate per beam, plus one per beam for each token that may end a text.
        wanted = (1 + len(self.end_ids)) * self.count
        best, places = scores.flatten().topk(min(wanted, scores.numel()))
        length = len(self.tokens[0]) + 1
        is_last = length >= min(self.room, self.generation.max_new_tokens)
        sources: list[int] = []
        tokens: list[int] = []
        kept: list[float] = []
        for rank, (score, place) in enumerate(zip(best.tolist(), places.tolist())):
            source, token = divmod(place, vocabulary)
            at_eod = token in self.end_ids and not self.generation.ignore_eod
            if (at_eod or is_last) and rank < self.count:
                text = self.tokens[source] if at_eod else [*self.tokens[source], token]
                self._end(score, text, length, at_eod)
            if not at_eod and len(sources) < self.count:
                sources.append(source)
                tokens.append(token)
                kept.append(score)
        self.tokens = [[*self.tokens[source], token] for source, token in zip(sources, tokens)]
        self._scores = torch.tensor(kept)
        if is_last:
            self.is_done = True
        elif len(self.ended) == self.count:
            self.is_done = self._score(kept[0], length) <= self.ended[-1].score
        return Step(sources, tokens)

    def _penalized(self, values: torch.Tensor) -> torch.Tensor:
        # Log-probabilities are negative, so the penalty multiplies them for tokens that already occur.
        values = values.clone()
        for row, tokens in zip(values, self.tokens):
            there = torch.tensor(sorted({*self.prompt, *tokens}), device=values.device)
            row[there] *= self.generation.repetition_penalty
        return values

    def _end(self, score: float, tokens: list[int], length: int, at_eod: bool) -> None:
        self.ended.append(Ended(self._score(score, length), tokens, at_eod))
        self.ended.sort(key=lambda one: -one.score)
        del self.ended[self.count :]

    def _score(self, score: float, length: int) -> float:
        return score / length**self.generation.length_penalty

    def best(self) -> list[Ended]:
        """Return the best generation.n finished texts, best first."""
        return self.ended[: self.generation.n] or [Ended(0.0, [], False)]
