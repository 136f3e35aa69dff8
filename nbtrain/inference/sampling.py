"""From the logits of one position to the next token."""

from dataclasses import dataclass

import torch

from nbtrain.base.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    temperature 0 takes the likeliest token. Otherwise logits are divided by it and cut to the top_k likeliest
    (0: no cut), then to the smallest set whose share reaches top_p (arXiv:1904.09751, section 3.1; 1: no
    cut); from these a token is drawn. Raises ConfigError if a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("temperature", self.temperature >= 0, "at least 0 (0 is greedy)"),
            ("top_k", self.top_k >= 0, "at least 0 (0 does not cut)"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1 (1 does not cut)"),
        ):
            if not holds:
                raise ConfigError(f"{name} = {getattr(self, name)} must be {rule}.")

    def choose(self, logits: torch.Tensor, generator: torch.Generator | None = None) -> int:
        """The next token for logits [v]."""
        if self.temperature == 0:
            return int(logits.argmax())
        return int(torch.multinomial(self.probabilities(logits), 1, generator=generator))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution that `choose` draws from: [v] -> [v], fp32, sums to 1."""
        scaled = logits.float() / self.temperature
        if 0 < self.top_k < scaled.numel():
            kept, where = scaled.topk(self.top_k)
            scaled = torch.full_like(scaled, -torch.inf).scatter(0, where, kept)
        probabilities = scaled.softmax(-1)
        if self.top_p < 1:
            ordered, where = probabilities.sort(descending=True)
            # A token stays when the share before it has not reached top_p: the likeliest always stays.
            dropped = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.scatter(0, where, ordered.masked_fill(dropped, 0.0))
            probabilities /= probabilities.sum()
        return probabilities
