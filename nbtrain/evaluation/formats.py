"""Question files with a JSON object per line, in the formats in which public benchmarks are distributed.

    lambada          {"text"}: the last word must be predicted
    hellaswag        {"ctx_a", "ctx_b", "activity_label", "endings", "label"}: label is the correct ending
    mmlu             {"question", "choices", "answer", ["subject"]}: answer is an index from 0, or a letter
    multiple_choice  {"context", "choices", "answer", ["group"]}: other questions; answer is an index from 0

Prompts are the same as in lm-evaluation-harness 0.4 without few-shot examples (tasks lambada_openai,
hellaswag and mmlu), so that scores can be compared with published scores.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.text.nearest import nearest
from nbtrain.corpus.files.compression import without_mark
from nbtrain.corpus.files.json_line import kind_of, record_of

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Question(NamedTuple):
    """A context, its choices, and the index of the correct choice (`gold`), counted from 0."""

    context: str
    choices: list[str]
    """Choices as they are scored, with a leading space."""
    lengths: list[int]
    """Number of characters in each choice, without the leading space, by which acc_norm divides."""
    gold: int
    group: str | None = None


class RecordLine:
    """The JSON object on one line of a file. Errors about its fields name the line."""

    def __init__(self, value: dict[str, Any], where: str):
        self.value, self.where = value, where

    def wrong(self, what: str) -> DataError:
        return DataError(f"{self.where}: {what}.")

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(f"{name} must be a string, but is {kind_of(value)}")
        return value

    def texts(self, name: str, least: int = 2) -> list[str]:
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(one, str) and one.strip() for one in value):
            raise self.wrong(f"{name} must be a list of non-empty strings")
        if not least <= len(value) <= len(LETTERS):
            raise self.wrong(f"{name} has {len(value)} entries, but must have {least} to {len(LETTERS)}")
        return value

    def number(self, name: str, count: int, letters: bool = False) -> int:
        """Return the index of one of `count` choices, which the field gives as a number or as digits.

        With `letters`, the field may also be a letter, where A is index 0.
        """
        value = self._get(name)
        found: Any = value
        if isinstance(value, str):
            word = value.strip()
            if letters and word.upper() in tuple(LETTERS[:count]):
                return LETTERS.index(word.upper())
            found = int(word) if re.fullmatch(r"\d{1,3}", word) else None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < count:
            allowed = f"0 to {count - 1}" + (f", or A to {LETTERS[count - 1]}" if letters else "")
            raise self.wrong(f"{name} = {json.dumps(value)[:80]} must be {allowed}")
        return found

    def _get(self, name: str, default: Any = None) -> Any:
        if name not in self.value:
            if default is not None:
                return default
            known = ", ".join(list(self.value)[:12])
            if not known:
                raise self.wrong(f"the field {name} is missing; the object has no fields")
            raise self.wrong(f"the field {name} is missing; the object has the fields {known}")
        return self.value[name]


def _lambada(line: RecordLine) -> Question:
    text = line.text("text")
    context, blank, word = text.rpartition(" ")
    if not blank or not context.strip() or not word:
        raise line.wrong(f"text = {json.dumps(text)[:80]} must be words with one space before the last word")
    return Question(context, [f" {word}"], [len(word)], 0)


def _hellaswag(line: RecordLine) -> Question:
    endings = [_plain(ending) for ending in line.texts("endings")]
    context = f"{line.text('activity_label')}: {line.text('ctx_a')} {line.text('ctx_b', '').capitalize()}"
    return _of_choices(_plain(context), endings, line.number("label", len(endings)), None)


def _plain(text: str) -> str:
    """Remove WikiHow's markers: "[title]" becomes the end of a sentence, and other markers are dropped."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _mmlu(line: RecordLine) -> Question:
    choices = line.texts("choices")
    letters = list(LETTERS[: len(choices)])
    subject = line.text("subject", "")
    about = f" about {subject.replace('_', ' ')}" if subject else ""
    rows = [f"{letter}. {choice}" for letter, choice in zip(letters, choices)]
    context = "\n".join([line.text("question").strip(), *rows, "Answer:"])
    head = f"The following are multiple choice questions (with answers){about}.\n\n"
    gold = line.number("answer", len(choices), letters=True)
    return _of_choices(head + context, letters, gold, subject or None)


def _multiple_choice(line: RecordLine) -> Question:
    choices = line.texts("choices")
    group = line.text("group", "")
    return _of_choices(line.text("context"), choices, line.number("answer", len(choices)), group or None)


def _of_choices(context: str, choices: list[str], gold: int, group: str | None) -> Question:
    return Question(
        context, [f" {one}" for one in choices], [max(len(one), 1) for one in choices], gold, group
    )


FORMATS: dict[str, Callable[[RecordLine], Question]] = {
    "lambada": _lambada,
    "hellaswag": _hellaswag,
    "mmlu": _mmlu,
    "multiple_choice": _multiple_choice,
}


def read_questions(kind: str, path: Path, limit: int | None = None) -> list[Question]:
    """Return the first `limit` questions in a file, or all questions. All lines are checked.

    Raises DataError, which names the line, for an invalid line, and DataError for an empty file.
    """
    if (question_of := FORMATS.get(kind)) is None:
        raise ConfigError(
            f"{kind} is not a task. The tasks are {', '.join(FORMATS)}.{nearest(kind, FORMATS)}"
        )
    questions = [question_of(line) for line in lines_of(path)]
    if not questions:
        raise DataError(f"{path} contains no lines.")
    return questions[:limit]


def lines_of(path: Path) -> Iterator[RecordLine]:
    """Yield the JSON object on each line that is not empty.

    Raises DataError, which names the line, for any other content, and if the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(without_mark(stream), 1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    yield RecordLine(record_of(line), where)
                except ValueError as problem:
                    if pointer := pointer_problem_of(path):
                        raise DataError(f"{path}: {pointer}.") from None
                    raise DataError(f"{where}: {problem}.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
