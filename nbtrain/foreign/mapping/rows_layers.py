"""Rows of the mapping for a layer's formulas: norm, positions, activation and biases."""

from typing import Any

from nbtrain.foreign.mapping.conversion import Reading, Writing
from nbtrain.foreign.mapping.rows_model import Row


def _read_normalization(source: Reading) -> None:
    if (value := source.known("normalization", "model.normalization")) is not None:
        # Megatron-DeepSpeed writes layernorm and rmsnorm.
        norm = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[str(value).lower()]
        source.set("model.normalization", norm, "normalization")


def _write_normalization(target: Writing) -> None:
    norm = target.config.model.normalization
    if not target.has("normalization"):
        if norm != "LayerNorm":
            target.cannot("model.normalization", f"has no {norm}: it uses LayerNorm")
    else:
        choices = target.table.by_dest["normalization"][0].choices or ()
        target.add("normalization", next(one for one in choices if one.lower() == norm.lower()))


def _read_positions(source: Reading) -> None:
    key, kind = "model.position_embedding_type", source.value("position_embedding_type")
    by_type = kind in ("rope", "yarn")
    if not by_type and not source.value("use_rotary_position_embeddings"):
        if kind not in ("learned_absolute", None):
            place = source.place("position_embedding_type")
            source.fail(
                key,
                place,
                f"--position-embedding-type {kind}: only learned_absolute and rope can be imported. Set one "
                "of them.",
            )
        elif source.value("add_position_embedding") is False:
            place = source.place("add_position_embedding")
            words = (
                "nbtrain does not support models without positions. Remove the flag, or add "
                "model.position_embedding_type=rope to the command."
            )
            source.fail(key, place, f"--no-position-embedding without rotary positions: {words}")
        return
    flag = "position_embedding_type" if by_type else "use_rotary_position_embeddings"
    # Versions with --rotary-position-embeddings-theta turn off the learned positions themselves.
    older = not source.has("position_embedding_type") and not source.has("rope_theta")
    if older and source.value("add_position_embedding"):
        source.fail(
            key,
            source.place(flag),
            "--use-rotary-position-embeddings: this program also adds learned positions unless "
            "--no-position-embedding is given. Add this flag, or add model.position_embedding_type=rope to "
            "the command.",
        )
        return
    source.set(key, "rope", flag)
    dest = "rotary_base" if source.has("rotary_base") else "rope_theta"
    if (base := source.known(dest, "model.rotary_base")) is not None:
        source.set("model.rotary_base", float(base), dest)
    share = source.known("rotary_percent", "model.rotary_percent")
    if source.setting("rotary_percent") and share is not None:
        source.set("model.rotary_percent", float(share), "rotary_percent")
    _read_scaling(source)


def _read_scaling(source: Reading) -> None:
    """Read Megatron-LM's linear and llama3 scaling. Its yarn scaling needs an override."""
    key = "model.rope_scaling"
    if source.value("position_embedding_type") == "yarn":
        place = source.place("position_embedding_type")
        words = "yarn cannot be read from the flags. Add model.rope_scaling={kind: yarn, ...} to the command."
        source.fail(key, place, f"--position-embedding-type yarn: {words}")
        return
    linear = source.setting("rotary_seq_len_interpolation_factor")
    if linear and source.value("use_rope_scaling"):
        place = source.place("use_rope_scaling")
        source.fail(
            key,
            place,
            f"--use-rope-scaling with {linear.text} ({linear.place}): the program scales twice, but "
            "model.rope_scaling only once. Remove one of them.",
        )
    elif (factor := source.known("rotary_seq_len_interpolation_factor", key)) is not None:
        scaling = {"kind": "linear", "factor": float(factor)}
        source.set(key, scaling, "rotary_seq_len_interpolation_factor")
    elif (
        source.value("use_rope_scaling") and (factor := source.known("rope_scaling_factor", key)) is not None
    ):
        scaling = {"kind": "llama3", "factor": float(factor)}
        source.set(key, scaling | LLAMA_3_LENGTH, "use_rope_scaling")


# Megatron-LM hard-codes the other numbers of Llama 3.1 (rotary_pos_embedding.py, _apply_scaling).
LLAMA_3_LENGTH = {"original_max_position_embeddings": 8192}


def _write_positions(target: Writing) -> None:
    model = target.config.model
    if model.position_embedding_type != "rope":
        return
    if target.has("position_embedding_type"):
        target.add("position_embedding_type", "rope")
    else:
        target.add("use_rotary_position_embeddings")
        target.add("add_position_embedding", False)
    base = next((dest for dest in ("rotary_base", "rope_theta") if target.has(dest)), None)
    if base is not None and model.rotary_base.is_integer():
        target.add(base, int(model.rotary_base))
    elif model.rotary_base != 10_000:
        target.cannot("model.rotary_base", f"has no flag for a rotary base of {model.rotary_base:g}")
    if model.rotary_percent != 1:
        target.add("rotary_percent", model.rotary_percent)
    if (scaling := model.rope_scaling) is not None:
        _write_scaling(target, scaling)


def _write_scaling(target: Writing, scaling: Any) -> None:
    plain = type(scaling)(kind="llama3", factor=scaling.factor, **LLAMA_3_LENGTH)
    if scaling.kind == "linear" and scaling.factor.is_integer():
        if target.has("rotary_seq_len_interpolation_factor"):
            target.add("rotary_seq_len_interpolation_factor", int(scaling.factor))
            return
    elif scaling == plain and target.has("use_rope_scaling"):
        target.add("use_rope_scaling")
        target.add("rope_scaling_factor", scaling.factor)
        return
    target.cannot(
        "model.rope_scaling", f"has no flags for rope_scaling {scaling.kind} with factor {scaling.factor:g}"
    )


def _read_activation(source: Reading) -> None:
    given = [dest for dest in ("swiglu", "squared_relu") if source.value(dest)]
    if len(given) == 2:
        place = source.place("squared_relu")
        source.fail(
            "model.activation",
            place,
            "--squared-relu with --swiglu: the program accepts only one of them. Remove the other.",
        )
    elif given:
        source.set("model.activation", given[0], given[0])
    elif False in (source.value("bias_gelu_fusion"), source.value("add_bias_linear")):
        dest = "bias_gelu_fusion" if source.setting("bias_gelu_fusion") else "add_bias_linear"
        flag = source.setting(dest)
        text = (
            "without its fused kernel, the program uses the exact gelu, but model.activation: gelu uses the "
            "tanh approximation."
        )
        source.note(source.place(dest), f"{flag.text if flag else dest}: {text}")


def _write_activation(target: Writing) -> None:
    if (activation := target.config.model.activation) != "gelu":
        target.add(activation)


def _read_biases(source: Reading) -> None:
    if source.value("add_bias_linear") is False:
        source.set("model.add_bias_linear", False, "add_bias_linear")
    if source.value("add_qkv_bias"):
        source.set("model.add_qkv_bias", True, "add_qkv_bias")


def _write_biases(target: Writing) -> None:
    model = target.config.model
    if not model.add_bias_linear:
        target.add("add_bias_linear", False)
    if not model.add_qkv_bias:
        return
    if target.has("add_qkv_bias"):
        target.add("add_qkv_bias")
    elif model.add_bias_linear:
        target.unsaid("model.add_qkv_bias", "all linear layers have biases anyway")
    else:
        target.cannot("model.add_qkv_bias", "has no flag for biases in the query, key and value layers alone")


LAYER_ROWS = (
    Row(
        (
            *(f"model.{name}" for name in ("position_embedding_type", "rotary_base", "rotary_percent")),
            "model.rope_scaling",
        ),
        (
            *("position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding"),
            *("rotary_base", "rope_theta", "rotary_percent", "rotary_seq_len_interpolation_factor"),
            *("use_rope_scaling", "rope_scaling_factor"),
        ),
        _read_positions,
        _write_positions,
    ),
    Row(
        ("model.activation",),
        ("swiglu", "squared_relu", "bias_gelu_fusion"),
        _read_activation,
        _write_activation,
    ),
    Row(
        ("model.add_bias_linear", "model.add_qkv_bias"),
        ("add_bias_linear", "add_qkv_bias"),
        _read_biases,
        _write_biases,
    ),
    Row(("model.normalization",), ("normalization",), _read_normalization, _write_normalization),
)
