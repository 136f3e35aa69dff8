"""Examples of which a part is learnt: prompt and completion, Alpaca, conversations.

    record -> pieces (text, is it learnt) -> records.Example

The encoding takes each piece by itself and puts the end-of-document token behind the last one, learnt as that one
is: what a model says when it has answered. Pieces of a prompt are joined, so that it is the text that the model is
asked with later, and has its tokens.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from nbtrain.corpus.records import Example, Part, Tally
from nbtrain.corpus.sources import json_line
from nbtrain.corpus.sources.record_files import RecordFileReader
from nbtrain.corpus.sources.templates import ALPACA_WITH_INPUT, ALPACA_WITHOUT_INPUT, Template

ROLES = ("system", "developer", "user", "assistant", "tool")
# What ShareGPT's many exports call them.
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "function": "tool",
    "observation": "tool",
}


class BrokenExample(ValueError):
    """What is wrong with a record."""


class ExampleReader(RecordFileReader):
    """Objects that are examples. Broken ones are left out and counted."""

    def read(self, part: Part, tally: Tally) -> Iterator[Example]:
        for path, line, value in self.rows(part, tally):
            try:
                example = self.example(value)
            except BrokenExample as problem:
                tally.add_broken(path, line, str(problem))
                continue
            yield example

    @abstractmethod
    def example(self, value: dict[str, Any]) -> Example:
        """The example of one object. Raises BrokenExample."""


class PromptCompletionReader(ExampleReader):
    """Two texts, the second of which is learnt."""

    kind = "prompt-completion"

    def columns(self) -> dict[str, str]:
        return {self.config.prompt_key: "prompt_key", self.config.completion_key: "completion_key"}

    def example(self, value: dict[str, Any]) -> Example:
        prompt = _text(value, self.config.prompt_key)
        return _joined([(prompt, False), (_answer(value, self.config.completion_key), True)])


class AlpacaReader(ExampleReader):
    """instruction, input (which may be missing, null or empty) and output."""

    kind = "alpaca"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        fields = ("instruction", "input")
        own = self.config.template
        self._with_input = Template(own or ALPACA_WITH_INPUT, fields)
        self._without_input = Template(own or ALPACA_WITHOUT_INPUT, fields)

    def example(self, value: dict[str, Any]) -> Example:
        values = {"instruction": _answer(value, "instruction"), "input": ""}
        if value.get("input") is not None:
            values["input"] = _text(value, "input")
        template = self._with_input if values["input"] else self._without_input
        if values["input"] and "input" not in template.fields:
            raise BrokenExample("'input' is not empty, but the template has no {input}")
        return _joined([(template.render(values), False), (_answer(value, "output"), True)])


class ChatReader(ExampleReader):
    """Messages one after the other, each through the template.

    What stands behind the last message that is learnt is left out: no loss would ever reach it.
    """

    kind = "chat"

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        super().__init__(config, where, extra_keys)
        template = Template(self.config.template, ("role", "content"))
        self._header, self._body = template.before("content"), template.from_on("content")
        self._learnt = {SHAREGPT_ROLES.get(role, role) for role in self.config.learn_roles}
        self._roles = {*ROLES, *self._learnt}

    def example(self, value: dict[str, Any]) -> Example:
        pieces: list[tuple[str, bool]] = []
        end = 0
        key = self._messages_key(value)
        messages = value[key]
        if not isinstance(messages, list):
            raise BrokenExample(f"{key!r} is not a list but {json_line.kind_of(messages)}")
        for number, message in enumerate(messages):
            role, content = self._message(message, f"{key}[{number}]")
            values = {"role": role, "content": content}
            is_learnt = role in self._learnt
            pieces += [(self._header.render(values), False), (self._body.render(values), is_learnt)]
            if is_learnt:
                end = len(pieces)
        if not end:
            found = f"{len(messages):,} messages" if messages else "no message"
            raise BrokenExample(f"{key!r} holds {found}, none of {', '.join(sorted(self._learnt))}")
        return _joined(pieces[:end])

    def _messages_key(self, value: dict[str, Any]) -> str:
        wanted = (self.config.messages_key,) if self.config.messages_key else ("messages", "conversations")
        for key in wanted:
            # Parquet files of several datasets have both columns, one of them null.
            if value.get(key) is not None:
                return key
        raise BrokenExample(f"no key {' or '.join(map(repr, wanted))} among {_keys(value)}")

    def _message(self, message: Any, place: str) -> tuple[str, str]:
        if not isinstance(message, dict):
            raise BrokenExample(f"{place} is not an object but {json_line.kind_of(message)}")
        role_key, content_key = ("role", "content") if message.get("role") is not None else ("from", "value")
        if message.get(role_key) is None:
            raise BrokenExample(f"{place} has neither 'role' nor 'from' among {_keys(message)}")
        found = _text(message, role_key, place)
        role = SHAREGPT_ROLES.get(found, found)
        if role not in self._roles:
            known = ", ".join(sorted({*self._roles, *SHAREGPT_ROLES}))
            raise BrokenExample(f"{place}.{role_key} = {found!r}, must be one of {known}")
        return role, (_answer if role in self._learnt else _text)(message, content_key, place)


def _text(value: dict[str, Any], key: str, place: str = "") -> str:
    if key not in value:
        raise BrokenExample(f"{place and place + ' has '}no key {key!r} among {_keys(value)}")
    found = value[key]
    if isinstance(found, list) and found and all(_is_text_part(part) for part in found):
        found = "".join(part["text"] for part in found)
    if not isinstance(found, str):
        raise BrokenExample(f"{_shown(key, place)} is not text but {json_line.kind_of(found)}")
    return found


def _is_text_part(part: Any) -> bool:
    """Whether it is {"type": "text", "text": ...}, as interfaces of several media write content."""
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _answer(value: dict[str, Any], key: str, place: str = "") -> str:
    found = _text(value, key, place)
    if not found or found.isspace():
        raise BrokenExample(f"{_shown(key, place)} is empty")
    return found


def _shown(key: str, place: str) -> str:
    return f"{place}.{key}" if place else repr(key)


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(map(repr, list(value)[:5])) or "no keys"


def _joined(pieces: list[tuple[str, bool]]) -> Example:
    """Neighbours that are both learnt, or both not, as one piece; empty ones dropped."""
    joined: list[tuple[str, bool]] = []
    for text, is_learnt in pieces:
        if joined and joined[-1][1] == is_learnt:
            joined[-1] = (joined[-1][0] + text, is_learnt)
        elif text:
            joined.append((text, is_learnt))
    return Example(tuple(joined))
