"""The requests of an evaluation to a model, independent of the engine: log-probabilities of given tokens."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from nbtrain.base.run_directory.evaluation_files import Estimate


class ScoreRequest(NamedTuple):
    """A context and its continuations, with at least one token each."""

    context: list[int]
    continuations: list[list[int]]


class Scored(NamedTuple):
    """The model's scores for one continuation."""

    logprobs: list[float]
    """Natural logarithm of each token's probability."""
    is_greedy: bool
    """Whether each token is the likeliest token at its position."""


Score = Callable[[Iterable[ScoreRequest]], Iterator[tuple[int, list[Scored]]]]
"""(number of the question, its continuations' scores), in any order; questions are built when needed."""


class Outcome(NamedTuple):
    """The result of a task."""

    counts: dict[str, int]
    metrics: dict[str, Estimate]
    groups: dict[str, dict[str, Any]]


class Task(Protocol):
    """An evaluation whose data was checked and whose size is known."""

    name: str
    kind: str
    source: str
    source_sha256: str
    split: str | None
    limit: int | None
    unit: str
    total: int

    def requests(self) -> Iterator[ScoreRequest]:
        """Yield the questions; each is built only when it is needed."""

    def take(self, number: int, scored: list[Scored]) -> int:
        """Add the answer to a question. Return how much of `total` it completes."""

    def outcome(self) -> Outcome:
        """Return the result. Call it after the last answer."""
