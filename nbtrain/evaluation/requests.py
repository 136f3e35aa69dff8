"""The interface between evaluations and a model: requests for log-probabilities of given tokens."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from nbtrain.base.run_directory.evaluation_files import Estimate


class ScoreRequest(NamedTuple):
    """A context and its continuations, as token ids.

    The context and each continuation have at least one token.
    """

    context: list[int]
    continuations: list[list[int]]


class Scored(NamedTuple):
    """The model's scores for one continuation."""

    logprobs: list[float]
    """Natural logarithm of each token's probability."""
    is_greedy: bool
    """Whether every token is the most likely token at its position."""


Score = Callable[[Iterable[ScoreRequest]], Iterator[tuple[int, list[Scored]]]]
"""Function that scores requests: it yields (number of the request, scores of its continuations).

The results come in any order. Requests are taken from the iterable only when they are needed.
"""


class Outcome(NamedTuple):
    """The result of a task.

    `counts` is {unit: number that was evaluated}, such as {"examples": 100}. `groups` has the metrics of each
    group of questions, such as a subject or category.
    """

    counts: dict[str, int]
    metrics: dict[str, Estimate]
    groups: dict[str, dict[str, Any]]


class Task(Protocol):
    """An evaluation whose data has been checked and whose size is known."""

    name: str
    kind: str
    source: str
    source_sha256: str
    split: str | None
    limit: int | None
    unit: str
    total: int

    def requests(self) -> Iterator[ScoreRequest]:
        """Yield the requests, each of which is built only when it is needed."""

    def take(self, number: int, scored: list[Scored]) -> int:
        """Store the scores of request `number`; return the number of units that are complete with them."""

    def outcome(self) -> Outcome:
        """Return the result of the task. All requests must have been scored."""
