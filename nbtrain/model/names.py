"""The canonical name of every parameter, the same in every layout, with its shape and the order of its rows.

    word_embeddings.weight                        [v, h]   also the output matrix, if tied
    output_layer.weight                           [v, h]   if not tied
    position_embeddings.weight                    [p, h]   if positions are learned
    layers.<i>.input_layernorm.{weight,bias}      [h]
    layers.<i>.attention.query_key_value.weight   [(n + 2g) d, h]  per group: n/g d rows of q, d of k, d of v
    layers.<i>.attention.query_key_value.bias     [(n + 2g) d]
    layers.<i>.attention.q_layernorm.{weight,bias}    [d]    if model.qk_layernorm
    layers.<i>.attention.k_layernorm.{weight,bias}    [d]
    layers.<i>.attention.dense.{weight,bias}      [h, n d], [h]
    layers.<i>.post_attention_layernorm.{weight,bias}
    layers.<i>.mlp.dense_h_to_4h.{weight,bias}    [f, h], [f]
    layers.<i>.mlp.dense_h_to_4h.gate_{weight,bias}    [f, h], [f]   if the MLP is gated
    layers.<i>.mlp.dense_4h_to_h.{weight,bias}    [h, f], [h]
    final_layernorm.{weight,bias}                 [h]

With the section `lora`, each adapted matrix has two more parameters, and only these are trained
(parallel/lora.py):

    layers.<i>.attention.query_key_value.lora.{a,b}    [3 r, h], [(n + 2g) d, r]
    layers.<i>.attention.dense.lora.{a,b}              [r, n d], [h, r]
    layers.<i>.mlp.dense_h_to_4h.lora.{a,b}            [r, h], [f, r]   and gate_lora.{a,b}
    layers.<i>.mlp.dense_4h_to_h.lora.{a,b}            [r, f], [h, r]

With lora.kind: ia3, each block has two more vectors instead (parallel/ia3.py):

    layers.<i>.attention.query_key_value.ia3    [2 g d]   per group: d numbers for k, d for v
    layers.<i>.mlp.dense_4h_to_h.ia3            [f]

With lora.trainable_token_indices, the rows of these i tokens are parameters too (parallel/trained_rows.py):

    word_embeddings.trained_rows    [i, h]
    output_layer.trained_rows       [i, h]   if the output layer is not tied

Shapes: h hidden, n heads of size d, g query groups (n unless model.num_query_groups is set), f MLP width, v
vocabulary, p positions, r adapter rank. Biases that a model does not have (model.add_bias_linear, RMSNorm)
have no names.

Checkpoints, initialization and optimizer groups use these names. A pipeline module numbers its layers
instead: 0 is the word embedding, 1 the positions, followed by the blocks, the final norm and the output. A
tied word embedding is tied_modules.word_embeddings.
"""

MATRICES = "matrices"
DECAY = "decay"
NO_DECAY = "no_decay"
WORD_EMBEDDINGS = "word_embeddings.weight"
OUTPUT_LAYER = "output_layer.weight"
TRAINED_ROWS = "trained_rows"
OF_VOCABULARY = frozenset({WORD_EMBEDDINGS, OUTPUT_LAYER})
"""Parameters with a row per token, plus padding rows that depend on the number of tensor-parallel ranks."""


def is_block_matrix(name: str) -> bool:
    """Return whether a parameter is a matrix in a block, which lora.load_in_4bit stores in 4 bits."""
    module, _, kind = name.rpartition(".")
    linear = module.endswith((".query_key_value", ".dense", ".dense_h_to_4h", ".dense_4h_to_h"))
    return linear and kind in ("weight", "gate_weight")


def is_adapter(name: str) -> bool:
    """Return whether a parameter belongs to an adapter."""
    return name.endswith((".lora.a", ".lora.b", ".gate_lora.a", ".gate_lora.b", ".ia3", f".{TRAINED_ROWS}"))


def trained_rows_of(weight: str) -> str:
    """Return the name of a vocabulary's trained rows, such as "output_layer.trained_rows".

    `weight` is the name of the vocabulary's matrix, such as "output_layer.weight".
    """
    return weight.removesuffix("weight") + TRAINED_ROWS


def adapters_of(weight: str) -> tuple[str, str]:
    """Return the names of a matrix's adapter: "(...).weight" -> ("(...).lora.a", "(...).lora.b")."""
    stem = weight.removesuffix("weight") + "lora"
    return f"{stem}.a", f"{stem}.b"


def optimizer_group(name: str, muon: bool = False, dimensions: int | None = None) -> str:
    """Return the optimizer group of a parameter, determined by its name because ZeRO 3 flattens its shape.

    Biases and norms are in `no_decay`, and all other parameters in `decay`. With Muon, the blocks' matrices
    are in `matrices`, and `decay` has only the embeddings and an untied output layer. `dimensions` is needed
    for user-defined blocks (custom_layer.py), whose parameters have arbitrary names: a vector does not decay,
    and a parameter with three dimensions is not a matrix.
    """
    module, _, kind = name.rpartition(".")
    if kind == "ia3":
        return NO_DECAY  # the elements are close to 1 and must not decay to 0
    if kind.endswith("bias") or module.endswith("layernorm") or dimensions in (0, 1):
        return NO_DECAY
    is_matrix = name.startswith("layers.") and dimensions in (None, 2)
    return MATRICES if muon and is_matrix else DECAY


def canonical_name(piped: str, num_layers: int) -> str:
    """Return the canonical name of a pipeline module's parameter, such as "layers.1.<rest>" for "3.<rest>".

    Raises ValueError if a pipeline with `num_layers` blocks has no such parameter.
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
    raise ValueError(f"{piped!r} is not a parameter of a pipeline with {num_layers} layers")


def piped_name(canonical: str, num_layers: int, tied: bool = True) -> str:
    """Return a parameter's name in a pipeline module. This is the inverse of canonical_name().

    `tied` is whether the output is tied to the word embedding.
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
