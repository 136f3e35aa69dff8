"""Settings of text generation: the fields of a request to a model, their defaults and bounds.

The names come from transformers' GenerationConfig or, for settings that it lacks, from OpenAI's API or vLLM.
The command line, notebooks, the server and the process that generates text all use this class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.report import Record
from nbtrain.base.text.terminal import shortened

MOST_NEW_TOKENS = 1_000_000
MOST_CHOICES = 64
MOST_BEAMS = 64
# A million tokens raised to this power, and a log-probability divided by the result, are finite in fp64.
MOST_LENGTH_PENALTY = 50
MOST_STOPS = 16
MOST_STOP_CHARS = 1000
MOST_LOGPROBS = 20
"""OpenAI's maximum for top_logprobs."""
MOST_BIASES = 1024
# No model has more tokens. A larger id would also be too large for the JSON that the processes exchange.
TOKEN_IDS = 1 << 32


def _problem(name: str, message: str) -> Finding:
    return Finding("error", "generation", name, "", message, cost=FATAL)


# Number formats in which a model can be loaded to generate text. auto means fp32 on a CPU and the training
# format on a GPU.
LOADED_DTYPES = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Generation(Record):
    """Settings for generating a continuation of a prompt. Raises ConfigError if a value is out of range."""

    max_new_tokens: int = 100
    """Maximum number of new tokens. The end-of-document token or a stop string may end the text earlier."""
    temperature: float = 0.8
    """Temperature: the number by which the logits are divided. 0 always picks the most likely token
    (greedy).
    """
    top_k: int = 40
    """Number of most likely tokens to sample from. 0 means all tokens."""
    top_p: float = 1.0
    """Total probability of the most likely tokens to sample from (nucleus sampling, arXiv:1904.09751, section
    3.1). 1 means all tokens, and 0 always picks the most likely one (greedy).
    """
    min_p: float = 0.0
    """Minimum probability of a token to be sampled, as a fraction of the most likely token's probability
    (arXiv:2407.01082). 0 sets no minimum.
    """
    repetition_penalty: float = 1.0
    """Penalty for tokens that the text already contains: their positive logits are divided by it, their
    negative logits multiplied by it (CTRL, arXiv:1909.05858, section 4.1). 1 changes nothing.
    """
    presence_penalty: float = 0.0
    """Number that is subtracted once from the logit of each token that the new text already contains, as in
    OpenAI's API.
    """
    frequency_penalty: float = 0.0
    """Number that is subtracted from the logit of a token once for each time that it occurs in the new text,
    as in OpenAI's API.
    """
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and a number that is added to the token's logit, as in OpenAI's API."""
    num_beams: int = 1
    """Number of beams. 1 means no beam search."""
    length_penalty: float = 1.0
    """With beam search, exponent of a beam's length. The beam's log-probability is divided by the length to
    this power.
    """
    n: int = 1
    """Number of texts to generate for the prompt."""
    stop: tuple[str, ...] = ()
    """Strings that end the new text, which then does not include them."""
    ignore_eod: bool = False
    """Whether to continue after the end-of-document token."""
    logprobs: int | None = None
    """Number of most likely tokens whose log-probabilities are reported at each position, along with the
    log-probability of the chosen token. None reports no log-probabilities.
    """
    echo: bool = False
    """Whether the result begins with the prompt and the log-probabilities of its tokens."""
    seed: int | None = 1234
    """Random seed. The same seed gives the same text, whatever else is generated at the same time. With None,
    each request gives a different text.
    """

    def __post_init__(self) -> None:
        refuse(self._problems(), ConfigError)

    def _problems(self) -> Iterator[Finding]:
        for name, holds, rule in self._rules():
            if not holds:
                yield _problem(name, f"{name} = {shortened(str(getattr(self, name)))} must be {rule}.")
        if self.num_beams > 1:
            yield from self._problems_with_beams()

    def _rules(self) -> Iterator[tuple[str, bool, str]]:
        yield "max_new_tokens", 0 <= self.max_new_tokens <= MOST_NEW_TOKENS, f"from 0 to {MOST_NEW_TOKENS:,}"
        yield "temperature", 0 <= self.temperature < float("inf"), "at least 0 (0 is greedy)"
        yield "top_k", self.top_k >= 0, "at least 0 (0 turns it off)"
        yield "top_p", 0 <= self.top_p <= 1, "from 0 to 1 (1 turns it off, 0 is greedy)"
        yield "min_p", 0 <= self.min_p <= 1, "from 0 to 1 (0 turns it off)"
        yield "repetition_penalty", 0 < self.repetition_penalty < float("inf"), "above 0 (1 turns it off)"
        for name in ("presence_penalty", "frequency_penalty"):
            yield name, -2 <= getattr(self, name) <= 2, "from -2 to 2 (0 does nothing)"
        holds = len(self.logit_bias) <= MOST_BIASES and all(
            0 <= one < TOKEN_IDS for one, _ in self.logit_bias
        )
        yield (
            "logit_bias",
            holds,
            f"at most {MOST_BIASES:,} biases, each for a token id from 0 to {TOKEN_IDS - 1:,}",
        )
        yield (
            "num_beams",
            1 <= self.num_beams <= MOST_BEAMS,
            f"from 1 to {MOST_BEAMS} (1 means no beam search)",
        )
        holds = abs(self.length_penalty) <= MOST_LENGTH_PENALTY
        yield "length_penalty", holds, f"from -{MOST_LENGTH_PENALTY} to {MOST_LENGTH_PENALTY}"
        yield "n", 1 <= self.n <= MOST_CHOICES, f"from 1 to {MOST_CHOICES}"
        holds = self.logprobs is None or 0 <= self.logprobs <= MOST_LOGPROBS
        yield "logprobs", holds, f"from 0 to {MOST_LOGPROBS}, or null for none"
        holds = len(self.stop) <= MOST_STOPS and all(0 < len(text) <= MOST_STOP_CHARS for text in self.stop)
        yield "stop", holds, f"at most {MOST_STOPS} texts of 1 to {MOST_STOP_CHARS} characters"
        yield "seed", self.seed is None or abs(self.seed) < 1 << 63, "between -2^63 and 2^63, or null"

    def _problems_with_beams(self) -> Iterator[Finding]:
        """Yield a problem for each option that conflicts with beam search.

        These options need the text while it is generated, but the text of a beam is complete only at the end.
        """
        if self.n > self.num_beams:
            yield _problem("n", f"n = {self.n} must be at most num_beams = {self.num_beams}.")
        for name in ("stop", "logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "echo"):
            if getattr(self, name) not in ((), None, 0.0, False):
                words = f"{name} cannot be combined with num_beams = {self.num_beams}: set only one of them."
                yield _problem(name, words)

    @property
    def is_greedy(self) -> bool:
        """Whether each token is the most likely one, without any sampling."""
        return self.temperature == 0 or self.top_p == 0 or self.top_k == 1

    @property
    def is_penalized(self) -> bool:
        """Whether a token's logit depends on earlier tokens, or has a bias."""
        plain = self.repetition_penalty == 1 and self.presence_penalty == self.frequency_penalty == 0
        return not plain or bool(self.logit_bias)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Generation":
        """Build the settings from a JSON object; keys that are not settings are ignored."""
        names = {field.name for field in fields(cls)}
        known = {name: value for name, value in values.items() if name in names}
        known["stop"] = tuple(known.get("stop", ()))
        known["logit_bias"] = tuple((token, bias) for token, bias in known.get("logit_bias", ()))
        return cls(**known)
