"""nbtrain's own functions, for a file that `code` in a run YAML names; docs/code.md explains them."""

import logging
from pathlib import Path

import torch

from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.model.custom_layer import LayerParts
from nbtrain.model.custom_loss import LossBatch
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel.vocabulary import Vocabulary


def loss(
    logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    """Return the sum of the losses of a micro batch, its number of tokens in the loss, and scalars.

    logits is fp32 [b, s, w]: the logits of this rank's part of the vocabulary. Without the parameter
    `vocabulary`, it is [b, s, v], the logits of the whole vocabulary. A scalar (sum, count) is reported as
    sum / count over all micro batches and ranks of the step, a number as its sum.
    """
    losses = vocabulary.cross_entropy(logits, labels)
    return (losses * mask).sum(), mask.sum(), {}


def scalars(step: int) -> dict[str, float]:
    """Return more scalars for this step; rank 0 calls it after each step."""
    return {}


class _Block(torch.nn.Module):
    """A transformer block: x + attention(norm x), then x + MLP(norm x), with dropout on both branches."""

    def __init__(self, parts: LayerParts):
        super().__init__()
        self.parts = parts
        self.input_layernorm = parts.norm()
        self.attention = parts.attention()
        self.post_attention_layernorm = parts.norm()
        self.mlp = parts.mlp()

    def forward(self, x: torch.Tensor, **context) -> torch.Tensor:
        """Return the residual stream [b, s, h] after the block; attention needs the context."""
        x = x + self._dropped(self.attention(self.input_layernorm(x), **context))
        return x + self._dropped(self.mlp(self.post_attention_layernorm(x)))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts.dropout(x, self.training)


def layer(config: GPTConfig, index: int, parts: LayerParts) -> torch.nn.Module:
    """Return block `index`, counted from 0; config has the fields of the section `model`."""
    return _Block(parts)


class _Windows:
    """The tokens of a .bin/.idx pair, cut into windows of seq_length + 1 that overlap by one token."""

    def __init__(self, prefix: str, seq_length: int, first: float, last: float):
        self._tokens, self._seq_length = IndexedDataset(prefix).tokens, seq_length
        windows = (len(self._tokens) - 1) // seq_length
        self._first, self._last = int(first * windows), int(last * windows)

    def __len__(self) -> int:
        return self._last - self._first

    def samples(self, index: int) -> dict:
        """Return seq_length + 1 tokens; add "loss_mask" for labels that are not in the loss."""
        start = (self._first + index) * self._seq_length
        return {"tokens": self._tokens[start : start + self._seq_length + 1]}


def dataset(split: str) -> _Windows | None:
    """Return the samples of "train", "valid" or "test", or None for a split that is not read."""
    bounds = {"train": (0.0, 0.9), "valid": (0.9, 0.97), "test": (0.97, 1.0)}
    return _Windows("data/dataset/python-docs-1k/text_document", 256, *bounds[split])


def on_step(step: int, model: torch.nn.Module) -> None:
    """Every rank calls this after each step, with its part of the model, without gradients."""


def on_checkpoint(step: int, folder: Path) -> None:
    """Rank 0 calls this when the checkpoint in `folder` is complete."""
    logging.getLogger(__name__).info("checkpoint of step %s: %s", step, folder)
