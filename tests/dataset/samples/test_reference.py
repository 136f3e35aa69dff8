"""The key of stored reference log-probabilities: what the model is, and not how it is computed or trained."""

from nbtrain.config.load import load
from nbtrain.dataset.samples.reference import description_of


def described(**model):
    """Return the key of a run whose `model` has these values."""
    changes = [f"model.{name}={value}" for name, value in model.items()]
    return description_of(load("gpt-tiny", changes, check=False), "d" * 64, "w" * 64)


def test_the_architecture_alone_of_the_model_is_in_the_key():
    """Runs that differ in how a model is computed, trained or initialized share the stored numbers."""
    how = dict(
        attention_backend="math",
        attention_dropout=0.5,
        compile="true",
        cross_entropy_chunk_tokens=7,
        hidden_dropout=0.5,
        init_method_std=0.5,
        make_vocab_size_divisible_by=7,
        seed=7,
    )
    assert described(**how) == described()
    for name, value in {"seq_length": 64, "norm_epsilon": 0.5, "rotary_base": 7.0}.items():
        assert described(**{name: value}) != described()


def test_the_key_stays_what_it_was():
    """Numbers that a workspace has stored are found again."""
    assert sorted(described()["model"]) == [
        "activation",
        "add_bias_linear",
        "add_qkv_bias",
        "attn_logit_softcapping",
        "ffn_hidden_size",
        "final_logit_softcapping",
        "hidden_size",
        "kv_channels",
        "max_position_embeddings",
        "no_rope_freq",
        "norm_epsilon",
        "normalization",
        "num_attention_heads",
        "num_layers",
        "num_query_groups",
        "position_embedding_type",
        "qk_layernorm",
        "rope_scaling",
        "rotary_base",
        "rotary_percent",
        "seq_length",
        "untie_embeddings_and_output_weights",
        "window_attn_skip_freq",
        "window_size",
    ]
