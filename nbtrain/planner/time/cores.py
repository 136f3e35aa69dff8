"""Rates of a machine without GPUs: a fraction of the rate that its cores reach in matrix products.

The fractions were measured with complete training steps (docs/evidence/benchmarks.md), so they include norms,
data and the optimizer: memory and host times add nothing here. A calibration replaces these rates.
"""

import os

from nbtrain.config.schema import RunConfig
from nbtrain.planner.time.rates import INFINITE, Link, Rates

# A core with AVX-512 at 2.6 GHz: 166 GFLOP/s in fp32 matrix products. The trainer's share of it (model FLOPs)
# is taken from docs/evidence/benchmarks.md, on 2 cores without AMX: gpt3-tiny in fp32, 6,000 tokens/s; 14M
# parameters in bf16, 2,600. Their matrix rate was not recorded: the shares refer to a similar core.
# AMX makes bf16 up to twice as fast.
ASSUMED_MATMUL_FLOPS_PER_CORE = 166e9
SHARE_OF_MATMUL = {"fp32": 0.43, "bf16": 0.76, "fp16": 0.43}
# gloo through shared memory, a rank of one core: two tensor ranks need 1.18 times the time of two threads, 24
# sums of 3.1 MB in 0.12 s of a step (docs/evidence/benchmarks.md).
GLOO_BYTES_PER_SECOND = 0.6e9
# Model FLOPs count all scores; compute.py counts half of them, at 0.5 + 1.25 instead of 3 forward passes.
_ATTENTION = (0.5 + 1.25) / 3


def cores_of(config: RunConfig) -> int:
    """Return the cores of all machines of a CPU run."""
    return (config.resources.cpus_per_node or os.cpu_count() or 1) * config.resources.nodes


def rates_of_cores(config: RunConfig, matmul_flops_per_core: float | None) -> Rates:
    """Return the rates of one rank of a CPU run on its share of the cores; None assumes a core's rate."""
    dtype = config.precision.dtype
    matmul = matmul_flops_per_core or ASSUMED_MATMUL_FLOPS_PER_CORE
    per_core, cores = matmul * SHARE_OF_MATMUL[dtype], cores_of(config)
    rate = per_core * cores / config.world_size
    reached = "this machine reaches" if matmul_flops_per_core else "are assumed"
    link = Link(GLOO_BYTES_PER_SECOND)
    return Rates(
        matmul_flops={dtype: rate},
        attention_flops=dict.fromkeys((1, 2, 3), rate * _ATTENTION),
        memory_bytes_per_second=INFINITE,
        inside=link,
        across=link,
        scores_flops=rate,
        host_times=0.0,
        source=(
            f"assumed {per_core / 1e9:.0f} GFLOP/s on each of {cores} cores: {SHARE_OF_MATMUL[dtype]:.0%} of "
            f"the {matmul / 1e9:.0f} that {reached} in fp32 matrix products, as training in {dtype} did in "
            "the benchmarks"
        ),
    )
