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
from nbtrain.planner.time.step import StepTime, rank_parameters
from nbtrain.planner.time.traffic import (
    DTYPE_BYTES,
    boundary_bytes,
    gradient_element,
    muon_bytes,
    ranks_together,
    shared_groups_bytes,
    traded_bytes,
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
    shape, tensor, stages = setup.shape, setup.tensor_parallel_size, setup.pipeline_parallel_size
    per_node, micro = max(setup.devices_per_node, 1), setup.accumulation_steps
    full, layers = setup.recompute == "full", shape.num_layers / stages
    activations = DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * shape.hidden_size

    def ring(size: int, stride: int, array_bytes: float, factor: float = 1.0) -> float:
        """Return the bytes of a collective over a whole array; `factor` is 2 for an all-reduce."""
        together = ranks_together(setup, rates, size, stride)
        if together == size:
            return 0.0
        return per_node / together * factor * (size - 1) / size * array_bytes

    def all_to_all(size: int, stride: int, rank_bytes: float) -> float:
        together = ranks_together(setup, rates, size, stride)
        return per_node * (size - together) / size * rank_bytes

    sums = (6 if full else 4) * ring(tensor, 1, activations, 2)
    sums += (3 if full else 2) * ring(tensor, 1, shared_groups_bytes(setup))
    ulysses, context = setup.ulysses_size, setup.context_parallel_size
    chunks = DTYPE_BYTES[setup.dtype] * 2 * setup.tokens_per_micro_batch * shape.kv_width / tensor
    sent = {
        "tensor-parallel sums": micro * layers * sums,
        "Ulysses": micro * layers * (12 if full else 8) * all_to_all(ulysses, tensor, traded_bytes(setup)),
        "ring attention": micro * layers * (3 + full) * ring(context, tensor, chunks * context),
        "pipeline": _pipeline(setup, rates),
        "Muon": 2 * all_to_all(setup.data_axis_size * tensor, 1, muon_bytes(setup)),
    }
    if setup.data_axis_size == 1:
        return sent
    zero, data = setup.zero_stage, setup.data_axis_size
    sharing = setup.zero_size if zero else data
    held = rank_parameters(setup)
    trained = setup.adapter_parameters if setup.lora_rank else held
    gradient = trained * gradient_element(setup)
    weights = (held if zero == 3 else trained) * DTYPE_BYTES[setup.dtype]
    if zero == 0:
        return sent | {"gradients": ring(data, tensor, gradient, 2)}
    times = micro if zero >= 2 and stages == 1 else 1
    sent["gradients"] = times * ring(sharing, tensor, gradient)
    if sharing < data:
        sent["gradients"] += times * ring(data // sharing, tensor * sharing, gradient / sharing, 2)
    if zero < 3:
        return sent | {"weights": ring(sharing, tensor, weights)}
    near = setup.hpz_size if setup.hpz_size > 1 else sharing
    sent["weights, forward"] = (
        times * ring(sharing, tensor, weights) * (0.5 if setup.quantized_weights else 1)
    )
    if stages == 1:
        sent["weights, backward"] = times * ring(near, tensor, weights)
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
