"""Checks that the weights named by `init_from` fit a run's `model` section and vocabulary."""

from typing import NamedTuple

from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import Architecture, marked
from nbtrain.config.yaml_source import show
from nbtrain.pretrained.start import Start, model_of_start, vocab_size_of


class Fit(NamedTuple):
    """The differences between the weights and a run."""

    problems: list[tuple[str, str]]
    """Problems, each as (key of the run, description)."""
    notes: list[str]
    """Sentences on allowed changes that the run makes."""


def fit(start: Start, config: RunConfig) -> Fit:
    """Compare a folder, or a checkpoint of another run, with a run."""
    theirs, ours = model_of_start(start), config.model
    found = Fit([], [])
    compared: set[str] = set()
    for name, marker in marked(ModelConfig, Architecture).items():
        decided_by = marker.compared or name
        if marker.differs == "ignored" or decided_by in compared or not marker.counts(theirs):
            continue
        compared.add(decided_by)
        if (wanted := theirs.recorded(decided_by)) == (has := ours.recorded(decided_by)):
            continue
        key, differs = f"model.{name}", f"is {show(has)} in the run and {show(wanted)} in {config.init_from}"
        if marker.differs == "refused":
            found.problems.append((key, differs))
        else:
            found.notes.append(f"{key} {differs}: {marker.differs}.")
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
