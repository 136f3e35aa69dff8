"""Training programs, and how each spends time: constants of a program, never of one run or published case.

A run of this project has the engine "nbtrain". The others are for published runs and for plans of what a user
brings from another program. How the constants were found: docs/plan-accuracy.md. They were fitted to the
training half of the published runs (tests/benchmarks/published.py says which sources that is), each within
the bounds that the program's own documentation sets.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """One training program."""

    name: str
    title: str
    """For readers."""

    traffic: float = 2.5
    """How often a step moves each byte of activations between compute units and memory, forward and backward.
    Fused or compiled kernels move them less often."""
    selective_share: float | None = None
    """Share of a block's forward pass that selective recomputation makes again; None: the scores alone."""
    attention_share: float = 0.7
    """The flash attention kernel's share of the rate of large matrix products."""
    hidden_data: float = 0.0
    """Share of the backward pass behind which data-parallel traffic can hide."""
    hidden_zero3: float = 0.8
    """Share of the computation behind which ZeRO 3 gathers and scatters can hide."""
    hidden_tensor: float = 0.0
    """Share of tensor-parallel traffic that hides behind matrix products without asking for it."""
    hidden_pipeline: float = 0.0
    """Share of pipeline traffic that hides behind computation."""
    launch_seconds: float = 1.5e-3
    """Host time of one block's kernels, forward and backward: the least time that a block takes."""
    step_seconds: float = 0.01
    """Host time of one step outside the blocks: data, norms, logging."""


_ALL = (
    Engine("nbtrain", "nbtrain (DeepSpeed)", hidden_data=0.5),
    Engine("megatron-lm", "Megatron-LM until 2023"),
    Engine("megatron-core", "Megatron-LM with Megatron Core", hidden_data=0.8, attention_share=0.8),
    Engine("megatron-bridge", "Megatron-Bridge (NeMo)", hidden_data=0.8, attention_share=0.8),
    Engine("megatron-deepspeed", "Megatron-DeepSpeed", hidden_data=0.3),
    Engine("transformers", "transformers' Trainer with DeepSpeed"),
    Engine("composer", "Composer (LLM Foundry), FSDP", hidden_data=0.8),
    Engine("torchtitan", "torchtitan, FSDP 2", hidden_data=0.8, selective_share=0.5),
    Engine("metaseq", "metaseq, fairscale's FSDP", hidden_data=0.5),
    Engine("llama", "the trainer of the Llama 3 models", hidden_data=0.8, attention_share=0.8),
    Engine("nanotron", "nanotron", hidden_data=0.3),
    Engine("gpt-neox", "GPT-NeoX (DeepSpeed)", hidden_data=0.3),
    Engine("litgpt", "LitGPT with fused kernels, FSDP", hidden_data=0.8),
    Engine("nanogpt", "nanoGPT, DDP and torch.compile", hidden_data=0.8),
    Engine("colossalai", "ColossalAI", hidden_data=0.5),
)

ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ALL}
