"""Causal self-attention through torch's scaled_dot_product_attention, with a key-value cache for decoding.

Shapes: b sequences, s tokens of this call, p tokens in the cache before it, n heads, d head size
"""

import contextlib
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    backend: str = "auto",
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d), causal) v.  query [b, n, s, d], key and value [b, n, p + s, d] -> [b, n, s, d].

    `backend` is one of auto, flash, efficient, math; torch raises RuntimeError where a named one cannot
    serve the device, the dtype or the dropout (no CPU kernel but math knows dropout).
    """
    queries, keys = query.shape[-2], key.shape[-2]
    # A single query sees the whole cache; several queries behind a cache need the offset triangle.
    mask = None
    if 1 < queries < keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    chosen = contextlib.nullcontext() if backend == "auto" else sdpa_kernel(BACKENDS[backend])
    with chosen:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=queries == keys and queries > 1
        )


@dataclass
class LayerCache:
    """Keys and values of one layer, [b, n, max_tokens, d] each, filled up to the cache's length."""

    keys: torch.Tensor
    values: torch.Tensor

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put [b, n, s, d] at `start`; views of everything up to its end."""
        end = start + key.shape[-2]
        self.keys[:, :, start:end] = key
        self.values[:, :, start:end] = value
        return self.keys[:, :, :end], self.values[:, :, :end]


@dataclass
class KVCache:
    """Keys and values of every layer for `batch_size` sequences of at most `max_tokens`.

    Made by GPT.new_cache; forward(tokens, cache=cache) appends the tokens and moves `length`.
    Set `length` back to forget the newest tokens.
    """

    max_tokens: int
    length: int = 0
    layers: list[LayerCache] = field(default_factory=list)
