"""Coordinates of a rank in a layout, computed without a process group.

    global rank = (pipeline * data_parallel_size + data) * tensor_parallel_size + tensor

Pipeline is outermost and tensor innermost, as in DeepSpeed's PipeModelDataParallelTopology, so that
tensor-parallel ranks are neighbors on one node. With Ulysses or context parallelism, each sequence is split
between several ranks, which are neighbors on the data axis; the size of the data axis includes them. A *size*
is the number of ranks along one kind of parallelism, and a *rank* is an index along it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """A layout of ranks: its pipeline, data and tensor-parallel sizes."""

    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        return self.pipeline_parallel_size * self.data_parallel_size * self.tensor_parallel_size

    def coordinate(self, rank: int) -> tuple[int, int, int]:
        """Return (pipeline, data, tensor) of a global rank."""
        rest, tensor = divmod(rank, self.tensor_parallel_size)
        pipeline, data = divmod(rest, self.data_parallel_size)
        return pipeline, data, tensor

    def rank(self, pipeline: int, data: int, tensor: int) -> int:
        """Return the global rank at a coordinate."""
        return (pipeline * self.data_parallel_size + data) * self.tensor_parallel_size + tensor
