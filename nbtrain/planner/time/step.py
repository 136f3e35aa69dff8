"""Seconds of one optimizer step, by part: estimate_step(setup) -> StepTime.

    compute      matrix products, attention and the operations between them, for all micro batches on an
                 average stage
    recompute    the forward work that the backward pass repeats
    tensor       sums over tensor-parallel ranks that do not overlap with computation
    sequence     traffic of context parallelism and Ulysses that does not overlap; with FPDT, chunk by chunk
    chunks       FPDT's traffic with host memory that does not overlap with attention (compute.py)
    bubble       waiting for other pipeline stages: (p - 1) / (v m) of the work if stages are equal
    pipeline     sending activations to the next stage
    data         data-parallel and ZeRO traffic that does not overlap with computation
    optimizer    the optimizer's step, on the device or on the host's cores
    offload      traffic with host memory and NVMe
    host         launching kernels, as far as this takes longer than running them; data, norms and logging

With p stages and m micro batches, a pipeline takes m times the slowest stage plus each other stage once
(1F1B). With v model chunks per rank (interleaved), the other stages count 1/v (arXiv:2104.04473, section
2.2).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from nbtrain.planner.calibration.calibrated_step import calibrated_step
from nbtrain.planner.memory.estimate import estimate
from nbtrain.planner.setup.engines import ENGINES, habits_of
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.compute import (
    BlockTimes,
    attention_seconds,
    block_times,
    chunk_seconds,
    logits_seconds,
    number_of_chunks,
    optimizer_seconds,
)
from nbtrain.planner.time.rates import Rates, rates_of_setup
from nbtrain.planner.time.traffic import (
    DTYPE_BYTES,
    block_traffic,
    boundary_bytes,
    data_traffic,
    group_of,
    muon_traffic,
    rank_parameters,
    ring_latency,
    trained_parameters,
)

# Fraction of tensor-parallel traffic that overlaps with computation if overlap_tensor is on. Asynchronous
# tensor parallelism hides 50-70 % (Domino, arXiv:2409.15241).
OVERLAPPED_TENSOR = 0.6
# On a nearly full device, FSDP frees and reallocates memory in every block. It needs room for this number of
# 16-bit blocks to avoid that: between 4.3 (70B on 64 A100-40GB is slow) and 4.8 (30B on 8 A100-80GB is not).
# Reallocating takes 5 to 18 ms per GB (llm-foundry, scripts/train/benchmarking/README.md).
BLOCKS_AHEAD = 4.5
REALLOCATED_BYTES_PER_SECOND = 140e9


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of each part of a step. The fields add up to the step."""

    compute: float
    recompute: float
    tensor: float
    sequence: float
    bubble: float
    pipeline: float
    data: float
    optimizer: float
    offload: float
    host: float
    chunks: float = 0.0

    @property
    def bubble_fraction(self) -> float:
        """Fraction of a pipeline stage's time in which the stage waits for other stages.

        Data-parallel traffic, the optimizer's step and offloading are not part of that time.
        """
        return (
            self.bubble / (self.seconds - self.data - self.optimizer - self.offload) if self.bubble else 0.0
        )

    @property
    def seconds(self) -> float:
        """Seconds of the whole step: the sum of all parts."""
        return (
            self.compute
            + self.recompute
            + self.tensor
            + self.sequence
            + self.bubble
            + self.pipeline
            + self.data
            + self.optimizer
            + self.offload
            + self.host
            + self.chunks
        )


def estimate_step(setup: Setup, rates: Rates | None = None) -> StepTime | None:
    """Estimate the time of one step by part.

    Without `rates`, the device's rates in the device table are used; the result is None if the device is
    unknown.
    """
    if rates is None:
        rates = rates_of_setup(setup)
    return step_of_size(setup, rates)(setup.global_batch_size) if rates is not None else None


def step_of_size(setup: Setup, rates: Rates) -> Callable[[int], StepTime]:
    """Return a function that estimates a step of the setup for any global batch size.

    Parts that do not depend on the batch size are computed only once, because a ramp-up may have a hundred
    batch sizes.
    """
    micro_batch: _MicroBatch | None = None
    # Usually, another batch size only changes the number of micro batches, and no new setup is needed. A
    # calibration, and programs whose memory is estimated (_reallocation_seconds), need the setup with the
    # right size.
    size_counts = rates.calibration is not None or habits_of(setup.engine).gathered_blocks

    def estimate_size(global_batch_size: int) -> StepTime:
        nonlocal micro_batch
        sized = setup
        if global_batch_size != setup.global_batch_size and size_counts:
            sized = replace(setup, global_batch_size=global_batch_size)
        if rates.calibration is not None:
            parts = calibrated_step(sized, rates.calibration)
            if parts is not None:
                return StepTime(**parts)
        micro_batch = micro_batch or _micro_batch(setup, rates)
        return _step(sized, rates, micro_batch, setup.micro_batches_of(global_batch_size))

    return estimate_size


class _MicroBatch(NamedTuple):
    """The parts of a step that do not depend on the number of micro batches, in seconds."""

    block: BlockTimes
    logits: float
    tensor_wait: float
    """Seconds that a block waits for tensor-parallel traffic."""
    sequence_wait: float
    chunks_wait: float
    idle: float
    """Seconds that a block waits for its kernels to be launched."""
    slowest: float
    """Seconds of the slowest pipeline stage for one micro batch, including the output layer."""
    whole: float
    """Seconds of all stages for one micro batch, including the output layer."""
    boundary: float
    """Seconds to send a micro batch's activations across the slowest boundary between two stages."""
    held: int
    """Number of parameters on a rank, before ZeRO."""
    trained: int
    optimizer: float
    exchange: float
    """Seconds per step of Muon's traffic; 0 with AdamW."""
    data: "_DataTraffic | None"
    """Seconds of data-parallel traffic; None with one data-parallel rank."""


class _DataTraffic(NamedTuple):
    """Seconds of each kind of collective in data parallelism and ZeRO."""

    each_micro_batch: bool
    """Whether the collectives run for each micro batch; otherwise once per step."""
    gradients: float
    between_copies: float
    gather: float | None
    """Seconds to gather the weights; None without ZeRO."""
    forward: float
    """Seconds to gather ZeRO 3's weights before the forward pass; `backward`: before the backward pass."""
    backward: float
    waits: float
    """Latency of all of ZeRO 3's collectives: one round of the ring for each collective of each block."""


def _micro_batch(setup: Setup, rates: Rates) -> _MicroBatch:
    engine = ENGINES[setup.engine]
    tensor, stages = setup.tensor_parallel_size, setup.pipeline_parallel_size
    block = block_times(setup, engine, rates)
    logits = logits_seconds(setup, rates)

    # Tensor-parallel and sequence traffic of one block.
    tensor_wait = sequence_wait = 0.0
    sent = block_traffic(setup)
    if tensor > 1:
        shown = 1 - (OVERLAPPED_TENSOR if setup.overlap_tensor else engine.hidden_tensor)
        for collective in (sent.sums, sent.shared_groups):
            tensor_wait += collective.times * collective.seconds(setup, rates) * shown
    if sent.context.ranks > 1:
        passed = sent.context.times * sent.context.seconds(setup, rates)
        # A ring overlaps with attention, whereas gathering must finish before attention starts.
        sequence_wait += passed if engine.gathers_keys else max(passed - 3.5 * block.attention, 0.0)
    if sent.ulysses.ranks > 1:
        pieces = number_of_chunks(setup)
        chunk = sent.ulysses._replace(num_bytes=sent.ulysses.num_bytes / pieces)
        sequence_wait += chunk.times * pieces * chunk.seconds(setup, rates)
    chunks_wait = 0.0
    if setup.fpdt_chunk_tokens:
        chunks_wait = chunk_seconds(setup, rates, attention_seconds(setup, engine, rates))

    # Time of each stage: its blocks (at least the time to launch their kernels) and the output layer.
    launch = engine.launch_seconds * rates.host_times * (4 / 3 if setup.recompute == "full" else 1)
    busy = block.forward + block.backward + block.recompute + tensor_wait + sequence_wait + chunks_wait
    idle = max(launch - busy, 0.0)
    costs = [count * (busy + idle) for count in setup.layers_by_stage]
    costs[-1] += logits
    boundary = 0.0
    if stages > 1:
        # The slowest boundary sets the pace. It is a boundary between machines if there are several.
        group = group_of(setup, rates, stages, setup.world_size // stages)
        boundary = boundary_bytes(setup) / group.bytes_per_second + group.latency_seconds
    trained = trained_parameters(setup)
    muon = muon_traffic(setup)
    return _MicroBatch(
        block=block,
        logits=logits,
        tensor_wait=tensor_wait,
        sequence_wait=sequence_wait,
        chunks_wait=chunks_wait,
        idle=idle,
        slowest=max(costs),
        whole=sum(costs),
        boundary=boundary,
        held=rank_parameters(setup),
        trained=trained,
        optimizer=optimizer_seconds(setup, rates, trained),
        exchange=muon.times * muon.seconds(setup, rates),
        data=_data_traffic(setup, rates),
    )


def _step(setup: Setup, rates: Rates, one: _MicroBatch, micro_batches: int) -> StepTime:
    engine, block, stages = ENGINES[setup.engine], one.block, setup.pipeline_parallel_size
    bubble = micro_batches * (one.slowest - one.whole / stages)
    bubble += (one.whole - one.slowest) / setup.virtual_stages
    per_stage = micro_batches * setup.shape.num_layers / stages
    compute = per_stage * (block.forward + block.backward) + micro_batches * one.logits / stages
    data = _data_seconds(setup, one.data, compute + per_stage * block.recompute, micro_batches)
    offload, host_step = _offload_seconds(setup, rates, one, micro_batches)
    shown = 1 - engine.hidden_pipeline
    return StepTime(
        compute=compute,
        recompute=per_stage * block.recompute,
        tensor=per_stage * one.tensor_wait,
        sequence=per_stage * one.sequence_wait,
        bubble=bubble,
        pipeline=shown * 4 * setup.virtual_stages * one.boundary * (micro_batches + stages - 1),
        data=data,
        optimizer=one.optimizer + host_step + one.exchange,
        offload=offload,
        host=per_stage * one.idle + engine.step_seconds * rates.host_times,
        chunks=per_stage * one.chunks_wait,
    )


def forward_seconds(step: StepTime) -> float:
    """Return the seconds of a forward pass over a global batch: a third of a step's work."""
    work = step.compute + step.tensor + step.sequence + step.chunks + step.bubble + step.pipeline
    return work / 3 + step.host


def _data_traffic(setup: Setup, rates: Rates) -> _DataTraffic | None:
    sent, engine = data_traffic(setup), ENGINES[setup.engine]
    if sent is None:
        return None
    gradients = sent.gradients.seconds(setup, rates)
    if sent.weights is None:
        return _DataTraffic(False, gradients, 0.0, None, 0.0, 0.0, 0.0)
    slower = _slower(setup)
    between = sent.between_copies.seconds(setup, rates) if sent.between_copies is not None else 0.0
    gather = slower * sent.weights.seconds(setup, rates)
    backward = 0.0
    if sent.weights_backward is not None:
        # hpZ gathers inside a machine, so zero_share, which is about the network, does not apply.
        reached = 1.0 if setup.hpz_size > 1 else slower
        backward = reached * sent.weights_backward.seconds(setup, rates)
    # Each collective of each block passes through every rank of the ring.
    blocks = setup.shape.num_layers / setup.pipeline_parallel_size
    return _DataTraffic(
        sent.each_micro_batch,
        gradients,
        between,
        gather,
        gather * (sent.weights.times / sent.gradients.times),
        backward,
        3 * blocks * engine.zero3_collectives * ring_latency(setup, rates, sent.gradients.ranks),
    )


def _slower(setup: Setup) -> float:
    """Return how many times slower ZeRO's collectives are than other collectives; 1 on CPUs."""
    return 1 / ENGINES[setup.engine].zero_share if setup.on_gpu else 1.0


def _data_seconds(setup: Setup, sent: _DataTraffic | None, compute: float, micro_batches: int) -> float:
    """Return the seconds of data-parallel and ZeRO traffic that do not overlap with computation.

    `compute` is the computation of all micro batches in a step, in seconds.
    """
    if sent is None:
        return 0.0
    engine = ENGINES[setup.engine]
    if not setup.on_gpu:
        # On CPUs, traffic and computation use the same cores, so nothing overlaps.
        compute = 0.0
    if sent.gather is None:
        hidden = engine.hidden_data * compute * 2 / 3 / micro_batches
        return max(sent.gradients - hidden, 0.0)
    times = micro_batches if sent.each_micro_batch else 1
    scatter = times * _slower(setup) * sent.gradients + times * sent.between_copies
    if setup.zero_stage < 3:
        hidden = engine.hidden_data * compute * times / micro_batches
        shown = sent.gather + scatter - (hidden if engine.hides_gather else min(2 / 3 * hidden, scatter))
        return max(shown, 0.0)
    total = times * (sent.forward + sent.backward + sent.waits) + scatter
    shown = max(total - engine.hidden_zero3 * compute * times / micro_batches, 0.0)
    return shown + times * _reallocation_seconds(setup)


def _reallocation_seconds(setup: Setup) -> float:
    """Return the seconds per micro batch that FSDP spends on freeing and reallocating memory.

    If the device has no room for BLOCKS_AHEAD blocks, torch's allocator does so three times per block. The
    result is 0 with enough room, and for other programs.
    """
    if not habits_of(setup.engine).gathered_blocks or setup.device is None:
        return 0.0
    block = 2 * (setup.shape.attention_weights + setup.shape.mlp_weights) / setup.tensor_parallel_size
    needed = estimate(setup)
    assert needed.device_bytes is not None
    if needed.device_bytes - needed.total_bytes >= BLOCKS_AHEAD * block:
        return 0.0
    return 3 * max(setup.layers_by_stage) * block / REALLOCATED_BYTES_PER_SECOND


def _offload_seconds(setup: Setup, rates: Rates, one: _MicroBatch, micro_batches: int) -> tuple[float, float]:
    """Return (seconds of traffic with host memory and NVMe, seconds of the optimizer's step on the host).

    With an offloaded optimizer, gradients are copied to the host and weights to the device once per step.
    With offloaded weights, ZeRO 3 copies them to the device for each forward and backward pass. With NVMe,
    the fp32 master copy and two moments (12 bytes per parameter) are also read and written
    (arXiv:2104.07857, section 5).
    """
    if setup.offload_optimizer == setup.offload_param == "none":
        return 0.0, 0.0
    trained, ranks = one.trained, min(setup.devices_per_node, setup.world_size)
    element = DTYPE_BYTES[setup.dtype]
    zero = setup.zero_size if setup.zero_stage else 1
    seconds = adam = 0.0
    if setup.offload_optimizer != "none":
        seconds += 2 * element * trained / zero / rates.host_bytes_per_second
        adam = trained / zero * ranks / rates.host_adam_parameters_per_second
    if setup.offload_optimizer == "nvme":
        seconds += 24 * trained / zero * ranks / rates.nvme_bytes_per_second
    if setup.offload_param != "none":
        read = 2 * micro_batches * element * one.held / zero
        seconds += read / rates.host_bytes_per_second
        if setup.offload_param == "nvme":
            seconds += read * ranks / rates.nvme_bytes_per_second
    return seconds, adam
