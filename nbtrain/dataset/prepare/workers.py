"""Chooses the processes that encode a run's text: this process, local workers, or a Dask cluster."""

from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.requested_settings import place_of_setting
from nbtrain.corpus.workers.ordered_map import Workers

if TYPE_CHECKING:
    from nbtrain.corpus.workers.dask_cluster import DaskCluster

# A worker takes half a second to start. Below these sizes, one process finishes sooner than any number of
# workers.
PARALLEL_FROM_BYTES = 256 << 20
PARALLEL_FROM_BYTES_WHEN_SLOW = 16 << 20


def local(num_workers: int) -> Workers:
    """Return a pool of `num_workers` processes on this machine, or None (this process) for one worker."""
    if num_workers <= 1:
        return None
    from nbtrain.corpus.workers.local_pool import LocalPool

    return partial(LocalPool, num_workers)


class ChosenWorkers:
    """Worker processes of one prepare() call. A cluster runs from its first use to the `with` block's end."""

    def __init__(self, config: RunConfig):
        self.config = config
        self._cluster: DaskCluster | None = None

    def __enter__(self) -> "ChosenWorkers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut down the cluster before the end of the `with` block, once no part remains to be processed."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def choose(self, total_bytes: int | None, is_slow: bool, folder: Path) -> Workers:
        """Return the workers for a source of `total_bytes` that write to `folder`. Raises DataError."""
        data = self.config.data
        if data.workers.kind == "dask":
            from nbtrain.corpus.workers.dask_cluster import DaskCluster
            from nbtrain.corpus.workers.dask_pool import DaskPool

            if self._cluster is None:
                self._cluster = DaskCluster(data.workers, place_of_setting(self.config, "data.workers"))
            return partial(DaskPool, self._cluster, folder)
        least = PARALLEL_FROM_BYTES_WHEN_SLOW if is_slow else PARALLEL_FROM_BYTES
        if total_bytes is not None and total_bytes < least:
            return None
        return local(data.num_prepare_workers or usable_cores())
