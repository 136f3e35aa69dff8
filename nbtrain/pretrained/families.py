"""The supported model families, and how their config.json maps to the fields of nbtrain's `model` section.

    family    model_type   architecture
    GPT-2     gpt2         learned positions, LayerNorm, GELU, biases
    Llama     llama        rotary positions, RMSNorm, SwiGLU, no biases by default (also SmolLM and SmolLM2)
    Mistral   mistral      like Llama, with a sliding window
    Qwen2     qwen2        like Llama, with biases for query, key and value
    Qwen3     qwen3        like Llama, with query and key norms
    SmolLM3   smollm3      like Llama, with some layers without rotary positions

Missing keys have the defaults of the configuration classes in transformers 5.23. Each value is checked when
it is read (Keys), and the error for an invalid value names its key.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.config.sections.fields import MOST_LAYERS
from nbtrain.pretrained.tensors import Sizes, TensorMap, gpt2_tensors, llama_tensors

# Default of sliding_window in transformers' configuration classes.
WINDOW = 4096
LAYER_TYPES = ("full_attention", "sliding_attention")
# Keys in config.json that mark quantized weights. transformers, MLX and earlier versions of
# compressed-tensors write one of them each, in this order.
QUANTIZED = ("quantization_config", "quantization", "compression_config")
# Supported keys in rope_parameters and rope_scaling. ROPE_KEYS are supported for every rope_type, and
# SCALING_KEYS[rope_type] for that type in addition.
ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
SCALING_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "attention_factor", "beta_fast", "beta_slow", "truncate"),
        *("mscale", "mscale_all_dim"),
    ),
}
# {unsupported key: value with which it has no effect}
WITHOUT_EFFECT = {"attn_factor": 1, "extrapolation_factor": 1, "finetuned": True, "factor": 1}


class Keys:
    """A config.json, or an object in it, whose values are checked when they are read.

    Every method raises CheckpointError, which names the file and the key, for an invalid value.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, inside: str = ""):
        self.values = values
        self.path = path
        self.inside = inside

    def __contains__(self, key: str) -> bool:
        """Return whether a key exists and is not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int | None = None) -> int:
        """Return an integer from `least` to `most`, or `default` if the key is missing or null.

        Without `default`, the key is required. Without `most`, there is no upper limit.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refused(key, f"must be a whole number of at least {least}")
        if most is not None and value > most:
            raise self.refused(key, f"must be at most {most:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of at least 0, or `default` if the key is missing or null.

        Without `default`, the key is required.
        """
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise self.refused(key, "must be a number of at least 0")
        # JSON allows whole numbers of any length.
        if value > sys.float_info.max:
            raise self.refused(key, f"must be at most {sys.float_info.max:.1e}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.refused(key, "must be text")
        return value

    def object(self, key: str) -> "Keys":
        """Return the JSON object under a key as Keys, without any key if the object is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refused(key, "must be an object")
        return Keys(value or {}, self.path, f"{self.inside}{key}.")

    def must_be(self, key: str, allowed: Any, default: Any, why: str) -> None:
        """Raise CheckpointError unless a key has `allowed`, its only supported value, or is null.

        A missing key counts as `default`. `why` is the rule in the error message.
        """
        if self.values.get(key, default) not in (allowed, None):
            raise self.refused(key, why)

    def refused(self, key: str, rule: str) -> CheckpointError:
        """Return a CheckpointError that names the file, the key, its value and the `rule` that it breaks."""
        found = shortened(repr(self.values.get(key)))
        return CheckpointError(f"{display(self.path)}: {self.inside}{key} = {found}: {rule}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{display(self.path)}: {self.inside}{key} is missing, but required.")
        return value


@dataclass(frozen=True)
class Family:
    """A family of models, with the defaults of the keys in its config.json."""

    model_type: str
    title: str
    class_name: str
    """Name of the model class in transformers, which config.json lists in `architectures`."""
    tensors: Callable[[Sizes], TensorMap]
    read: Callable[["Family", Keys], "Described"]
    is_tied: bool = False
    """Default of tie_word_embeddings."""
    rotary_base: float = 10_000.0
    """Default of rope_theta."""
    has_head_dim: bool = False
    """Whether config.json has the key head_dim."""
    head_dim: int | None = None
    """Default of head_dim; None means hidden_size / num_attention_heads."""
    kv_heads: int | None = None
    """Default of num_key_value_heads. None (or null in the file) means num_attention_heads."""
    has_attention_bias: bool = False
    """Whether config.json has the keys attention_bias and mlp_bias."""
    qkv_bias: bool = False
    """Whether query, key and value always have a bias, and no other layer has one."""
    qk_norm: bool = False
    windows: str = ""
    """Layers that may have a sliding window: "all", "some" (chosen by layer_types), or "" for no layer."""
    has_no_rope_layers: bool = False

    @property
    def architecture(self) -> str:
        """Name of the family as a value of the field model.architecture."""
        return "gpt3" if self.model_type == "gpt2" else self.model_type


@dataclass(frozen=True)
class Described:
    """The model that a config.json describes."""

    family: Family | None
    """Family of the model; None for a consolidated file with nbtrain's own names."""
    fields: dict[str, Any]
    """Values for nbtrain's `model` section, as {field: value}."""
    vocab_size: int
    """Number of rows in the word embedding."""
    positions: int
    """Maximum sequence length for which the model was trained."""
    notes: list[str] = field(default_factory=list)
    """Sentences about keys that nbtrain interprets differently or ignores."""


def describe(config: dict[str, Any], path: Path) -> Described:
    """Return the model that a config.json describes.

    Raises CheckpointError, which names the key, for an unsupported value.
    """
    keys = Keys(config, path)
    kind = keys.text("model_type")
    family = FAMILIES.get(kind)
    if family is None:
        known = ", ".join(FAMILIES)
        code = " The code in the folder is not run." if config.get("auto_map") else ""
        raise CheckpointError(
            f"{display(path)}: model_type = {shortened(kind)} is not supported. Supported are {known}.{code}"
        )
    for key in QUANTIZED:
        if config.get(key):
            raise keys.refused(key, "quantized weights are not supported; get the model in bf16 or fp32")
    found = family.read(family, keys)
    if "auto_map" in config:
        found.notes.append(
            "auto_map: the code in the folder is not run, because nbtrain supports this architecture itself."
        )
    return found


def _read_gpt2(family: Family, keys: Keys) -> Described:
    hidden, heads = keys.integer("n_embd"), keys.integer("n_head")
    if hidden % heads:
        raise keys.refused("n_head", f"must divide n_embd = {hidden}")
    _one_of(
        keys, "activation_function", ("gelu_new", "gelu_pytorch_tanh"), "gelu_new", "GELU in its tanh form"
    )
    keys.must_be(
        "scale_attn_weights", True, True, "attention weights must be scaled by the root of the head size"
    )
    keys.must_be(
        "scale_attn_by_inverse_layer_idx", False, False, "attention weights scaled by layer are not supported"
    )
    keys.must_be("add_cross_attention", False, False, "cross attention is not supported")
    positions = keys.integer("n_positions" if "n_positions" in keys else "n_ctx", 1024)
    dropout = keys.number("resid_pdrop", 0.1)
    notes = []
    if keys.number("embd_pdrop", 0.1) != dropout:
        notes.append(
            f"embd_pdrop = {keys.number('embd_pdrop', 0.1):g} and resid_pdrop = {dropout:g} differ, but "
            "nbtrain has a single setting for both, hidden_dropout, which is set to resid_pdrop."
        )
    fields = {
        "architecture": family.architecture,
        "num_layers": keys.integer("n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": keys.integer("n_inner", 4 * hidden),
        "max_position_embeddings": positions,
        "hidden_dropout": dropout,
        "attention_dropout": keys.number("attn_pdrop", 0.1),
        "normalization": "LayerNorm",
        "norm_epsilon": keys.number("layer_norm_epsilon", 1e-5),
        "activation": "gelu",
        "add_bias_linear": True,
        "position_embedding_type": "learned_absolute",
        "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", family.is_tied),
    }
    return Described(family, fields, keys.integer("vocab_size"), positions, notes)


def _read_llama(family: Family, keys: Keys) -> Described:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    is_missing = "num_key_value_heads" not in keys.values
    groups = keys.integer("num_key_value_heads", (family.kv_heads if is_missing else None) or heads)
    if heads % groups:
        means = f"the default for {family.title} models is {groups}, which " if is_missing else ""
        raise keys.refused("num_key_value_heads", f"{means}must divide num_attention_heads = {heads}")
    head_size = hidden // heads
    if family.has_head_dim:
        head_size = keys.integer("head_dim", family.head_dim or head_size)
    elif hidden % heads:
        raise keys.refused("num_attention_heads", f"must divide hidden_size = {hidden}")
    _one_of(keys, "hidden_act", ("silu", "swish"), "silu", "silu, the gate of SwiGLU")
    # The number of layers is limited first, because the code below creates lists of this length.
    layers = keys.integer("num_hidden_layers", most=MOST_LAYERS)
    positions = keys.integer("max_position_embeddings")
    fields: dict[str, Any] = {
        "architecture": family.architecture,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_hidden_size": keys.integer("intermediate_size"),
        "max_position_embeddings": positions,
        "hidden_dropout": 0.0,
        "attention_dropout": keys.number("attention_dropout", 0.0),
        "normalization": "RMSNorm",
        "norm_epsilon": keys.number("rms_norm_eps", 1e-6),
        "activation": "swiglu",
        "add_bias_linear": _biases(family, keys),
        "add_qkv_bias": family.qkv_bias,
        "position_embedding_type": "rope",
        **_rope(family, keys, positions),
        **_windows(family, keys, layers),
        "no_rope_freq": _layers_without_rope(keys, layers) if family.has_no_rope_layers else None,
        "qk_layernorm": family.qk_norm,
        "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", family.is_tied),
    }
    if groups != heads:
        fields["num_query_groups"] = groups
    if head_size * heads != hidden:
        fields["kv_channels"] = head_size
    return Described(family, fields, keys.integer("vocab_size"), positions)


def _biases(family: Family, keys: Keys) -> bool:
    """Return the value of model.add_bias_linear: whether all linear layers of the blocks have a bias."""
    attention = family.has_attention_bias and keys.flag("attention_bias", False)
    mlp = family.has_attention_bias and keys.flag("mlp_bias", False)
    if attention != mlp:
        raise keys.refused(
            "attention_bias",
            f"must equal mlp_bias = {str(mlp).lower()}, because nbtrain has one setting for both",
        )
    return attention


def _rope(family: Family, keys: Keys, positions: int) -> dict[str, Any]:
    """Return the fields rotary_base and rope_scaling of the `model` section.

    They come from rope_parameters, or else from the older keys rope_theta and rope_scaling.
    """
    new, old = keys.object("rope_parameters"), keys.object("rope_scaling")
    for place in (new, old):
        if nested := next((key for key, value in place.values.items() if isinstance(value, dict)), None):
            raise place.refused(
                nested,
                "applies to one type of layer, but nbtrain uses the same rotary positions in all layers",
            )
    for place in (keys, new, old):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.refused(
                "partial_rotary_factor", "must be 1, because nbtrain rotates whole heads in this family"
            )
    base = keys.number("rope_theta", family.rotary_base)
    found = [
        {"rotary_base": place.number("rope_theta", base), "rope_scaling": _scaling(place, keys, positions)}
        for place in (new, old)
        if place.values
    ]
    if found[1:] and found[0] != found[1]:
        # In this case, transformers 5 uses only rope_scaling, but other programs use rope_parameters.
        raise keys.refused(
            "rope_scaling",
            "gives other rotary angles than rope_parameters, and programs differ in which key they use; "
            "keep only the key that the model was trained with",
        )
    return found[0] if found else {"rotary_base": base, "rope_scaling": None}


def _scaling(place: Keys, top: Keys, positions: int) -> dict[str, Any] | None:
    """Return the fields of model.rope_scaling; None if rotary positions are not scaled.

    `place` is the object with the scaling keys (rope_parameters or rope_scaling), and `top` the whole
    config.json.
    """
    # In older files, the key is `type`.
    called = "rope_type" if "rope_type" in place else "type"
    kind = place.text(called, "default")
    if kind not in SCALING_KEYS:
        raise place.refused(
            called, "this kind of rotary scaling is not supported; supported are linear, llama3 and yarn"
        )
    for key, value in place.values.items():
        if key not in (*ROPE_KEYS, *SCALING_KEYS[kind]) and value not in (None, WITHOUT_EFFECT.get(key)):
            # Programs differ in whether they support a key: only vLLM and llama.cpp read yarn's attn_factor.
            raise place.refused(key, f"this key is not supported for {kind} rotary scaling")
    if kind == "default":
        return None
    factor = place.number("factor")
    if factor < 1:
        raise place.refused("factor", "must be at least 1")
    found: dict[str, Any] = {"kind": kind, "factor": factor}
    if kind == "llama3":
        found |= {key: place.number(key) for key in ("low_freq_factor", "high_freq_factor")}
        found["original_max_position_embeddings"] = _earlier_length(place, top)
    elif kind == "yarn":
        for key in ("mscale", "mscale_all_dim"):
            if key in place:
                raise place.refused(
                    key, "is not supported for yarn; queries and keys are scaled by 0.1 ln(factor) + 1"
                )
        usual = 0.1 * math.log(factor) + 1.0
        if not math.isclose(place.number("attention_factor", usual), usual, rel_tol=1e-6):
            raise place.refused("attention_factor", f"must be 0.1 ln(factor) + 1 = {usual:.6g}")
        place.must_be("truncate", True, True, "must be true, because nbtrain rounds the ramp's bounds")
        # transformers uses the same defaults for missing keys.
        found |= {
            "original_max_position_embeddings": _earlier_length(place, top, positions),
            "beta_fast": place.number("beta_fast", 32.0),
            "beta_slow": place.number("beta_slow", 1.0),
        }
    return found


def _earlier_length(place: Keys, top: Keys, default: int | None = None) -> int:
    """Return original_max_position_embeddings from `place` or from `top`, the top level of config.json.

    If neither object has the key, the result is `default`; without `default`, the key is required. Raises
    CheckpointError if both objects have the key and differ, because programs differ in which one they use.
    """
    key = "original_max_position_embeddings"
    if key not in top:
        return place.integer(key, default)
    length = top.integer(key)
    if (inside := place.integer(key, length)) != length:
        raise top.refused(
            key,
            f"differs from {place.inside}{key} = {inside}, and programs differ in which key they use; keep "
            "only the key that the model was trained with",
        )
    return length


def _windows(family: Family, keys: Keys, layers: int) -> dict[str, Any]:
    """Return the fields window_size and window_attn_skip_freq of the `model` section.

    window_attn_skip_freq has a 1 for each layer with the sliding window; None means all layers. Both fields
    are None without sliding windows.
    """
    none = {"window_size": None, "window_attn_skip_freq": None}
    # A missing key means the default window, and null means no window.
    says_none = "sliding_window" in keys.values and "sliding_window" not in keys
    if family.windows == "all":
        return none if says_none else {**none, "window_size": keys.integer("sliding_window", WINDOW)}
    if family.windows != "some":
        return none
    kinds = keys.values.get("layer_types")
    if kinds is not None and (
        not isinstance(kinds, list) or len(kinds) != layers or any(kind not in LAYER_TYPES for kind in kinds)
    ):
        raise keys.refused(
            "layer_types", f"must be a list with {' or '.join(LAYER_TYPES)} for each of {layers} layers"
        )
    # SmolLM3 has no default for sliding_window.
    has_window = keys.flag("use_sliding_window", False) and (
        "sliding_window" in keys if family.has_no_rope_layers else not says_none
    )
    if not has_window:
        if kinds is not None and "sliding_attention" in kinds:
            raise keys.refused(
                "layer_types",
                "selects sliding windows, which also need use_sliding_window: true and a value of "
                "sliding_window",
            )
        return none
    if kinds is None:
        if family.has_no_rope_layers:
            turning = no_rope_pattern(_layers_without_rope(keys, layers), layers)
            has = [bool(without) for without in turning]
        else:
            first = keys.integer("max_window_layers", 28, least=0)
            has = [index >= first for index in range(layers)]
    else:
        has = [kind == "sliding_attention" for kind in kinds]
    if not any(has):
        return none
    pattern = None if all(has) else [int(one) for one in has]
    return {"window_size": keys.integer("sliding_window", WINDOW), "window_attn_skip_freq": pattern}


def _layers_without_rope(keys: Keys, layers: int) -> int | list[int] | None:
    """Return the value of model.no_rope_freq, which says which layers have no rotary positions.

    It is an interval in layers, a list with a 1 for each layer without rotary positions, or None if all
    layers have them. In the file's no_rope_layers, a 1 means the opposite: a layer with rotary positions.
    """
    flags = keys.values.get("no_rope_layers")
    if flags is None:
        interval = keys.integer("no_rope_layer_interval", 4)
        return interval if interval <= layers else None
    if (
        not isinstance(flags, list)
        or len(flags) < layers
        or not all(isinstance(flag, int) and flag in (0, 1) for flag in flags)
    ):
        raise keys.refused("no_rope_layers", f"must be a list with 0 or 1 for each of {layers} layers")
    without = [1 - int(flag) for flag in flags[:layers]]
    return without if any(without) else None


def no_rope_pattern(frequency: int | list[int] | None, layers: int) -> list[int]:
    """Convert a value of model.no_rope_freq to a list with a 1 for each layer without rotary positions."""
    if isinstance(frequency, list):
        return frequency
    return [int(frequency is not None and (layer + 1) % frequency == 0) for layer in range(layers)]


def _one_of(keys: Keys, key: str, allowed: tuple[str, ...], default: str, words: str) -> None:
    if keys.text(key, default) not in allowed:
        raise keys.refused(key, f"models of this family must have {words}")


def _like_llama(model_type: str, title: str, **kinds: Any) -> Family:
    return Family(model_type, title, f"{title}ForCausalLM", llama_tensors, _read_llama, **kinds)


FAMILIES = {
    family.model_type: family
    for family in (
        Family("gpt2", "GPT-2", "GPT2LMHeadModel", gpt2_tensors, _read_gpt2, is_tied=True),
        _like_llama("llama", "Llama", has_head_dim=True, has_attention_bias=True),
        _like_llama("mistral", "Mistral", has_head_dim=True, kv_heads=8, windows="all"),
        _like_llama("qwen2", "Qwen2", kv_heads=32, qkv_bias=True, windows="some"),
        _like_llama(
            "qwen3",
            "Qwen3",
            has_head_dim=True,
            head_dim=128,
            kv_heads=32,
            has_attention_bias=True,
            qk_norm=True,
            windows="some",
        ),
        _like_llama(
            "smollm3",
            "SmolLM3",
            is_tied=True,
            kv_heads=4,
            rotary_base=2_000_000.0,
            has_attention_bias=True,
            windows="some",
            has_no_rope_layers=True,
        ),
    )
}
