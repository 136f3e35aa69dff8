"""Finds and opens the data of a run (dataset and tokenizer), and the dataset that a user names.

    dataset_of(config)      the pair that a run trains on, or its blend; it need not exist
    read_run_data(config)   tokenizer and dataset, each opened, or the reason why it cannot be opened
    find_dataset(text)      the dataset with a name, a folder or a prefix

Opening reads headers and manifests, but no tokens.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.text.order import natural
from nbtrain.base.workspace import dataset_dir, display, resolve, tokenizer_dir, typed_path, valid_name
from nbtrain.config.code_file import defines
from nbtrain.config.load import find, load
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.requested_settings import settings
from nbtrain.corpus.tokenizer.folder import manifest_of, read_manifest
from nbtrain.corpus.tokenizer.other_text import other_text_of
from nbtrain.dataset.blend import BlendFiles, OpenBlend
from nbtrain.dataset.files import DatasetFiles, OpenDataset, stem_of
from nbtrain.dataset.manifest import DatasetManifest, is_mask
from nbtrain.dataset.pair_paths import bin_path, idx_path

if TYPE_CHECKING:
    # Imported on use, because a plan needs neither a tokenizer nor NumPy.
    from nbtrain.corpus.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunData:
    """A run's tokenizer and dataset: each one opened, or the reason why it cannot be opened."""

    files: DatasetFiles
    """The pair that the run trains on, or the run's blend. It need not exist."""
    dataset: OpenDataset | OpenBlend | None
    """The opened dataset; None if it is missing, damaged, or does not fit the run's vocabulary."""
    dataset_problem: str
    """Reason why the dataset cannot be opened; "" if it was opened."""
    manifest: DatasetManifest | None
    """The dataset's manifest, even if the dataset cannot be opened; None if it is missing or damaged."""
    tokenizer: "Tokenizer | None"
    """The opened tokenizer; None if missing or damaged. Data from another program needs no tokenizer."""
    tokenizer_problem: str
    """Reason why the tokenizer cannot be read; "" if it was opened."""
    tokenizer_sha256: str | None
    """Hash by which checkpoints identify the tokenizer; None if its manifest is missing or damaged."""

    @property
    def dataset_sha256(self) -> str | None:
        """Hash by which checkpoints identify the dataset; None if its manifest is missing or damaged."""
        return self.manifest.dataset_sha256 if self.manifest is not None else None


def dataset_of(config: RunConfig) -> DatasetFiles:
    """Return the pair that a run trains on, or the run's blend as one dataset. It need not exist."""
    if config.data.blend:
        return BlendFiles.of(config)
    return DatasetFiles(dataset_dir(config.data.name), stem=stem_of(config, config.data.json_key))


def refuse_own_dataset(config: RunConfig) -> None:
    """Raise DataError if the run's `code` file defines dataset(), so that the run has no token files."""
    if defines(config, "dataset"):
        raise DataError(
            f"{config.where('code')}: code = {config.code}: its dataset() makes the run's samples, which "
            "only the run's ranks read. The run has no .bin and .idx files to prepare or to evaluate."
        )


def open_dataset(config: RunConfig) -> OpenDataset | OpenBlend:
    """Open a run's dataset, and check its file sizes and its vocabulary. Raises DataError."""
    refuse_own_dataset(config)
    dataset = dataset_of(config)
    vocab_size = config.tokenizer.vocab_size
    return dataset.open_blend(vocab_size) if isinstance(dataset, BlendFiles) else dataset.open(vocab_size)


def read_run_data(config: RunConfig) -> RunData:
    """Open a run's tokenizer and dataset. Reads no tokens; errors become part of the result."""
    tokenizer, tokenizer_problem, own_sha256 = None, "", None
    directory = tokenizer_dir(config.tokenizer.name)
    try:
        manifest = manifest_of(directory)
        own_sha256 = manifest["sha256"]
        # Imported here because it needs NumPy, which a run without a tokenizer does not.
        from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(directory, manifest=manifest)
    except DataError as error:
        tokenizer_problem = str(error)
    files, dataset, dataset_problem = dataset_of(config), None, ""
    known: DatasetManifest | None = None
    if defines(config, "dataset"):
        # Only the ranks read the samples of a user's dataset().
        return RunData(files, None, "", None, tokenizer, tokenizer_problem, own_sha256)
    try:
        dataset = open_dataset(config)
        known = dataset.manifest
    except DataError as error:
        dataset_problem = str(error)
        with contextlib.suppress(DataError):
            known = files.manifest()
    return RunData(files, dataset, dataset_problem, known, tokenizer, tokenizer_problem, own_sha256)


def tokenizer_sha256(config: RunConfig) -> str | None:
    """Return the hash by which checkpoints identify the tokenizer; None if the tokenizer is missing.

    Raises DataError if the tokenizer's manifest is damaged.
    """
    manifest = read_manifest(tokenizer_dir(config.tokenizer.name))
    return manifest["sha256"] if manifest else None


def other_text_of_tokenizer(config: RunConfig) -> str:
    """Return a clause that names the other text that the run's tokenizer was trained on.

    Returns "" if the tokenizer was trained on the run's own text, and for a run with init_from, because its
    weights require that tokenizer.
    """
    directory = tokenizer_dir(config.tokenizer.name)
    return "" if config.init_from is not None else other_text_of(directory, settings(config))


def data_named(text: str, overrides: Sequence[str] = ()) -> RunConfig | str:
    """Return the config of the run that `text` names, or `text` itself if it names a dataset or a prefix.

    For the path of a .bin or .idx file, the result is its prefix, without the suffix. A run is named as in
    every command: an example, a run in the workspace, or the path of a YAML file. Raises ConfigError for an
    invalid run, and if overrides are given but `text` does not name a run.
    """
    if text.endswith((".bin", ".idx")):
        return text[:-4]
    try:
        find(text)
    except ConfigError:
        if overrides:
            raise
        return text
    return load(text, list(overrides))


def find_dataset(target: str | os.PathLike | RunConfig) -> DatasetFiles:
    """Return the dataset of a run, or the dataset that a name, folder or prefix means. Raises DataError."""
    if isinstance(target, RunConfig):
        if target.data.blend:
            names = ", ".join(entry.name or entry.prefix or "" for entry in target.data.blend)
            raise DataError(
                f"{target.name}: data.blend mixes {len(target.data.blend)} datasets, and the blend does not "
                f"have a .bin/.idx pair. Name one of the datasets: {names}."
            )
        return dataset_of(target)
    text = os.fspath(target)
    if valid_name(text) and dataset_dir(text).is_dir():
        return _in_folder(dataset_dir(text))
    # First the path as typed, then the path below the workspace.
    for path in (typed_path(text), resolve(text)):
        if path.is_dir() and any(path.glob("[!.]*.idx")):
            return _in_folder(path.absolute())
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        if idx_path(prefix).is_file() or bin_path(prefix).is_file():
            return DatasetFiles(prefix.parent.absolute(), stem=prefix.name)
    root = dataset_dir("x").parent
    known = sorted({path.parent.name for path in root.glob("[!.]*/*.idx")}, key=natural)
    raise DataError(
        f"{text}: there is no dataset with this name in {display(root)}, and no {text}.idx. "
        + (
            f"Existing datasets: {', '.join(known)}."
            if known
            else "Run `nbtrain prepare RUN.yaml` to make one."
        )
    )


def _in_folder(directory: Path) -> DatasetFiles:
    """Return the pair that a folder's manifest names for training; without a manifest, the first pair."""
    manifest = DatasetFiles(directory).manifest()
    if manifest is not None:
        return DatasetFiles(directory, stem=manifest.stem)
    stems = sorted(path.stem for path in directory.glob("[!.]*.idx"))
    return DatasetFiles(directory, stem=next((stem for stem in stems if not is_mask(stem, stems)), None))
