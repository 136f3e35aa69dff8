"""Training programs and their time constants, which belong to a program, never to one run or published case.

A run of this project has the engine "nbtrain". The others are for published runs and for plans of runs
imported from another program. docs/evidence/plan-accuracy.md says how the constants were found. They were
fitted to the training half of the published runs (tests/benchmarks/published.py lists these sources), each
within the bounds that the program's own documentation sets.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """A training program."""

    name: str
    title: str
    """Name of the program as users read it."""

    traffic: float = 4.0
    """Number of times that a step, forward and backward, moves each byte of activations between compute units
    and memory. Fused kernels move them less often; torch.compile: planner/time/compute.py."""
    flash_generation: int = 2
    """Generation of the flash attention kernel; 1 also stands for Triton's, and 3 for cuDNN's."""
    balanced_ring: bool = True
    """Whether ring attention gives every rank an early and a late chunk of the sequence, so that all compute
    the causal half. Otherwise the last rank has only visible chunks, and the others wait for it."""
    selective_share: float | None = None
    """Share of a block's forward pass that selective recomputation repeats; None if it repeats only the
    scores.
    """
    hidden_data: float = 0.0
    """Share of the backward pass behind which data-parallel traffic hides."""
    hides_gather: bool = False
    """Whether the gathering of weights in ZeRO 1 and 2 hides behind the next forward pass."""
    zero_share: float = 1.0
    """Share of the network's rate that ZeRO's collectives reach; fitted, for DeepSpeed on FITTED_NETWORKS."""
    zero3_collectives: int = 1
    """Collectives for each block that ZeRO 3 gathers: FSDP one, DeepSpeed one for each module."""
    hidden_zero3: float = 0.8
    """Share of the computation behind which ZeRO 3's gathers and scatters are hidden."""
    hidden_tensor: float = 0.0
    """Share of tensor-parallel traffic that hides behind matrix products by default."""
    hidden_pipeline: float = 0.0
    """Share of pipeline traffic that hides behind computation."""
    scatters_pipeline: bool = False
    """Whether each tensor rank sends only its part of an activation to the next stage (Megatron's
    scatter-gather)."""
    launch_seconds: float = 2e-3
    """Host time of one block's kernels, forward and backward: the least time that a block takes."""
    step_seconds: float = 0.01
    """Host time of one step outside the blocks: data, norms, logging."""


# Slowest and fastest network, bytes per second of a machine, of the published runs from which DeepSpeed's
# zero_share was fitted: of 24 such runs of Megatron-DeepSpeed and GPT-NeoX on V100 and A100, 23 are within
# 20 % with 0.22 and with 0.25, 19 with 0.15, 18 with 0.4, and 12 with 1 (tests/planner/test_published.py).
FITTED_NETWORKS = (50e9, 200e9)

# DeepSpeed gathers each module's weights separately: a block has six modules.
_DEEPSPEED_COLLECTIVES = 6

_ALL = (
    # traffic: 125M takes 0.344 s a step on one H200, where torch's own choice for attention is cuDNN
    # (docs/evidence/benchmarks.md). What hides behind what is the upstream example's until several GPUs are
    # measured.
    Engine(
        "nbtrain", "nbtrain (DeepSpeed)", traffic=7.0, flash_generation=3, hidden_data=0.5, zero_share=0.25,
        hidden_zero3=0.5, zero3_collectives=_DEEPSPEED_COLLECTIVES,
    ),
    # 125M in 8 hours on one A100, 1.3B in 8 days on four, by Megatron-DeepSpeed without fused kernels.
    Engine(
        "upstream", "the upstream example", traffic=22.0, hidden_data=0.5, zero_share=0.25, hidden_zero3=0.5,
        zero3_collectives=_DEEPSPEED_COLLECTIVES,
    ),
    Engine("megatron-lm", "Megatron-LM until 2023", traffic=3.0, scatters_pipeline=True),
    Engine(
        "megatron-core", "Megatron-LM with Megatron Core", traffic=7.0, flash_generation=3, hidden_data=0.8,
        hides_gather=True, scatters_pipeline=True, launch_seconds=6e-3,
    ),
    Engine(
        "megatron-bridge", "Megatron-Bridge (NeMo)", traffic=4.0, flash_generation=3, hidden_data=0.8,
        hides_gather=True, hidden_pipeline=0.8,
    ),
    Engine(
        "megatron-deepspeed", "Megatron-DeepSpeed", traffic=8.0, flash_generation=1, zero_share=0.22,
        zero3_collectives=_DEEPSPEED_COLLECTIVES, hidden_zero3=0.0, hidden_pipeline=0.5,
    ),
    Engine(
        "transformers", "transformers' Trainer with DeepSpeed", traffic=10.0, zero_share=0.2,
        zero3_collectives=_DEEPSPEED_COLLECTIVES, hidden_zero3=0.0,
    ),
    Engine("composer", "Composer (LLM Foundry), FSDP", traffic=5.0, flash_generation=1, hidden_data=0.8),
    Engine(
        "torchtitan", "torchtitan, FSDP 2", traffic=6.0, balanced_ring=False, selective_share=0.5,
        hidden_data=0.8,
    ),
    Engine("metaseq", "metaseq, fairscale's FSDP", hidden_data=0.5),
    Engine(
        "llama", "the trainer of the Llama 3 models", flash_generation=3, hidden_data=0.8, hides_gather=True
    ),
    Engine("nanotron", "nanotron", traffic=4.0, hidden_data=0.3, zero_share=0.3, launch_seconds=3e-3),
    Engine(
        "gpt-neox", "GPT-NeoX (DeepSpeed)", traffic=9.0, flash_generation=1, zero_share=0.25,
        zero3_collectives=_DEEPSPEED_COLLECTIVES, hidden_zero3=0.0, hidden_pipeline=0.5,
    ),
    Engine("litgpt", "LitGPT with fused kernels, FSDP", hidden_data=0.8),
    Engine("nanogpt", "nanoGPT, DDP and torch.compile", traffic=6.0, hidden_data=0.8),
    Engine("colossalai", "ColossalAI", traffic=6.0, hidden_data=0.5),
)  # fmt: skip

ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ALL}
