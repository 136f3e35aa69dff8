"""Memory and disk that a run needs: the part of a plan that decides whether the run can start."""

from dataclasses import dataclass

from nbtrain.config.schema import RunConfig
from nbtrain.dataset.blend import OpenBlend
from nbtrain.dataset.files import OpenDataset
from nbtrain.planner.budget.disk import DiskEstimate, estimate_disk
from nbtrain.planner.memory import MemoryEstimate, estimate
from nbtrain.planner.setup.setup import Setup, setup_of


@dataclass(frozen=True)
class Needs:
    """The setup of a run, with the memory and the disk that it takes."""

    setup: Setup
    memory: MemoryEstimate
    disk: DiskEstimate


def needs_of(config: RunConfig, dataset: OpenDataset | OpenBlend | None = None) -> Needs:
    """Estimate the memory and disk of a run. `dataset` is its prepared data, if the caller has opened it."""
    setup = setup_of(config)
    return Needs(setup, estimate(setup), estimate_disk(config, dataset))
