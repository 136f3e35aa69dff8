"""A GPT-3 in plain torch, written from the papers without nbtrain's code: every layout's reference.

Attention is written out, logits are whole, the loss is torch's. Its modules have nbtrain's canonical names
(model/names.py), so that the same initial weights go in; the vocabulary has no padding. The number of heads
is what the weights say, so that DeepSpeed's AutoTP can cut the linear layers.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Causal, the heads' queries, keys and values interleaved per head."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.head_size = hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        packed = self.query_key_value(x).view(batch, length, -1, 3, self.head_size).permute(3, 0, 2, 1, 4)
        query, key, value = packed
        scores = query @ key.transpose(-1, -2) / self.head_size**0.5
        weights = scores.masked_fill(~visible[:, None], float("-inf")).softmax(-1)
        return self.dense((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """Width 4h, GELU in its tanh form."""

    def __init__(self, hidden: int):
        super().__init__()
        self.dense_h_to_4h = nn.Linear(hidden, 4 * hidden)
        self.dense_4h_to_h = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense_h_to_4h(x)
        return self.dense_4h_to_h(0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))))


class Layer(nn.Module):
    """Pre-LN."""

    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.post_attention_layernorm = nn.LayerNorm(hidden)
        self.mlp = MLP(hidden)

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_layernorm(x), visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class PlainGPT(nn.Module):
    """Loss of b sequences of s tokens; tied output."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.final_layernorm = nn.LayerNorm(hidden)

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        positions: torch.Tensor | None = None,
        visible: torch.Tensor | None = None,
        learnt: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean over the tokens, or over the `learnt` ones. All [b, s]; visible bool [b, s, s]: query, key."""
        batch, length = tokens.shape
        causal = torch.ones(batch, length, length, dtype=torch.bool).tril()
        visible = causal if visible is None else causal & visible
        x = self.word_embeddings(tokens)
        x = x + self.position_embeddings(torch.arange(length) if positions is None else positions)
        for layer in self.layers:
            x = layer(x, visible)
        logits = self.final_layernorm(x) @ self.word_embeddings.weight.T
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(batch, length)
        return losses.mean() if learnt is None else (losses * learnt).sum() / learnt.sum()
