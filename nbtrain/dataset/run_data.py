"""The tokenizer and the dataset of a run as they are in the data directory, opened once."""

import contextlib
from dataclasses import dataclass

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.code_file import defines
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.blend import OpenBlend
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import dataset_of, open_dataset


@dataclass(frozen=True)
class RunData:
    """The tokenizer and the dataset of a run, each opened, or the reason that it cannot be."""

    files: DatasetFiles
    """The pair that the run trains on, or its blend; it need not exist."""
    dataset: OpenDataset | OpenBlend | None
    """The opened dataset; None if it is missing, damaged, or does not fit the run's vocabulary."""
    dataset_problem: str
    """The reason that the dataset cannot be opened."""
    manifest: DatasetManifest | None
    """The dataset's manifest, also if the dataset cannot be opened; None if it is missing or damaged."""
    tokenizer: Tokenizer | None
    """The opened tokenizer; None if it is missing or damaged. Data of another program needs none."""
    tokenizer_problem: str
    """The reason that the tokenizer cannot be read."""
    tokenizer_sha256: str | None
    """Hash by which checkpoints identify the tokenizer; None if its manifest is missing or damaged."""

    @property
    def dataset_sha256(self) -> str | None:
        """Hash by which checkpoints identify the dataset; None if its manifest is missing or damaged."""
        return self.manifest.dataset_sha256 if self.manifest is not None else None


def read_run_data(config: RunConfig) -> RunData:
    """Open the tokenizer and the dataset of a run. Reads no token; errors are part of the result."""
    tokenizer, tokenizer_problem, own_sha256 = None, "", None
    directory = tokenizer_dir(config.tokenizer.name)
    try:
        manifest = read_manifest(directory)
        own_sha256 = manifest["sha256"] if manifest else None
        tokenizer = Tokenizer.load(directory, manifest=manifest)
    except DataError as error:
        tokenizer_problem = str(error)
    files, dataset, dataset_problem = dataset_of(config), None, ""
    known: DatasetManifest | None = None
    if defines(config, "dataset"):
        # Only the ranks read its samples.
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
    """Return the hash by which checkpoints identify the tokenizer; None if the run has none.

    Raises DataError if the tokenizer's manifest is damaged.
    """
    manifest = read_manifest(tokenizer_dir(config.tokenizer.name))
    return manifest["sha256"] if manifest else None
