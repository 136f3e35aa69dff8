"""Check that the weights a run starts from (`init_from`) fit, and record their identity, before launch.

A run that has a checkpoint continues from it: `init_from` is no longer read, and its files may be gone. A run
with adapters needs these weights at every start; its first submission recorded their hash. A run with `dpo`
needs them again if its reference log-probabilities are no longer in the index cache, because they are
computed from these weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, SubmitError
from nbtrain.base.findings import Cost, Finding
from nbtrain.base.run_directory.checkpoint_files import checkpoint_problem, newest_saved_step
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir
from nbtrain.base.workspace import display, resolve, tokenizer_dir
from nbtrain.config.findings import mistake
from nbtrain.config.load import load_resolved
from nbtrain.config.load.edits import with_overrides
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.extension import ids_differ
from nbtrain.corpus.tokenizer.folder import ONE_FILE, read_manifest
from nbtrain.corpus.tokenizer.origin import recorded_origin
from nbtrain.pretrained.folder import PEFT_WEIGHTS
from nbtrain.pretrained.peft import adapter_problems, notes_of, section_fix
from nbtrain.pretrained.start import (
    RunStart,
    Start,
    fit,
    hashes_of,
    is_there,
    open_start,
    refuse_changed,
    vocab_size_of,
)


@dataclass(frozen=True)
class InitialWeights:
    """The initial weights of a run's next job (`init_from`), opened once for all checks."""

    begins: bool
    """Whether the run has no checkpoint yet, so that its next job begins with these weights."""
    start: Start | None = None
    """The opened weights; None if the next job does not read them, or if they cannot be opened."""
    problem: str = ""
    """Why the weights cannot be opened; "" if they can."""
    recorded_sha256: str | None = None
    """Hash of the weights that the run's first submission recorded.

    None if the next job begins with the weights, or does not read them.
    """


def read_initial_weights(config: RunConfig, begins: bool | None = None) -> InitialWeights:
    """Open the weights that a run's next job reads.

    If `begins` is None, it is determined from the run directory.
    """
    run = RunDir.named(config.name)
    if begins is None:
        begins = config.init_from is not None and newest_saved_step(run) is None
    if config.init_from is None:
        return InitialWeights(begins)
    computes_reference = not begins and config.lora is None and _lacks_reference(run, config)
    if not (begins or config.lora is not None or computes_reference):
        return InitialWeights(begins)
    try:
        if begins:
            return InitialWeights(begins, open_start(config))
        known = (files.read_json(run.init_from_json) or {}).get("sha256")
        return InitialWeights(begins, open_start(config, run), recorded_sha256=known)
    except CheckpointError as error:
        why = (
            " The run needs these weights again to compute the reference log-probabilities of its preference "
            "pairs (dpo), which are no longer in the index cache of its dataset."
        )
        return InitialWeights(begins, problem=f"{error}{why if computes_reference else ''}")


def _lacks_reference(run: RunDir, config: RunConfig) -> bool:
    """Return whether the next job of a run with `dpo` must compute the pairs' reference log-probabilities.

    Returns False if the dataset cannot be opened, which another check reports.
    """
    if config.dpo is None:
        return False
    # Imported here because few runs train on preferences.
    from nbtrain.dataset.files import OpenDataset
    from nbtrain.dataset.of_run import open_dataset
    from nbtrain.dataset.samples.reference import description_of, known_reference

    try:
        opened = open_dataset(config)
    except DataError:
        return False
    if not isinstance(opened, OpenDataset):
        return False
    known = files.read_json(run.init_from_json)
    if known is None:
        # The ranks then hash the weights themselves.
        return True
    description = description_of(config, opened.manifest.dataset_sha256, known["sha256"])
    return known_reference(opened.files.index_cache, description) is None


def read_weights_again(config: RunConfig, weights: InitialWeights) -> InitialWeights:
    """Return the weights as they are now, for a decision under the run's lock.

    If they belong to another run, that run may have removed the chosen checkpoint; then its newest checkpoint
    is chosen. Raises SubmitError if that run has no other checkpoint.
    """
    start = weights.start
    if not weights.begins or not isinstance(start, RunStart) or checkpoint_problem(start.path) is None:
        return weights
    again = read_initial_weights(config, begins=True)
    if again.problem:
        gone = f"{start.title} was removed while this run was being submitted"
        raise SubmitError(f"{config.where('init_from')}: {gone}: {again.problem}")
    return again


def problems_of_weights(config: RunConfig, weights: InitialWeights) -> Iterator[Finding]:
    """Check the weights of init_from.

    They must be complete, unchanged since the run began with them, and fit the run's model and tokenizer.
    """
    if weights.problem:
        yield mistake(config, "init_from", f"init_from: {weights.problem}")
    if (start := weights.start) is None:
        return
    if weights.recorded_sha256 is not None:
        try:
            refuse_changed(start, weights.recorded_sha256)
        except CheckpointError as error:
            yield mistake(config, "init_from", str(error))
    try:
        problems = fit(start, config).problems
    except CheckpointError as error:
        yield mistake(config, "init_from", f"init_from: {error}")
        return
    if weights.begins:
        yield from _adapters_fit(config)
    for key, words in problems:
        fix = (
            f"To inherit the model section of that run, set `extends: {display(start.run.config_yaml)}`."
            if isinstance(start, RunStart)
            else "To write a run YAML that fits the model's folder, run `nbtrain import-model`."
        )
        yield mistake(config, key, f"{key} {words}: the weights do not fit.", fix)
    if difference := other_ids(start, config):
        yield mistake(
            config,
            "tokenizer.name",
            f"tokenizer.name = {config.tokenizer.name}: {difference}.",
            "The run's token ids would stand for other text than when the weights were trained. Set "
            "tokenizer.name to the tokenizer of the weights, or to one that has all its tokens with the same "
            "ids.",
        )


def findings_of_weights(config: RunConfig) -> list[Finding]:
    """Return the problems of init_from, for `nbtrain check`.

    They are only warnings if the weights do not exist yet, because a run may be checked before the run that
    it starts from is trained.
    """
    found = [
        replace(finding, rule="initial_weights_fit")
        for finding in problems_of_weights(config, read_initial_weights(config))
    ]
    if not found or is_there(config):
        return found
    return [replace(finding, level="warning", cost=Cost()) for finding in found]


def _adapters_fit(config: RunConfig) -> Iterator[Finding]:
    lora = config.lora
    if lora is None or lora.init_from is None:
        return
    key = "lora.init_from"
    try:
        found = adapter_problems(resolve(lora.init_from), config)
    except (CheckpointError, ConfigError) as error:
        yield mistake(config, key, f"{key}: {error}")
        return
    fix = section_fix(resolve(lora.init_from), config) if found else ""
    for words in found:
        yield mistake(config, key, f"{key}: {lora.init_from}: {words}.", fix)


def other_ids(start: Start, config: RunConfig) -> str:
    """Return how the run's token ids differ from those of the weights.

    Returns "" if the run's tokenizer has all tokens of the weights' tokenizer with the same ids.
    """
    ours = tokenizer_dir(config.tokenizer.name)
    try:
        manifest = read_manifest(ours)
        if manifest is None:
            return ""
        if isinstance(start, RunStart):
            theirs = tokenizer_dir(start.config.tokenizer.name)
            if start.tokenizer_sha256 in (None, manifest["sha256"]):
                return ""
            known = read_manifest(theirs)
            if known is None or known["sha256"] != start.tokenizer_sha256:
                return (
                    f"{start.title} was trained with a tokenizer whose SHA-256 is "
                    f"{(start.tokenizer_sha256 or '')[:12]}..., but the SHA-256 of {display(ours)} is "
                    f"{manifest['sha256'][:12]}..."
                )
            return ids_differ(theirs, ours)
        return ids_differ(start.path, ours) if (start.path / ONE_FILE).is_file() else ""
    except DataError as error:
        return str(error).rstrip(".")


def with_new_tokens(
    config: RunConfig, weights: InitialWeights | None = None, before: RunConfig | None = None
) -> RunConfig:
    """Return the configuration with lora.trainable_token_indices filled in if the vocabulary has new rows.

    `weights` are the run's initial weights, and `before` is the configuration of its last submission; both
    are read if they are None. A run that has a checkpoint keeps the indices that its first submission
    recorded. If init_from cannot be opened, the configuration is returned unchanged, and preflight rejects
    it.
    """
    lora = config.lora
    if lora is None or lora.kind != "lora" or lora.trainable_token_indices is not None:
        return config
    if config.init_from is None:
        return config
    weights = weights or read_initial_weights(config)
    if not weights.begins:
        run = RunDir.named(config.name)
        if before is None and run.config_yaml.is_file():
            before = load_resolved(run.config_yaml)
        known = before.lora if before is not None else None
        ids = known.trainable_token_indices if known is not None else None
    elif weights.start is None:
        return config
    else:
        ids = list(range(vocab_size_of(weights.start), config.tokenizer.vocab_size)) or None
    return config if ids is None else with_overrides(config, {"lora.trainable_token_indices": ids})


def record_initial(run: RunDir, config: RunConfig, weights: InitialWeights) -> list[str]:
    """Write init_from.json, with which the ranks verify the initial weights, and which an export reads.

    If the run begins without init_from, the file of an earlier submission is removed. Returns a note about
    each allowed difference between the weights and the run's settings.
    """
    if weights.begins and config.init_from is None:
        run.init_from_json.unlink(missing_ok=True)
    if weights.start is None or not weights.begins:
        return []
    start = weights.start
    files.write_json(run.init_from_json, {"schema_version": SCHEMA_VERSION, **_record(start, config)})
    notes = [f"init_from: {note}" for note in fit(start, config).notes]
    if config.lora is not None and config.lora.init_from is not None:
        notes += [f"lora.init_from: {note}" for note in notes_of(resolve(config.lora.init_from), config)]
    return notes


def refuse_other_weights(config: RunConfig, recorded: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the weights or adapters with which a run begins are gone or have changed.

    They are compared with `recorded`, the init_from.json of the run that this run repeats.
    """
    weights = read_initial_weights(config, begins=True)
    if weights.start is None:
        raise CheckpointError(f"init_from: {weights.problem}")
    refuse_changed(weights.start, recorded["sha256"])
    adapters = recorded.get("adapters_sha256")
    if config.lora is None or config.lora.init_from is None or adapters is None:
        return
    path = resolve(config.lora.init_from) / PEFT_WEIGHTS
    if not path.is_file() or files.sha256_of(path) != adapters:
        raise CheckpointError(
            f"lora.init_from: {display(path)} is gone or has changed since the run was submitted. Restore "
            "the old file, or train from the new file in a run with another name."
        )


def _record(start: Start, config: RunConfig) -> dict[str, Any]:
    said: dict[str, Any] = {
        "path": config.init_from,
        "family": start.title,
        **hashes_of(start, config),
        "parameters": start.count,
        "vocabulary": {"before": vocab_size_of(start), "now": config.tokenizer.vocab_size},
        "dtypes": start.dtypes,
    }
    if isinstance(start, RunStart):
        return said | {
            "run": start.run.name,
            "run_id": start.run.run_id,
            "step": start.step,
            "validation_loss": start.manifest["validation_loss"],
            "tokenizer_sha256": start.tokenizer_sha256,
            "origin": recorded_origin(start.run),
        }
    folder, tokenizer = start.folder, start.path / ONE_FILE
    return said | {
        "files": {path.name: path.stat().st_size for path in folder.shards},
        "config": folder.config,
        "generation_config": folder.generation_config,
        "tokenizer_sha256": files.sha256_of(tokenizer) if tokenizer.is_file() else None,
    }
