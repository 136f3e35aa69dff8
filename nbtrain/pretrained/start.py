"""The start that `init_from` names: a model's folder, or a checkpoint of another run; whether it fits a run.

    a folder with run.json, or the name of a run        RunStart: one checkpoint of it (init_step)
    any other folder, or a file                         PretrainedModel

A run given by its name is searched in the output directory, next to the run that starts from it; this also
works on nodes that see the output directory under another path. Submit writes the chosen checkpoint to
init_from.json, and the ranks use that one. fit() compares the weights with a run's `model` section and
vocabulary.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError
from nbtrain.base.run_directory.checkpoint_files import best_step, checkpoint_problem, newest_whole
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display, output_root, resolve, valid_name
from nbtrain.config.code_file import code_sha256, submitted_functions
from nbtrain.config.load import load_resolved
from nbtrain.config.own_blocks import has_own_layer
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import Architecture, marked
from nbtrain.config.yaml_source import show
from nbtrain.pretrained.folder import PEFT_WEIGHTS
from nbtrain.pretrained.model import PretrainedModel, model_section, open_model
from nbtrain.pretrained.tensors import Sizes, parameter_shapes

PADDED = ("word_embeddings.weight", "output_layer.weight")


@dataclass(frozen=True)
class RunStart:
    """A checkpoint of another run as the start."""

    run: RunDir
    step: int
    config: RunConfig
    """Configuration of the other run."""
    manifest: dict[str, Any]
    """Manifest of the checkpoint, as stored on disk."""

    @property
    def path(self) -> Path:
        return self.run.checkpoint(self.step)

    @property
    def title(self) -> str:
        return f"step {self.step:,} of {self.run.name}"

    @property
    def vocab_size(self) -> int:
        return self.config.tokenizer.vocab_size

    @property
    def count(self) -> int:
        """Number of parameters, without padding."""
        if "layer" in submitted_functions(self.run):
            # The vocabulary's rows may be padded; the rest is as its file makes it.
            padding = self.manifest["padded_vocab_size"] - self.vocab_size
            entries = self.manifest["parameters"].items()
            return sum(
                math.prod(entry["shape"]) - (padding * entry["shape"][1] if name in PADDED else 0)
                for name, entry in entries
            )
        shapes = parameter_shapes(Sizes.of(self.config.model, self.vocab_size))
        return sum(map(math.prod, shapes.values()))

    @property
    def dtypes(self) -> list[str]:
        """Number formats of its master weights, which are the weights that are read."""
        return ["F32"]

    @property
    def tokenizer_sha256(self) -> str | None:
        return self.manifest["tokenizer_sha256"]

    @property
    def sha256(self) -> str:
        """SHA-256 of the hashes of all its files. It does not change if a later validation changes the
        manifest.
        """
        entries = {name: entry["sha256"] for name, entry in self.manifest["files"].items()}
        return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


Start = PretrainedModel | RunStart


def identity_of(start: Start) -> str:
    """Return the hash that identifies a start's weights."""
    return start.sha256 if isinstance(start, RunStart) else start.folder.sha256


def hashes_of(start: Start, config: RunConfig) -> dict[str, str]:
    """Return the hashes that init_from.json records: sha256 of a start's weights and, with lora.init_from,
    adapters_sha256.
    """
    found = {"sha256": identity_of(start)}
    if config.lora is not None and config.lora.init_from is not None:
        found["adapters_sha256"] = files.sha256_of(resolve(config.lora.init_from) / PEFT_WEIGHTS)
    return found


def refuse_changed(start: Start, sha256: str) -> None:
    """Raise CheckpointError if the initial weights do not have this hash."""
    if sha256 != identity_of(start):
        what = (
            "the checkpoint's files"
            if isinstance(start, RunStart)
            else "its config.json or the headers of its files"
        )
        raise CheckpointError(
            f"init_from: {display(start.path)}: has changed since the run was submitted: {what} differ. "
            "Restore the old files, or train from the new ones in a run with another name."
        )


def model_of_start(start: Start) -> ModelConfig:
    """Return a start's `model` section. Raises CheckpointError for a folder with an unsupported model."""
    if isinstance(start, RunStart):
        return start.config.model
    return model_section(start.described, start.path)


def vocab_size_of(start: Start) -> int:
    """Return the number of rows of a start's vocabulary, without padding."""
    return start.vocab_size if isinstance(start, RunStart) else start.described.vocab_size


def open_start(config: RunConfig, run: RunDir | None = None) -> Start:
    """Open the start that `init_from` of a run names.

    `run` is the directory of a run that has been submitted; the step chosen at that time is then used. Raises
    CheckpointError if the start cannot be used.
    """
    assert config.init_from is not None
    other = _other_run(config, run.path.parent if run is not None else output_root())
    if other is None:
        return open_model(resolve(config.init_from))
    known = (files.read_json(run.init_from_json) or {}) if run is not None else {}
    return _checkpoint_of(other, known.get("step") or config.init_step)


def is_there(config: RunConfig) -> bool:
    """Return whether `init_from` exists, or is an address, which can never exist here."""
    said = config.init_from
    assert said is not None
    return "://" in said or resolve(said).exists() or (valid_name(said) and RunDir.named(said).exists())


def names_run(config: RunConfig) -> bool:
    """Return whether `init_from` names a run. Raises CheckpointError if it could be a run or a folder."""
    return config.init_from is not None and _other_run(config, output_root()) is not None


def _other_run(config: RunConfig, root: Path) -> RunDir | None:
    """Return the run that `init_from` names; None if it is a folder or a file, existing or not."""
    said = config.init_from
    assert said is not None
    if "://" in said:
        raise CheckpointError(
            f"{said} is an address, but init_from must be a run or a folder. `nbtrain import-model {said}` "
            "fetches a model of the Hub (hf://ORGANISATION/MODEL) and writes a run YAML that starts from it."
        )
    path = resolve(said)
    if (path / "run.json").is_file():
        return _not_itself(config, RunDir(path))
    if not valid_name(said):
        return None
    named = RunDir(root / said)
    if not named.exists():
        if not path.exists():
            raise CheckpointError(
                f"there is no run {said} in {display(root)}, and no folder {display(path)}. `nbtrain runs` "
                "lists the runs; train it first, or use another one."
            )
        return None
    if path.exists():
        if said == config.name:
            # A run cannot start from itself, and this one exists as soon as it is submitted.
            return None
        raise CheckpointError(
            f"{said} is both a run and the path {display(path)}. Write {display(named.path)} for the run, or "
            f"./{said} for the path."
        )
    return _not_itself(config, named)


def _not_itself(config: RunConfig, other: RunDir) -> RunDir:
    if other.name == config.name:
        raise CheckpointError(
            f"{display(other.path)} is this run itself, which continues from its own checkpoints. Give the "
            "new training another name."
        )
    return other


def _checkpoint_of(run: RunDir, wanted: int | str) -> RunStart:
    steps = run.checkpoint_steps()
    if wanted == "newest":
        step, torn = newest_whole(run)
        if step is None:
            reasons = "".join(f"; global_step{number}: {reason}" for number, reason in torn)
            raise CheckpointError(
                f"{display(run.path)}: has no complete checkpoint{reasons}. Train it first, or use another "
                f"run."
            )
    elif wanted == "best":
        step = best_step(run, [one for one in steps if checkpoint_problem(run.checkpoint(one)) is None])
        if step is None:
            raise CheckpointError(
                f"{display(run.path)}: none of its checkpoints was validated at its own step, so none can be "
                "the best. Set init_step: newest."
            )
    else:
        assert isinstance(wanted, int)
        step = wanted
        if reason := checkpoint_problem(run.checkpoint(step)):
            known = ", ".join(map(str, steps)) or "none"
            raise CheckpointError(f"{display(run.checkpoint(step))}: {reason}. Checkpoints there: {known}.")
    manifest = files.read_json(run.checkpoint_manifest(step))
    assert manifest is not None
    try:
        return RunStart(run, step, load_resolved(run.config_yaml), manifest)
    except ConfigError as error:
        raise CheckpointError(f"{display(run.path)}: its config.yaml cannot be read: {error}") from None


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
    _compare_layers(start, config, found)
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


def _compare_layers(start: Start, config: RunConfig, found: Fit) -> None:
    """Compare the blocks' makers: nbtrain, or the layer() of a run's code."""
    ours = has_own_layer(config)
    theirs = isinstance(start, RunStart) and "layer" in submitted_functions(start.run)
    if ours != theirs:
        one, other = f"layer() in {config.code}", "nbtrain"
        here, there = (one, other) if ours else (other, "another layer()")
        found.problems.append(
            ("code", f"makes the blocks by {here}, and {config.init_from} has blocks made by {there}")
        )
    elif isinstance(start, RunStart) and ours and start.manifest["code_sha256"] != code_sha256(config):
        found.notes.append(
            f"{config.code} is not the file that {start.title} was trained with: the names and shapes of its "
            "blocks' parameters are compared, and not what layer() computes with them."
        )


def _trained_rows(before: int, config: RunConfig) -> str:
    """Return a sentence that says how many of the new rows are trained along with adapters."""
    if config.lora is None:
        return ""
    named = config.lora.trainable_token_indices or ()
    trained, new = sum(one >= before for one in named), config.tokenizer.vocab_size - before
    if trained == new:
        return f" Along with the adapters, all {new:,} are trained (lora.trainable_token_indices)."
    return f" Along with the adapters, {trained:,} of {new:,} are trained (lora.trainable_token_indices)."
