"""Disk space that a run needs for its checkpoints and its prepared dataset, and the dataset's token counts.

Training reads the dataset's .idx file, so its counts take precedence over those in the manifest. If the two
disagree or the .idx file cannot be read, the plan reports a finding (lint/schedule.py). Opening an .idx file
does not read any tokens.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base.errors import DataError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes, node_checkpoint_bytes
from nbtrain.config.arithmetic.splits import split_bounds, split_weights
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.blend import BlendFiles, OpenBlend
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.pair_paths import idx_path

if TYPE_CHECKING:
    from nbtrain.dataset.indexed import IndexedDataset


@dataclass(frozen=True)
class DatasetSize:
    """Number of tokens and documents of a run's dataset."""

    tokens: int
    documents: int
    train_tokens: int
    """Number of tokens in the training split."""
    basis: str
    """Source of the counts: "the .idx" or "the manifest"."""
    problem: str = ""
    """Description of a problem with the .idx file or the manifest; "" if both are readable and agree."""


# Space to reserve for the event files, metrics, logs and records of a run.
SPARE_BYTES_OF_LOGS = 64 << 20


@dataclass(frozen=True)
class DatasetOnDisk:
    """The files of a run's prepared data, as far as they can be read.

    A plan does not need a complete dataset.
    """

    manifest: DatasetManifest | None
    """The manifest; None if it is missing or damaged."""
    indexed: "tuple[IndexedDataset, ...]"
    """The dataset, or all datasets of a blend; empty if a .idx file is missing or damaged."""
    problem: str = ""
    """Description of the damage; "" if no file is damaged."""


@dataclass(frozen=True)
class DiskEstimate:
    """Largest number of bytes that a run needs on disk at one time."""

    checkpoint_bytes: int
    """Bytes of one checkpoint, summed over all ranks."""
    num_checkpoints: int
    """Largest number of checkpoints on disk: the kept ones, and one that is being written."""
    dataset_bytes: int | None
    """Bytes of the dataset; None if it is not prepared."""
    dataset: DatasetSize | None = None
    """Token counts of the dataset; None if it is not prepared."""
    local_bytes: int = 0
    """Bytes of checkpoints on each node's local disk (checkpoint.local_dir), not in the run directory."""

    @property
    def checkpoints_bytes(self) -> int:
        return self.checkpoint_bytes * self.num_checkpoints

    def room_for_checkpoints(self, run: RunDir) -> tuple[int, int]:
        """Return (bytes of the run's existing checkpoints, bytes that further checkpoints and logs need)."""
        present = sum(path.stat().st_size for path in run.model.rglob("*") if path.is_file())
        return present, max(0, self.checkpoints_bytes - present) + SPARE_BYTES_OF_LOGS

    @property
    def total_bytes(self) -> int:
        return self.checkpoints_bytes + (self.dataset_bytes or 0)


def estimate_disk(config: RunConfig, dataset: OpenDataset | OpenBlend | None = None) -> DiskEstimate:
    """Estimate the disk space of a run's checkpoints and dataset.

    `dataset` is the run's dataset, if the caller has opened it.
    """
    files = read_dataset(config, dataset)
    manifest = files.manifest
    return DiskEstimate(
        checkpoint_bytes=checkpoint_bytes(config),
        num_checkpoints=num_checkpoints(config),
        dataset_bytes=sum(entry["bytes"] for entry in manifest.files.values()) if manifest else None,
        dataset=dataset_size(config, files),
        local_bytes=local_bytes(config),
    )


def local_bytes(config: RunConfig) -> int:
    """Return the largest number of bytes that checkpoints need on a node's local disk.

    The kept checkpoints, the one being written and the one being copied are counted.
    """
    checkpoint = config.checkpoint
    if config.mode != "full" or checkpoint.local_dir is None:
        return 0
    busy = 1 if checkpoint.local_save_interval_steps is None else 2
    return (checkpoint.local_keep_last + busy) * node_checkpoint_bytes(config, config.resources.nodes)


def num_checkpoints(config: RunConfig) -> int:
    """Return the largest number of checkpoints on disk at one time.

    The newest checkpoints, the best one, the permanently kept ones and the one being written are counted.
    """
    if config.mode != "full":
        return 0
    checkpoint, steps = config.checkpoint, config.train_steps
    # A checkpoint is written at every interval and at the end.
    written = -(-steps // checkpoint.save_interval_steps)
    newest = min(checkpoint.keep_last, written)
    return min(newest + num_kept_for_ever(config) + checkpoint.keep_best + 1, written)


def num_kept_for_ever(config: RunConfig) -> int:
    """Return the number of checkpoints that checkpoint.keep_every_steps keeps permanently."""
    every = config.checkpoint.keep_every_steps
    return config.train_steps // every if every else 0


def read_dataset(config: RunConfig, opened: OpenDataset | OpenBlend | None = None) -> DatasetOnDisk:
    """Read the manifest and the .idx files of a run's data.

    `opened` is the run's dataset, if the caller has opened it.
    """
    if opened is not None:
        entries = opened.entries if isinstance(opened, OpenBlend) else (opened,)
        return DatasetOnDisk(opened.manifest, tuple(entry.indexed for entry in entries))
    files = dataset_of(config)
    pairs = [entry.files for entry in files.entries] if isinstance(files, BlendFiles) else [files]
    manifest: DatasetManifest | None = None
    indexed: tuple[IndexedDataset, ...] = ()
    problem = ""
    try:
        manifest = files.manifest()
    except DataError as error:
        problem = str(error)
    if all(pair.idx.is_file() for pair in pairs):
        try:
            indexed = _opened(pairs)
        except DataError as error:
            problem = str(error)
    return DatasetOnDisk(manifest, indexed, problem)


def _opened(pairs: list[DatasetFiles]) -> "tuple[IndexedDataset, ...]":
    """Open the datasets. This imports NumPy, which a plan without a dataset does not need."""
    from nbtrain.dataset.indexed import IndexedDataset

    return tuple(IndexedDataset(pair.prefix) for pair in pairs)


def dataset_size(config: RunConfig, dataset: DatasetOnDisk) -> DatasetSize | None:
    """Return the token counts of a dataset; None if no dataset is prepared.

    If a file is damaged, or the .idx file and the manifest disagree, the field `problem` of the result says
    so.
    """
    manifest, indexed, problem = dataset.manifest, dataset.indexed, dataset.problem
    if not indexed:
        return _by_manifest(config, manifest, problem) if manifest else None
    tokens, documents = sum(pair.num_tokens for pair in indexed), sum(pair.num_documents for pair in indexed)
    if manifest is not None and (tokens, documents) != _counts(manifest):
        by_manifest, of_manifest = _counts(manifest)
        names = ", ".join(display(idx_path(pair.prefix)) for pair in indexed)
        have, idx = ("has", "the .idx file") if len(indexed) == 1 else ("together have", "the .idx files")
        problem = (
            f"{names} {have} {tokens:,} tokens in {amounts.counted(documents, 'document')}, but "
            f"manifest.json lists {by_manifest:,} tokens in {amounts.counted(of_manifest, 'document')}, "
            "so the files have changed since the dataset was prepared. The plan uses the counts from "
            f"{idx}."
        )
    trained = sum(_train_tokens(config, pair) for pair in indexed)
    return DatasetSize(tokens, documents, trained, "the .idx", problem)


def _by_manifest(config: RunConfig, manifest: DatasetManifest, problem: str) -> DatasetSize:
    tokens, documents = _counts(manifest)
    weights = split_weights(config.data.split)
    trained = round(tokens * weights[0] / sum(weights))
    return DatasetSize(tokens, documents, trained, "the manifest", problem)


def _counts(manifest: DatasetManifest) -> tuple[int, int]:
    return manifest.counts["tokens"], manifest.counts["documents"]


def _train_tokens(config: RunConfig, indexed: "IndexedDataset") -> int:
    """Return the number of tokens in the training split of one .idx file."""
    first, last = split_bounds(config.data.split, config.data.split_rule, len(indexed))[0]
    if last >= len(indexed):
        return indexed.num_tokens
    # Opening a large index checks only its ends, so the pointers may be wrong: limit the result.
    size = indexed.dtype.itemsize
    tokens = int(indexed.pointers[last] - indexed.pointers[first]) // size
    return min(max(tokens, 0), indexed.num_tokens)
