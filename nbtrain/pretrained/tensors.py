"""The parameters of a run's model, and their mapping to a folder's tensors, row by row, without torch.

    parameter_shapes(sizes)     canonical names (model/names.py) and unsharded shapes
    llama_tensors(sizes), ...   TensorMap: the tensor rows of which each parameter consists

A parameter consists of pieces, each of which is a range of rows in one tensor. Most parameters have one
piece. The packed query, key and value have three pieces for each query group. GPT-2's matrices are stored
transposed ([inputs, outputs], "Conv1D" in transformers); their rows are counted after transposing.

    layers.0.attention.query_key_value.weight    rows 0 .. d     model.layers.0.self_attn.q_proj.weight
                                                 rows d .. 2d    model.layers.0.self_attn.k_proj.weight
                                                 ...

Query, key and value are packed group by group: n/g query heads, then the group's key and value, with d rows
each. Without grouped queries (g = n), this is [q|k|v] for each head.

Sizes: h hidden size, n heads, g query groups, d head size, f MLP width, v vocabulary size, p positions
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

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
    """Return {canonical name: unsharded shape} in the model's order, without vocabulary padding."""
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


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a parameter's rows that one tensor of the file stores.

    Rows first to first + count of the parameter are rows there to there + count of `tensor`.
    """

    first: int
    count: int
    tensor: str
    there: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A model's parameters, and the tensors in which one family stores them."""

    shapes: dict[str, tuple[int, ...]]
    """{canonical name: shape}, without vocabulary padding."""
    pieces: dict[str, list[Piece]]
    """{canonical name: pieces, ordered by their first row}."""
    tensors: dict[str, tuple[int, ...]]
    """{tensor name: shape in the file}."""

    @cached_property
    def users(self) -> dict[str, list[tuple[str, Piece]]]:
        """{tensor name: [(canonical name, piece)]}, with all pieces that each tensor stores."""
        found: dict[str, list[tuple[str, Piece]]] = {name: [] for name in self.tensors}
        for name, pieces in self.pieces.items():
            for piece in pieces:
                found[piece.tensor].append((name, piece))
        return found


def own_tensors(sizes: Sizes) -> TensorMap:
    """Return the map for a consolidated file, in which every parameter has its canonical name."""
    shapes = parameter_shapes(sizes)
    return TensorMap(
        shapes, {name: [Piece(0, shape[0], name)] for name, shape in shapes.items()}, dict(shapes)
    )


def llama_tensors(sizes: Sizes) -> TensorMap:
    """Return the map for Llama, Mistral, Qwen2, Qwen3 and SmolLM3 (modeling_llama.py and similar files)."""
    found = _map(sizes, "model", "model.layers", LLAMA, _packed_of_three)
    return replace(found, tensors=dict(sorted(found.tensors.items(), key=lambda one: _llama_place(one[0]))))


def gpt2_tensors(sizes: Sizes) -> TensorMap:
    """Return the map for GPT-2 (modeling_gpt2.py in transformers)."""
    return _map(sizes, "transformer", "transformer.h", GPT2, _packed_of_one, frozenset(TRANSPOSED))


# {nbtrain's module: the family's module}, inside and outside of layers.
LLAMA = {
    "word_embeddings": "embed_tokens",
    "final_layernorm": "norm",
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "attention.query_key_value": "self_attn",
    "attention.q_layernorm": "self_attn.q_norm",
    "attention.k_layernorm": "self_attn.k_norm",
    "attention.dense": "self_attn.o_proj",
    "mlp.dense_h_to_4h": "mlp.up_proj",
    "mlp.dense_h_to_4h.gate": "mlp.gate_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}
GPT2 = {
    "word_embeddings": "wte",
    "position_embeddings": "wpe",
    "final_layernorm": "ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "attention.query_key_value": "attn.c_attn",
    "attention.dense": "attn.c_proj",
    "mlp.dense_h_to_4h": "mlp.c_fc",
    "mlp.dense_4h_to_h": "mlp.c_proj",
}
# The order in which transformers writes a layer's tensors. It decides which file each tensor is in.
LLAMA_ORDER = (
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    *("input_layernorm", "post_attention_layernorm"),
)
TRANSPOSED = ("attention.query_key_value", "attention.dense", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
OUTPUT = "lm_head.weight"
PACKED = "attention.query_key_value"

Packing = Callable[[Sizes, str, str], list[Piece]]


def _map(
    sizes: Sizes,
    root: str,
    layers: str,
    names: dict[str, str],
    packing: Packing,
    transposed: frozenset[str] = frozenset(),
) -> TensorMap:
    shapes = parameter_shapes(sizes)
    pieces, tensors = {}, {}
    for name, shape in shapes.items():
        module, kind = _split(name)
        if module == "output_layer":
            place = OUTPUT
        else:
            inner, prefix = module, root
            if module.startswith("layers."):
                _, index, inner = module.split(".", 2)
                prefix = f"{layers}.{index}"
            place = f"{prefix}.{names[inner]}"
            if inner == PACKED:
                pieces[name] = packing(sizes, place, kind)
                for tensor, rows in _rows_of(pieces[name]).items():
                    turned = pieces[name][0].transposed
                    tensors[tensor] = _turned((rows, *shape[1:])) if turned else (rows, *shape[1:])
                continue
            place = f"{place}.{kind}"
        turned = _inner(module) in transposed and kind == "weight"
        pieces[name] = [Piece(0, shape[0], place, 0, turned)]
        tensors[place] = _turned(shape) if turned else shape
    return TensorMap(shapes, pieces, tensors)


def _llama_place(name: str) -> tuple[int, int, int, bool]:
    """Return the sort key of a tensor in transformers' order: embedding, layers, norm, output."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("model.layers."):
        return (0 if "embed" in module else 2 if "norm" in module else 3), 0, 0, kind == "bias"
    _, _, index, inner = module.split(".", 3)
    return 1, int(index), LLAMA_ORDER.index(inner), kind == "bias"


def _split(name: str) -> tuple[str, str]:
    """Split a parameter's name into (module, "weight" or "bias").

    The MLP's gate counts as a module: "layers.0.mlp.dense_h_to_4h.gate_weight" becomes
    ("layers.0.mlp.dense_h_to_4h.gate", "weight").
    """
    module, _, kind = name.rpartition(".")
    return (f"{module}.gate", kind.removeprefix("gate_")) if kind.startswith("gate_") else (module, kind)


def _inner(module: str) -> str:
    return module.split(".", 2)[2] if module.startswith("layers.") else module


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1]


def _rows_of(pieces: list[Piece]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for piece in pieces:
        rows[piece.tensor] = max(rows.get(piece.tensor, 0), piece.there + piece.count)
    return rows


def _groups(sizes: Sizes) -> Iterator[tuple[int, str, int, int]]:
    """Yield the ranges of rows in the packed query, key and value, in order.

    Each range is (its first row, "q", "k" or "v", its first row among all queries, keys or values, number of
    rows).
    """
    size, first = sizes.head_size, 0
    for group in range(sizes.num_query_groups):
        for kind, heads in (("q", sizes.heads_per_group), ("k", 1), ("v", 1)):
            rows = heads * size
            yield first, kind, group * rows, rows
            first += rows


def _packed_of_three(sizes: Sizes, place: str, kind: str) -> list[Piece]:
    """Return the pieces of the packed query, key and value in three tensors: q_proj, k_proj and v_proj."""
    return [
        Piece(first, rows, f"{place}.{part}_proj.{kind}", there)
        for first, part, there, rows in _groups(sizes)
    ]


def _packed_of_one(sizes: Sizes, place: str, kind: str) -> list[Piece]:
    """Return the pieces of the packed query, key and value in one tensor, GPT-2's c_attn.

    Its outputs are all queries, then all keys, then all values.
    """
    start = {"q": 0, "k": sizes.query_rows, "v": sizes.query_rows + sizes.key_rows}
    return [
        Piece(first, rows, f"{place}.{kind}", start[part] + there, kind == "weight")
        for first, part, there, rows in _groups(sizes)
    ]
