"""Fields that may change when a run is resumed: one table for submit, trainer and certificate.

A checkpoint binds the architecture, the tokenizer, the number format, the order of the data and the sizes of
all steps. Everything else may change on resume and is reported, also the layout
(checkpoint/reshape.py).

    submit        refuses a changed field that is bound (jobs/refusals.py)
    trainer       refuses a checkpoint whose manifest shows another value of a bound field (load.py)
    certificate   says whether changed fields leave every number as it was (checkpoint/certificate.py)
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """A field that a resume may not change; a section's name stands for all of its fields."""

    key: str
    recorded: str | None = None
    """Place of the value in a checkpoint's manifest; None if only the run's configuration has it."""


BOUND = (
    Bound("init_from"),
    Bound("init_step"),
    Bound("lora"),
    Bound("dpo"),
    Bound("model"),
    Bound("model.num_layers", "architecture.num_layers"),
    Bound("model.hidden_size", "architecture.hidden_size"),
    Bound("model.num_attention_heads", "architecture.num_attention_heads"),
    Bound("model.ffn_hidden_size", "architecture.ffn_hidden_size"),
    Bound("model.max_position_embeddings", "architecture.max_position_embeddings"),
    Bound("model.seq_length", "architecture.seq_length"),
    Bound("model.activation", "architecture.activation"),
    Bound("model.add_bias_linear", "architecture.add_bias_linear"),
    Bound("model.add_qkv_bias", "architecture.add_qkv_bias"),
    Bound("model.normalization", "architecture.normalization"),
    Bound("model.position_embedding_type", "architecture.position_embedding_type"),
    Bound("model.rotary_base", "architecture.rotary_base"),
    Bound("model.rotary_percent", "architecture.rotary_percent"),
    Bound("model.rope_scaling", "architecture.rope_scaling"),
    Bound("model.untie_embeddings_and_output_weights", "architecture.untie_embeddings_and_output_weights"),
    Bound("model.num_query_groups", "architecture.num_query_groups"),
    Bound("model.kv_channels", "architecture.kv_channels"),
    Bound("model.qk_layernorm", "architecture.qk_layernorm"),
    Bound("model.window_size", "architecture.window_size"),
    Bound("model.window_attn_skip_freq", "architecture.window_attn_skip_freq"),
    Bound("model.no_rope_freq", "architecture.no_rope_freq"),
    Bound("model.attn_logit_softcapping", "architecture.attn_logit_softcapping"),
    Bound("model.final_logit_softcapping", "architecture.final_logit_softcapping"),
    Bound("tokenizer.name", "tokenizer_sha256"),
    Bound("tokenizer.vocab_size", "vocab_size"),
    Bound("data.name", "data_state.dataset_sha256"),
    Bound("data.json_key"),
    Bound("data.split", "data_state.split"),
    Bound("data.split_rule", "data_state.split_rule"),
    Bound("data.seed", "data_state.seed"),
    Bound("data.index_samples", "data_state.index_samples"),
    Bound("data.shuffle", "data_state.shuffle"),
    Bound("data.packing", "data_state.packing"),
    Bound("data.blend"),
    Bound("batch.global_batch_size"),
    Bound("batch.rampup"),
    Bound("batch.step_batch_size_schedule"),
    Bound("optimizer.type", "optimizer"),
    Bound("precision.dtype"),
    Bound("precision.autocast"),
)
# How the model is computed, not what it is; and a name for other fields.
FREE = (
    "model.attention_backend",
    "model.cross_entropy_chunk_tokens",
    "model.compile",
    "model.architecture",
)
# A source's share of packed data decides the order; its other settings change the dataset itself, or nothing.
WEIGHT = re.compile(r"data\.sources\.\d+\.weight")

# Of the fields that may change: those that no number of the training depends on ...
WITHOUT_EFFECT = (
    "schema_version",
    "name",
    "labels",
    "mode",
    # Its fields have separate rows.
    "recipe",
    "backend",
    "checkpoint",
    "evaluation",
    "logging",
    "profile",
    "notify",
    # The certificate compares the device itself.
    "resources",
    "data.num_workers",
    "data.num_prepare_workers",
    "data.workers",
    # Looked at when data is prepared, before any training.
    "tokenizer.max_unknown_fraction",
    "tokenizer.added_tokens",
    "batch.max_steps",
    "batch.exit_interval_steps",
    "batch.exit_duration_minutes",
    "parallel.process_group_timeout_seconds",
    "parallel.steps_per_print",
    "parallel.wall_clock_breakdown",
)
# ... and those that say how the same mathematics is computed.
SAME_MATHEMATICS = ("parallel", "batch.micro_batch_size", *FREE)


def is_bound(key: str) -> bool:
    """Return whether a changed field makes it another run."""
    if WEIGHT.fullmatch(key):
        return True
    return within(key, (row.key for row in BOUND)) and key not in FREE


def within(key: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of `sections` or below one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def misfits(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each bound field that differs between a checkpoint's manifest and `now`."""
    found = []
    for key, recorded in BOUND:
        if recorded is None:
            continue
        before, after = _look_up(saved, recorded), _look_up(now, recorded)
        if before == after:
            continue
        if recorded.endswith("sha256"):
            found.append(f"{key} stands for other contents (their sha256 differs)")
        else:
            found.append(f"{key} is {before!r} in the checkpoint and {after!r} in the run")
    return found


def _look_up(mapping: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.rpartition(".")
    inner = mapping[section] if section else mapping
    return inner[name]
