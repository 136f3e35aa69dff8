"""Named model families: `model.architecture: llama` sets the fields of a family.

A family sets all of FIELDS, so that one name completely replaces another. The fields select formulas; the
model sets sizes, head sizes and groups itself. In the file that sets the name, the family's fields replace
the fields of the files that it extends, and fields that are set next to the name, or in a later layer,
replace the family's:

    extends: gpt-tiny
    model: {architecture: llama, norm_epsilon: 1.0e-6}    Llama's fields, with another epsilon

Setting the name that an extended file already sets changes nothing. The resolved file holds the name and
every field, so it does not depend on the definition of the family.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from nbtrain.config.schema import ModelConfig
from nbtrain.config.yaml_source import Located

FIELDS = (
    *("normalization", "norm_epsilon", "activation", "add_bias_linear", "add_qkv_bias"),
    *("untie_embeddings_and_output_weights", "qk_layernorm", "hidden_dropout", "attention_dropout"),
    *("position_embedding_type", "rotary_base", "rotary_percent", "rope_scaling", "no_rope_freq"),
    *("window_size", "window_attn_skip_freq", "attn_logit_softcapping", "final_logit_softcapping"),
)

# LLaMA's norms, activation and positions (arXiv:2302.13971, section 2.2); no biases, no dropout, untied.
_LLAMA = {
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
# {name: fields that differ from the schema's defaults}; epsilons as in the models' config.json.
_DIFFERENCES: dict[str, dict[str, Any]] = {
    # GPT-2's layers (arXiv:2005.14165, section 2.1).
    "gpt3": {},
    # Llama 3: theta 500,000 (arXiv:2407.21783, table 3). The scaling of 3.1 and later is rope_scaling.
    "llama": {**_LLAMA, "norm_epsilon": 1e-5, "rotary_base": 500_000.0},
    # Mistral 7B v0.1: window of 4,096 (arXiv:2310.06825, table 1), theta 10,000 (its config.json).
    "mistral": {**_LLAMA, "norm_epsilon": 1e-5, "rotary_base": 10_000.0, "window_size": 4096},
    # Biases of query, key and value, theta 1,000,000 (arXiv:2407.10671, sections 2.2.1 and 3.2).
    "qwen2": {**_LLAMA, "norm_epsilon": 1e-6, "rotary_base": 1_000_000.0, "add_qkv_bias": True},
    # Norms of queries and keys instead of biases (arXiv:2505.09388, section 2).
    "qwen3": {**_LLAMA, "norm_epsilon": 1e-6, "rotary_base": 1_000_000.0, "qk_layernorm": True},
    # Tied, no rope in every fourth layer (huggingface.co/blog/smollm3); theta of transformers' SmolLM3Config.
    "smollm3": {
        **_LLAMA,
        "norm_epsilon": 1e-6,
        "rotary_base": 2_000_000.0,
        "no_rope_freq": 4,
        "untie_embeddings_and_output_weights": False,
    },
}
NAMES: tuple[str, ...] = get_args(ModelConfig.model_fields["architecture"].annotation)


@cache
def fields_of(name: str) -> Mapping[str, Any]:
    """Return {field of `model`: value} of a named architecture, for all of FIELDS.

    Raises KeyError for an unknown name.
    """
    different = _DIFFERENCES[name]
    return {field: different.get(field, ModelConfig.model_fields[field].default) for field in FIELDS}


def expanded(layer: Located, base: Located) -> Located:
    """Return a layer (a file or overrides) with the fields that its architecture sets.

    `base` is the configuration over which the layer will be merged. The layer is changed in place. A name
    that is not an architecture is left to the schema's check. The schema's default does not count as a name.
    """
    key = "model.architecture"
    own, below = (_model_of(one).get("architecture") if key in one.origins else None for one in (layer, base))
    if isinstance(own, str) and own in NAMES and own != below:
        model, place = layer.value["model"], layer.origins[key]
        for field, value in fields_of(own).items():
            if field not in model:
                model[field] = value
                layer.origins[f"model.{field}"] = place
    return layer


def _model_of(located: Located) -> Mapping[str, Any]:
    section = located.value.get("model")
    return section if isinstance(section, Mapping) else {}
