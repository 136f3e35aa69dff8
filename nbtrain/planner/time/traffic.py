"""Bytes that ranks send to each other, and the time that this takes on their links.

Bytes of one rank by kind, for P parameters on a rank with b bytes each, d data ranks, t tensor ranks:

    data       all-reduce of the gradients: 2 P b; ZeRO 1 and 2: scatter P b, gather P b: the same
    ZeRO 2     scatters at every micro batch
    ZeRO 3     every micro batch gathers the weights twice and scatters the gradients once: 3 P b
    ZeRO++     qwZ halves the first gather, hpZ keeps the second one inside a machine, qgZ sends 4 bits
               a number if there are several machines
    tensor     4 all-reduces of 2 s b h in each block, 6 with full recomputation; ranks that share groups of
               queries gather query, key and value too, (n + 2 g) d, and scatter their gradients
    context    keys and values of the whole sequence gathered and their gradients scattered, 2 s g d each; in
               other programs passed around a ring c - 1 times, backward twice as much
    Ulysses    8 all-to-alls in each block, of query, key, value and output
    pipeline   2 s b h over each boundary, both ways, times the pieces of an interleaved stage
    Muon       two all-to-alls of a rank's part of the blocks' matrices, in the products' format

A collective of S bytes over n ranks takes f (S + ramp) / bandwidth and a latency for each hop; f is 2 (n-1)/n
for an all-reduce and (n-1)/n for the others (NVIDIA/nccl-tests doc/PERFORMANCE.md). Volumes: arXiv:1910.02054
section 7, arXiv:1909.08053 section 3, arXiv:2306.10209, arXiv:2309.14509.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
INT4_BYTES = 0.5
# A tree's hops grow with the logarithm, and the hops of one bucket overlap the next bucket's traffic.
_MOST_HOPS = 32


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one collective, and the link between them."""

    size: int
    bytes_per_second: float
    ramp_bytes: float
    latency_seconds: float

    def seconds(self, message_bytes: float, factor: float = 1.0) -> float:
        """Return the seconds of a collective over an array of these bytes; `factor` is 2 for an all-reduce,
        else 1.
        """
        if self.size <= 1 or not message_bytes:
            return 0.0
        moved = factor * (self.size - 1) / self.size * (message_bytes + self.ramp_bytes)
        hops = factor * min(self.size - 1, _MOST_HOPS)
        return moved / self.bytes_per_second + hops * self.latency_seconds


def group_of(setup: Setup, rates: Rates, size: int, stride: int) -> Group:
    """Return a group of `size` ranks in which neighbours are `stride` ranks apart.

    Inside a machine the group has the devices' own link; else its ranks on a machine have their share of the
    machine's network.
    """
    inside, across = rates.inside, rates.across
    in_node = ranks_together(setup, rates, size, stride)
    if in_node == size:
        return Group(size, inside.bytes_per_second, inside.ramp_bytes, inside.latency_seconds)
    rate = across.bytes_per_second / max(setup.devices_per_node, 1) * in_node
    return Group(size, min(rate, inside.bytes_per_second), across.ramp_bytes, across.latency_seconds)


def ranks_together(setup: Setup, rates: Rates, size: int, stride: int) -> int:
    """Return how many of a group's `size` ranks share the devices' own link; `size` if all of them do.

    Neighbours in the group are `stride` ranks apart.
    """
    per_node = max(setup.devices_per_node, 1)
    joined = max(per_node, rates.inside_devices) if rates.inside_devices > 8 else per_node
    if size * stride <= joined or setup.nodes == 1:
        return size
    return max(joined // stride, 1)


class Collective(NamedTuple):
    """A collective operation of ranks that are `stride` ranks apart."""

    ranks: int
    stride: int
    num_bytes: float
    """Bytes of the array; in an all-to-all, the bytes that a rank has for all ranks."""
    factor: int = 1
    """Number of times that the array is sent: 2 for an all-reduce, else 1."""
    times: float = 1
    """Number of such operations in a block of a micro batch (BlockTraffic), or in a step (DataTraffic)."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that one rank sends in all of them."""
        return self.times * self.factor * (self.ranks - 1) / self.ranks * self.num_bytes

    def seconds(self, setup: Setup, rates: Rates) -> float:
        """Return the seconds of one of them."""
        return group_of(setup, rates, self.ranks, self.stride).seconds(self.num_bytes, self.factor)


class BlockTraffic(NamedTuple):
    """Collectives of one block in one micro batch, forward and backward."""

    sums: Collective
    """Sums of activations over tensor-parallel ranks."""
    shared_groups: Collective
    """Gathers and scatters of query, key and value between tensor ranks that share groups of queries."""
    context: Collective
    """Context parallelism: keys and values that are gathered, or passed around a ring."""
    ulysses: Collective
    """All-to-alls of Ulysses."""


def block_traffic(setup: Setup) -> BlockTraffic:
    """Return the collectives of one block in one micro batch; those that a layout lacks have one rank or no
    bytes.
    """
    tensor, context = setup.tensor_parallel_size, setup.context_parallel_size
    element, full = DTYPE_BYTES[setup.dtype], setup.recompute == "full"
    tokens, shape = setup.tokens_per_micro_batch, setup.shape
    keys = element * 2 * context * tokens * setup.attended_groups * shape.kv_channels
    times = (2 if ENGINES[setup.engine].gathers_keys else 3) + full
    return BlockTraffic(
        Collective(tensor, 1, element * tokens * shape.hidden_size, 2, 6 if full else 4),
        Collective(tensor, 1, shared_groups_bytes(setup), times=3 if full else 2),
        Collective(context, tensor, keys, times=times),
        Collective(setup.ulysses_size, tensor, traded_bytes(setup), times=12 if full else 8),
    )


class DataTraffic(NamedTuple):
    """Collectives of data parallelism and ZeRO in one step."""

    gradients: Collective
    """Sum of the gradients, or their scatter with ZeRO."""
    between_copies: Collective | None = None
    """HYBRID_SHARD: sum of each shard of the gradients over the groups that hold it."""
    weights: Collective | None = None
    """ZeRO's gather of the weights: with ZeRO 3 before each forward pass, else after the step."""
    weights_backward: Collective | None = None
    """ZeRO 3's second gather, before the backward pass; a pipeline makes none."""
    each_micro_batch: bool = False
    """Whether gradients are scattered, and weights of ZeRO 3 gathered, for each micro batch; else once a
    step.
    """


def data_traffic(setup: Setup) -> DataTraffic | None:
    """Return the collectives of data parallelism and ZeRO; None with one data-parallel rank."""
    data, tensor, zero = setup.data_axis_size, setup.tensor_parallel_size, setup.zero_stage
    if data == 1:
        return None
    trained = trained_parameters(setup)
    gradient = trained * gradient_element(setup)
    if zero == 0:
        return DataTraffic(Collective(data, tensor, gradient, 2))
    sharing, one_stage = setup.zero_size, setup.pipeline_parallel_size == 1
    # A pipeline's programs gather and scatter once a step.
    each = zero >= 2 and one_stage
    times = setup.accumulation_steps if each else 1
    copies = None
    if sharing < data:
        copies = Collective(data // sharing, tensor * sharing, gradient / sharing, 2, times)
    weight = (rank_parameters(setup) if zero == 3 else trained) * DTYPE_BYTES[setup.dtype]
    gradients = Collective(sharing, tensor, gradient, times=times)
    if zero < 3:
        return DataTraffic(gradients, copies, Collective(sharing, tensor, weight), None, each)
    # qwZ halves the first gather, and hpZ keeps the second one inside a machine.
    first = Collective(sharing, tensor, weight, times=times * (0.5 if setup.quantized_weights else 1))
    near = setup.hpz_size if setup.hpz_size > 1 else sharing
    second = Collective(near, tensor, weight, times=times) if one_stage else None
    return DataTraffic(gradients, copies, first, second, each)


def muon_traffic(setup: Setup) -> Collective:
    """Return the all-to-alls of a step of Muon, between ranks of a stage; without bytes with AdamW."""
    return Collective(setup.muon_ranks, 1, muon_bytes(setup), times=2)


def rank_parameters(setup: Setup) -> int:
    """Return the parameters of the fullest model-parallel rank, before ZeRO partitions them."""
    layers, tensor = setup.layers_by_stage, setup.tensor_parallel_size
    last = len(layers) - 1
    if last == 0:
        return count_layers(setup.shape, layers[0], True, True, tensor).total
    ends = ((0, True, False), (last, False, True))
    return max(count_layers(setup.shape, layers[at], first, end, tensor).total for at, first, end in ends)


def trained_parameters(setup: Setup) -> int:
    """Return the number of a rank's parameters that the optimizer steps: all, or the adapters."""
    return setup.adapter_parameters if setup.lora_rank else rank_parameters(setup)


def gradient_element(setup: Setup) -> float:
    """Return the bytes per gradient element that is sent to other data ranks.

    DeepSpeed 0.19.8 quantizes gradients if there are several machines, whatever format it sends otherwise
    (stage3.py, __avg_scatter_grads; comm/coalesced_collectives.py, all_to_all_quant_reduce).
    """
    if setup.quantized_gradients and setup.nodes > 1:
        return INT4_BYTES
    return DTYPE_BYTES[setup.communication_dtype]


def shared_groups_bytes(setup: Setup) -> float:
    """Return the bytes of query, key and value in a micro batch if tensor ranks share groups, else 0."""
    shape = setup.shape
    if shape.num_query_groups >= setup.tensor_parallel_size:
        return 0.0
    width = shape.query_width + 2 * shape.kv_width
    return DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * width


def traded_bytes(setup: Setup) -> float:
    """Return the mean bytes that a Ulysses rank sends in one of four all-to-alls: query, key, value, output.

    Each tensor rank exchanges its own heads. Groups that the ranks do not divide are repeated
    (parallel/query_groups.py).
    """
    shape, query = setup.shape, setup.shape.query_width / setup.tensor_parallel_size
    keys = setup.attended_groups * shape.kv_channels
    return DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * (query + keys) / 2


def boundary_bytes(setup: Setup) -> float:
    """Return the bytes of a micro batch that a rank sends to the next pipeline stage."""
    sent = DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * setup.shape.hidden_size
    is_cut = setup.sequence_parallel or ENGINES[setup.engine].scatters_pipeline
    return sent / setup.tensor_parallel_size if is_cut else sent


def muon_bytes(setup: Setup) -> float:
    """Return the bytes that one rank sends, and receives back, in a step of Muon; 0 with AdamW."""
    ranks = setup.muon_ranks
    if not setup.muon_steps or ranks == 1:
        return 0.0
    element, shape = 2 if setup.dtype == "bf16" else 4, setup.shape
    matrices = max(setup.layers_by_stage) * (shape.attention_weights + shape.mlp_weights)
    return element * matrices / ranks


def ring_latency(setup: Setup, rates: Rates, size: int) -> float:
    """Return the seconds of one small message around a ring of `size` ranks, node after node."""
    across = min(setup.nodes, size)
    if across == 1:
        return (size - 1) * rates.inside.latency_seconds
    return across * rates.across.latency_seconds + (size - across) * rates.inside.latency_seconds
