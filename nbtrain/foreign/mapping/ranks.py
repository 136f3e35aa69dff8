"""Computes the ranks of a job, and whether they form a whole number of model replicas."""

import math
from typing import NamedTuple

from nbtrain.config.arithmetic.layout_words import MODEL_KINDS, PARALLELISM
from nbtrain.config.schema import RunConfig
from nbtrain.foreign.mapping.conversion import Reading

NODES, GPUS = "resources.nodes", "resources.gpus_per_node"


class Ranks(NamedTuple):
    """Machines of a job, and the sizes of its layout except the data-parallel size.

    A number is 0 if the files do not contain it, or contain something that is not a number.
    """

    nodes: int
    gpus: int
    """Number of GPUs on a node; on CPUs, the number of ranks on a node."""
    sizes: dict[str, int]

    @property
    def total(self) -> int:
        return self.nodes * self.gpus

    @property
    def model(self) -> int:
        """Number of ranks in a model replica."""
        return math.prod(self.sizes.values())

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas; 0 if it is not known or not a whole number."""
        return self.total // self.model if self.model and self.total % self.model == 0 else 0

    @property
    def leave_some_over(self) -> bool:
        """Whether the number of ranks is known but not a multiple of the ranks in a replica."""
        return bool(self.total and self.model and not self.replicas)

    @property
    def fitting_nodes(self) -> int:
        """Smallest number of nodes that a whole number of replicas fills. Its multiples also fit."""
        return self.model // math.gcd(self.model, self.gpus)

    @property
    def words(self) -> str:
        """The sizes above 1, written as a product."""
        return " * ".join(f"{PARALLELISM[kind]}({size})" for kind, size in self._above_one())

    @property
    def comment(self) -> str:
        """Comment for the run YAML that explains the data-parallel size."""
        kinds = " x ".join(PARALLELISM[kind] for kind, _ in self._above_one())
        return f"{self.total} ranks" + (f" over {kinds}" if kinds else "")

    def _above_one(self) -> list[tuple[str, int]]:
        return [(kind, size) for kind, size in self.sizes.items() if size > 1]


def ranks_of(source: Reading, base: RunConfig | None = None) -> Ranks:
    """Return the ranks of a job.

    A value that neither the job nor an override sets comes from `base`, the run that a layout is applied to.
    """
    nodes = source.said(NODES, base.resources.nodes if base else 0)
    device = source.said("resources.device", base.resources.device if base else "gpu")
    # A run on CPUs has as many ranks as the launch starts, whatever the number of GPUs.
    gpus = source.values.get(GPUS, 0) if device == "cpu" else 0
    gpus = gpus or source.said(GPUS, base.resources.gpus_per_node if base else 0)
    sizes = {}
    for kind in MODEL_KINDS:
        field = f"{kind}_parallel_size"
        sizes[kind] = source.said(f"parallel.{field}", getattr(base.parallel, field) if base else 1)
    return Ranks(_count(nodes), _count(gpus), {kind: _count(size) for kind, size in sizes.items()})


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
