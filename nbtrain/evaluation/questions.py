"""Multiple-choice questions, scored by the model's probability of each choice.

    lambada  acc         fraction of final words that greedy decoding predicts
             perplexity  exp of the mean of -ln p(last word)
    others   acc         fraction of questions whose correct choice has the largest ln p
             acc_norm    like acc, but each ln p is divided by the number of characters in its choice

If several choices have the same score, the first of them counts as the model's answer. Standard errors are
computed over questions.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.run_directory.evaluation_files import Estimate, file_name
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.evaluation.encoding import encode_pair, fitted
from nbtrain.evaluation.estimates import mean, perplexity_of
from nbtrain.evaluation.formats import read_questions
from nbtrain.evaluation.requests import Outcome, Scored, ScoreRequest


class Questions:
    """The evaluation of one file of questions, for a model with a given number of positions."""

    unit = "questions"
    split: str | None = None

    def __init__(self, kind: str, path: Path, tokenizer: Tokenizer, positions: int, limit: int | None = None):
        """Read the file's questions. Raises DataError if its lines are not questions of this kind."""
        self.kind, self.source, self.limit = kind, path.name, limit
        self._questions = read_questions(kind, path, limit)
        self.source_sha256 = files.sha256_of(path)
        stem = path.stem
        self.name = file_name(stem if file_name(stem).startswith(file_name(kind)) else f"{kind}-{stem}")
        self.total = len(self._questions)
        self._path, self._tokenizer, self._positions = path, tokenizer, positions
        self._asked: dict[int, tuple[int, list[int]]] = {}
        """{number of the request: (index of the question, indices of the choices in the request)}."""
        self._scores: list[dict[int, tuple[float, bool]]] = [{} for _ in self._questions]
        self._truncated = 0

    def requests(self) -> Iterator[ScoreRequest]:
        """Yield a request for each question: its context and its choices.

        A choice that is so long that the context must be truncated gets a separate request.
        """
        number = self._truncated = 0
        for place, question in enumerate(self._questions):
            together: dict[tuple[int, ...], list[tuple[int, list[int]]]] = {}
            for choice, text in enumerate(question.choices):
                context, continuation = encode_pair(self._tokenizer, question.context, text)
                if not continuation:
                    raise DataError(
                        f"{self._path}: question {place + 1:,}: choice {choice + 1} has no token of its own, "
                        "because the tokenizer merges it with the end of the context. Remove the question."
                    )
                cut, continuation = fitted(context, continuation, self._positions)
                self._truncated += len(cut) < len(context)
                together.setdefault(tuple(cut), []).append((choice, continuation))
            for tokens, choices in together.items():
                self._asked[number] = (place, [choice for choice, _ in choices])
                number += 1
                yield ScoreRequest(list(tokens), [continuation for _, continuation in choices])

    def take(self, number: int, scored: list[Scored]) -> int:
        """Store the scores of the choices in request `number`.

        Return 1 if all choices of the question have scores now, else 0. The scores of an earlier checkpoint
        are overwritten.
        """
        place, choices = self._asked[number]
        for choice, one in zip(choices, scored, strict=True):
            self._scores[place][choice] = (sum(one.logprobs), one.is_greedy)
        return int(len(self._scores[place]) == len(self._questions[place].choices))

    def outcome(self) -> Outcome:
        counts = {"examples": self.total, "truncated": self._truncated}
        if self.kind == "lambada":
            last_words = [scores[0] for scores in self._scores]
            nats = mean([-logprob for logprob, _ in last_words])
            said = mean([float(is_greedy) for _, is_greedy in last_words])
            metrics = {"acc": said}
            if (perplexity := perplexity_of(nats)) is not None:
                metrics["perplexity"] = perplexity
            return Outcome(counts, metrics, {})
        right, right_norm = [], []
        for question, scores in zip(self._questions, self._scores):
            logprobs = [scores[choice][0] for choice in range(len(question.choices))]
            by_length = [one / length for one, length in zip(logprobs, question.lengths)]
            right.append(float(_first_largest(logprobs) == question.gold))
            right_norm.append(float(_first_largest(by_length) == question.gold))
        metrics = {"acc": mean(right), "acc_norm": mean(right_norm)}
        return Outcome(counts, metrics, self._groups(right))

    def _groups(self, right: list[float]) -> dict[str, dict[str, Any]]:
        names = [question.group for question in self._questions]
        groups = {}
        for name in sorted(name for name in Counter(names) if name is not None):
            own = [value for value, of in zip(right, names) if of == name]
            groups[name] = {"examples": len(own), "acc": _plain(mean(own))}
        return groups


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {"value": estimate.value, "stderr": estimate.stderr}


def _first_largest(values: list[float]) -> int:
    return values.index(max(values))
