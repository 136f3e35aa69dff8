"""The initial weights that `init_from` refers to, and whether they fit the run.

    a folder with run.json, or the name of a run        RunStart: one of that run's checkpoints (init_step)
    any other folder, or a file                         PretrainedModel

A run given by name is searched in the output directory, next to the run that starts from it, so this also
works on nodes on which the output directory has another path. Submitting the run writes the chosen checkpoint
to init_from.json, and the ranks use that checkpoint. fit() compares the weights with the run's `model`
section and vocabulary.
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
    """A checkpoint of another run, from which a run starts."""

    run: RunDir
    step: int
    config: RunConfig
    """Configuration of the other run."""
    manifest: dict[str, Any]
    """Manifest of the checkpoint, as stored in its folder."""

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
        """Number of parameters, without vocabulary padding."""
        if "layer" in submitted_functions(self.run):
            # Only the vocabulary's rows may be padded. All other shapes are those that layer() created.
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
        """Number format of the checkpoint's master weights, from which the run starts."""
        return ["F32"]

    @property
    def tokenizer_sha256(self) -> str | None:
        return self.manifest["tokenizer_sha256"]

    @property
    def sha256(self) -> str:
        """SHA-256 over the hashes of all files. A later validation changes the manifest, not this hash."""
        entries = {name: entry["sha256"] for name, entry in self.manifest["files"].items()}
        return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


Start = PretrainedModel | RunStart


def identity_of(start: Start) -> str:
    """Return the hash that identifies the initial weights."""
    return start.sha256 if isinstance(start, RunStart) else start.folder.sha256


def hashes_of(start: Start, config: RunConfig) -> dict[str, str]:
    """Return the hashes for init_from.json: `sha256` and, with lora.init_from, `adapters_sha256`."""
    found = {"sha256": identity_of(start)}
    if config.lora is not None and config.lora.init_from is not None:
        found["adapters_sha256"] = files.sha256_of(resolve(config.lora.init_from) / PEFT_WEIGHTS)
    return found


def refuse_changed(start: Start, sha256: str) -> None:
    """Raise CheckpointError if the hash of the initial weights is not `sha256`, their hash at submission."""
    if sha256 != identity_of(start):
        what = (
            "The checkpoint's files"
            if isinstance(start, RunStart)
            else "Its config.json or the headers of its files"
        )
        raise CheckpointError(
            f"init_from: {display(start.path)} has changed since the run was submitted. {what} differ. "
            "Restore the old files, or start from the new files in a run with another name."
        )


def model_of_start(start: Start) -> ModelConfig:
    """Return the `model` section of the initial weights. Raises CheckpointError for an unsupported model."""
    if isinstance(start, RunStart):
        return start.config.model
    return model_section(start.described, start.path)


def vocab_size_of(start: Start) -> int:
    """Return the number of vocabulary rows in the initial weights, without padding."""
    return start.vocab_size if isinstance(start, RunStart) else start.described.vocab_size


def open_start(config: RunConfig, run: RunDir | None = None) -> Start:
    """Open the initial weights that a run's `init_from` refers to.

    `run` is the directory of a submitted run, for which the step that was chosen at submission is used.
    Raises CheckpointError if the weights cannot be used.
    """
    assert config.init_from is not None
    other = _other_run(config, run.path.parent if run is not None else output_root())
    if other is None:
        return open_model(resolve(config.init_from))
    known = (files.read_json(run.init_from_json) or {}) if run is not None else {}
    return _checkpoint_of(other, known.get("step") or config.init_step)


def is_there(config: RunConfig) -> bool:
    """Return whether `init_from` is an existing path or run. For an address (with ://), return True."""
    said = config.init_from
    assert said is not None
    return "://" in said or resolve(said).exists() or (valid_name(said) and RunDir.named(said).exists())


def names_run(config: RunConfig) -> bool:
    """Return whether `init_from` refers to a run.

    Raises CheckpointError for an address, and if `init_from` is both a run and a path, or neither.
    """
    return config.init_from is not None and _other_run(config, output_root()) is not None


def _other_run(config: RunConfig, root: Path) -> RunDir | None:
    """Return the run that `init_from` refers to; None if it is the path of a model folder or file.

    `root` is the output directory in which runs are searched by name. Raises CheckpointError for an address
    (with ://), for a name that is both a run and a path, and for a name that is neither.
    """
    said = config.init_from
    assert said is not None
    if "://" in said:
        raise CheckpointError(
            f"{said} is an address, but init_from must be a run or a folder. For a model on the Hub "
            f"(hf://ORGANISATION/MODEL), run `nbtrain import-model {said} NAME`, which downloads the model "
            "and writes a run YAML that starts from it."
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
                f"there is no run {said} in {display(root)}, and no folder {display(path)}. Train that run "
                "first, or choose another run (`nbtrain runs` lists them)."
            )
        return None
    if path.exists():
        if said == config.name:
            # A run cannot start from itself, but its directory exists as soon as it is submitted.
            return None
        raise CheckpointError(
            f"{said} is both a run and the path {display(path)}. Set init_from to {display(named.path)} for "
            f"the run, or to ./{said} for the path."
        )
    return _not_itself(config, named)


def _not_itself(config: RunConfig, other: RunDir) -> RunDir:
    if other.name == config.name:
        raise CheckpointError(
            f"{display(other.path)} is this run itself, which resumes from its own checkpoints. To start a "
            "new training from it, give the new run another name."
        )
    return other


def _checkpoint_of(run: RunDir, wanted: int | str) -> RunStart:
    steps = run.checkpoint_steps()
    if wanted == "newest":
        step, torn = newest_whole(run)
        if step is None:
            reasons = "".join(f"; global_step{number}: {reason}" for number, reason in torn)
            raise CheckpointError(
                f"{display(run.path)} has no complete checkpoint{reasons}. Train the run first, or use "
                "another run."
            )
    elif wanted == "best":
        step = best_step(run, [one for one in steps if checkpoint_problem(run.checkpoint(one)) is None])
        if step is None:
            raise CheckpointError(
                f"{display(run.path)}: the best checkpoint is not known, because the run computed no "
                "validation loss at the step of any complete checkpoint. Set init_step: newest."
            )
    else:
        assert isinstance(wanted, int)
        step = wanted
        if reason := checkpoint_problem(run.checkpoint(step)):
            if not steps:
                raise CheckpointError(
                    f"{display(run.checkpoint(step))}: {reason}. The run has no checkpoints."
                )
            known = ", ".join(map(str, steps))
            raise CheckpointError(
                f"{display(run.checkpoint(step))}: {reason}. The run has checkpoints of these steps: {known}."
            )
    manifest = files.read_json(run.checkpoint_manifest(step))
    assert manifest is not None
    try:
        return RunStart(run, step, load_resolved(run.config_yaml), manifest)
    except ConfigError as error:
        raise CheckpointError(f"{display(run.path)}: the run's config.yaml cannot be read: {error}") from None


class Fit(NamedTuple):
    """The differences between the initial weights and a run."""

    problems: list[tuple[str, str]]
    """Differences that are not allowed, each as (key of the run YAML, clause about the difference)."""
    notes: list[str]
    """Differences that are allowed, each as a sentence."""


def fit(start: Start, config: RunConfig) -> Fit:
    """Compare initial weights with a run's `model` section, blocks and vocabulary, and return differences."""
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
            f"the vocabulary grows from {rows:,} to {vocab_size:,} entries (tokenizer.vocab_size): each new "
            "row is the mean of the old rows." + _trained_rows(rows, config)
        )
    elif vocab_size < rows:
        found.notes.append(
            f"the vocabulary shrinks from {rows:,} to {vocab_size:,} entries (tokenizer.vocab_size): the "
            f"last {rows - vocab_size:,} rows are dropped."
        )
    return found


def _compare_layers(start: Start, config: RunConfig, found: Fit) -> None:
    """Compare how the blocks are created, by nbtrain or by layer() in a run's own code; add to `found`."""
    ours = has_own_layer(config)
    theirs = isinstance(start, RunStart) and "layer" in submitted_functions(start.run)
    if ours and not theirs:
        words = (
            f"creates the blocks with layer() in {config.code}, but nbtrain created the blocks of "
            f"{config.init_from}"
        )
        found.problems.append(("code", words))
    elif theirs and not ours:
        words = (
            f"has no layer(), but the blocks of {config.init_from} were created by layer() in that run's code"
        )
        found.problems.append(("code", words))
    elif isinstance(start, RunStart) and ours and start.manifest["code_sha256"] != code_sha256(config):
        found.notes.append(
            f"{config.code} is not the file that {start.title} was trained with. Only the names and shapes "
            "of the blocks' parameters are compared, not what layer() computes with them."
        )


def _trained_rows(before: int, config: RunConfig) -> str:
    """Return a sentence that says how many of the new vocabulary rows are trained; "" without lora.

    `before` is the number of rows in the initial weights.
    """
    if config.lora is None:
        return ""
    named = config.lora.trainable_token_indices or ()
    trained, new = sum(one >= before for one in named), config.tokenizer.vocab_size - before
    if trained == new:
        return f" All {new:,} new rows are trained with the adapters (lora.trainable_token_indices)."
    return (
        f" {trained:,} of the {new:,} new rows are trained with the adapters (lora.trainable_token_indices)."
    )
