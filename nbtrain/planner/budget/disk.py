"""Disk space that a run needs for its checkpoints, and for its dataset if that is prepared."""

from dataclasses import dataclass

from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes, node_checkpoint_bytes
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.blend import OpenBlend
from nbtrain.dataset.files import OpenDataset
from nbtrain.planner.budget.dataset_size import DatasetSize, dataset_size, read_dataset


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
    for_ever = steps // checkpoint.keep_every_steps if checkpoint.keep_every_steps else 0
    return min(newest + for_ever + checkpoint.keep_best + 1, written)
