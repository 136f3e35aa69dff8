"""Bytes that ranks send to each other, and the time that this takes on their links.

Bytes that one rank sends, for P parameters of b bytes per rank (s sequence, h hidden, n heads, g query
groups, d head size, c context-parallel ranks):

    data       the all-reduce of the gradients sends 2 P b; ZeRO 1 and 2 scatter gradients (P b) and gather
               weights (P b), which is the same
    ZeRO 2     scatters gradients in every micro batch
    ZeRO 3     gathers the weights twice and scatters the gradients once in every micro batch: 3 P b
    ZeRO++     qwZ halves the first gather, hpZ keeps the second gather inside a machine, qgZ sends gradients
               in 4 bits if there are several machines
    tensor     4 all-reduces in each block, 6 with full recomputation; each sends 2 s b h. Ranks that share
               query groups also gather query, key and value, s b (n + 2 g) d, and scatter their gradients
    context    keys and values of the whole sequence are gathered and their gradients scattered, 2 s b g d
               each. Other programs pass them around a ring c - 1 times, and twice as much in the backward
               pass
    Ulysses    8 all-to-alls in each block, of query, key, value and output; 12 with full recomputation
    pipeline   2 s b h over each boundary, both ways, times the number of model chunks per rank (interleaved)
    Muon       two all-to-alls of a rank's shard of the blocks' matrices, in the format of matrix products

A collective over n ranks with S bytes takes f (S + ramp) / bandwidth plus a latency for each hop. f is
2 (n-1)/n for an all-reduce and (n-1)/n for the others (NVIDIA/nccl-tests doc/PERFORMANCE.md). The volumes are
from arXiv:1910.02054 section 7, arXiv:1909.08053 section 3, arXiv:2306.10209 and arXiv:2309.14509.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
INT4_BYTES = 0.5
# Maximum number of hops whose latency is counted in a collective. In a tree, hops grow only with the
# logarithm of the ranks, and the hops of one bucket overlap with the next bucket's traffic.
_MOST_HOPS = 32


@dataclass(frozen=True, slots=True)
class Group:
    """The number of ranks in a collective, and the link between them."""

    size: int
    bytes_per_second: float
    ramp_bytes: float
    latency_seconds: float

    def seconds(self, message_bytes: float, factor: float = 1.0) -> float:
        """Return the seconds of a collective over an array of `message_bytes` bytes.

        `factor` is 2 for an all-reduce and 1 for every other collective.
        """
        if self.size <= 1 or not message_bytes:
            return 0.0
        moved = factor * (self.size - 1) / self.size * (message_bytes + self.ramp_bytes)
        hops = factor * min(self.size - 1, _MOST_HOPS)
        return moved / self.bytes_per_second + hops * self.latency_seconds


def group_of(setup: Setup, rates: Rates, size: int, stride: int) -> Group:
    """Return a group of `size` ranks with consecutive members `stride` ranks apart, and its link.

    A group inside a machine uses the devices' own link. In a group across machines, the ranks on a machine
    use their share of the machine's network.
    """
    inside, across = rates.inside, rates.across
    in_node = ranks_together(setup, rates, size, stride)
    if in_node == size:
        return Group(size, inside.bytes_per_second, inside.ramp_bytes, inside.latency_seconds)
    rate = across.bytes_per_second / max(setup.devices_per_node, 1) * in_node
    return Group(size, min(rate, inside.bytes_per_second), across.ramp_bytes, across.latency_seconds)


def ranks_together(setup: Setup, rates: Rates, size: int, stride: int) -> int:
    """Return how many of a group's `size` ranks are connected by the devices' own link.

    The result is `size` if all of them are. Consecutive members of the group are `stride` ranks apart.
    """
    per_node = max(setup.devices_per_node, 1)
    joined = max(per_node, rates.inside_devices) if rates.inside_devices > 8 else per_node
    if size * stride <= joined or setup.nodes == 1:
        return size
    return max(joined // stride, 1)


class Collective(NamedTuple):
    """A collective operation over ranks that are `stride` ranks apart, and how often it runs."""

    ranks: int
    stride: int
    num_bytes: float
    """Bytes of the whole array; in an all-to-all, the bytes that a rank holds for all ranks together."""
    factor: int = 1
    """Number of times that the array is sent: 2 for an all-reduce, 1 for other collectives."""
    times: float = 1
    """Number of these operations per block and micro batch (BlockTraffic) or per step (DataTraffic)."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that one rank sends in all `times` operations."""
        return self.times * self.factor * (self.ranks - 1) / self.ranks * self.num_bytes

    def seconds(self, setup: Setup, rates: Rates) -> float:
        """Return the seconds of a single operation."""
        return group_of(setup, rates, self.ranks, self.stride).seconds(self.num_bytes, self.factor)


class BlockTraffic(NamedTuple):
    """Collectives of one block in one micro batch, forward and backward."""

    sums: Collective
    """Sums of activations over tensor-parallel ranks."""
    shared_groups: Collective
    """Gathers and scatters of query, key and value between tensor-parallel ranks that share query groups."""
    context: Collective
    """Context parallelism's exchange of keys and values: gathered, or passed around a ring."""
    ulysses: Collective
    """Ulysses' all-to-alls."""


def block_traffic(setup: Setup) -> BlockTraffic:
    """Return the collectives of one block in one micro batch.

    A collective that the layout does not need has one rank or zero bytes.
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
    """All-reduce of the gradients; with ZeRO, their reduce-scatter."""
    between_copies: Collective | None = None
    """With HYBRID_SHARD, the sum of each gradient shard over the groups that hold it; else None."""
    weights: Collective | None = None
    """ZeRO's gather of the weights, before each forward pass (ZeRO 3) or after the step; else None."""
    weights_backward: Collective | None = None
    """ZeRO 3's second gather, before the backward pass; None for other stages and with a pipeline."""
    each_micro_batch: bool = False
    """Whether gradients are scattered, and ZeRO 3's weights gathered, per micro batch instead of per step."""


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
    # With a pipeline, programs gather and scatter once per step.
    each = zero >= 2 and one_stage
    times = setup.accumulation_steps if each else 1
    copies = None
    if sharing < data:
        copies = Collective(data // sharing, tensor * sharing, gradient / sharing, 2, times)
    weight = (rank_parameters(setup) if zero == 3 else trained) * DTYPE_BYTES[setup.dtype]
    gradients = Collective(sharing, tensor, gradient, times=times)
    if zero < 3:
        return DataTraffic(gradients, copies, Collective(sharing, tensor, weight), None, each)
    # qwZ halves the first gather, and hpZ keeps the second gather inside a machine.
    first = Collective(sharing, tensor, weight, times=times * (0.5 if setup.quantized_weights else 1))
    near = setup.hpz_size if setup.hpz_size > 1 else sharing
    second = Collective(near, tensor, weight, times=times) if one_stage else None
    return DataTraffic(gradients, copies, first, second, each)


def muon_traffic(setup: Setup) -> Collective:
    """Return Muon's all-to-alls between the ranks of a stage in one step; they have zero bytes with AdamW."""
    return Collective(setup.muon_ranks, 1, muon_bytes(setup), times=2)


def rank_parameters(setup: Setup) -> int:
    """Return the number of parameters on the fullest model-parallel rank, before ZeRO shards them."""
    layers, tensor = setup.layers_by_stage, setup.tensor_parallel_size
    last = len(layers) - 1
    if last == 0:
        return count_layers(setup.shape, layers[0], True, True, tensor).total
    ends = ((0, True, False), (last, False, True))
    return max(count_layers(setup.shape, layers[at], first, end, tensor).total for at, first, end in ends)


def trained_parameters(setup: Setup) -> int:
    """Return the number of a rank's parameters that the optimizer updates: all, or only the adapters."""
    return setup.adapter_parameters if setup.lora_rank else rank_parameters(setup)


def gradient_element(setup: Setup) -> float:
    """Return the bytes per gradient element that data-parallel ranks send.

    With quantized gradients and several machines, DeepSpeed 0.19.8 sends 4 bits, whatever the communication
    format is (stage3.py, __avg_scatter_grads; comm/coalesced_collectives.py, all_to_all_quant_reduce).
    """
    if setup.quantized_gradients and setup.nodes > 1:
        return INT4_BYTES
    return DTYPE_BYTES[setup.communication_dtype]


def shared_groups_bytes(setup: Setup) -> float:
    """Return the bytes of a micro batch's query, key and value; 0 if no tensor ranks share query groups."""
    shape = setup.shape
    if shape.num_query_groups >= setup.tensor_parallel_size:
        return 0.0
    width = shape.query_width + 2 * shape.kv_width
    return DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * width


def traded_bytes(setup: Setup) -> float:
    """Return the mean bytes that a Ulysses rank exchanges in one all-to-all.

    The mean is over four all-to-alls: of query, key, value and output. Each tensor-parallel rank exchanges
    its own heads. If the number of Ulysses ranks does not divide the number of query groups, groups are
    repeated (parallel/query_groups.py).
    """
    shape, query = setup.shape, setup.shape.query_width / setup.tensor_parallel_size
    keys = setup.attended_groups * shape.kv_channels
    return DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * (query + keys) / 2


def boundary_bytes(setup: Setup) -> float:
    """Return the bytes that a rank sends to the next pipeline stage for one micro batch."""
    sent = DTYPE_BYTES[setup.dtype] * setup.tokens_per_micro_batch * setup.shape.hidden_size
    is_cut = setup.sequence_parallel or ENGINES[setup.engine].scatters_pipeline
    return sent / setup.tensor_parallel_size if is_cut else sent


def muon_bytes(setup: Setup) -> float:
    """Return the bytes of matrices that a rank sends in a step of Muon; it receives as many.

    The result is 0 with AdamW, or if one rank has all matrices.
    """
    ranks = setup.muon_ranks
    if not setup.muon_steps or ranks == 1:
        return 0.0
    element, shape = 2 if setup.dtype == "bf16" else 4, setup.shape
    matrices = max(setup.layers_by_stage) * (shape.attention_weights + shape.mlp_weights)
    return element * matrices / ranks


def ring_latency(setup: Setup, rates: Rates, size: int) -> float:
    """Return the seconds that a small message takes to pass every rank of a ring of `size` ranks.

    Ranks on the same node are next to each other in the ring.
    """
    across = min(setup.nodes, size)
    if across == 1:
        return (size - 1) * rates.inside.latency_seconds
    return across * rates.across.latency_seconds + (size - across) * rates.inside.latency_seconds
