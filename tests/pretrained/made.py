"""Model folders with random weights, written by transformers, and the losses that transformers computes with
them.

Nothing is downloaded: the models are built from their configuration classes.
"""

import os
from pathlib import Path
from typing import Any

import torch

from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.build import build_datasets
from tests.parity.oracle import batch_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCAB_SIZE = 503
SMALL = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
    # Large enough that a wrong epsilon or angle is visible.
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 0,
    # transformers does not train the row of a padding token.
    "pad_token_id": None,
}
SMALL_GPT2 = {
    "vocab_size": VOCAB_SIZE,
    "n_embd": 48,
    "n_layer": 4,
    "n_head": 6,
    "n_positions": 40,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    # transformers does not train the row of a padding token.
    "pad_token_id": None,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
ORIGINAL = {"original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, **ORIGINAL,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 2.5, **ORIGINAL,
        "beta_fast": 4.0, "beta_slow": 1.0,
    },
}  # fmt: skip
# Three query groups, heads of 80 that together exceed the hidden size, GPT-2's vocabulary.
ODD = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 80,
    "num_hidden_layers": 2,
    "vocab_size": 50_257,
    "initializer_range": 0.1,
}
# {name: (family, its differences from the small model)}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": 100}),
    "llama": ("llama", {"rms_norm_eps": 1e-5}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    **{f"llama-{kind}": ("llama", {"rope_parameters": rope}) for kind, rope in ROPES.items()},
    "llama-odd": ("llama", ODD),
    "mistral": ("mistral", {"num_key_value_heads": 2, "sliding_window": 5, "head_dim": 10}),
    "mistral-full": ("mistral", {"num_key_value_heads": 1, "sliding_window": None}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-windows": (
        "qwen2",
        {"num_key_value_heads": 3, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", {"num_key_value_heads": 2, "head_dim": 14}),
    "qwen3-windows": (
        "qwen3",
        {
            "num_key_value_heads": 2,
            "head_dim": 8,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "qwen3-odd": ("qwen3", ODD),
    "smollm3": ("smollm3", {"num_key_value_heads": 2}),
    "smollm3-pattern": (
        "smollm3",
        {"num_key_value_heads": 2, "no_rope_layers": [1, 0, 0, 1], "tie_word_embeddings": False},
    ),
    "smollm3-windows": (
        "smollm3",
        {
            "num_key_value_heads": 2,
            "no_rope_layers": [1, 0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}


def make_model(kind: str, **changes: Any) -> Any:
    """Return a transformers model with random weights, also in norms and biases, so that a comparison covers
    them.
    """
    import transformers

    family, differing = KINDS[kind]
    config_class, model_class = {
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
    }[family]
    torch.manual_seed(sum(map(ord, kind)))
    sizes = SMALL_GPT2 if family == "gpt2" else SMALL
    model = model_class(config_class(**{**sizes, **differing, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                # Norms start at 1 and biases at 0, which would hide wrong assignments.
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write_model(folder: Path, kind: str, dtype: torch.dtype | None = None, **save: Any) -> Any:
    """Save a model in a folder with transformers, and return it in the number format of the stored
    weights.
    """
    model = make_model(kind)
    if dtype is not None:
        model = model.to(dtype)
    model.save_pretrained(folder, **save)
    return model


def losses_of(model: Any, config: RunConfig) -> list[float]:
    """Train `model` in fp32 with torch's AdamW on the run's data, and return the loss of each step.

    NBTRAIN_DATA is the data directory.
    """
    model = model.float().train()
    train, schedule, settings = build_datasets(config, None).train, LrSchedule.of(config), config.optimizer
    matrices, others = (
        [parameter for parameter in model.parameters() if (parameter.ndim > 1) == is_matrix]
        for is_matrix in (True, False)
    )
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_eps,
        foreach=False,
        fused=False,
    )
    losses, size = [], config.batch.global_batch_size
    for step in range(config.train_steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step * size * config.model.seq_length)
        optimizer.zero_grad()
        tokens, labels, *_ = batch_of(train, range(step * size, (step + 1) * size))
        logits = model(tokens, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad)
        optimizer.step()
        losses.append(loss.item())
    return losses


class PickledCode:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple:
        return open, (self.path, "w")
