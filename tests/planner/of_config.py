"""The memory of a pipeline stage of a run by part, for the tests in this folder."""

from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory import stage_parts as parts_of_setup
from nbtrain.planner.memory.estimate import host_parts
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.memory.states import states
from nbtrain.planner.setup.setup import setup_of


def activation_bytes(config: RunConfig, stage: int) -> int:
    """Return the bytes of all activations kept for the backward pass, for all micro batches in flight."""
    return stage_memory(config, stage)["activations"]


def kept_bytes(config: RunConfig, stage: int) -> int:
    """Return the bytes of the activations that are kept throughout, without those that recomputation
    allocates again.
    """
    setup = setup_of(config)
    return int(activations.kept(setup, stage_of(setup, stage)).total)


def logits_bytes(config: RunConfig, stage: int) -> int:
    """Return the bytes of the output layer and its loss."""
    setup = setup_of(config)
    return buffers.logits_bytes(setup, stage_of(setup, stage))


def stage_memory(config: RunConfig, stage: int) -> dict[str, int]:
    """Return the bytes of each part on the device."""
    return parts_of_setup(setup_of(config), stage)


def host_memory(config: RunConfig, stage: int) -> dict[str, int]:
    """Return the bytes of each part in host memory, for a machine with GPUs."""
    setup = setup_of(config)
    found = stage_of(setup, stage)
    return host_parts(setup, found, states(setup, found))


def nvme_bytes(config: RunConfig, stage: int) -> int:
    """Return the bytes that are stored on NVMe."""
    setup = setup_of(config)
    return sum(states(setup, stage_of(setup, stage)).at("nvme"))
