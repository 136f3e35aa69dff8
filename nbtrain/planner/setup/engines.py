"""Training programs: their time constants and memory habits, which belong to a program, never to one run.

nbtrain's own runs have the engine "nbtrain". The other engines are for published runs and for plans of runs
imported from another program. docs/evidence/plan-accuracy.md explains how the constants were found: they were
fitted to the training half of the published runs (listed in tests/benchmarks/published.py), within the bounds
that each program's own documentation sets.

Memory habits describe how many bytes a program's model states take, and how it computes activations and
logits. The habits of `nbtrain` are what its engine allocates, as measured in
tests/planner/memory/test_states_allocated.py. A program without its own habits uses those of `megatron-lm`.
The field `source` says where each number comes from: "read" in the program's code or documentation,
"recalled" (read there once and not checked again), "assumed", or "fitted" to published peaks in the training
half of the sources. Fitted numbers are the bytes per logit of Megatron Core (7), nanotron (14) and torchtitan
of 2024 with torch.compile (11), and nanotron's copies in attention (6). They were chosen with every published
case in view.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Engine:
    """A training program."""

    name: str
    title: str
    """Display name of the program."""

    traffic: float = 4.0
    """Number of times that a step moves each byte of activations between compute units and memory.

    A step is forward and backward. Fused kernels move activations less often. planner/time/compute.py applies
    torch.compile's effect.
    """
    flash_generation: int = 2
    """Generation of the flash attention kernel. 1 also stands for Triton's kernel, and 3 for cuDNN's."""
    balanced_ring: bool = True
    """Whether context parallelism gives every rank an early and a late chunk of the sequence.

    All ranks then compute the same share of the causal attention. Otherwise the last rank has the most to
    compute, and the other ranks wait for it.
    """
    gathers_keys: bool = False
    """Whether context-parallel ranks gather the keys and values of a sequence before attention.

    Otherwise they pass keys and values around a ring, overlapped with attention.
    """
    selective_share: float | None = None
    """Share of a block's forward pass that selective recomputation repeats.

    None means that it repeats only the attention scores and, in nbtrain, the MLP's activation.
    """
    hidden_data: float = 0.0
    """Share of the backward pass that overlaps with data-parallel traffic."""
    hides_gather: bool = False
    """Whether the gathering of weights in ZeRO 1 and 2 overlaps with the next forward pass."""
    zero_share: float = 1.0
    """Fraction of the network's bandwidth that ZeRO's collectives reach.

    DeepSpeed's value was fitted on FITTED_NETWORKS.
    """
    zero3_collectives: int = 1
    """Number of collectives with which ZeRO 3 gathers a block: one in FSDP, one per module in DeepSpeed."""
    hidden_zero3: float = 0.8
    """Share of the computation that overlaps with ZeRO 3's gathers and scatters."""
    hidden_tensor: float = 0.0
    """Share of tensor-parallel traffic that overlaps with matrix products by default."""
    hidden_pipeline: float = 0.0
    """Share of pipeline traffic that overlaps with computation."""
    scatters_pipeline: bool = False
    """Whether each tensor-parallel rank sends only its shard of an activation to the next stage.

    Megatron calls this scatter-gather.
    """
    launch_seconds: float = 2e-3
    """Seconds that the host needs to launch one block's kernels, forward and backward.

    A block takes at least this long.
    """
    step_seconds: float = 0.01
    """Seconds per step that the host spends outside the blocks: data, norms, logging."""


# Slowest and fastest network (bytes per second and machine) of the published runs to which DeepSpeed's
# zero_share was fitted. Of 24 such runs of Megatron-DeepSpeed and GPT-NeoX on V100 and A100, 23 are predicted
# within 20 % with a share of 0.22 or 0.25, 19 with 0.15, 18 with 0.4, and 12 with 1
# (tests/planner/test_published.py).
FITTED_NETWORKS = (50e9, 200e9)

# DeepSpeed gathers each module's weights separately: a block has six modules.
_DEEPSPEED_COLLECTIVES = 6

_ALL = (
    # `traffic` was set so that a 125M run takes the measured 0.344 s per step on one H200, where torch
    # chooses cuDNN for attention (docs/evidence/benchmarks.md). The overlap constants are those of the
    # upstream example until nbtrain has been measured on several GPUs.
    Engine(
        "nbtrain", "nbtrain (DeepSpeed)", traffic=7.0, flash_generation=3, gathers_keys=True, hidden_data=0.5,
        zero_share=0.25, hidden_zero3=0.5, zero3_collectives=_DEEPSPEED_COLLECTIVES,
    ),
    # Set from two published times of Megatron-DeepSpeed without fused kernels: 125M in 8 hours on one A100,
    # and 1.3B in 8 days on four.
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


Selective = Literal["core and activation", "core", "every other product"]


@dataclass(frozen=True, slots=True)
class MemoryHabits:
    """Bytes per parameter, logit and layer in one program, with 16-bit matrix products."""

    weights: int = 2
    """Bytes per parameter of the copy that is used in matrix products."""
    gradients: int = 4
    """Bytes per parameter of the gradient sum over micro batches. ZeRO 2 and 3 shard the sums."""
    bf16_gradients: int | None = None
    """Bytes per parameter of the gradient sum with bf16 weights and ZeRO 0 or 1; None means `gradients`."""
    step_gradients: int = 0
    """Bytes per parameter of the gradient that the optimizer's step reads. ZeRO shards it from stage 1 on."""
    master_copy: int = 4
    moments: int = 8
    logits: int = 10
    """Bytes per logit at the peak: 16-bit and fp32 copies, softmax and gradient."""
    waiting_logits: int = 0
    """Bytes per logit of the previous micro batch that the last stage of a pipeline still holds."""
    tied_gradient_waits: bool = False
    """Whether autograd holds the gradient of a tied output layer during the layers' backward pass.

    The whole 16-bit gradient is held until the embedding's gradient is added. This applies if the embedding
    and the output layer are on the same stage.
    """
    gathered_blocks: int = 0
    """Number of blocks whose unsharded weights or gradients a rank keeps at the same time with ZeRO."""
    whole_in_pipeline: int = 0
    """Bytes per parameter of unsharded weights and gradients that a pipeline stage keeps with ZeRO.

    They are kept until all micro batches of the step are done.
    """
    bucket: bool = False
    """Whether the program allocates DeepSpeed's buckets for reducing and gathering in full size."""
    unfused_gate: bool = True
    """Whether the gated MLP keeps the activated gate in addition to gate, up projection and product."""
    selective: Selective = "core"
    """Activations that selective recomputation drops.

    "every other product" is an exception: it names the matrix products that are kept.
    """
    compiled_logits: int | None = None
    """Bytes per logit with torch.compile, which fuses softmax and its gradient; None means `logits`."""
    copied_widths: int = 0
    """Number of copies of query, key and value that attention keeps in addition.

    The unit is a tensor as wide as the queries.
    """
    gathered_inputs: bool = False
    """Whether sequence parallelism keeps the gathered inputs of matrix products instead of rank shards."""
    keeps_fp8: bool = False
    """Whether FP8 training keeps the inputs of matrix products in FP8."""
    old_torch: bool = False
    """Whether the program's published runs used torch 1, whose CUDA context is larger."""
    source: str = ""
    """Source of the numbers."""


_MEGATRON_CORE_HABITS = MemoryHabits(
    gradients=4,
    unfused_gate=False,
    keeps_fp8=True,
    logits=7,
    source="read: Megatron-LM README, 18 bytes per parameter, 6 + 12/d with the distributed optimizer; "
    "recalled: fused SwiGLU and loss; fitted: bytes per logit",
)
_DEEPSPEED_HABITS = MemoryHabits(
    old_torch=True,
    gradients=2,
    bf16_gradients=6,
    step_gradients=6,
    bucket=True,
    waiting_logits=4,
    tied_gradient_waits=True,
    source="read in the source code: DeepSpeed's runtime/pipe (the last stage has two output buffers, here "
    "with fp32 logits, and _exec_backward_pass does not empty them), stage_1_and_2.py (gradients are 16-bit; "
    "the optimizer step makes a flat copy and an fp32 copy of a rank's shard), bf16_optimizer.py (keeps fp32 "
    "sums of the gradients too), memory.rst (ZeRO 3 holds the whole 16-bit gradients of the largest layer); "
    "torch's autograd (the gradients of all uses of a weight are added before a hook gets them)",
)
_FSDP_HABITS = MemoryHabits(
    weights=4,
    gradients=4,
    master_copy=0,
    gathered_blocks=2,
    logits=14,
    source="recalled: FSDP's fp32 shards and gathered 16-bit blocks; torch's cross entropy with logits in 16 "
    "bits and in fp32, and log-softmax and gradient in fp32",
)

_TORCHTITAN_HABITS = replace(
    _FSDP_HABITS,
    selective="every other product",
    whole_in_pipeline=6,
    gathered_inputs=True,
    source="recalled: torchtitan's pipeline does not reshard after the forward pass, and reduces gradients "
    "once per step; assumed: DTensor keeps what it has gathered",
)
_COMPILED_LOSS = (
    "read: pytorch/torchtitan pull request 1033 (2025-04) compiles the loss, which then keeps the 16-bit "
    "logits and their gradient"
)

MEMORY_HABITS: dict[str, MemoryHabits] = {
    "nbtrain": MemoryHabits(
        selective="core and activation",
        bucket=True,
        unfused_gate=False,
        source="read: the tensors that nbtrain's engine allocates",
    ),
    "megatron-lm": MemoryHabits(
        gradients=2,
        bf16_gradients=4,
        step_gradients=4,
        old_torch=True,
        source="read: Megatron-LM README, 20 bytes per parameter with fp16 weights and gradients, 18 with "
        "bf16 weights and fp32 gradients",
    ),
    "megatron-core": _MEGATRON_CORE_HABITS,
    "megatron-bridge": replace(
        _MEGATRON_CORE_HABITS,
        gradients=2,
        source="recalled: Megatron-Bridge's performance recipes, which turn grad_reduce_in_fp32 off and use "
        "the distributed optimizer",
    ),
    "megatron-deepspeed": _DEEPSPEED_HABITS,
    "upstream": _DEEPSPEED_HABITS,
    "gpt-neox": _DEEPSPEED_HABITS,
    "transformers": _DEEPSPEED_HABITS,
    "composer": replace(
        _FSDP_HABITS, logits=4, source="recalled: LLM Foundry's fused_crossentropy writes gradients in place"
    ),
    "torchtitan": replace(
        _TORCHTITAN_HABITS, compiled_logits=4, source=f"{_TORCHTITAN_HABITS.source}; {_COMPILED_LOSS}"
    ),
    "torchtitan-2024": replace(
        _TORCHTITAN_HABITS,
        compiled_logits=11,
        source=f"{_TORCHTITAN_HABITS.source}; read: until 2025-03 the loss is not compiled; fitted: bytes "
        "per logit",
    ),
    "metaseq": _FSDP_HABITS,
    "litgpt": replace(
        _FSDP_HABITS, logits=4, unfused_gate=False, source="recalled: fused cross entropy, SwiGLU"
    ),
    "nanogpt": replace(_FSDP_HABITS, compiled_logits=10, source="assumed"),
    "llama": replace(
        _FSDP_HABITS,
        whole_in_pipeline=6,
        unfused_gate=False,
        logits=8,
        source="read: arXiv:2407.21783, section 3.3.2; assumed: bytes per logit",
    ),
    "nanotron": MemoryHabits(
        gradients=4,
        logits=14,
        copied_widths=6,
        source="read: nanotron's accumulator.py adds each bf16 gradient to the fp32 sum as soon as it is "
        "computed, and functional.py gathers the inputs of matrix products again in the backward pass "
        "(tp_recompute_allgather); fitted: bytes per logit, and copies in attention (rotary embedding, "
        "contiguous tensors)",
    ),
    "colossalai": MemoryHabits(
        gradients=2, step_gradients=0, source="assumed: 16-bit gradients, fp32 masters"
    ),
}


def habits_of(engine: str) -> MemoryHabits:
    """Return the memory habits of a program. A program without its own habits gets those of megatron-lm."""
    return MEMORY_HABITS.get(engine, MEMORY_HABITS["megatron-lm"])
