"""Blocks whose MLP is gated by a squared ReLU, with its own width, gain and scale.

The squared ReLU comes from Primer (arXiv:2109.08668), and gates as in GLU variants (arXiv:2002.05202). The
width is 8/3 of the hidden size, rounded up to a multiple of 64, whatever model.ffn_hidden_size says. Each
column has a learned gain, which tensor-parallel ranks divide like the columns; the output has a learned scale
(arXiv:2103.17239), which each of them has whole.
"""

import torch

from nbtrain.model.custom_layer import LayerParts
from nbtrain.model.gpt_config import GPTConfig

MULTIPLE = 64


class _MLP(torch.nn.Module):
    def __init__(self, config: GPTConfig, parts: LayerParts):
        super().__init__()
        hidden = config.hidden_size
        width = -(-8 * hidden // (3 * MULTIPLE)) * MULTIPLE
        self.opening = parts.gated_column_linear("mlp.opening", hidden, width)
        self.gain = parts.parameter("mlp.gain", width, shard_dim=0, value=1.0)
        self.closing = parts.row_linear("mlp.closing", width, hidden)
        self.scale = parts.parameter("mlp.scale", hidden, value=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, values = self.opening(x)
        return self.scale * self.closing(self.gain * torch.relu(gate).square() * values)


class _Block(torch.nn.Module):
    def __init__(self, config: GPTConfig, parts: LayerParts):
        super().__init__()
        self.parts = parts
        self.input_layernorm = parts.norm()
        self.attention = parts.attention()
        self.post_attention_layernorm = parts.norm()
        self.mlp = _MLP(config, parts)

    def forward(self, x: torch.Tensor, **context) -> torch.Tensor:
        x = x + self._dropped(self.attention(self.input_layernorm(x), **context))
        return x + self._dropped(self.mlp(self.post_attention_layernorm(x)))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts.dropout(x, self.training)


def layer(config: GPTConfig, index: int, parts: LayerParts) -> torch.nn.Module:
    return _Block(config, parts)
