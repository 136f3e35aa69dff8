"""The model with Llama's fields against transformers' LlamaForCausalLM, of the same weights."""

import pytest
import torch

from nbtrain.config.load import load
from nbtrain.model.gpt import build_model
from tests.parity.cases import LLAMA
from tests.train import launch

LLAMA_3 = {"factor": 4.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 2.5, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
SCALINGS = {"none": None, "linear": {"factor": 2.0}, "llama3": LLAMA_3, "yarn": YARN}


def as_ours(theirs: dict[str, torch.Tensor], layers: int, heads: int) -> dict[str, torch.Tensor]:
    """The weights of LlamaForCausalLM by our names."""
    found = {
        "word_embeddings.weight": theirs["model.embed_tokens.weight"],
        "final_layernorm.weight": theirs["model.norm.weight"],
        "output_layer.weight": theirs["lm_head.weight"],
    }
    for layer in range(layers):
        of = {name: theirs[f"model.layers.{layer}.{name}.weight"] for name in NAMES}
        packed = [of[f"self_attn.{kind}_proj"].unflatten(0, (heads, -1)) for kind in "qkv"]
        found |= {
            f"layers.{layer}.{ours}.weight": of[name] for name, ours in NAMES.items() if ours is not None
        }
        found[f"layers.{layer}.attention.query_key_value.weight"] = torch.cat(packed, dim=1).flatten(0, 1)
        found[f"layers.{layer}.mlp.dense_h_to_4h.gate_weight"] = of["mlp.gate_proj"]
    return found


NAMES = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "self_attn.q_proj": None,
    "self_attn.k_proj": None,
    "self_attn.v_proj": None,
    "self_attn.o_proj": "attention.dense",
    "mlp.gate_proj": None,
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SCALINGS)
def test_logits_are_those_of_transformers(kind, tmp_path):
    """In fp32, to the rounding of another order of sums; with wrong angles they differ by tenths."""
    transformers = pytest.importorskip("transformers")
    source = tmp_path / "tiny.yaml"
    source.write_text(launch.TINY)
    scaling = SCALINGS[kind] and {"kind": kind, **SCALINGS[kind]}
    config = load(
        str(source),
        {
            **LLAMA,
            "model.rotary_base": 500.0,
            "model.hidden_dropout": 0.0,
            "model.attention_dropout": 0.0,
            "model.rope_scaling": scaling,
        },
    )
    model = config.model
    rope = {
        "rope_type": "default" if scaling is None else kind,
        "rope_theta": 500.0,
        **(SCALINGS[kind] or {}),
    }
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.padded_vocab_size,
            hidden_size=model.hidden_size,
            intermediate_size=model.resolved_ffn_hidden_size,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_attention_heads,
            max_position_embeddings=model.seq_length,
            rms_norm_eps=model.norm_epsilon,
            rope_parameters=rope,
            initializer_range=0.2,
        )
    ).eval()
    ours = build_model(config).eval()
    ours.load_state_dict(as_ours(theirs.state_dict(), model.num_layers, model.num_attention_heads))
    tokens = torch.randint(500, (2, 32))
    with torch.no_grad():
        expected = theirs(tokens).logits[..., :500]
        torch.testing.assert_close(ours(tokens)[..., :500], expected, rtol=1e-5, atol=2e-5)
        cache = ours.new_cache(2)
        parts = [ours(piece, cache=cache)[..., :500] for piece in tokens.split([20, 11, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-5, atol=2e-5)
