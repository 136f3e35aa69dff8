"""The config.json of a run's model: the family that can express it, and every key that other programs need.

transformers 5 writes rotary positions only as `rope_parameters`, so programs that read the older keys
rope_theta and rope_scaling would use their defaults. Therefore both forms are written, with equal values.
tie_word_embeddings is always written, because its default differs between classes. llama.cpp's converter
reads GPT-2's n_ctx, and original_max_position_embeddings at the top level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.config.rules.layout import SCALING_FIELDS
from nbtrain.config.rules.wording import value_of
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import OfRun, marked
from nbtrain.config.yaml_source import show
from nbtrain.pretrained.families import FAMILIES, LAYER_TYPES, Family

OWN_SCHEMA = 1
# Name of the GGUF file in the temporary export folder.
GGUF_FILE = "model.gguf"
# Fields that are not part of the exported model. Its sequence length is max_position_embeddings, not the
# run's seq_length.
NOT_THE_MODEL = {*marked(ModelConfig, OfRun), "seq_length"}
# {nbtrain's name of a number format: its name in config.json}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Need:
    """A requirement that a run's model must meet to be written as a model of a family."""

    field: str
    """Field of the `model` section."""
    value: Any
    """Required value of the field, as shown in messages."""
    met: Callable[[ModelConfig], bool]


def _same(field: str, value: Any) -> Need:
    return Need(field, value, lambda model: getattr(model, field) == value)


def _one_window(model: ModelConfig) -> bool:
    return len(set(model.windows)) == 1


def _heads_fill_the_width(model: ModelConfig) -> bool:
    return model.resolved_kv_channels * model.num_attention_heads == model.hidden_size


def _turns_everywhere(model: ModelConfig) -> bool:
    return not model.layers_without_rope


_FULL_WIDTH = Need("kv_channels", None, _heads_fill_the_width)
_ROPE_IN_ALL = Need("no_rope_freq", None, _turns_everywhere)
_NO_BIASES = (_same("add_bias_linear", False), _same("add_qkv_bias", False))
_ONE_KIND_OF_BIAS = Need("add_qkv_bias", False, lambda model: model.add_bias_linear or not model.add_qkv_bias)
_NO_CAPS = (_same("attn_logit_softcapping", None), _same("final_logit_softcapping", None))
_LIKE_LLAMA = (
    _same("position_embedding_type", "rope"),
    _same("rotary_percent", 1.0),
    _same("normalization", "RMSNorm"),
    _same("activation", "swiglu"),
    *_NO_CAPS,
)
# {family: requirements}, in the order in which families are tried after the run's own family. The first
# family whose requirements are all met is used.
NEEDS: dict[str, tuple[Need, ...]] = {
    "gpt2": (
        _same("position_embedding_type", "learned_absolute"),
        _same("normalization", "LayerNorm"),
        _same("activation", "gelu"),
        _same("add_bias_linear", True),
        _same("qk_layernorm", False),
        Need(
            "num_query_groups",
            None,
            lambda model: model.resolved_num_query_groups == model.num_attention_heads,
        ),
        _FULL_WIDTH,
        Need("window_size", None, lambda model: not any(model.windows)),
        *_NO_CAPS,
    ),
    "llama": (
        *_LIKE_LLAMA,
        _same("qk_layernorm", False),
        _ONE_KIND_OF_BIAS,
        Need("window_size", None, lambda model: not any(model.windows)),
        _ROPE_IN_ALL,
        # LlamaConfig rejects a number of heads that does not divide hidden_size, even if head_dim is set.
        Need(
            "num_attention_heads",
            "a divisor of hidden_size",
            lambda model: model.hidden_size % model.num_attention_heads == 0,
        ),
    ),
    "mistral": (
        *_LIKE_LLAMA,
        _same("qk_layernorm", False),
        *_NO_BIASES,
        Need("window_attn_skip_freq", None, _one_window),
        _ROPE_IN_ALL,
    ),
    "qwen2": (
        *_LIKE_LLAMA,
        _same("qk_layernorm", False),
        _same("add_bias_linear", False),
        _same("add_qkv_bias", True),
        _FULL_WIDTH,
        _ROPE_IN_ALL,
    ),
    "qwen3": (*_LIKE_LLAMA, _same("qk_layernorm", True), *_NO_BIASES, _ROPE_IN_ALL),
    "smollm3": (*_LIKE_LLAMA, _same("qk_layernorm", False), _ONE_KIND_OF_BIAS, _FULL_WIDTH),
}


def family_of(config: RunConfig) -> Family:
    """Return the family in which a run's model is written: its own, or the first that can express the model.

    Raises ConfigError, which names the field that prevents it, if no family can express the model.
    """
    named = {"gpt3": "gpt2"}.get(config.model.architecture, config.model.architecture)
    for name in (named, *NEEDS):
        if all(need.met(config.model) for need in NEEDS[name]):
            return FAMILIES[name]
    # The nearest family is the one whose first unmet need comes latest.
    unmet = {name: [need.met(config.model) for need in needs].index(False) for name, needs in NEEDS.items()}
    nearest = max(unmet, key=lambda name: (unmet[name] / len(NEEDS[name]), name == named))
    need, key = NEEDS[nearest][unmet[nearest]], f"model.{NEEDS[nearest][unmet[nearest]].field}"
    raise ConfigError(
        f"{config.where(key)}: {key} = {show(value_of(config, key))} is not supported by any Hugging Face "
        f"architecture that nbtrain writes. The closest one, {FAMILIES[nearest].title}, needs {need.field}: "
        f"{show(need.value)}. Export with --to consolidated, which supports every model, or train a model "
        "with that value."
    )


def config_json(
    config: RunConfig, dtype: str, ids: Mapping[str, int | None], vocab_size: int
) -> dict[str, Any]:
    """Return the config.json of a run's model; `ids` has bos_token_id, eos_token_id and pad_token_id.

    `dtype` is the number format of the written weights: fp32, bf16 or fp16. Raises ConfigError if no family
    can express the model.
    """
    family = family_of(config)
    described = _gpt2(config) if family.model_type == "gpt2" else _llama(config, family)
    return {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        **described,
        "vocab_size": vocab_size,
        # LlamaConfig rejects values above 1. The value has no effect, since the model is already trained.
        "initializer_range": min(config.model.init_method_std, 1.0),
        "tie_word_embeddings": not config.model.untie_embeddings_and_output_weights,
        "use_cache": True,
        **ids,
        "dtype": DTYPES[dtype],
        # This key is for programs that were written for transformers 4.
        "torch_dtype": DTYPES[dtype],
    }


def own_description(config: RunConfig, vocab_size: int, step: int) -> dict[str, Any]:
    """Return the metadata of a consolidated file, in which model.py finds the model's settings."""
    model = config.model
    fields = model.model_dump(exclude=NOT_THE_MODEL)
    fields["max_position_embeddings"] = model.resolved_max_position_embeddings
    fields["ffn_hidden_size"] = model.resolved_ffn_hidden_size
    described = {"schema_version": OWN_SCHEMA, "model": fields, "vocab_size": vocab_size}
    return {**described, "run": config.name, "step": step}


def _gpt2(config: RunConfig) -> dict[str, Any]:
    model = config.model
    positions = model.resolved_max_position_embeddings
    return {
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_head": model.num_attention_heads,
        "n_inner": model.resolved_ffn_hidden_size,
        "n_positions": positions,
        "n_ctx": positions,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": model.norm_epsilon,
        "resid_pdrop": model.hidden_dropout,
        "embd_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
        "scale_attn_weights": True,
    }


def _llama(config: RunConfig, family: Family) -> dict[str, Any]:
    model = config.model
    found: dict[str, Any] = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.resolved_num_query_groups,
        "intermediate_size": model.resolved_ffn_hidden_size,
        "max_position_embeddings": model.resolved_max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "attention_dropout": model.attention_dropout,
        **_rope(config),
    }
    if family.has_head_dim:
        found["head_dim"] = model.resolved_kv_channels
    if family.has_attention_bias:
        found["attention_bias"] = model.add_bias_linear
        if not family.qk_norm:  # Qwen3's MLP has no bias
            found["mlp_bias"] = model.add_bias_linear
    if family.has_no_rope_layers:
        # In this key, a 1 means a layer with rotary positions.
        without = model.layers_without_rope
        found["no_rope_layers"] = [int(layer not in without) for layer in range(model.num_layers)]
    return {**found, **_windows(model, family)}


def _windows(model: ModelConfig, family: Family) -> dict[str, Any]:
    window = next((one for one in model.windows if one is not None), None)
    if family.windows == "all":
        return {"sliding_window": window}
    if family.windows != "some":
        return {}
    has = [one is not None for one in model.windows]
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        # Programs that do not know layer_types use windows in all layers from this one on. vLLM's Qwen2 and
        # Qwen3 use windows in all layers, and reject models in which only some layers have one. They detect
        # such models by this number, so it must be less than num_layers if some layer has a window.
        "max_window_layers": has.index(True) if True in has else model.num_layers,
        "layer_types": [LAYER_TYPES[one] for one in has],
    }


def _rope(config: RunConfig) -> dict[str, Any]:
    model = config.model
    scaling = model.rope_scaling
    if scaling is None:
        new: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rotary_base}
        return {"rope_parameters": new, "rope_theta": model.rotary_base, "rope_scaling": None}
    of_kind = SCALING_FIELDS[scaling.kind]
    said = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        **{key: getattr(scaling, key) for key in of_kind},
    }
    found = {
        "rope_parameters": {**said, "rope_theta": model.rotary_base},
        "rope_theta": model.rotary_base,
        "rope_scaling": said,
    }
    if "original_max_position_embeddings" in of_kind:
        found["original_max_position_embeddings"] = scaling.original_max_position_embeddings
    return found
