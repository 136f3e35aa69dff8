"""How long a run takes: FLOPs over a rate, the pipeline's bubble and the waits of tensor parallelism.

On a GPU the rate is the datasheet peak times an assumed MFU, the one that the upstream example reached: 27 %
of an A100's peak, for 125M on 1 GPU (2.5B tokens in about 8 h) as well as for 1.3B on 4 (26B in about 8
days), evaluation and checkpoints included. On a CPU it is a share of the rate of this machine's cores in
matrix products (cpu_rate.py): the share that training reached in docs/benchmarks.md. A run that has been
tried before is planned with its own measured rate.

A pipeline of p stages and m micro batches takes m times its slowest stage and each other stage once (1F1B).
With equal stages its bubble is (p - 1) / (m + p - 1), arXiv:2104.04473, section 2.2. Tensor-parallel ranks
make four all-reduces of [s, b, h] for each layer, two in each direction (arXiv:1909.08053, section 3), or
gather and scatter as many bytes with sequence parallelism; meanwhile nothing is computed. Traffic of data
parallelism and of the pipeline is not counted, because most of it overlaps with computation.
"""

import os
from dataclasses import dataclass

from nbtrain.base import files
from nbtrain.base.rundir import RunDir
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.flops import (
    block_flops_per_token,
    logits_flops_per_token,
    model_flops_per_token,
)
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.schema import RunConfig
from nbtrain.planner.cpu_rate import matmul_flops_per_core

ASSUMED_MFU = 0.27
# A core with AVX-512 at 2.6 GHz: 166 GFLOP/s in fp32 matrix products. The trainer's share of it (model FLOPs)
# is that of docs/benchmarks.md on 2 cores without AMX: gpt-tiny in fp32, 6,000 tokens/s; 14M parameters in
# bf16, 2,600. The matrix rate of those cores was not recorded: the shares are of a similar core. AMX makes
# bf16 up to twice as fast.
ASSUMED_MATMUL_FLOPS_PER_CORE = 166e9
# NCCL's all-reduce moves about 230 of an A100's 300 GB/s each way (nccl-tests, 8 GPUs, large messages).
SHARE_OF_LINK = 0.77
# Between machines: 200 Gbit/s for each GPU, as DGX A100 has it.
NETWORK_BYTES_PER_SECOND = 25e9
SHARE_OF_MATMUL = {"fp32": 0.43, "bf16": 0.76, "fp16": 0.43}


@dataclass(frozen=True)
class DurationEstimate:
    """Seconds of the whole run, and where the figure comes from."""

    seconds: float | None
    """None if the device is not known."""
    tokens_per_second: float | None
    """Of all ranks together."""
    bubble_fraction: float
    """Share of a step in which a pipeline stage waits."""
    basis: str
    """One sentence: where the rate comes from."""


def estimate_duration(config: RunConfig, use_measured: bool = True) -> DurationEstimate:
    """Time for the steps this run makes (batch.max_steps counted).

    `use_measured` takes the rate of the run's last job if model, layout and number of machines are the same,
    else that of this machine's cores for a CPU run. Without it the answer is the same on every machine.
    """
    bubble = bubble_fraction(config)
    rate, basis = (_measured(config) if use_measured else None) or _assumed(config, bubble, use_measured)
    if config.mode == "eval":
        # Validation and test, forward only: a third of a training step's FLOPs.
        tokens = 2 * config.evaluation.eval_iters * config.tokens_per_step // 3
    else:
        tokens = config.batch_schedule.tokens_after(config.train_steps)
    return DurationEstimate(tokens / rate if rate else None, rate, bubble, basis)


def bubble_fraction(config: RunConfig) -> float:
    """Share of a step in which a rank waits for other stages, at the full batch; 0 without a pipeline."""
    stages = config.parallel.pipeline_parallel_size
    passes = 4 if config.parallel.activation_checkpointing.granularity == "full" else 3
    cost = [layers * passes * block_flops_per_token(config) for layers in stage_layers(config)]
    cost[-1] += 3 * logits_flops_per_token(config)
    slowest, whole = max(cost), sum(cost)
    work = config.accumulation_steps * whole / stages
    return 1 - work / (config.accumulation_steps * slowest + whole - slowest)


def tensor_communication_seconds(config: RunConfig) -> float | None:
    """Seconds per token of waiting for tensor-parallel sums; 0 on a CPU, None if the link is not known."""
    tensor, resources = config.parallel.tensor_parallel_size, config.resources
    if tensor == 1 or resources.device == "cpu":
        return 0.0
    device = find_device(resources.gpu_type)
    if device is None:
        return None
    link = SHARE_OF_LINK * device.link_bytes_per_second / 2
    if tensor > resources.gpus_per_node:
        link = min(link, NETWORK_BYTES_PER_SECOND)
    element = 4 if config.precision.dtype == "fp32" else 2
    # A ring sends 2 (t - 1) / t of the message; a recomputed forward pass sends its two sums again.
    sums = 6 if config.parallel.activation_checkpointing.granularity == "full" else 4
    sent = sums * 2 * (tensor - 1) / tensor * element * config.model.hidden_size
    # Pipeline stages work on other tokens at the same time.
    layers = config.model.num_layers / config.parallel.pipeline_parallel_size
    return layers * sent / link


def _measured(config: RunConfig) -> tuple[float, str] | None:
    summary = files.read_json(RunDir.named(config.name).summary_json)
    if not summary or not summary.get("samples_per_second"):
        return None
    same = {
        "seq_length": config.model.seq_length,
        "global_batch_size": config.batch.global_batch_size,
        "world_size": config.world_size,
    }
    if any(summary.get(key) != value for key, value in same.items()):
        return None
    rate = summary["samples_per_second"] * config.model.seq_length
    return rate, f"{rate:,.0f} tokens/s, measured by this run's last job"


def _assumed(config: RunConfig, bubble: float, use_measured: bool) -> tuple[float | None, str]:
    flops, resources = model_flops_per_token(config), config.resources
    dtype = config.precision.dtype
    if resources.device == "cpu":
        cores = (resources.cpus_per_node or os.cpu_count() or 1) * resources.nodes
        measured = matmul_flops_per_core() if use_measured else None
        matmul = measured or ASSUMED_MATMUL_FLOPS_PER_CORE
        per_core = matmul * SHARE_OF_MATMUL[dtype]
        basis = (
            f"assumed {per_core / 1e9:.0f} GFLOP/s on each of {cores} cores: {SHARE_OF_MATMUL[dtype]:.0%} of "
            f"the {matmul / 1e9:.0f} that {'this machine reaches' if measured else 'are assumed'} in fp32 "
            f"matrix products, as training in {dtype} did in the benchmarks"
        )
        return cores * per_core * (1 - bubble) / flops, basis
    device = find_device(resources.gpu_type)
    peak = device.peak(dtype) if device else None
    if not device or not peak:
        reason = f"{device.name} has no {dtype} peak" if device else "resources.gpu_type is not set"
        return None, f"unknown: {reason}"
    rate = f"{ASSUMED_MFU:.0%} of {device.name}'s {peak / 1e12:g} TFLOP/s"
    basis = f"assumed {rate}, what the upstream example reached"
    # One model: the time that its ranks compute together, then the time that they wait for each other.
    ranks = config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size
    computing = flops / (ranks * peak * ASSUMED_MFU)
    waiting = tensor_communication_seconds(config) or 0.0
    if waiting:
        basis += f", with {waiting / (computing + waiting):.0%} for sums over tensor-parallel ranks"
    if bubble:
        basis += f", less a pipeline bubble of {bubble:.0%}"
    models = config.world_size / ranks
    return models * (1 - bubble) / (computing + waiting), basis
