"""The layers of GPT-3 in the order they run: embeddings, pre-LN transformer layers, final LayerNorm.

Each takes and returns the residual stream [b, s, h], so that a pipeline can be cut between any two. Linear maps
go through Linear, the packed query-key-value rows lie head by head, and nothing in a forward pass asks for the
number of heads of the whole model: a tensor-parallel Linear that holds some heads or some columns drops in.

Shapes: b micro batch, s sequence, h hidden, n heads (of this rank), d head size, f MLP width, v vocabulary
"""

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.model.attention import Documents, LayerCache, causal_attention
from nbtrain.model.initialization import Initializer


class Linear(nn.Module):
    """y = x W^T + b.  [.., i] -> [.., o], weight [o, i], bias [o]."""

    def __init__(self, name: str, inputs: int, outputs: int, init: Initializer, residual: bool = False):
        super().__init__()
        self.weight = init.normal(f"{name}.weight", outputs, inputs, residual=residual)
        self.bias = init.zeros(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Normalization over the last dimension, with weight and bias."""

    def __init__(self, hidden_size: int, epsilon: float, init: Initializer):
        super().__init__()
        self.weight = init.ones(hidden_size)
        self.bias = init.zeros(hidden_size)
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class WordEmbedding(nn.Module):
    """Token ids [b, s] -> [b, s, h]. Its weight [v, h] is the output matrix too, so it stands alone (tied)."""

    def __init__(self, name: str, vocab_size: int, hidden_size: int, init: Initializer):
        super().__init__()
        self.weight = init.normal(f"{name}.weight", vocab_size, hidden_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.weight)


class PositionEmbedding(nn.Module):
    """Adds the learned position vectors, then dropout.  [b, s, h] -> [b, s, h], weight [p, h]."""

    def __init__(self, name: str, positions: int, hidden_size: int, dropout: float, init: Initializer):
        super().__init__()
        self.weight = init.normal(f"{name}.weight", positions, hidden_size)
        self.dropout = dropout

    def forward(
        self, x: torch.Tensor, start: int = 0, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`position_ids` [b, s] where they are not start, start + 1, ..."""
        if position_ids is not None:
            positions = F.embedding(position_ids, self.weight)
        else:
            # A slice, not an index: its gradient is one copy, not a scatter.
            positions = self.weight[start : start + x.shape[1]]
        return F.dropout(x + positions, self.dropout, self.training)


class Attention(nn.Module):
    """Causal multi-head self-attention.  [b, s, h] -> [b, s, h]."""

    def __init__(
        self,
        name: str,
        hidden_size: int,
        num_heads: int,
        dropout: float,
        backend: str,
        init: Initializer,
    ):
        super().__init__()
        self.head_size = hidden_size // num_heads
        self.dropout = dropout
        self.backend = backend
        self.query_key_value = Linear(f"{name}.query_key_value", hidden_size, 3 * hidden_size, init)
        self.dense = Linear(f"{name}.dense", hidden_size, hidden_size, init, residual=True)

    def forward(
        self,
        x: torch.Tensor,
        cache: LayerCache | None = None,
        start: int = 0,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        batch, tokens, _ = x.shape
        # [b, s, n, 3d] -> [b, n, s, 3d]: the heads are what there are here, all or this rank's.
        packed = self.query_key_value(x).view(batch, tokens, -1, 3 * self.head_size).transpose(1, 2)
        query, key, value = packed.split(self.head_size, dim=-1)
        if cache is not None:
            key, value = cache.extended(key, value, start)
        dropout = self.dropout if self.training else 0.0
        attended = causal_attention(query, key, value, dropout, self.backend, documents)
        return self.dense(attended.transpose(1, 2).reshape(batch, tokens, -1))


class MLP(nn.Module):
    """h -> f, GELU, f -> h.  [b, s, h] -> [b, s, h]."""

    def __init__(self, name: str, hidden_size: int, ffn_hidden_size: int, init: Initializer):
        super().__init__()
        self.dense_h_to_4h = Linear(f"{name}.dense_h_to_4h", hidden_size, ffn_hidden_size, init)
        self.dense_4h_to_h = Linear(
            f"{name}.dense_4h_to_h", ffn_hidden_size, hidden_size, init, residual=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The tanh form is GPT-2's and Megatron's.
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))


class TransformerLayer(nn.Module):
    """x + attention(LN x), then x + MLP(LN x), dropout on both branches (pre-LN, GPT-2 section 2.3)."""

    def __init__(
        self,
        name: str,
        hidden_size: int,
        ffn_hidden_size: int,
        num_heads: int,
        hidden_dropout: float,
        attention_dropout: float,
        layernorm_epsilon: float,
        attention_backend: str,
        init: Initializer,
    ):
        super().__init__()
        self.hidden_dropout = hidden_dropout
        self.input_layernorm = LayerNorm(hidden_size, layernorm_epsilon, init)
        self.attention = Attention(
            f"{name}.attention", hidden_size, num_heads, attention_dropout, attention_backend, init
        )
        self.post_attention_layernorm = LayerNorm(hidden_size, layernorm_epsilon, init)
        self.mlp = MLP(f"{name}.mlp", hidden_size, ffn_hidden_size, init)

    def forward(
        self,
        x: torch.Tensor,
        cache: LayerCache | None = None,
        start: int = 0,
        documents: Documents | None = None,
    ) -> torch.Tensor:
        attended = self.attention(self.input_layernorm(x), cache, start, documents)
        x = x + F.dropout(attended, self.hidden_dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.hidden_dropout, self.training)
