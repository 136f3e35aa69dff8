"""The layers of GPT-3, in the order in which they run: embeddings, pre-LN transformer layers, final norm.

Each layer takes and returns the residual stream, so a pipeline can be split between any two layers. The
stream is [b, s, h], where s is the number of tokens on this rank: all tokens in one process, 1/t of them
under Megatron's sequence parallelism, 1/u under Ulysses, and 1/c under context parallelism. Matrices are
layers of parallel/tensor.py, sharded across the tensor-parallel ranks: each rank has some of the heads and
some columns of the MLP.

Under sequence parallelism, each rank has the full weights of LayerNorms and positions but applies them only
to its own tokens. Norms of queries and keys are always applied only to the rank's own heads. The weights of
these norms and positions are marked `sequence_parallel`, and their gradients are summed over the
tensor-parallel ranks.

Shapes: b micro batch, s tokens, n heads and g groups of this rank, h hidden, d head size, f MLP width, p
positions
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.model.adapters import adapt
from nbtrain.model.attention import Bounds, Documents, causal_attention, keeps_weights
from nbtrain.model.dropout import drawing, dropout
from nbtrain.model.functions import ACTIVATIONS, GATED, rms_norm
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.kv_cache import LayerCache
from nbtrain.model.recompute import recomputed, without_keeping
from nbtrain.model.rotary import Rotation, rotated
from nbtrain.parallel import context, fpdt, query_groups, ulysses
from nbtrain.parallel.layout import WHOLE, ModelParallel
from nbtrain.parallel.mappings import copy_parameters_to_sequence_parallel_region, own_part
from nbtrain.parallel.tensor import (
    FP8,
    PLAIN,
    ColumnParallelLinear,
    GatedColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    shard,
)


class WordEmbedding(VocabParallelEmbedding):
    """Word embedding: token ids [b, s] -> [b, s, h].

    If embeddings are tied, its weight [v/t, h] and the rows trained along with adapters are also the output
    matrix. In a pipeline, the last stage then has a copy of this layer, so it must have no other parameters.
    """

    def __init__(self, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__(
            "word_embeddings",
            config.padded_vocab_size,
            config.hidden_size,
            init,
            parallel.tensor,
            parallel.sequence_parallel,
            config.trained_tokens,
        )


class OutputLayer(nn.Module):
    """The output matrix [v/t, h] of an untied model. parallel/cross_entropy.py computes its product."""

    def __init__(self, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__()
        whole = init.normal("output_layer.weight", config.padded_vocab_size, config.hidden_size)
        self.weight = shard(whole, 0, parallel.tensor)
        tokens = config.trained_tokens
        self.trained_rows = init.zeros(len(tokens), config.hidden_size) if tokens else None


class _OfOwnPart(nn.Module):
    """Base class of layers whose weights are whole on every tensor-parallel rank.

    `cuts` is whether each rank applies the weights only to its own tokens or heads.
    """

    def __init__(self, parallel: ModelParallel, cuts: bool):
        super().__init__()
        self.group = parallel.tensor
        self.sequence_parallel = cuts

    def _mark(self) -> None:
        for parameter in self.parameters(recurse=False):
            parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def _weights(self, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.sequence_parallel:
            return parameters
        return copy_parameters_to_sequence_parallel_region(*parameters, group=self.group)


class Norm(_OfOwnPart):
    """Normalization over the last dimension: LayerNorm with weight and bias, or RMSNorm with a weight.

    For the norms of queries and keys, `size` is the head size; by default, it is the hidden size.
    """

    def __init__(
        self, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE, size: int | None = None
    ):
        super().__init__(parallel, parallel.cuts_tokens if size is None else parallel.tensor.size > 1)
        self.weight = init.ones(size or config.hidden_size)
        self.bias = init.zeros(size or config.hidden_size) if config.normalization == "LayerNorm" else None
        self.epsilon = config.norm_epsilon
        self._mark()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            (weight,) = self._weights(self.weight)
            return rms_norm(x, weight, self.epsilon)
        weight, bias = self._weights(self.weight, self.bias)
        return F.layer_norm(x, weight.shape, weight, bias, self.epsilon)


class PositionEmbedding(_OfOwnPart):
    """Adds learned position vectors [p, h], if positions are learned, and applies dropout.

    [b, s, h] -> [b, s, h].
    """

    def __init__(self, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__(parallel, parallel.cuts_tokens)
        self.weight = None
        if not config.turns:
            self.weight = init.normal(
                "position_embeddings.weight", config.max_position_embeddings, config.hidden_size
            )
        self.dropout = config.hidden_dropout
        self.stream = parallel.hidden_stream
        self._mark()

    def forward(
        self, x: torch.Tensor, start: int = 0, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Add positions and apply dropout.

        `position_ids` has the positions of the tokens on all tensor-parallel ranks. If it is None, the
        positions are consecutive from `start`.
        """
        if self.weight is None:
            return dropout(x, self.dropout, self.training, self.stream)
        (weight,) = self._weights(self.weight)
        if position_ids is not None:
            if self.sequence_parallel:
                position_ids = own_part(position_ids, 1, self.group)
            positions = F.embedding(position_ids, weight)
        else:
            if self.sequence_parallel:
                start += self.group.rank * x.shape[1]
            # Use a slice, not an index, because its gradient is a copy instead of a scatter.
            positions = weight[start : start + x.shape[1]]
        return dropout(x + positions, self.dropout, self.training, self.stream)


class Attention(nn.Module):
    """Causal self-attention of layer `index`. [b, s, h] -> [b, s, h].

    The rows of query_key_value are packed by group: d rows for each of n/g queries, then for a key and a
    value.
    """

    def __init__(self, index: int, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__()
        name, options = f"layers.{index}.attention", _linear_options(config, init, parallel)
        self.heads, self.groups = config.num_attention_heads, config.query_groups
        self.head_size = config.head_size
        self.group_size = (self.heads // self.groups + 2) * self.head_size
        self.dropout = config.attention_dropout
        self.backend = config.attention_backend
        self.window = config.window_of(index)
        self.softcap = config.attn_logit_softcapping
        self.turns = config.turns_in(index)
        self.selective = config.selective_recompute
        self.tensor, self.ulysses, self.context = parallel.tensor, parallel.ulysses, parallel.context
        self.shares_groups = self.groups < self.tensor.size
        if self.shares_groups and self.tensor.size % self.groups:
            raise ValueError(
                f"{name}: {self.tensor.size} tensor-parallel ranks cannot share {self.groups} groups"
            )
        self.stream = parallel.stream
        self.chunk_tokens = config.fpdt_chunk_tokens
        self.query_key_value = ColumnParallelLinear(
            f"{name}.query_key_value",
            config.hidden_size,
            self.groups * self.group_size,
            unit=1 if self.shares_groups else self.group_size,
            bias=config.add_bias_linear or config.add_qkv_bias,
            **options,
        )
        adapt(self.query_key_value, f"{name}.query_key_value", config, init, parallel)
        self.q_layernorm = self.k_layernorm = None
        if config.qk_layernorm:
            self.q_layernorm, self.k_layernorm = (
                Norm(config, init, parallel, self.head_size) for _ in range(2)
            )
        self.dense = RowParallelLinear(
            f"{name}.dense",
            self.heads * self.head_size,
            config.hidden_size,
            residual=True,
            bias=config.add_bias_linear,
            **options,
        )
        adapt(self.dense, f"{name}.dense", config, init, parallel)

    def forward(
        self,
        x: torch.Tensor,
        cache: LayerCache | None = None,
        documents: Bounds = None,
        rotation: Rotation | None = None,
    ) -> torch.Tensor:
        if self.chunk_tokens and cache is None:
            if rotation is not None:
                raise ValueError("FPDT does not support rotary positions: set parallel.fpdt_chunk_tokens: 0")
            if documents is not None:
                raise ValueError("FPDT cannot separate documents: set parallel.fpdt_chunk_tokens: 0")
            return fpdt.attention(
                x, self.query_key_value, self.dense, self.head_size, self.chunk_tokens, self.ulysses
            )
        query, key, value = self._heads(x, rotation if self.turns else None)
        if cache is not None:
            attended = cache.attend(query, key, value, self.window, self._attend_cached)
        elif self.context.size > 1:
            attended = self._attend_chunks(query, key, value, documents)
        else:
            attended = self._attend(query, key, value, documents)
        attended = ulysses.tokens_for_heads(attended.transpose(1, 2), self.ulysses)
        return self.dense(attended.flatten(2))

    def _heads(self, x: torch.Tensor, rotation: Rotation | None) -> tuple[torch.Tensor, ...]:
        """Return (queries [b, n, s, d], keys [b, g, s, d], values) for this rank's heads and all tokens.

        With context parallelism, they are only for this rank's own tokens.
        """
        packed, size = self.query_key_value(x), self.head_size
        if self.shares_groups:
            packed = query_groups.own_queries(packed, self.heads, self.groups, size, self.tensor)
            packed = packed.unsqueeze(2)
        else:
            packed = packed.unflatten(2, (-1, self.group_size))
        # [b, s, g, (n/g + 2) d]
        packed = query_groups.repeated_for(packed, size, self.ulysses.size)
        packed = ulysses.heads_for_tokens(packed, self.ulysses)
        query, key, value = packed.split([packed.shape[3] - 2 * size, size, size], dim=-1)
        query = query.unflatten(3, (-1, size))
        if self.q_layernorm is not None and self.k_layernorm is not None:
            # Under autocast, a LayerNorm returns fp32.
            query, key = self.q_layernorm(query).to(value.dtype), self.k_layernorm(key).to(value.dtype)
        elif query.shape[3] > 1 or rotation is not None:
            # Queries of a group, and rotated tensors, are copied anyway. If the others were views, they would
            # keep the whole packed tensor in memory until the backward pass.
            value = value.contiguous()
            key = key if rotation is not None else key.contiguous()
        elif self.context.size > 1:
            # Keys and values are gathered later; a copy of the queries frees the packed tensor.
            query = query.contiguous()
        query, key, value = (heads.transpose(1, 2) for heads in (query.flatten(2, 3), key, value))
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        return query, key, value

    def _attend_cached(self, query, key, value, mask) -> torch.Tensor:
        # A mask also hides the positions before the window.
        documents, window = (None, self.window) if mask is None else (Documents(mask), None)
        return causal_attention(query, key, value, 0.0, self.backend, documents, window, self.softcap)

    def _attend_chunks(self, query, key, value, bounds) -> torch.Tensor:
        """Compute attention from each of this rank's chunks to all keys up to the end of the chunk."""
        chunks, seen = query.chunk(context.CHUNKS, dim=2), context.seen_keys(key, value, self.context)
        attended = [
            # Transpose to the memory order that the projection needs.
            self._attend(chunk, *keys, documents).transpose(1, 2)
            for chunk, keys, documents in zip(chunks, seen, bounds, strict=True)
        ]
        return torch.cat(attended, dim=1).transpose(1, 2)

    def _attend(self, query, key, value, documents) -> torch.Tensor:
        dropout = self.dropout if self.training else 0.0
        arguments = (query, key, value, dropout, self.backend, documents, self.window, self.softcap)
        if self.selective and torch.is_grad_enabled() and keeps_weights(*arguments):
            return recomputed(self.stream, self._drawn, *arguments)
        return self._drawn(*arguments)

    def _drawn(self, query, key, value, dropout, *how) -> torch.Tensor:
        stream = self.stream if dropout else None
        return drawing(stream, causal_attention, query, key, value, dropout, *how)


class MLP(nn.Module):
    """MLP: h -> f, activation, f -> h. A gated MLP has two projections h -> f, one of which is the gate."""

    def __init__(self, index: int, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__()
        name = f"layers.{index}.mlp"
        self.selective = config.selective_recompute
        self.chunk_tokens = config.fpdt_chunk_tokens // parallel.ulysses.size
        options = _linear_options(config, init, parallel) | {"bias": config.add_bias_linear}
        self.activation = ACTIVATIONS[config.activation]
        opening = GatedColumnParallelLinear if config.activation in GATED else ColumnParallelLinear
        self.dense_h_to_4h = opening(
            f"{name}.dense_h_to_4h", config.hidden_size, config.ffn_hidden_size, **options
        )
        self.dense_4h_to_h = RowParallelLinear(
            f"{name}.dense_4h_to_h", config.ffn_hidden_size, config.hidden_size, residual=True, **options
        )
        adapt(self.dense_h_to_4h, f"{name}.dense_h_to_4h", config, init, parallel)
        adapt(self.dense_4h_to_h, f"{name}.dense_4h_to_h", config, init, parallel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.chunk_tokens and torch.is_grad_enabled():
            # FPDT: compute [b, s, f] for one chunk at a time, in the forward and the backward pass.
            chunks = x.split(self.chunk_tokens, dim=1)
            return torch.cat([recomputed(None, self._whole, chunk) for chunk in chunks], dim=1)
        return self._whole(x)

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        opened = self.dense_h_to_4h(x)
        inner = opened if isinstance(opened, tuple) else (opened,)
        if self.selective:
            return without_keeping(self.activation, self.dense_4h_to_h, *inner)
        return self.dense_4h_to_h(self.activation(*inner))


class TransformerLayer(nn.Module):
    """Transformer layer: x + attention(norm(x)), then x + MLP(norm(x)), with dropout on both branches.

    This order is pre-LN (GPT-2, section 2.3).
    """

    def __init__(self, index: int, config: GPTConfig, init: Initializer, parallel: ModelParallel = WHOLE):
        super().__init__()
        self.hidden_dropout = config.hidden_dropout
        self.stream = parallel.hidden_stream
        self.input_layernorm = Norm(config, init, parallel)
        self.attention = Attention(index, config, init, parallel)
        self.post_attention_layernorm = Norm(config, init, parallel)
        self.mlp = MLP(index, config, init, parallel)

    def forward(
        self,
        x: torch.Tensor,
        cache: LayerCache | None = None,
        documents: Bounds = None,
        rotation: Rotation | None = None,
    ) -> torch.Tensor:
        attended = self.attention(self.input_layernorm(x), cache, documents, rotation)
        x = x + self._dropped(attended)
        return x + self._dropped(self.mlp(self.post_attention_layernorm(x)))

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return dropout(x, self.hidden_dropout, self.training, self.stream)


def _linear_options(config: GPTConfig, init: Initializer, parallel: ModelParallel) -> dict[str, Any]:
    return {
        "init": init,
        "group": parallel.tensor,
        "sequence_parallel": parallel.sequence_parallel,
        "products": FP8 if config.fp8 else PLAIN,
    }
