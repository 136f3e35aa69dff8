"""Reads pairs of answers to one prompt, one of which is preferred.

    {"prompt", "chosen", "rejected"}                               texts
    {"chosen", "rejected"}                                         texts that begin with the same prompt
    {"prompt": [...], "chosen": [...], "rejected": [...]}          messages: the prompt, two continuations
    {"conversations": [...], "chosen": {...}, "rejected": {...}}   the same, with one message per answer
    {"chosen": [...], "rejected": [...]}                           conversations with a common beginning

Messages may have any format that chat.py reads. The common beginning of two conversations is outside the
loss. Answers are compared after rendering: if both render to the same text, the record counts as broken,
because neither answer is preferred.
"""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from nbtrain.corpus.files.json_line import keys_of, kind_of
from nbtrain.corpus.records import Example, Preference, SourcePart, Tally
from nbtrain.corpus.sources.chat import ChatReader, Turn, nodes_of
from nbtrain.corpus.sources.instructions import BrokenExample, ExampleReader, answer_of, joined, text_of
from nbtrain.corpus.sources.keys import MESSAGES_NAMES, OTHER_PROMPT_NAMES, RecordNotes, holds_value
from nbtrain.corpus.sources.messages import ASSISTANT, holds_messages, is_message, messages_of
from nbtrain.corpus.sources.record_files import RecordFileReader
from nbtrain.corpus.sources.shapes import way_forward

# Text before each answer in the transcripts of the dataset hh-rlhf.
ANSWER_MARK = "\n\nAssistant:"


class PreferenceReader(ChatReader):
    """Reads a prompt and two answers; messages are rendered with the template."""

    kind = "preference"

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        yield from RecordFileReader.pieces(self, path)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[Example | Preference]:
        yield from ExampleReader.read(self, part, tally)

    def example(self, value: dict[str, Any], notes: RecordNotes) -> Preference:
        keys = self.config.chosen_key, self.config.rejected_key
        for key in keys:
            if value.get(key) is None:
                forward = way_forward(value, self.kind)
                raise BrokenExample(f"no key {key!r} among {keys_of(value)}{forward}")
        both = [_answer_messages(value[key], key) for key in keys]
        if (both[0] is None) != (both[1] is None):
            raise BrokenExample(
                f"{keys[0]!r} is {kind_of(value[keys[0]])} and {keys[1]!r} is {kind_of(value[keys[1]])}; "
                f"both must be text, or both must be messages"
            )
        prompt, read = self._prompt(value, both[0], notes)
        read += keys
        if both[0] is None and isinstance(prompt, list):
            both = [[{"role": ASSISTANT, "content": answer_of(value, key)}] for key in keys]
        if both[0] is None or both[1] is None:
            assert not isinstance(prompt, list)
            pair = self._of_texts(value, prompt)
        else:
            pair = self._of_messages(value, prompt or [], (both[0], both[1]), read, notes)
        self.keys.note_unread(value, read, notes)
        texts = ["".join(text for text, _ in example.pieces) for example in pair]
        if texts[0] == texts[1]:
            notes.check(self.kind)
            raise self._equal()
        return pair

    def _equal(self) -> BrokenExample:
        keys = f"{self.config.chosen_key!r} and {self.config.rejected_key!r}"
        return BrokenExample(f"{keys} render to the same text, so neither is preferred")

    def _prompt(
        self, value: dict[str, Any], answer: list[Any] | None, notes: RecordNotes
    ) -> tuple[str | list[Any] | None, list[str]]:
        """Return (the prompt, the keys read for it). The prompt is text, a list of messages, or None."""
        key = self.config.prompt_key
        prompt = value.get(key)
        if isinstance(prompt, dict) and "messages" in prompt:
            # In OpenAI's preference format, the input is an object with tools and messages.
            self.keys.note_unread(prompt, ("messages",), notes, key)
            return messages_of(prompt["messages"], key), [key]
        if isinstance(prompt, str) and holds_messages(prompt):
            return messages_of(prompt, key), [key]
        if isinstance(prompt, str) and answer is not None:
            # If the answers are whole conversations, the prompt only repeats their question.
            begins = self._answers_first(answer)
            return ([{"role": "user", "content": prompt}], [key]) if begins else (None, [])
        if isinstance(prompt, str) or prompt is None:
            messages = next((name for name in MESSAGES_NAMES if holds_value(value.get(name))), None)
            if prompt is None and messages and (answer is None or self._answers_first(answer)):
                return messages_of(value[messages], messages), [messages]
            return prompt, [key]
        if _is_text_parts(prompt):
            return text_of(value, key), [key]
        if isinstance(prompt, list | dict):
            return messages_of(prompt, key), [key]
        raise BrokenExample(f"{key!r} is neither text nor messages but {kind_of(prompt)}")

    def _of_texts(self, value: dict[str, Any], prompt: str | None) -> Preference:
        chosen, rejected = (
            answer_of(value, key) for key in (self.config.chosen_key, self.config.rejected_key)
        )
        if prompt is None:
            prompt = _common_beginning(chosen, rejected)
            if not prompt:
                named = next((name for name in OTHER_PROMPT_NAMES if holds_value(value.get(name))), None)
                forward = f"; add to this source: prompt_key: {named}" if named else ""
                raise BrokenExample(
                    f"no key {self.config.prompt_key!r} among {keys_of(value)}, and the two answers do not "
                    f"begin with a common prompt{forward}"
                )
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        return Preference(*(joined([(prompt, False), (answer, True)]) for answer in (chosen, rejected)))

    def _of_messages(
        self,
        value: dict[str, Any],
        prompt: str | list[Any],
        answers: tuple[list[Any], list[Any]],
        read: list[str],
        notes: RecordNotes,
    ) -> Preference:
        assert isinstance(prompt, list)
        keys = self.config.chosen_key, self.config.rejected_key
        asked = self._placed(prompt, read[0], notes)
        both: list[list[Turn]] = []
        for key, messages in zip(keys, answers, strict=True):
            turns = [*asked, *self._placed(messages, key, notes, asked[-1].role if asked else "")]
            both.append(self._opened(turns, value, read))
        if both[0] == both[1]:
            # The answers may differ only in a refused key, which is then reported instead.
            notes.check(self.kind)
            raise self._equal()
        num_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*both, strict=False)))
        examples = []
        for key, turns in zip(keys, both, strict=True):
            example = self._example(turns, num_shared)
            if example is None:
                learnt = " or ".join(sorted(self._learnt))
                raise BrokenExample(
                    f"{key!r} has no message with the role {learnt} after the messages that both answers "
                    "share"
                )
            examples.append(example)
        return Preference(*examples)

    def _placed(self, messages: list[Any], key: str, notes: RecordNotes, last: str = "") -> list[Turn]:
        return self._turns(nodes_of(messages, key), notes, last)

    def _answers_first(self, messages: list[Any]) -> bool:
        first = messages[0] if messages else None
        role = (first.get("role") or first.get("from")) if isinstance(first, dict) else None
        return self._names.get(role, role) in self._learnt


def _answer_messages(value: Any, key: str) -> list[Any] | None:
    """Return the messages of an answer; None if the answer is text or a list of text parts."""
    if isinstance(value, str):
        return messages_of(value, key) if holds_messages(value) else None
    if not isinstance(value, list | dict) or _is_text_parts(value):
        return None
    return messages_of(value, key)


def _is_text_parts(value: Any) -> bool:
    """Return whether a value is a list of {"type": "text", "text": ...}: one text, not messages."""
    return bool(isinstance(value, list) and value) and all(
        isinstance(part, dict) and part.get("type") == "text" and not is_message(part) for part in value
    )


def _common_beginning(chosen: str, rejected: str) -> str:
    """Return the prompt with which two texts begin; "" if they have no common prompt.

    The prompt ends after the last ANSWER_MARK in the common beginning or, if there is no such mark, before
    the last whitespace in it.
    """
    pairs = enumerate(zip(chosen, rejected, strict=False))
    end = next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(chosen), len(rejected)))
    common = chosen[:end]
    place = common.rfind(ANSWER_MARK)
    if place >= 0:
        return common[: place + len(ANSWER_MARK)]
    ends = [place for place, character in enumerate(common) if character.isspace()]
    return common[: ends[-1]].rstrip() if ends else ""
