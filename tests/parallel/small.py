"""A small GPT and its text for tests of layouts, with unusual sizes, so that nothing divides evenly by
accident.
"""

import torch

from nbtrain.model.gpt import GPTConfig

B, S, H, HEADS, FFN, VOCAB = 2, 8, 16, 4, 24, 50


# Every kind of layer that differs from GPT-3's.
LLAMA = {
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
ROPE = {"position_embedding_type": "rope", "rotary_size": 4}
# Two ranks have one group each, and four ranks share the groups; heads are together wider than the hidden
# states.
GROUPED = {
    "num_query_groups": 2,
    "kv_channels": 6,
    "qk_layernorm": True,
    "windows": (3, None),
    "attn_logit_softcapping": 0.8,
    "final_logit_softcapping": 1.5,
}
KINDS = (
    LLAMA | ROPE,
    ROPE | {"rotary_size": 2},
    {"activation": "swiglu"},
    LLAMA | {"activation": "squared_relu", "add_qkv_bias": True},
    ROPE | {"num_query_groups": 1, "qk_layernorm": True, "windows": (3, 3)},
    LLAMA | {"num_query_groups": 1, "add_qkv_bias": True, "qk_layernorm": True},
    LLAMA | ROPE | GROUPED | {"unturned": frozenset({1})},
)


def gpt_config(padded_vocab_size: int = 52, **changes) -> GPTConfig:
    """Return the model's configuration. The loss ignores the vocabulary's padding and so does not depend on
    its size.
    """
    # A large standard deviation, so that attention and softmax are far from uniform.
    values = {
        "num_layers": 2,
        "hidden_size": H,
        "num_attention_heads": HEADS,
        "ffn_hidden_size": FFN,
        "padded_vocab_size": padded_vocab_size,
        "max_position_embeddings": S + 2,
        "init_method_std": 0.3,
        "cross_entropy_chunk_tokens": 5,
        "vocab_size": VOCAB,
    }
    return GPTConfig(**values | changes)


def text(batch: int = B, seed: int = 4) -> torch.Tensor:
    """Return (tokens, labels), [2, batch, S] each."""
    return torch.randint(VOCAB, (2, batch, S), generator=torch.Generator().manual_seed(seed))
