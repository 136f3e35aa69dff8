"""Responses in OpenAI's format, complete or streamed in chunks, built from the engine's events."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.base.printing.report import Record
from nbtrain.serving.chat import Suffix
from nbtrain.serving.dispatch import RequestEvents
from nbtrain.serving.event_stream import DONE, event
from nbtrain.serving.refusals import Refusal

Object = dict[str, Any]


@dataclass
class Piece:
    """New text of one choice."""

    index: int
    text: str
    logprobs: list[Object]
    finish_reason: str | None
    prompt: Object | None = None
    """The prompt, in a choice's first piece if the request has echo; otherwise None.

    It has "text", "first", "tokens" and "logprobs". If log-probabilities were requested, it also has
    "offsets": the position in the text at which each token begins.
    """


@dataclass
class Usage(Record):
    """Token counts of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    derived = ("total_tokens",)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


async def pieces_of(
    answer: RequestEvents, n: int, usage: Usage, first_text: Callable[[], None], suffix: str = ""
) -> AsyncIterator[Piece]:
    """Yield the pieces of a request's choices, and count tokens in `usage`.

    Each prompt has n choices; choices are numbered consecutively over all prompts. `first_text` is called
    before the first piece.
    """
    prompts: dict[int, Object] = {}
    endings: dict[int, Suffix] = {}
    seen: set[int] = set()
    async for number, one in answer:
        if "prompt" in one:
            prompts[number] = {**one["prompt"], "logprobs": []}
        elif "prompt_logprobs" in one:
            prompts[number]["logprobs"] += one["prompt_logprobs"]
        elif "end" in one:
            usage.prompt_tokens += one["prompt_tokens"]
            usage.completion_tokens += one["new_tokens"]
        else:
            index = number * n + one["index"]
            reason = one.get("finish_reason")
            # Every chosen token has an entry, including the token that ends the text.
            ends = [one["end_logprob"]] if "end_logprob" in one else []
            logprobs = [*one.get("logprobs", ()), *ends]
            text = endings.setdefault(index, Suffix(suffix)).add(one["text"], reason is not None)
            if not seen:
                first_text()
            prompt = prompts.get(number) if index not in seen else None
            seen.add(index)
            yield Piece(index, text, logprobs, reason, prompt)


@dataclass
class Form:
    """The format of a response: a completion or a chat completion, with or without log-probabilities."""

    model: str
    is_chat: bool
    wants_logprobs: bool
    id: str = ""
    created: int = 0

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.is_chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())

    def complete(self, choices: list[Object], usage: Usage) -> Object:
        """Return a complete response."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": usage.to_dict()}

    def chunk(self, choices: list[Object], usage: Object | None = None) -> Object:
        """Return a chunk of a streamed response."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, **({"usage": usage} if usage is not None else {})}

    def _head(self, kind: str) -> Object:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def choice(self, piece: Piece, is_chunk: bool) -> Object:
        """Return a piece as an entry of `choices`, for a chunk or for a complete response."""
        text, logprobs = self._text_and_logprobs(piece)
        if not self.is_chat:
            body: Object = {"text": text}
        elif is_chunk:
            body = {"delta": {"content": text} if text or not piece.finish_reason else {}}
        else:
            body = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": piece.index, **body, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def role(self, index: int) -> Object:
        """Return the first entry that a chat completion streams for choice `index`: a role without text."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _text_and_logprobs(self, piece: Piece) -> tuple[str, Object | None]:
        prompt = piece.prompt
        text = piece.text if prompt is None else prompt["text"] + piece.text
        if not self.wants_logprobs:
            return text, None
        if self.is_chat:
            return text, {"content": [_chat_entry(entry) for entry in piece.logprobs], "refusal": None}
        found: Object = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if prompt is not None:
            first = {"token": prompt["first"], "logprob": None, "top": None}
            for entry, offset in zip([first, *prompt["logprobs"]], prompt["offsets"]):
                _add(found, entry, offset)
        for entry in piece.logprobs:
            _add(found, entry, entry["offset"])
        return text, found


def _add(found: Object, entry: Mapping[str, Any], offset: int) -> None:
    """Append a token to the lists of a completion's logprobs.

    As in OpenAI's API, the list of likeliest tokens always contains the token itself, so the list may have
    one entry more than requested.
    """
    top: dict[str, float] | None = None
    if entry["top"] is not None:
        top = {}
        for likely in (*entry["top"], entry):
            # Two token ids may have the same text; keep the likelier one, which comes first.
            top.setdefault(likely["token"], likely["logprob"])
    found["tokens"].append(entry["token"])
    found["token_logprobs"].append(entry["logprob"])
    found["top_logprobs"].append(top)
    found["text_offset"].append(offset)


def _chat_entry(entry: Mapping[str, Any]) -> Object:
    plain = {key: entry[key] for key in ("token", "logprob", "bytes")}
    top = [{key: one[key] for key in ("token", "logprob", "bytes")} for one in entry["top"]]
    return {**plain, "top_logprobs": top}


async def whole_answer(form: Form, pieces: AsyncIterator[Piece], usage: Usage) -> Object:
    """Collect all pieces into one response."""
    found: dict[int, Piece] = {}
    async for piece in pieces:
        if (held := found.get(piece.index)) is None:
            found[piece.index] = piece
        else:
            held.text += piece.text
            held.logprobs += piece.logprobs
            held.finish_reason = piece.finish_reason
    choices = [form.choice(found[index], is_chunk=False) for index in sorted(found)]
    return form.complete(choices, usage)


async def streamed_answer(
    form: Form, pieces: AsyncIterator[Piece], usage: Usage, count: int, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yield the pieces as server-sent events.

    An error is an event too, so clients notice a truncated answer.
    """
    none: Object = {"usage": None} if with_usage else {}
    try:
        if form.is_chat:
            for index in range(count):
                yield event({**form.chunk([form.role(index)]), **none})
        async for piece in pieces:
            yield event({**form.chunk([form.choice(piece, is_chunk=True)]), **none})
        if with_usage:
            yield event(form.chunk([], usage.to_dict()))
    except Refusal as refusal:
        yield event(refusal.body())
    yield DONE
