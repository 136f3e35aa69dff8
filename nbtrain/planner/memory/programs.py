"""Memory habits of each training program: bytes of model state, and how it computes activations and logits.

`nbtrain` is what this project's engine allocates (tests/planner/memory/test_states_allocated.py measures it).
The others are for published runs, and for plans of runs imported from another program. A program that is not
listed here is treated as `megatron-lm`.

`source` says where a number comes from: "read" in the program's code or documentation, "recalled" (read there
once and not checked again), "assumed", or "fitted" to published peaks in the training half of the sources
(tests/benchmarks/published.py). The bytes of one logit are fitted for Megatron Core (7), nanotron (14) and
torchtitan of 2024 with torch.compile (11), and so are nanotron's copies in attention (6). All were chosen
with every published case in view (docs/evidence/plan-accuracy.md).
"""

from dataclasses import dataclass, replace
from typing import Literal

Selective = Literal["core and activation", "core", "every other product"]


@dataclass(frozen=True, slots=True)
class MemoryHabits:
    """Bytes for each parameter, logit and layer of one program, with 16-bit products."""

    weights: int = 2
    """Bytes of the copy of a parameter that is used in matrix products."""
    gradients: int = 4
    """Bytes of a parameter's gradient sum over micro batches; ZeRO 2 and 3 shard the sums."""
    bf16_gradients: int | None = None
    """Bytes of a gradient sum with bf16 weights and ZeRO 0 or 1, if they differ."""
    step_gradients: int = 0
    """Bytes of the gradient that the optimizer's step reads; ZeRO shards it from stage 1 on."""
    master_copy: int = 4
    moments: int = 8
    logits: int = 10
    """Bytes of one logit at the peak: 16-bit and fp32 copies, softmax and gradient."""
    waiting_logits: int = 0
    """Bytes of one logit of the previous micro batch that the last stage of a pipeline still holds."""
    tied_gradient_waits: bool = False
    """Whether, with tied weights on one stage, autograd holds the output layer's whole 16-bit gradient during
    the layers' backward pass until the embedding's gradient is added."""
    gathered_blocks: int = 0
    """Number of blocks whose whole weights and gradients a rank keeps at the same time under ZeRO 3."""
    whole_in_pipeline: int = 0
    """Bytes of whole weights and gradients that a pipeline stage keeps for all its micro batches, under
    ZeRO 3."""
    bucket: bool = False
    """Whether DeepSpeed's buckets for reducing and gathering are allocated in full size."""
    unfused_gate: bool = True
    """Whether the gated MLP keeps the activated gate in addition to gate, opening and product."""
    selective: Selective = "core"
    """Activations that selective recomputation drops."""
    compiled_logits: int | None = None
    """Bytes of one logit with torch.compile, if they differ: the compiler fuses softmax and its gradient."""
    copied_widths: int = 0
    """Further tensors of the queries' width that attention keeps in the products' format: copies that the
    program makes of query, key and value."""
    gathered_inputs: bool = False
    """Whether sequence parallelism keeps the gathered inputs of products instead of this rank's part."""
    keeps_fp8: bool = False
    """Whether FP8 keeps the inputs of products in their rounded form."""
    old_torch: bool = False
    """Whether the program's published runs used torch 1, whose CUDA context is larger."""
    source: str = ""


_MEGATRON_CORE = MemoryHabits(
    gradients=4,
    unfused_gate=False,
    keeps_fp8=True,
    logits=7,
    source="read: Megatron-LM README, 18 bytes, 6 + 12/d with the distributed optimizer; recalled: fused "
    "SwiGLU and loss; fitted: bytes of a logit",
)
_DEEPSPEED = MemoryHabits(
    old_torch=True,
    gradients=2,
    bf16_gradients=6,
    step_gradients=6,
    bucket=True,
    waiting_logits=4,
    tied_gradient_waits=True,
    source="read: DeepSpeed runtime/pipe, the last stage has two buffers for outputs, here fp32 logits, and "
    "_exec_backward_pass does not empty them; stage_1_and_2.py, 16-bit gradients, for the step a flat and an "
    "fp32 copy of a rank's part; bf16_optimizer.py, fp32 sums in addition; memory.rst, ZeRO 3 holds 2 bytes "
    "of gradients of the largest layer whole; torch's autograd, which adds all uses of a weight before its "
    "hook sees them",
)
_FSDP = MemoryHabits(
    weights=4,
    gradients=4,
    master_copy=0,
    gathered_blocks=2,
    logits=14,
    source="recalled: FSDP's fp32 shards and 16-bit gathered blocks; torch's cross entropy: logits in 16 bit "
    "and fp32, log-softmax and gradient in fp32",
)

_TORCHTITAN = replace(
    _FSDP,
    selective="every other product",
    whole_in_pipeline=6,
    gathered_inputs=True,
    source="recalled: torchtitan's pipeline does not reshard after the forward pass and reduces once a step; "
    "assumed: DTensor keeps what it has gathered",
)
_LOSS = (
    "read: pytorch/torchtitan pull request 1033 (2025-04) compiles the loss, which then keeps the 16-bit "
    "logits and their gradient"
)

PROGRAMS: dict[str, MemoryHabits] = {
    "nbtrain": MemoryHabits(
        selective="core and activation", bucket=True, unfused_gate=False, source="read: tensors of the engine"
    ),
    "megatron-lm": MemoryHabits(
        gradients=2,
        bf16_gradients=4,
        step_gradients=4,
        old_torch=True,
        source="read: Megatron-LM README, fp16 parameters and gradients, 20 bytes; bf16 with fp32 gradients, "
        "18",
    ),
    "megatron-core": _MEGATRON_CORE,
    "megatron-bridge": replace(
        _MEGATRON_CORE,
        gradients=2,
        source="recalled: Megatron-Bridge's recipes for performance, grad_reduce_in_fp32 off, distributed "
        "optimizer",
    ),
    "megatron-deepspeed": _DEEPSPEED,
    "upstream": _DEEPSPEED,
    "gpt-neox": _DEEPSPEED,
    "transformers": _DEEPSPEED,
    "composer": replace(
        _FSDP, logits=4, source="recalled: LLM Foundry's fused_crossentropy writes gradients in place"
    ),
    "torchtitan": replace(_TORCHTITAN, compiled_logits=4, source=f"{_TORCHTITAN.source}; {_LOSS}"),
    "torchtitan-2024": replace(
        _TORCHTITAN,
        compiled_logits=11,
        source=f"{_TORCHTITAN.source}; read: until 2025-03 the loss is not compiled; fitted: bytes of a "
        "logit",
    ),
    "metaseq": _FSDP,
    "litgpt": replace(_FSDP, logits=4, unfused_gate=False, source="recalled: fused cross entropy, SwiGLU"),
    "nanogpt": replace(_FSDP, compiled_logits=10, source="assumed"),
    "llama": replace(
        _FSDP,
        whole_in_pipeline=6,
        unfused_gate=False,
        logits=8,
        source="read: arXiv:2407.21783, 3.3.2; assumed: logits",
    ),
    "nanotron": MemoryHabits(
        gradients=4,
        logits=14,
        copied_widths=6,
        source="read: nanotron, accumulator.py adds each bf16 gradient to the fp32 sum when it is made; "
        "functional.py gathers the inputs of products again in the backward pass (tp_recompute_allgather); "
        "fitted: bytes of a logit, and copies in attention (rotary embedding, contiguous tensors)",
    ),
    "colossalai": MemoryHabits(
        gradients=2, step_gradients=0, source="assumed: 16-bit gradients, fp32 masters"
    ),
}


def habits_of(engine: str) -> MemoryHabits:
    """Return the habits of a program by its name in setup/engines.py."""
    return PROGRAMS.get(engine, PROGRAMS["megatron-lm"])
