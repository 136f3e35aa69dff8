"""Bytes that one machine sends to others in a step, by kind of traffic, and the seconds that the step waits.

A ring over n ranks passes through each machine once: of the V bytes that each of its ranks sends
(traffic.py), V leave a machine for each ring that has ranks on it. In an all-to-all, a rank sends each other
rank its share, so that only the shares of ranks on other machines leave. Between two pipeline stages every
rank sends to its neighbour, and the bytes leave if the neighbour is on another machine.

The step waits for the network in the parts whose ranks are on several machines, after what computation
hides.
"""

import math
from dataclasses import dataclass

from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates
from nbtrain.planner.time.step import StepTime
from nbtrain.planner.time.traffic import (
    Collective,
    block_traffic,
    boundary_bytes,
    data_traffic,
    muon_traffic,
    ranks_together,
)

DATA_KINDS = frozenset({"weights, forward", "weights, backward", "weights", "gradients"})
"""Kinds of traffic between data-parallel ranks: the gradients, and the weights that ZeRO gathers."""


@dataclass(frozen=True, slots=True)
class BetweenMachines:
    """Traffic of one machine with other machines in one optimizer step."""

    sent_bytes: dict[str, float]
    """Bytes that leave the machine, by kind; kinds that send nothing are omitted."""
    waiting_seconds: float
    """Seconds of the step that pass while ranks wait for other machines."""

    @property
    def total_bytes(self) -> float:
        return sum(self.sent_bytes.values())


def between_machines(setup: Setup, rates: Rates, step: StepTime) -> BetweenMachines:
    """Return the traffic between machines of a step; nothing is sent on one machine."""
    sent = {kind: num_bytes for kind, num_bytes in _sent(setup, rates).items() if num_bytes > 0}
    waiting = {
        "tensor": ("tensor-parallel sums",),
        "sequence": ("Ulysses", "ring attention"),
        "pipeline": ("pipeline",),
        "data": tuple(DATA_KINDS),
    }
    seconds = sum(
        getattr(step, part) for part, kinds in waiting.items() if any(kind in sent for kind in kinds)
    )
    return BetweenMachines(sent, seconds)


def _sent(setup: Setup, rates: Rates) -> dict[str, float]:
    per_node = max(setup.devices_per_node, 1)
    blocks = setup.accumulation_steps * (setup.shape.num_layers / setup.pipeline_parallel_size)

    def ring(collective: Collective) -> float:
        """Return the bytes of collectives that pass their whole array through every machine."""
        size = collective.ranks
        together = ranks_together(setup, rates, size, collective.stride)
        if together == size:
            return 0.0
        array = per_node / together * collective.factor * (size - 1) / size * collective.num_bytes
        return collective.times * array

    def all_to_all(collective: Collective) -> float:
        size = collective.ranks
        together = ranks_together(setup, rates, size, collective.stride)
        return collective.times * (per_node * (size - together) / size * collective.num_bytes)

    block = block_traffic(setup)
    sent = {
        "tensor-parallel sums": blocks * (ring(block.sums) + ring(block.shared_groups)),
        "Ulysses": blocks * all_to_all(block.ulysses),
        "ring attention": blocks * ring(block.ring),
        "pipeline": _pipeline(setup, rates),
        "Muon": all_to_all(muon_traffic(setup)),
    }
    if (data := data_traffic(setup)) is None:
        return sent
    sent["gradients"] = ring(data.gradients) + (ring(data.between_copies) if data.between_copies else 0.0)
    if data.weights is not None:
        kind = "weights, forward" if setup.zero_stage == 3 else "weights"
        sent[kind] = ring(data.weights)
    if data.weights_backward is not None:
        sent["weights, backward"] = ring(data.weights_backward)
    return sent


def _pipeline(setup: Setup, rates: Rates) -> float:
    """Return the bytes of activations and their gradients that a machine sends to neighbouring stages.

    A machine in the middle of a pipeline sends activations onwards and gradients back. Of two machines, each
    sends one of both; interleaved stages also return to the first machine, once less than they leave it.
    """
    stages, interleaved = setup.pipeline_parallel_size, setup.virtual_stages
    ranks = setup.world_size // stages
    together = ranks_together(setup, rates, stages, ranks)
    if together == stages:
        return 0.0
    times = 2 * interleaved if math.ceil(stages / together) > 2 else 2 * interleaved - 1
    crossing = min(max(setup.devices_per_node, 1), ranks)
    return times * setup.accumulation_steps * crossing * boundary_bytes(setup)
