"""Compare DeepSpeed's own estimate of model states with the plan's estimate, and explain the difference.

DeepSpeed 0.19.8 estimates model states in estimate_zero2_model_states_mem_needs
(runtime/zero/stage_1_and_2.py) and estimate_zero3_model_states_mem_needs (runtime/zero/stage3.py). The
formulas are repeated here, so that a notebook does not need DeepSpeed. tests/train/test_second_opinion.py
compares them with the installed functions, and their inputs with what DeepSpeed counts in a model. DeepSpeed
counts only states, not activations, logits or CUDA, and adds 50 % to the host memory.
"""

from collections import Counter
from dataclasses import dataclass

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.block_parameters import block_parameters
from nbtrain.config.arithmetic.parameters import count_layers, largest_of
from nbtrain.config.shape import Shape
from nbtrain.planner.memory.estimate import MemoryEstimate, estimate
from nbtrain.planner.setup.setup import Setup

VERSION = "0.19.8"
MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """DeepSpeed's estimate and the plan's estimate of the same setup, in bytes."""

    device_bytes: int
    """Bytes of model states on one GPU, according to DeepSpeed's formula."""
    host_bytes: int
    """Bytes of host memory on a node, according to DeepSpeed's formula."""
    planned_device_bytes: int
    planned_host_bytes: int
    """Bytes of host memory on a node, according to the plan."""
    source: str
    reasons: list[str]
    """Reasons why the two estimates differ."""

    def lines(self) -> list[str]:
        """Return the comparison as lines of text."""
        size = amounts.size
        return [
            f"DeepSpeed {VERSION} ({self.source}): {size(self.device_bytes)} of model states per GPU, "
            f"{size(self.host_bytes)} of host memory per node",
            f"This plan: {size(self.planned_device_bytes)} of model states per GPU, "
            f"{size(self.planned_host_bytes)} of host memory per node",
            *(f"  - {reason}" for reason in self.reasons),
        ]


def zero2_bytes(count: int, gpus_per_node: int, nodes: int, offload: bool) -> tuple[int, int]:
    """Return (host memory of a node, memory of one GPU) in bytes for `count` parameters under ZeRO 1 or 2.

    `offload` says whether the optimizer is offloaded to the host.
    """
    gpus = nodes * gpus_per_node
    if offload:
        return int(count * max(4 * gpus, 16) * MARGIN), 2 * count
    return int(count * 4 * gpus_per_node * MARGIN), 2 * count + int(18 * count / gpus)


def zero3_bytes(
    count: int, largest_layer: int, gpus_per_node: int, nodes: int, optimizer: bool, weights: bool
) -> tuple[int, int]:
    """Return (host memory of a node, memory of one GPU) in bytes for `count` parameters under ZeRO 3.

    The parameters are sharded as they are created. `largest_layer` is the number of parameters of the largest
    module. `optimizer` and `weights` say whether the optimizer state and the weights are offloaded to the
    host.
    """
    gpus, largest = nodes * gpus_per_node, 4 * largest_layer
    if optimizer and weights:
        return int(count * 18 / nodes * MARGIN), largest
    if optimizer:
        return int(count * 16 / nodes * MARGIN), largest + int(2 * count / gpus)
    return int(largest_layer * 4 * gpus_per_node * MARGIN), largest + int(18 * count / gpus)


def largest_layer(shape: Shape, tensor: int) -> int:
    """Return the number of parameters in the largest module on one of `tensor` tensor-parallel ranks.

    A module is counted as in DeepSpeed's model_to_params: its own parameters, without those of its children.

    The two matrices that open a gated MLP are in one module. The modules of custom blocks are unknown, so
    their largest parameter is used.
    """
    modules = Counter({"": largest_of(shape, tensor)})
    if shape.own_block is None:
        for parameter in block_parameters(shape, tensor):
            modules[parameter.module] += parameter.total
    return max(modules.values())


def second_opinion(setup: Setup, planned: MemoryEstimate | None = None) -> SecondOpinion | None:
    """Return DeepSpeed's estimate of a setup; None without ZeRO or a GPU, for which there is no formula."""
    if not setup.zero_stage or not setup.on_gpu:
        return None
    planned = planned or estimate(setup)
    shape, model_ranks = setup.shape, setup.model_size
    whole = count_layers(shape, shape.num_layers, first=True, last=True, tensor=1).total
    # The formulas support only data parallelism, so each model-parallel rank is counted as a separate model.
    count = whole // model_ranks
    nodes = max(1, min(setup.nodes, setup.data_axis_size))
    gpus = -(-setup.data_axis_size // nodes)
    optimizer, weights = setup.offload_optimizer != "none", setup.offload_param != "none"
    if setup.zero_stage == 3:
        largest = largest_layer(shape, setup.tensor_parallel_size)
        host, device = zero3_bytes(count, largest, gpus, nodes, optimizer, weights)
        source = "runtime/zero/stage3.py"
    else:
        host, device = zero2_bytes(count, gpus, nodes, optimizer)
        source = "runtime/zero/stage_1_and_2.py"
    return SecondOpinion(
        device,
        host,
        planned.states_bytes,
        planned.node_host_bytes,
        source,
        _reasons(setup, optimizer, planned),
    )


def _reasons(setup: Setup, offloaded: bool, planned: MemoryEstimate) -> list[str]:
    found = [f"DeepSpeed adds {MARGIN - 1:.0%} to the host memory (additional_buffer_factor = {MARGIN})."]
    if planned.saves_in_background:
        found.append(
            "DeepSpeed does not count the copy from which checkpoints are written in the background."
        )
    if setup.zero_stage == 1:
        found.append(
            "DeepSpeed has no formula for stage 1, so its formula for stage 2 is used. Stage 1 does not "
            "shard the gradients, which take 4 bytes per parameter in this plan."
        )
    if setup.zero_stage < 3 and not offloaded:
        found.append(
            "The 18 bytes per parameter that DeepSpeed shards include 2 for 16-bit gradients and 4 for fp32 "
            "gradients, but from stage 2 on, the engine keeps only the fp32 sums."
        )
    if setup.muon_steps:
        found.append(
            "DeepSpeed counts two moments per parameter, but Muon keeps one for the blocks' matrices."
        )
    if setup.zero_stage == 3:
        found.append(
            "DeepSpeed counts the largest layer unsharded, with its gradient, as model states; this plan "
            "counts gathered parameters as communication instead."
        )
    if setup.model_size > 1:
        found.append(
            "DeepSpeed's formula does not support tensor or pipeline parallelism, so it is applied to 1 / "
            f"{setup.model_size} of the parameters. This plan counts embeddings on the stages that hold them."
        )
    if setup.dtype == "fp32" or setup.autocast:
        found.append("DeepSpeed assumes 16-bit weights, but this run's weights are fp32.")
    return found
