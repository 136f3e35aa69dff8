"""Conversations that a judge rates: open questions with one or several turns, in MT-bench's format.

    {"question_id", "category", "turns": ["first question", "then"], ["reference": ["an answer", ...]]}

The model answers a question's turns one after the other, with greedy decoding and its run's chat template.
The judge, a model that the user chooses on any server with OpenAI's API, rates each answer from 1 to 10
(MT-bench's single-answer grading, arXiv:2306.05685, section 3.1, with a different prompt). Answers, ratings
and the judge's reasons are stored next to the record.

    score           mean of the questions' scores, each of which is the mean over the question's turns
    score_turn_<n>  mean of all ratings of the n-th turn

The judge's API token is read from an environment variable, and is never written to a record or a message.
"""

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import orjson
import urllib3
from urllib3.util import Timeout

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.progress import Progress
from nbtrain.base.run_directory.evaluation_files import file_name
from nbtrain.base.text.addresses import redacted
from nbtrain.base.text.terminal import printable
from nbtrain.corpus.http import BUSY, Patience, pool_for
from nbtrain.evaluation.estimates import mean
from nbtrain.evaluation.formats import RecordLine, lines_of
from nbtrain.evaluation.requests import Outcome

TOKEN_VARIABLE = "NBTRAIN_JUDGE_TOKEN"
MOST_NEW_TOKENS = 1024
JUDGE_TOKENS = 1024
# Number of concurrent requests to the judge. Many services reject more requests with status 429.
AT_ONCE = 4
ATTEMPTS = 5
READ_SECONDS = 300.0
# Maximum number of requests for a rating, if the judge's reply does not contain one.
RATINGS_ASKED = 2
RATING = re.compile(r"\[\[\s*(\d{1,2}(?:\.\d+)?)\s*\]\]")
INSTRUCTIONS = (
    "You judge the answers of an assistant. Be impartial. Consider whether the last answer is helpful, "
    "relevant, correct, deep enough and detailed enough for the last question of the "
    "conversation{with_reference}. Explain your judgement in a few sentences. Then rate the last answer "
    "from 1 (useless) to 10 (excellent), in exactly this form: Rating: [[5]]"
)

Conversation = list[dict[str, str]]
"""Messages of a conversation, each with "role" and "content"."""


@dataclass
class Judged:
    """A question with its turns, and for each turn the model's answer and the judge's rating and reason."""

    question_id: str
    category: str | None
    turns: list[str]
    reference: list[str]
    answers: list[str] = field(default_factory=list)
    ratings: list[float | None] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def conversation(self, turn: int, answered: bool) -> Conversation:
        """Return the messages up to the question of turn `turn`, counted from 0.

        With `answered`, the last message is the model's answer to that question.
        """
        messages = []
        for number in range(turn + 1):
            messages.append({"role": "user", "content": self.turns[number]})
            if number < turn or answered:
                messages.append({"role": "assistant", "content": self.answers[number]})
        return messages


class Chats(Protocol):
    """The interface of the model whose answers are judged."""

    def chat(self, conversations: list[Conversation], most_new_tokens: int) -> Iterator[tuple[int, str]]:
        """Yield (index of the conversation, next answer), in any order."""


@dataclass(frozen=True)
class Judge:
    """A judge called through OpenAI's API, such as Judge("https://api.example.com/v1", "judge-70b")."""

    url: str
    """URL of the API, to which /chat/completions is appended."""
    model: str
    token_variable: str = TOKEN_VARIABLE
    """Name of the environment variable that contains the API token."""

    def __post_init__(self) -> None:
        problems = {}
        if not re.match(r"https?://[^/\s]+", self.url):
            problems["judge_url"] = f"judge_url = {redacted(self.url)!r} must begin with http:// or https://."
        if not self.model:
            problems["judge_model"] = (
                "judge_model is empty. Set it to the name that the judge's server uses for the model."
            )
        findings = (Finding("error", "judge", key, "", text, cost=FATAL) for key, text in problems.items())
        refuse(findings, ConfigError)
        self._token()

    def _token(self) -> str:
        """Return the API token; "" if the variable is not set.

        Raises ConfigError, which does not show the token, if it cannot be sent in an HTTP header.
        """
        # The value of a Kubernetes Secret often ends with a newline.
        token = os.environ.get(self.token_variable, "").strip()
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(f"${self.token_variable} must be a single line of printable ASCII characters.")
        return token

    def rate(self, conversation: Conversation, reference: str) -> tuple[float | None, str]:
        """Ask the judge to rate a conversation's last answer, and return (rating from 1 to 10, the reply).

        `reference` is a correct answer that the judge is shown, or "". The rating is None if no reply
        contains a rating. Raises DataError if the judge does not reply.
        """
        shown = "\n\n".join(f"[{one['role']}]\n{one['content']}" for one in conversation)
        if reference:
            shown += f"\n\n[reference answer to the last question]\n{reference}"
        with_reference = ", and whether it agrees with the reference answer" if reference else ""
        messages = [
            {"role": "system", "content": INSTRUCTIONS.format(with_reference=with_reference)},
            {"role": "user", "content": shown},
        ]
        said = ""
        for attempt in range(RATINGS_ASKED):
            said = self._ask(messages, temperature=0.0 if attempt == 0 else 0.7)
            if (found := RATING.findall(said)) and 1 <= float(found[-1]) <= 10:
                return float(found[-1]), said
        return None, said

    def _ask(self, messages: Conversation, temperature: float) -> str:
        address = f"{self.url.rstrip('/')}/chat/completions"
        where = redacted(address)
        headers = {"Content-Type": "application/json"}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        asked = {
            "model": self.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": JUDGE_TOKENS,
        }
        parts = urlsplit(address)
        pool = pool_for(parts.scheme, str(parts.hostname), where)
        # In OpenAI's API, status 409 also means that the request can be repeated.
        retry = Patience.for_address(where).new(
            total=ATTEMPTS, allowed_methods=None, status_forcelist=(*BUSY, 409), raise_on_status=False
        )
        try:
            answer = pool.request(
                "POST",
                address,
                body=orjson.dumps(asked),
                headers=headers,
                retries=retry,
                redirect=False,
                timeout=Timeout(connect=30.0, read=READ_SECONDS),
            )
        except urllib3.exceptions.HTTPError as error:
            kind = getattr(error, "reason", None) or error
            raise DataError(
                f"{where}: the judge cannot be reached ({type(kind).__name__}). Check judge_url, and whether "
                "this machine can connect to the judge's server."
            ) from None
        if answer.status != 200:
            hint = ""
            if answer.status in (401, 403):
                variable = f"${self.token_variable}"
                hint = (
                    f" Check the token in {variable}."
                    if token
                    else f" Set {variable} to the judge's API token."
                )
            words = _message(answer.data)
            status = f"{answer.status}{words and f': {words}'}"
            raise DataError(f"{where}: the judge returned HTTP status {status}.{hint}")
        try:
            return str(orjson.loads(answer.data)["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError):
            raise DataError(
                f"{where}: the response is not a chat completion in the format of OpenAI's API. Set "
                "judge_url to the base URL of such an API, e.g. https://api.example.com/v1."
            ) from None


def _message(body: bytes) -> str:
    """Return the message in an error response in OpenAI's format; "" for any other body."""
    try:
        return printable(str(orjson.loads(body)["error"]["message"])[:300]).rstrip(".")
    except (ValueError, LookupError, TypeError):
        return ""


class JudgedQuestions:
    """The questions in a file. Raises DataError, which names the line, for an invalid question."""

    def __init__(self, path: Path, limit: int | None = None):
        self.source, self.limit = path.name, limit
        found = [_question(line, number) for number, line in enumerate(lines_of(path))]
        if not found:
            raise DataError(
                f"{path}: contains no lines. Write one question per line; docs/evaluation.md describes the "
                "format."
            )
        self.source_sha256 = files.sha256_of(path)
        self.name = file_name("judged", path.stem)
        self.questions = found[:limit]

    def answer(self, chats: Chats, most_new_tokens: int = MOST_NEW_TOKENS) -> None:
        """Let the model answer all turns, each turn for all questions together."""
        longest = max(len(one.turns) for one in self.questions)
        with Progress(
            f"{self.name}, answers", sum(len(one.turns) for one in self.questions), "answers"
        ) as bar:
            for turn in range(longest):
                asked = [one for one in self.questions if turn < len(one.turns)]
                conversations = [one.conversation(turn, answered=False) for one in asked]
                for number, text in chats.chat(conversations, most_new_tokens):
                    asked[number].answers.append(text)
                    bar.update()

    def judge(self, judge: Judge) -> Outcome:
        """Let the judge rate all answers, and return the scores as an Outcome.

        Raises DataError if the judge cannot be reached, or if no reply contains a rating.
        """
        for one in self.questions:
            one.ratings, one.reasons = [], []
        places = [(one, turn) for one in self.questions for turn in range(len(one.turns))]

        def rate(place: tuple[Judged, int]) -> tuple[float | None, str]:
            one, turn = place
            reference = one.reference[turn] if turn < len(one.reference) else ""
            return judge.rate(one.conversation(turn, answered=True), reference)

        with (
            Progress(f"{self.name}, ratings", len(places), "ratings") as bar,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            try:
                for (one, _), (rating, reason) in zip(places, pool.map(rate, places)):
                    one.ratings.append(rating)
                    one.reasons.append(reason)
                    bar.update()
            except BaseException:
                # The remaining requests are cancelled, because every request may cost money.
                pool.shutdown(cancel_futures=True)
                raise
        return self._outcome()

    def _outcome(self) -> Outcome:
        rated = [rating for one in self.questions for rating in one.ratings if rating is not None]
        missing = sum(len(one.ratings) for one in self.questions) - len(rated)
        if not rated:
            said = self.questions[0].reasons[0][:200]
            raise DataError(
                "none of the judge's replies contains a rating in the form [[5]]. The first reply was: "
                f"{said!r}. Choose another judge_model."
            )
        metrics = {"score": mean(_means(self.questions))}
        longest = max(len(one.turns) for one in self.questions)
        for turn in range(longest) if longest > 1 else ():
            own = [one.ratings[turn] for one in self.questions if turn < len(one.turns)]
            if known := [rating for rating in own if rating is not None]:
                metrics[f"score_turn_{turn + 1}"] = mean(known)
        groups = {}
        for category in sorted({one.category for one in self.questions if one.category}):
            scores = _means([one for one in self.questions if one.category == category])
            if scores:
                score = mean(scores)
                groups[category] = {
                    "examples": len(scores),
                    "score": {"value": score.value, "stderr": score.stderr},
                }
        return Outcome({"examples": len(self.questions), "unrated": missing}, metrics, groups)

    def write_answers(self, path: Path) -> None:
        """Write a JSON line for each question, with its answers, ratings and reasons."""
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, b"".join(orjson.dumps(one) + b"\n" for one in self.questions))


def _means(questions: Sequence[Judged]) -> list[float]:
    """Return each question's mean rating over its turns. Questions without a rating are omitted."""
    known = [[rating for rating in one.ratings if rating is not None] for one in questions]
    return [sum(ratings) / len(ratings) for ratings in known if ratings]


def _question(line: RecordLine, number: int) -> Judged:
    turns = line.texts("turns", least=1)
    reference = line.texts("reference", least=1) if line.value.get("reference") else []
    name = line.value.get("question_id", number + 1)
    return Judged(str(name), line.text("category", "") or None, turns, reference)


def judged_record(of: JudgedQuestions, judge: Judge) -> dict[str, Any]:
    """Return the record's fields about the questions and the judge."""
    return {
        "name": of.name,
        "task": f"judged by {judge.model} at {redacted(judge.url)}",
        "source": of.source,
        "source_sha256": of.source_sha256,
        "split": None,
        "limit": of.limit,
    }
