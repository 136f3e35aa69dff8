"""A request, and the texts that continue its prompt: their tokens, log-probabilities and ends."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from nbtrain.config.generation import Generation
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.logprobs import token_text
from nbtrain.inference.stop import StopStrings
from nbtrain.inference.text_stream import TextStream

STOP, LENGTH = "stop", "length"
"""Reasons for the end of a text: the end of a document or a stop string; the maximum length."""

Event = dict[str, Any]


@dataclass(eq=False)
class Request:
    """A prompt with the settings for its continuation."""

    id: str
    prompt: list[int]
    generation: Generation
    slides: bool
    """Whether the text may exceed the model's positions. If it does, the newest half of the window is read
    again.
    """
    before_text: int = 0
    """Number of tokens that the tokenizer has put before the prompt's text."""
    kept: int = 0
    """Number of prompt tokens, those before the text, that stay at the start of a sliding window."""
    streams: bool = True
    """Whether each piece of text gets an event. If not, a text has two: its first piece, whose time is
    measured, and all that follows.
    """
    choices: "list[Choice]" = field(default_factory=list)
    new_tokens: int = 0
    ended: int = 0

    @property
    def wants_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's own tokens are requested."""
        return self.generation.echo and self.generation.logprobs is not None

    def text_prompt(self, eod_id: int) -> list[int]:
        """Return the text tokens of the prompt; empty if the prompt is only an end-of-document token."""
        return [] if self.prompt == [eod_id] else self.prompt[self.before_text :]

    def shown_prompt(self, tokenizer: Tokenizer) -> Event:
        """Return the prompt for an echo: {"text", "tokens", "first", ["offsets"]}, with offsets for
        log-probabilities.
        """
        text, first = self.text_prompt(tokenizer.eod_id), token_text(tokenizer.bytes_of(self.prompt[0]))
        # New text begins with the character that the prompt's last tokens leave unfinished.
        is_continued = self.generation.max_new_tokens > 0
        written = tokenizer.decode_finished(text)[0] if is_continued else tokenizer.decode(text)
        found: Event = {"text": written, "tokens": self.prompt, "first": first}
        if not self.wants_prompt:
            return found
        # Tokens before the text take no place in it. A part of a character is at the place of the whole one.
        offsets, stream, length = [0] * (len(self.prompt) - len(text)), TextStream(tokenizer), 0
        for token in text:
            offsets.append(length)
            length += len(stream.add(token))
        return {**found, "offsets": offsets}


class Choice:
    """A continuation of a prompt."""

    def __init__(
        self,
        request: Request,
        index: int,
        tokenizer: Tokenizer,
        text_prompt: list[int],
        end_ids: frozenset[int],
    ):
        """Start a text; `text_prompt` is the prompt as text, empty if it is only an end-of-document token."""
        self.request, self.index, self.end_ids = request, index, end_ids
        self.tokens = list(request.prompt)
        self.pending = list(request.prompt)
        """Tokens that the model has not read yet."""
        self.finish_reason: str | None = None
        seed = request.generation.seed
        self.random = random.Random(None if seed is None else f"{seed}/{index}")
        self._stream = TextStream(tokenizer, text_prompt)
        self._stops = StopStrings(request.generation.stop)
        self._seen_chars = self._stream.prompt_chars
        """Characters of the prompt and of the new text, also of what the stop strings hold back."""
        self._is_begun = False
        """Whether there has been an event with text."""
        self._new_text: list[str] = []
        self._new_ids: list[int] = []
        self._logprobs: list[Event] = []
        self._counts: Counter[int] = Counter()
        self._present: torch.Tensor | None = None

    @property
    def is_reading_prompt(self) -> bool:
        return len(self.tokens) == len(self.request.prompt) and bool(self.pending)

    @property
    def wants_prompt(self) -> bool:
        """Whether log-probabilities of the prompt's own tokens are still to be returned."""
        return self.request.wants_prompt and self.index == 0 and self.num_new == 0

    @property
    def shareable(self) -> list[int]:
        """Return the tokens that need not be read if another slot holds them, because no scores are requested
        for them.
        """
        return [] if self.wants_prompt else self.pending[:-1]

    def needs_logits(self, start: int, count: int) -> range:
        """Return which of the next `count` tokens, read from position `start` on, need logits."""
        if self.wants_prompt:
            return range(count)
        return range(count - 1, count) if count == len(self.pending) else range(0)

    def newest(self, count: int) -> list[int]:
        """Return the tokens that the tokenizer puts before a text, followed by the last `count` tokens."""
        kept = min(self.request.kept, count - 1)
        return self.tokens[:kept] + self.tokens[len(self.tokens) - count + kept :]

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def present(self, device: torch.device) -> torch.Tensor:
        """Return the distinct ids in the prompt and the new text."""
        if self._present is None:
            self._present = torch.tensor(sorted(set(self.tokens)), device=device)
        return self._present

    @property
    def counts(self) -> Counter[int]:
        """Return how often each token occurs in the new text."""
        return self._counts

    def add(self, token: int, logprob: Event | None = None) -> Event | None:
        """Add the next token. Return an event if it ends the text, or completes a piece that gets one; None
        otherwise.
        """
        request, generation = self.request, self.request.generation
        if token in self.end_ids and not generation.ignore_eod:
            event = self.end(STOP)
            return event if logprob is None else {**event, "end_logprob": self._placed(logprob)}
        self.tokens.append(token)
        self.pending = [token]
        request.new_tokens += 1
        self._new_ids.append(token)
        if generation.is_penalized:
            if self._present is not None and not bool((self._present == token).any()):
                self._present = torch.cat([self._present, self._present.new_tensor([token])])
            self._counts[token] += 1
        if logprob is not None:
            self._logprobs.append(self._placed(logprob))
        piece = self._stream.add(token)
        self._seen_chars += len(piece)
        text = self._stops.add(piece)
        if self._stops.found is not None:
            return self._ended(STOP, text)
        if self.num_new >= generation.max_new_tokens:
            return self._ended(LENGTH, text + self._stops.held_back())
        if text and (request.streams or not self._is_begun):
            return self._event(text)
        self._new_text.append(text)
        return None

    def _placed(self, logprob: Event) -> Event:
        """Return a token's entry, with the position in the text at which the token begins."""
        return {**logprob, "offset": self._seen_chars}

    def end(self, reason: str) -> Event:
        """End the text without another token, and return the event."""
        return self._ended(reason, self._stops.held_back())

    def _ended(self, reason: str, text: str) -> Event:
        self.finish_reason = reason
        self.pending = []
        event = {**self._event(text), "finish_reason": reason, "new_tokens": self.num_new}
        if self._stops.found is not None:
            event["stop"] = self._stops.found
        return event

    def _event(self, text: str) -> Event:
        text = "".join([*self._new_text, text])
        event: Event = {"id": self.request.id, "index": self.index, "text": text, "tokens": self._new_ids}
        if self._logprobs:
            event["logprobs"] = self._logprobs
        self._is_begun = True
        self._new_text, self._new_ids, self._logprobs = [], [], []
        return event
