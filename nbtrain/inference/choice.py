"""A request and its choices: the texts that continue the prompt, with their tokens and log-probabilities."""

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
"""Reasons why a text ended: an end token or a stop string (STOP), or the maximum length (LENGTH)."""

Event = dict[str, Any]


@dataclass(eq=False)
class Request:
    """A prompt with the settings for its continuation."""

    id: str
    prompt: list[int]
    generation: Generation
    slides: bool
    """Whether the text may become longer than the model's positions.

    Whenever all positions are used, the model reads the newest half of the tokens again, from position 0 on,
    and generation continues from there (a sliding window).
    """
    before_text: int = 0
    """Number of tokens that the tokenizer puts before the prompt's text."""
    kept: int = 0
    """Number of tokens before the prompt's text that stay at the start of a sliding window."""
    streams: bool = True
    """Whether each piece of text gets an event.

    Otherwise, a text has two events: one for its first piece, so that the time until the first piece can be
    measured, and one for the rest.
    """
    choices: "list[Choice]" = field(default_factory=list)
    new_tokens: int = 0
    ended: int = 0

    @property
    def wants_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's own tokens are requested."""
        return self.generation.echo and self.generation.logprobs is not None

    def text_prompt(self, eod_id: int) -> list[int]:
        """Return the tokens of the prompt's text, without the tokens that the tokenizer puts before it.

        The list is empty if the prompt is only an end-of-document token.
        """
        return [] if self.prompt == [eod_id] else self.prompt[self.before_text :]

    def shown_prompt(self, tokenizer: Tokenizer) -> Event:
        """Return the value of "prompt" in the first event of a request with echo.

        It is {"text", "tokens", "first", ["offsets"]}. "first" is the text of the first token. "offsets", the
        position in the text at which each token begins, is present only if log-probabilities are requested.
        """
        text, first = self.text_prompt(tokenizer.eod_id), token_text(tokenizer.bytes_of(self.prompt[0]))
        # If the prompt's last tokens end inside a character, the new text begins with that character.
        is_continued = self.generation.max_new_tokens > 0
        written = tokenizer.decode_finished(text)[0] if is_continued else tokenizer.decode(text)
        found: Event = {"text": written, "tokens": self.prompt, "first": first}
        if not self.wants_prompt:
            return found
        # Tokens before the text have offset 0. A token inside a character has the character's offset.
        offsets, stream, length = [0] * (len(self.prompt) - len(text)), TextStream(tokenizer), 0
        for token in text:
            offsets.append(length)
            length += len(stream.add(token))
        return {**found, "offsets": offsets}


class Choice:
    """A text that continues a prompt."""

    def __init__(
        self,
        request: Request,
        index: int,
        tokenizer: Tokenizer,
        text_prompt: list[int],
        end_ids: frozenset[int],
    ):
        """Start a text. `text_prompt` is the result of Request.text_prompt()."""
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
        """Number of characters in the prompt and the new text, including text held back by stop strings."""
        self._is_begun = False
        """Whether an event with text has been created."""
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
        """Whether log-probabilities of the prompt's tokens must still be returned with this choice."""
        return self.request.wants_prompt and self.index == 0 and self.num_new == 0

    @property
    def shareable(self) -> list[int]:
        """Unread tokens that need no logits, so their keys and values may be copied from another slot."""
        return [] if self.wants_prompt else self.pending[:-1]

    def needs_logits(self, start: int, count: int) -> range:
        """Return the indices, among the next `count` tokens from position `start`, that need logits."""
        if self.wants_prompt:
            return range(count)
        return range(count - 1, count) if count == len(self.pending) else range(0)

    def newest(self, count: int) -> list[int]:
        """Return `count` tokens: the kept tokens before the prompt's text, followed by the newest tokens."""
        kept = min(self.request.kept, count - 1)
        return self.tokens[:kept] + self.tokens[len(self.tokens) - count + kept :]

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def present(self, device: torch.device) -> torch.Tensor:
        """Return the distinct token ids in the prompt and the new text."""
        if self._present is None:
            self._present = torch.tensor(sorted(set(self.tokens)), device=device)
        return self._present

    @property
    def counts(self) -> Counter[int]:
        """Number of occurrences of each token id in the new text."""
        return self._counts

    def add(self, token: int, logprob: Event | None = None) -> Event | None:
        """Add the next token.

        Return an event if the token ends the text or completes a piece of text to report, otherwise None.
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
        """Return a token's log-probability entry with "offset", the position in the text where it begins."""
        return {**logprob, "offset": self._seen_chars}

    def end(self, reason: str) -> Event:
        """End the text without another token, and return its last event."""
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
