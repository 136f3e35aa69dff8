"""A tiny model folder, created without torch and transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def write_small_folder(folder: Path, layers: int = 2, **changes: Any) -> dict[str, np.ndarray]:
    """Write config.json and model.safetensors of a tiny Llama without torch, and return its tensors."""
    hidden, inner, vocabulary = 8, 12, 20
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "vocab_size": vocabulary,
        "hidden_act": "silu",
        **changes,
    }
    generator = np.random.default_rng(0)

    def made(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape, dtype=np.float32)

    tensors = {"model.embed_tokens.weight": made(vocabulary, hidden), "model.norm.weight": made(hidden)}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = made(vocabulary, hidden)
    for index in range(layers):
        place = f"model.layers.{index}"
        for name in ("q", "k", "v", "o"):
            tensors[f"{place}.self_attn.{name}_proj.weight"] = made(hidden, hidden)
        for name in ("gate", "up"):
            tensors[f"{place}.mlp.{name}_proj.weight"] = made(inner, hidden)
        tensors[f"{place}.mlp.down_proj.weight"] = made(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{place}.{name}.weight"] = made(hidden)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return tensors
