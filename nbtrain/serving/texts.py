"""Generated texts: strings with their prompt and tokens as attributes, and their display in a notebook."""

import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.printing.report import DIM
from nbtrain.base.text.amounts import counted

BOX = "margin:2px 0 10px 0;white-space:pre-wrap;overflow-wrap:anywhere;font-family:var(--jp-code-font-family)"
CAPTION = f"font-size:11px;{DIM}"
ENDS = {"length": "maximum length", "stop": "ended by itself"}


class Text(str):
    """A prompt and the model's continuation as one string."""

    prompt: str
    new_text: str
    """The generated text."""
    tokens: list[int]
    """Ids of the generated tokens."""
    finish_reason: str
    """Reason why the text ended.

    "length": all requested tokens were generated; "stop": the model ended the document or wrote a stop
    string.
    """
    logprobs: list[dict[str, Any]]
    """Log-probabilities, one entry per new token: {"id", "token", "bytes", "logprob", "top"}.

    Empty unless they were requested.
    """
    score: float | None
    """Score from beam search; None without beam search."""

    def _repr_html_(self) -> str:
        return _shown(self)


class Texts(list[Text]):
    """A list of texts that a notebook displays one below the other."""

    def _repr_html_(self) -> str:
        return "".join(_shown(text) for text in self)


@dataclass
class Growing:
    """A text that grows as its events arrive."""

    prompt: str
    pieces: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    score: float | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Add an event, and return the piece of text that it contains."""
        self.pieces.append(event["text"])
        self.tokens += event["tokens"]
        self.logprobs += event.get("logprobs", ())
        self.finish_reason = event.get("finish_reason", "")
        self.score = event.get("score")
        return event["text"]

    def text(self) -> Text:
        """Return the text so far."""
        new_text = "".join(self.pieces)
        text = Text(self.prompt + new_text)
        text.prompt, text.new_text, text.tokens = self.prompt, new_text, self.tokens
        text.logprobs, text.finish_reason, text.score = self.logprobs, self.finish_reason, self.score
        return text


def collected(
    prompts: list[str], count: int, events: Iterable[tuple[int, Mapping[str, Any]]]
) -> list[list[Text]]:
    """Collect `count` texts for each prompt from their events."""
    growing = [[Growing(prompt) for _ in range(count)] for prompt in prompts]
    for number, event in events:
        if "text" in event:
            growing[number][event["index"]].take(event)
    return [[one.text() for one in several] for several in growing]


def _shown(text: Text) -> str:
    prompt = f'<span style="{DIM}">{html.escape(text.prompt)}</span>'
    made = _with_chances(text) if text.logprobs else html.escape(text.new_text)
    facts = [counted(len(text.tokens), "token"), ENDS.get(text.finish_reason, text.finish_reason)]
    if text.logprobs:
        mean = sum(entry["logprob"] for entry in text.logprobs) / len(text.logprobs)
        facts.append(f"mean log-probability {mean:.2f}")
    if text.score is not None:
        facts.append(f"score {text.score:.3f}")
    said = html.escape(", ".join(fact for fact in facts if fact))
    return f'<div style="{BOX}">{prompt}{made}</div><div style="{CAPTION}">{said}</div>'


def _with_chances(text: Text) -> str:
    """Return HTML that shades unlikely tokens darker than likely ones, with alternatives in a tooltip."""
    spans = []
    for entry in text.logprobs:
        chance = math.exp(entry["logprob"])
        others = "\n".join(f"{one['token']!r} {math.exp(one['logprob']):.1%}" for one in entry["top"])
        title = html.escape(f"{chance:.1%}" + (f"\n\n{others}" if others else ""))
        mark = f"background:rgba(237,137,54,{0.5 * (1 - chance):.2f})"
        spans.append(f'<span style="{mark}" title="{title}">{html.escape(entry["token"])}</span>')
    return "".join(spans)
