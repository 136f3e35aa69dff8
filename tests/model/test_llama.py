"""Each supported architecture gives the same results as its transformers class with the same weights."""

import math
from typing import Any, NamedTuple

import pytest
import torch

from nbtrain.config.load import load
from nbtrain.model.gpt import build_model
from tests.train import launch

LLAMA_3 = {"factor": 4.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 2.5, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
SCALINGS = {"linear": {"factor": 2.0}, "llama3": LLAMA_3, "yarn": YARN}


class Family(NamedTuple):
    """A model architecture and the name of its class in transformers."""

    name: str
    """Name of the transformers class and configuration, without ForCausalLM or Config."""
    ours: dict[str, Any]
    theirs: dict[str, Any] | None = None


# An odd number of groups, and heads that are together wider than the hidden states.
ODD = {"hidden_size": 96, "num_attention_heads": 6, "num_query_groups": 3, "kv_channels": 80}
FAMILIES = {
    "llama": Family("Llama", {"architecture": "llama"}),
    **{
        f"llama {kind}": Family(
            "Llama", {"architecture": "llama", "rotary_base": 500.0, "rope_scaling": {"kind": kind, **values}}
        )
        for kind, values in SCALINGS.items()
    },
    "llama of odd sizes": Family("Llama", {"architecture": "llama", **ODD}),
    "llama, tied, with biases": Family(
        "Llama",
        {
            "architecture": "llama",
            "num_query_groups": 2,
            "add_bias_linear": True,
            "untie_embeddings_and_output_weights": False,
        },
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": Family(
        "Mistral", {"architecture": "mistral", "num_query_groups": 2, "window_size": 5}, {"sliding_window": 5}
    ),
    "qwen2": Family("Qwen2", {"architecture": "qwen2", "num_query_groups": 2}),
    "qwen2 with windows": Family(
        "Qwen2",
        {
            "architecture": "qwen2",
            "num_query_groups": 1,
            "window_size": 7,
            "window_attn_skip_freq": [0, 0, 1, 1],
        },
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": Family("Qwen3", {"architecture": "qwen3", "num_query_groups": 2, "kv_channels": 24}),
    "qwen3 of odd sizes": Family("Qwen3", {"architecture": "qwen3", **ODD}),
    "smollm3": Family("SmolLM3", {"architecture": "smollm3", "num_query_groups": 2}),
}


def as_ours(theirs: dict[str, torch.Tensor], config: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a transformers model under our names, with zeros as padding rows."""
    model, rows = config.model, config.padded_vocab_size
    groups, found = model.resolved_num_query_groups, {}
    for name, ours in ENDS.items():
        if name in theirs and (ours != "output_layer.weight" or model.untie_embeddings_and_output_weights):
            found[ours] = theirs[name]
    for ours in ("word_embeddings.weight", "output_layer.weight"):
        if ours in found:
            words = found[ours]
            found[ours] = torch.cat([words, words.new_zeros(rows - len(words), words.shape[1])])
    for layer in range(model.num_layers):
        of = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in theirs.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        for kind in ("weight", "bias"):
            if f"self_attn.q_proj.{kind}" in of:
                parts = [of.pop(f"self_attn.{one}_proj.{kind}").unflatten(0, (groups, -1)) for one in "qkv"]
                found[f"layers.{layer}.attention.query_key_value.{kind}"] = torch.cat(parts, dim=1).flatten(
                    0, 1
                )
        for name, value in of.items():
            module, _, kind = name.rpartition(".")
            found[f"layers.{layer}.{NAMES[module].format(kind)}"] = value
    return found


ENDS = {
    "model.embed_tokens.weight": "word_embeddings.weight",
    "model.norm.weight": "final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}
NAMES = {
    "input_layernorm": "input_layernorm.{}",
    "post_attention_layernorm": "post_attention_layernorm.{}",
    "self_attn.o_proj": "attention.dense.{}",
    "self_attn.q_norm": "attention.q_layernorm.{}",
    "self_attn.k_norm": "attention.k_layernorm.{}",
    "mlp.gate_proj": "mlp.dense_h_to_4h.gate_{}",
    "mlp.up_proj": "mlp.dense_h_to_4h.{}",
    "mlp.down_proj": "mlp.dense_4h_to_h.{}",
}


def both(family: Family, tmp_path) -> tuple[Any, Any, Any]:
    """Return (configuration, our model, the transformers model) with the same weights."""
    transformers = pytest.importorskip("transformers")
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    vocabulary = 50_257 if "kv_channels" in family.ours and family.ours["kv_channels"] == 80 else 500
    overrides = {f"model.{name}": value for name, value in family.ours.items()}
    config = load(str(source), {"model.num_layers": 4, "tokenizer.vocab_size": vocabulary, **overrides})
    model, scaling = config.model, config.model.rope_scaling
    rope = {"rope_type": "default" if scaling is None else scaling.kind, "rope_theta": model.rotary_base}
    rope |= {} if scaling is None else SCALINGS[scaling.kind]
    values = {
        "vocab_size": vocabulary,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.resolved_ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.resolved_num_query_groups,
        "max_position_embeddings": model.seq_length,
        "rms_norm_eps": model.norm_epsilon,
        "rope_parameters": rope,
        "tie_word_embeddings": not model.untie_embeddings_and_output_weights,
        # Far from uniform, so that every part of a layer matters.
        "initializer_range": 0.2,
        "pad_token_id": None,
        **(family.theirs or {}),
    }
    if family.name in ("Llama", "Mistral", "Qwen3"):
        values["head_dim"] = model.resolved_kv_channels
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{family.name}ForCausalLM")(
        getattr(transformers, f"{family.name}Config")(**values)
    ).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    ours = build_model(config).eval()
    ours.load_state_dict(as_ours(theirs.state_dict(), config))
    return config, ours, theirs


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_losses_are_those_of_transformers(name, tmp_path):
    """Logits and losses equal the results of transformers. Both are computed in fp64, where the order of
    additions, which depends on the processor, does not show; some operations are in fp32 on both sides. The
    logits in fp32 are those in fp64 up to rounding. A wrong formula changes them by tenths.
    """
    config, ours, theirs = both(FAMILIES[name], tmp_path)
    vocabulary = config.tokenizer.vocab_size
    tokens = torch.randint(vocabulary, (2, 33), generator=torch.Generator().manual_seed(3))
    tokens, labels = tokens[:, :-1], tokens[:, 1:].contiguous()
    with torch.no_grad():
        single = ours(tokens)[..., :vocabulary].double()
        ours, expected = ours.double(), theirs.double()(tokens).logits.double()
        spread = 1e-5 * max(float(expected.std()), 1.0) * math.sqrt(config.model.num_layers)
        torch.testing.assert_close(
            single, ours(tokens)[..., :vocabulary].double(), rtol=1e-5, atol=4 * spread
        )
        torch.testing.assert_close(ours(tokens)[..., :vocabulary].double(), expected, rtol=1e-5, atol=spread)
        cache = ours.new_cache(2)
        parts = [
            ours(piece, cache=cache)[..., :vocabulary].double() for piece in tokens.split([20, 11, 1], dim=1)
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-5, atol=spread)
        loss = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten())
        torch.testing.assert_close(ours(tokens, labels).double(), loss, rtol=1e-6, atol=1e-6)
