"""Disk space that a run needs for its checkpoints, and for its dataset if that is prepared; its token counts.

Training reads the .idx of the dataset, so its counts take precedence over the manifest's. If the manifest
disagrees or the .idx cannot be read, the plan reports a finding (lint/schedule.py). Opening an index does not
read any tokens.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbtrain.base.errors import DataError
from nbtrain.base.run_directory.rundir import RunDir
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
    """Tokens of the data that a run trains on."""

    tokens: int
    documents: int
    train_tokens: int
    """Tokens of the training split."""
    basis: str
    """Source of the counts: "the .idx" or "the manifest"."""
    problem: str = ""
    """Problem with the .idx file or the manifest; "" if they agree."""


# Space for event and metrics files, logs and records of a run.
SPARE_BYTES_OF_LOGS = 64 << 20


@dataclass(frozen=True)
class DatasetOnDisk:
    """A run's prepared data as far as it can be read: a plan does not need a dataset that can be trained
    on.
    """

    manifest: DatasetManifest | None
    """None if there is none, or if it is damaged."""
    indexed: "tuple[IndexedDataset, ...]"
    """The dataset's pair, or all pairs of a blend; empty if one is missing or damaged."""
    problem: str = ""
    """Description of what is damaged; "" if nothing is."""


@dataclass(frozen=True)
class DiskEstimate:
    """Bytes on disk when the run uses the most."""

    checkpoint_bytes: int
    """Bytes of one checkpoint, over all ranks."""
    num_checkpoints: int
    """Number of checkpoints on disk: those that are kept, and one that is being written."""
    dataset_bytes: int | None
    """Bytes of the dataset; None if it is not prepared."""
    dataset: DatasetSize | None = None
    """Token counts of the dataset; None if it is not prepared."""
    local_bytes: int = 0
    """Bytes of checkpoints on each node's own disk (checkpoint.local_dir), in addition to the shared ones."""

    @property
    def checkpoints_bytes(self) -> int:
        return self.checkpoint_bytes * self.num_checkpoints

    def room_for_checkpoints(self, run: RunDir) -> tuple[int, int]:
        """Return (bytes of checkpoints that the run has already, free bytes that the rest and logs need)."""
        present = sum(path.stat().st_size for path in run.model.rglob("*") if path.is_file())
        return present, max(0, self.checkpoints_bytes - present) + SPARE_BYTES_OF_LOGS

    @property
    def total_bytes(self) -> int:
        return self.checkpoints_bytes + (self.dataset_bytes or 0)


def estimate_disk(config: RunConfig, dataset: OpenDataset | OpenBlend | None = None) -> DiskEstimate:
    """Estimate the disk space of a run's checkpoints and dataset; `dataset` is the run's, if it is open."""
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
    """Return the most bytes that checkpoints use on a node's own disk: kept, being written, and being
    copied.
    """
    checkpoint = config.checkpoint
    if config.mode != "full" or checkpoint.local_dir is None:
        return 0
    busy = 1 if checkpoint.local_save_interval_steps is None else 2
    return (checkpoint.local_keep_last + busy) * node_checkpoint_bytes(config, config.resources.nodes)


def num_checkpoints(config: RunConfig) -> int:
    """Return the largest number of checkpoints on disk at one time.

    The count includes the newest, the best, those kept indefinitely, and the one being written.
    """
    if config.mode != "full":
        return 0
    checkpoint, steps = config.checkpoint, config.train_steps
    # There is one checkpoint at every interval and one at the end.
    written = -(-steps // checkpoint.save_interval_steps)
    newest = min(checkpoint.keep_last, written)
    return min(newest + num_kept_for_ever(config) + checkpoint.keep_best + 1, written)


def num_kept_for_ever(config: RunConfig) -> int:
    """Return the number of checkpoints that checkpoint.keep_every_steps keeps."""
    every = config.checkpoint.keep_every_steps
    return config.train_steps // every if every else 0


def read_dataset(config: RunConfig, opened: OpenDataset | OpenBlend | None = None) -> DatasetOnDisk:
    """Read the manifest and the .idx of a run's data; `opened` is the run's dataset, if it is open."""
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
    """Open the pairs. This loads NumPy, which a plan without a dataset does not need."""
    from nbtrain.dataset.indexed import IndexedDataset

    return tuple(IndexedDataset(pair.prefix) for pair in pairs)


def dataset_size(config: RunConfig, dataset: DatasetOnDisk) -> DatasetSize | None:
    """Return the token counts; None if no dataset is prepared. A damaged dataset is described in
    `problem`.
    """
    manifest, indexed, problem = dataset.manifest, dataset.indexed, dataset.problem
    if not indexed:
        return _by_manifest(config, manifest, problem) if manifest else None
    tokens, documents = sum(pair.num_tokens for pair in indexed), sum(pair.num_documents for pair in indexed)
    if manifest is not None and (tokens, documents) != _counts(manifest):
        by_manifest, of_manifest = _counts(manifest)
        names = ", ".join(display(idx_path(pair.prefix)) for pair in indexed)
        problem = (
            f"{names}: {tokens:,} tokens in {documents:,} documents, but manifest.json says {by_manifest:,} "
            f"in {of_manifest:,}: the files are not those that were prepared. The plan counts the .idx."
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
    """Return the number of tokens in the training sequences."""
    first, last = split_bounds(config.data.split, config.data.split_rule, len(indexed))[0]
    if last >= len(indexed):
        return indexed.num_tokens
    # Only the ends of a large index are checked at opening, hence the bounds.
    size = indexed.dtype.itemsize
    tokens = int(indexed.pointers[last] - indexed.pointers[first]) // size
    return min(max(tokens, 0), indexed.num_tokens)
