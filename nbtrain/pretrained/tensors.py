"""The mapping between the tensors of a folder and our parameters, row by row, for import and export.

A parameter consists of pieces, each a range of rows of one tensor. Most parameters are one piece. Packed
query, key and value are three pieces for each group of queries. GPT-2's matrices are stored transposed
([inputs, outputs], "Conv1D" in transformers): their rows are counted after the transposition.

    layers.0.attention.query_key_value.weight    rows 0 .. d     model.layers.0.self_attn.q_proj.weight
                                                 rows d .. 2d    model.layers.0.self_attn.k_proj.weight
                                                 ...

Sizes: h hidden, n heads, g groups of queries, d head size
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from nbtrain.pretrained.parameters import Sizes, parameter_shapes


@dataclass(frozen=True, slots=True)
class Piece:
    """`count` rows of a parameter from row `first` on, which are the rows of `tensor` from row `there` on."""

    first: int
    count: int
    tensor: str
    there: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class TensorMap:
    """A model's parameters and the tensors of one family."""

    shapes: dict[str, tuple[int, ...]]
    """{canonical name: shape}, without padding."""
    pieces: dict[str, list[Piece]]
    """{canonical name: its pieces, ordered by their first row}."""
    tensors: dict[str, tuple[int, ...]]
    """{name of a tensor: its shape in the file}."""

    @cached_property
    def users(self) -> dict[str, list[tuple[str, Piece]]]:
        """Return {tensor: [(canonical name, piece)]} for all pieces in each tensor."""
        found: dict[str, list[tuple[str, Piece]]] = {name: [] for name in self.tensors}
        for name, pieces in self.pieces.items():
            for piece in pieces:
                found[piece.tensor].append((name, piece))
        return found


def own_tensors(sizes: Sizes) -> TensorMap:
    """Return the map of a consolidated file, in which every parameter has its canonical name."""
    shapes = parameter_shapes(sizes)
    return TensorMap(
        shapes, {name: [Piece(0, shape[0], name)] for name, shape in shapes.items()}, dict(shapes)
    )


def llama_tensors(sizes: Sizes) -> TensorMap:
    """Return the map of Llama, Mistral, Qwen2, Qwen3 and SmolLM3 (modeling_llama.py and similar files)."""
    found = _map(sizes, "model", "model.layers", LLAMA, _packed_of_three)
    return replace(found, tensors=dict(sorted(found.tensors.items(), key=lambda one: _llama_place(one[0]))))


def gpt2_tensors(sizes: Sizes) -> TensorMap:
    """Return the map of GPT-2 (modeling_gpt2.py in transformers)."""
    return _map(sizes, "transformer", "transformer.h", GPT2, _packed_of_one, frozenset(TRANSPOSED))


# {our module: GPT-2's module}, inside a layer and outside of layers.
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
# The order in which transformers writes a layer's tensors, which assigns them to files.
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
    """Return ("layers.0.mlp.dense_h_to_4h.gate", "weight") for "layers.0.mlp.dense_h_to_4h.gate_weight"."""
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
    """Yield (first packed row, "q", "k" or "v", first row in that tensor, number of rows), group by group."""
    size, first = sizes.head_size, 0
    for group in range(sizes.num_query_groups):
        for kind, heads in (("q", sizes.heads_per_group), ("k", 1), ("v", 1)):
            rows = heads * size
            yield first, kind, group * rows, rows
            first += rows


def _packed_of_three(sizes: Sizes, place: str, kind: str) -> list[Piece]:
    """Return the pieces of q_proj, k_proj and v_proj, packed by group."""
    return [
        Piece(first, rows, f"{place}.{part}_proj.{kind}", there)
        for first, part, there, rows in _groups(sizes)
    ]


def _packed_of_one(sizes: Sizes, place: str, kind: str) -> list[Piece]:
    """Return the pieces of c_attn, whose outputs are all queries, then all keys, then all values."""
    start = {"q": 0, "k": sizes.query_rows, "v": sizes.query_rows + sizes.key_rows}
    return [
        Piece(first, rows, f"{place}.{kind}", start[part] + there, kind == "weight")
        for first, part, there, rows in _groups(sizes)
    ]
