"""Check that the weights that `init_from` names fit a run's `model` section and vocabulary."""

from typing import Any, NamedTuple

from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.pretrained.start import Start, model_of_start, vocab_size_of

# With other values of these fields, the weights would mean a different function, or none.
BOUND = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "resolved_num_query_groups",
    "resolved_kv_channels",
    "qk_layernorm",
    "layers_without_rope",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "resolved_ffn_hidden_size",
    "activation",
    "add_bias_linear",
    "normalization",
    "norm_epsilon",
    "position_embedding_type",
    "rotary_percent",
    "untie_embeddings_and_output_weights",
)
# {what a run may change on purpose, to train on longer sequences: what that means}
REPORTED = {
    "rotary_base": "positions rotate heads by other angles than in the earlier training",
    "rope_scaling": "positions rotate heads by other angles than in the earlier training",
    "windows": "queries see other tokens than in the earlier training",
}
# {a property of the section: the field that decides it}
FIELD_OF = {"layers_without_rope": "no_rope_freq", "windows": "window_size"}


class Fit(NamedTuple):
    """The differences between the weights and a run."""

    problems: list[tuple[str, str]]
    """Problems as (key of the run, description)."""
    notes: list[str]
    """Allowed changes that the run makes."""


def fit(start: Start, config: RunConfig) -> Fit:
    """Compare a folder, or a checkpoint of another run, with a run."""
    theirs, ours = model_of_start(start), config.model
    found = Fit([], [])
    bound = list(BOUND)
    if theirs.position_embedding_type == "learned_absolute":
        bound.append("resolved_max_position_embeddings")
    if not theirs.add_bias_linear:
        bound.append("add_qkv_bias")
    for name in bound:
        if (wanted := getattr(theirs, name)) != (has := getattr(ours, name)):
            key = f"model.{FIELD_OF.get(name, name.removeprefix('resolved_'))}"
            found.problems.append(
                (key, f"is {show(has)} in the run and {show(wanted)} in {config.init_from}")
            )
    for name, meaning in REPORTED.items():
        if (wanted := _plain(theirs, name)) != (has := _plain(ours, name)):
            found.notes.append(
                f"model.{FIELD_OF.get(name, name)} is {show(has)} in the run and {show(wanted)} in "
                f"{config.init_from}: {meaning}."
            )
    rows, vocab_size = vocab_size_of(start), config.tokenizer.vocab_size
    if vocab_size > rows:
        found.notes.append(
            f"the vocabulary grows from {rows:,} to {vocab_size:,} (tokenizer.vocab_size): each new row is "
            "the mean of the old ones." + _trained_rows(rows, config)
        )
    elif vocab_size < rows:
        found.notes.append(
            f"the vocabulary shrinks from {rows:,} to {vocab_size:,} (tokenizer.vocab_size): the last "
            f"{rows - vocab_size:,} rows are dropped."
        )
    return found


def _trained_rows(before: int, config: RunConfig) -> str:
    """Return a sentence that says how many of the new rows are trained along with adapters."""
    if config.lora is None:
        return ""
    named = config.lora.trainable_token_indices or ()
    trained, new = sum(one >= before for one in named), config.tokenizer.vocab_size - before
    if trained == new:
        return f" Along with the adapters, all {new:,} are trained (lora.trainable_token_indices)."
    return f" Along with the adapters, {trained:,} of {new:,} are trained (lora.trainable_token_indices)."


def _plain(model: ModelConfig, name: str) -> Any:
    value = getattr(model, name)
    return value.model_dump() if name == "rope_scaling" and value is not None else value
