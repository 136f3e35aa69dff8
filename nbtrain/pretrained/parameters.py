"""The parameters of a run's model: canonical names (model/names.py) and whole shapes, without torch.

Query, key and value are packed group by group: n/g heads of queries, then the group's key and value, with d
rows each. Without grouped queries (g = n) this is [q|k|v] of each head.

Sizes: h hidden, n heads, g groups of queries, d head size, f MLP width, v vocabulary, p positions
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nbtrain.config.schema import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """The settings that determine the names and shapes of a model's parameters."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_size: int
    ffn_hidden_size: int
    vocab_size: int
    """Number of rows of the word embedding, without padding."""
    positions: int
    """Number of learned positions; 0 if positions are not learned."""
    is_gated: bool
    has_bias: bool
    has_qkv_bias: bool
    has_norm_bias: bool
    has_qk_norm: bool
    is_tied: bool

    @classmethod
    def of(cls, model: ModelConfig, vocab_size: int) -> "Sizes":
        learned = model.position_embedding_type == "learned_absolute"
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            num_query_groups=model.resolved_num_query_groups,
            head_size=model.resolved_kv_channels,
            ffn_hidden_size=model.resolved_ffn_hidden_size,
            vocab_size=vocab_size,
            positions=model.resolved_max_position_embeddings if learned else 0,
            is_gated=model.activation == "swiglu",
            has_bias=model.add_bias_linear,
            has_qkv_bias=model.add_bias_linear or model.add_qkv_bias,
            has_norm_bias=model.normalization == "LayerNorm",
            has_qk_norm=model.qk_layernorm,
            is_tied=not model.untie_embeddings_and_output_weights,
        )

    @property
    def heads_per_group(self) -> int:
        return self.num_attention_heads // self.num_query_groups

    @property
    def query_rows(self) -> int:
        return self.num_attention_heads * self.head_size

    @property
    def key_rows(self) -> int:
        return self.num_query_groups * self.head_size


def parameter_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return {canonical name: whole shape} in the model's order, with the vocabulary unpadded."""
    return dict(_parameters(sizes))


def _parameters(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, queries = sizes.hidden_size, sizes.ffn_hidden_size, sizes.query_rows
    yield "word_embeddings.weight", (sizes.vocab_size, hidden)
    if sizes.positions:
        yield "position_embeddings.weight", (sizes.positions, hidden)
    for index in range(sizes.num_layers):
        layer = f"layers.{index}"
        yield from _norm(f"{layer}.input_layernorm", sizes)
        attention = f"{layer}.attention"
        packed = queries + 2 * sizes.key_rows
        yield from _linear(f"{attention}.query_key_value", packed, hidden, sizes.has_qkv_bias)
        if sizes.has_qk_norm:
            yield from _norm(f"{attention}.q_layernorm", sizes, sizes.head_size)
            yield from _norm(f"{attention}.k_layernorm", sizes, sizes.head_size)
        yield from _linear(f"{attention}.dense", hidden, queries, sizes.has_bias)
        yield from _norm(f"{layer}.post_attention_layernorm", sizes)
        opening = f"{layer}.mlp.dense_h_to_4h"
        yield from _linear(opening, inner, hidden, sizes.has_bias)
        if sizes.is_gated:
            yield f"{opening}.gate_weight", (inner, hidden)
            if sizes.has_bias:
                yield f"{opening}.gate_bias", (inner,)
        yield from _linear(f"{layer}.mlp.dense_4h_to_h", hidden, inner, sizes.has_bias)
    yield from _norm("final_layernorm", sizes)
    if not sizes.is_tied:
        yield "output_layer.weight", (sizes.vocab_size, hidden)


def _linear(name: str, outputs: int, inputs: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (outputs, inputs)
    if bias:
        yield f"{name}.bias", (outputs,)


def _norm(name: str, sizes: Sizes, width: int = 0) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width or sizes.hidden_size,)
    if sizes.has_norm_bias:
        yield f"{name}.bias", (width or sizes.hidden_size,)
