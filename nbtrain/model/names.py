"""The canonical name of every parameter, which is the same in every layout.

    word_embeddings.weight                        [v, h]   also the output matrix if they are tied
    output_layer.weight                           [v, h]   if they are not
    position_embeddings.weight                    [p, h]   unless they are rotary
    layers.<i>.input_layernorm.{weight,bias}      [h]
    layers.<i>.attention.query_key_value.weight   [(n + 2g) d, h]  per group: n/g d rows of q, d of k, d of v
    layers.<i>.attention.query_key_value.bias     [(n + 2g) d]
    layers.<i>.attention.q_layernorm.{weight,bias}    [d]    if model.qk_layernorm
    layers.<i>.attention.k_layernorm.{weight,bias}    [d]
    layers.<i>.attention.dense.{weight,bias}      [h, n d], [h]
    layers.<i>.post_attention_layernorm.{weight,bias}
    layers.<i>.mlp.dense_h_to_4h.{weight,bias}    [f, h], [f]
    layers.<i>.mlp.dense_h_to_4h.gate_{weight,bias}    [f, h], [f]   of a gated MLP
    layers.<i>.mlp.dense_4h_to_h.{weight,bias}    [h, f], [h]
    final_layernorm.{weight,bias}                 [h]

With the section `lora` of a run, each adapted matrix has two more parameters (parallel/lora.py), which alone
are trained:

    layers.<i>.attention.query_key_value.lora.{a,b}    [3 r, h], [(n + 2g) d, r]
    layers.<i>.attention.dense.lora.{a,b}              [r, n d], [h, r]
    layers.<i>.mlp.dense_h_to_4h.lora.{a,b}            [r, h], [f, r]   and gate_lora.{a,b}
    layers.<i>.mlp.dense_4h_to_h.lora.{a,b}            [r, f], [h, r]

and with lora.kind: ia3 two vectors in each block (parallel/ia3.py):

    layers.<i>.attention.query_key_value.ia3    [2 g d]   per group: d numbers of k, d of v
    layers.<i>.mlp.dense_4h_to_h.ia3            [f]

and with lora.trainable_token_indices the rows of these i tokens (parallel/trained_rows.py):

    word_embeddings.trained_rows    [i, h]
    output_layer.trained_rows       [i, h]   if the output layer is not tied

h hidden, n heads of d numbers, g groups of them (n, unless model.num_query_groups is set), f MLP width, v
vocabulary, p positions. Without biases (model.add_bias_linear, RMSNorm), their names do not exist.

Checkpoints, initialization and the optimizer's groups use these names. A pipeline module numbers its layers:
0 is the word embedding, 1 the positions, then the blocks, the final norm and the output; a tied word
embedding is tied_modules.word_embeddings.
"""

MATRICES = "matrices"
DECAY = "decay"
NO_DECAY = "no_decay"
WORD_EMBEDDINGS = "word_embeddings.weight"
OUTPUT_LAYER = "output_layer.weight"
TRAINED_ROWS = "trained_rows"
OF_VOCABULARY = frozenset({WORD_EMBEDDINGS, OUTPUT_LAYER})
"""Parameters whose rows are tokens, and padding that depends on the number of tensor ranks."""


def is_block_matrix(name: str) -> bool:
    """Return whether a parameter is a matrix of a block, which lora.load_in_4bit stores in 4 bits."""
    module, _, kind = name.rpartition(".")
    linear = module.endswith((".query_key_value", ".dense", ".dense_h_to_4h", ".dense_4h_to_h"))
    return linear and kind in ("weight", "gate_weight")


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return name.endswith((".lora.a", ".lora.b", ".gate_lora.a", ".gate_lora.b", ".ia3", f".{TRAINED_ROWS}"))


def trained_rows_of(weight: str) -> str:
    """Return the name of a vocabulary's trained rows: "output_layer.weight" ->
    "output_layer.trained_rows".
    """
    return weight.removesuffix("weight") + TRAINED_ROWS


def adapters_of(weight: str) -> tuple[str, str]:
    """Return a matrix's adapter: "layers.0.mlp.dense.weight" -> ("... .dense.lora.a", "...
    .dense.lora.b").
    """
    stem = weight.removesuffix("weight") + "lora"
    return f"{stem}.a", f"{stem}.b"


def optimizer_group(name: str, muon: bool = False, dimensions: int | None = None) -> str:
    """Return the optimizer group of a parameter, by its name, because ZeRO 3 flattens the shape.

    Biases and norms are in `no_decay`, all others in `decay`. With Muon, the blocks' matrices are in
    `matrices`, and `decay` has only the embeddings and an untied output layer. `dimensions` is for blocks of
    the user (custom_layer.py), whose names say nothing: a vector does not decay, and a parameter of three
    dimensions is not a matrix.
    """
    module, _, kind = name.rpartition(".")
    if kind == "ia3":
        return NO_DECAY  # its elements are around 1, so they must not decay to 0
    if kind.endswith("bias") or module.endswith("layernorm") or dimensions in (0, 1):
        return NO_DECAY
    is_matrix = name.startswith("layers.") and dimensions in (None, 2)
    return MATRICES if muon and is_matrix else DECAY


def canonical_name(piped: str, num_layers: int) -> str:
    """Return the canonical name of a pipeline module's parameter: layers.1.<rest> for "3.<rest>".

    Raises ValueError unless the name is a parameter of a pipeline of `num_layers` blocks.
    """
    first, _, rest = piped.partition(".")
    if first == "tied_modules":
        return rest
    if first.isdecimal():
        index = int(first)
        if index == 0:
            return f"word_embeddings.{rest}"
        if index == 1:
            return f"position_embeddings.{rest}"
        if 2 <= index < num_layers + 2:
            return f"layers.{index - 2}.{rest}"
        if index == num_layers + 2:
            return f"final_layernorm.{rest}"
        if index == num_layers + 3:
            return f"output_layer.{rest}"
    raise ValueError(f"{piped!r} is not a parameter of a pipeline of {num_layers} layers")


def piped_name(canonical: str, num_layers: int, tied: bool = True) -> str:
    """Return a parameter's name in a pipeline module whose output is `tied`: the inverse of
    canonical_name.
    """
    first, _, rest = canonical.partition(".")
    if first == "layers":
        index, _, rest = rest.partition(".")
        return f"{int(index) + 2}.{rest}"
    return {
        "word_embeddings": f"tied_modules.{canonical}" if tied else f"0.{rest}",
        "position_embeddings": f"1.{rest}",
        "final_layernorm": f"{num_layers + 2}.{rest}",
        "output_layer": f"{num_layers + 3}.{rest}",
    }[first]
