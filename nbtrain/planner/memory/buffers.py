"""Device memory that is neither model state nor activation: logits, buffers, CUDA, fragmentation.

logits         nbtrain: one chunk of the fused output layer and cross entropy, the hidden states that
               enter it, and the two gradients that it computes. Other programs, and a user's own loss():
               all logits of a micro batch. The logits are freed before a layer is recomputed, so the peak
               has either the logits or the recomputed layer, whichever is larger (estimate.py). The
               gradients that the loss leaves for the layers' backward pass are always there
               (loss_gradients)
communication  DeepSpeed's buckets; under ZeRO 3 also the parameters that are gathered at the same time
pipeline       the output of each micro batch in flight that was sent to the next stage; two receive
               buffers
workspace      what the peak needs in addition: gradients inside a layer, FP8's rounded copies, or the
               flat gradient of the step if it is larger than the memory that the activations have freed
runtime        CUDA's context, and NCCL if there are several ranks; on a CPU, the process itself
reserve        memory lost to fragmentation in torch's allocator
"""

from nbtrain.config.arithmetic.devices import GIB
from nbtrain.planner.memory.activations import (
    live,
    own_kernel,
    product_element,
    stream_bytes,
    stream_element,
)
from nbtrain.planner.memory.stage import Stage
from nbtrain.planner.memory.states import (
    adapter_tensors,
    dequantized_bytes,
    is_bf16_optimizer,
    weight_element,
)
from nbtrain.planner.setup.engines import habits_of
from nbtrain.planner.setup.setup import Setup

# Number of elements of equally shaped matrices that Muon orthogonalizes together
# (train/engine/newton_schulz.py).
STACK_ELEMENTS = 2**24
# CUDA's context, measured with torch 2.1 on an A100: 0.47 GiB if kernels are loaded lazily, 0.92 GiB if all
# kernels are loaded (stas00, ml-engineering, training/performance).
CUDA_CONTEXT_BYTES = int(0.9 * GIB)
# CUDA's context in logs from 2022 with torch 1.10: V100 1.24 GiB, A100 1.54 GiB (bigscience).
OLD_CONTEXT_BYTES = (int(1.24 * GIB), int(1.54 * GIB))
# The first NCCL communicator raised the used memory of a GPU from 0.55 to 2.00 GiB (same source).
NCCL_BYTES = int(1.5 * GIB)
# A CPU rank's resident memory in addition to the counted parts: measured with gpt3-tiny.
CPU_RUNTIME_BYTES = 434 * 2**20
# Memory of each further NCCL communicator: two peers, each with 24 channels of 4 + 0.5 + 4.7 MiB (NCCL's
# constants).
NCCL_MORE_BYTES = int(24 * 2 * 9.2 * 2**20)
# Free memory between torch's blocks that cannot be returned on a full device, as a fraction of the allocated
# memory. The value was fitted on half of the published runs (the training half), to predict which of them fit
# their GPUs (docs/evidence/plan-accuracy.md). In the other half, fragmentation alone ended one run, with 58.8
# of 80 GB allocated.
RESERVE_FRACTION = 0.05
# Average fraction of the reserved memory that is lost to fragmentation without expandable segments, over
# eight models that were fine-tuned on A100-80GB (arXiv:2401.08156; at worst 33 %). No run is refused because
# of this loss, since one in ten of the published runs that did fit would be refused
# (docs/evidence/plan-accuracy.md). If a run would not fit with this loss, its plan recommends expandable
# segments, which cost nothing.
AVERAGE_FRAGMENTATION = 0.15
# Number of queries in a block of nbtrain's own attention kernel (model/attention.py).
CPU_BLOCK_ROWS, GPU_BLOCK_ROWS = 128, 256
# A plan that leaves less than this fraction of the device's memory free is rated "tight". Together with the
# reserve, this keeps torch's allocations at 90 % of the memory that CUDA leaves; the usual rule is 90 to 92 %
# (stas00, ml-engineering).
SPARE_FRACTION = 0.05
# Bytes per logit in a run with its own loss(): the fp32 logit, its exponential or log-softmax, and two
# gradients.
OWN_LOSS_BYTES = 16
# The driver keeps some of a device's memory: torch gets 79.15 of 80 GiB on an A100, 31.75 of 32 GiB on a
# V100, and 139.8 of 141 GiB on an H200 (stas00, ml-engineering; torch's out-of-memory messages).
USABLE_FRACTION = 0.99
# Free blocks, including the reserve, that torch holds while memory is free, as a fraction of the allocated
# memory. Fitted to published peaks of whole devices in the training half (docs/evidence/plan-accuracy.md).
FREE_FRACTION = 0.14


def logits_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes that the output layer and the loss need; 0 except on the last stage.

    nbtrain's fused output layer and loss are in parallel/cross_entropy.py.
    """
    if not stage.is_last:
        return 0
    tokens, shape, tensor = setup.tokens_per_micro_batch, setup.shape, setup.tensor_parallel_size
    vocabulary = shape.padded_vocab_size // tensor
    if setup.engine != "nbtrain":
        habits = habits_of(setup.engine)
        fused = habits.compiled_logits if setup.compiled else None
        # The gradient of the weights is computed after most of the logits are freed.
        return max((fused or habits.logits) * tokens * vocabulary, loss_gradients(setup, stage))
    entering = stream_element(setup) * tokens * shape.hidden_size
    if setup.own_loss:
        width = shape.padded_vocab_size if setup.own_loss == "whole" else vocabulary
        own = tokens * (product_element(setup) * vocabulary + OWN_LOSS_BYTES * width)
        return own + entering + loss_gradients(setup, stage)
    chunk = min(setup.logits_chunk_tokens or tokens, tokens)
    # A chunk's logits in the format of the matrix products, twice if they are soft-capped. On a GPU, which
    # does not work in small blocks of rows, the softmax adds its own tensors.
    each = product_element(setup) * (2 if shape.logit_softcap else 1)
    each += _softmax_bytes(setup) if setup.on_gpu else 0
    transient = chunk * vocabulary * each
    return transient + entering + loss_gradients(setup, stage)


def _softmax_bytes(setup: Setup) -> int:
    """Return the bytes per logit that the softmax needs on a GPU.

    They are the fp32 log-softmax, and an fp32 copy of 16-bit logits. Only for fp16 does torch have a kernel
    that needs no copy (ATen/native/SoftMax.cpp, log_softmax). On an H200, a 125M run with chunks of 8,192
    tokens took 15.8 GiB; the plan, which counts the copy, predicts 15.7 GiB.
    """
    is_cast = setup.dtype == "bf16" or (setup.dtype == "fp16" and setup.tensor_parallel_size > 1)
    return 4 + (4 if is_cast else 0)


def loss_gradients(setup: Setup, stage: Stage) -> int:
    """Return the bytes of gradients that the loss leaves in memory for the layers' backward pass.

    In nbtrain, these are the fp32 gradient of the word embeddings and the gradient of the hidden states,
    which every tensor-parallel rank holds in full. In programs that leave the loss to autograd, it is the
    output layer's gradient if the weights are tied, because ZeRO cannot shard it before the embedding's
    gradient is added. DeepSpeed's own estimate for ZeRO 3 also counts these 2 bytes per parameter of the
    largest layer (docs/code-docs/source/memory.rst).
    """
    if not stage.is_last:
        return 0
    shape, tokens = setup.shape, setup.tokens_per_micro_batch
    vocabulary = shape.padded_vocab_size // setup.tensor_parallel_size
    if setup.engine == "nbtrain":
        # Frozen embeddings have a gradient only for their trained rows.
        words = setup.trained_row_elements if setup.adapter_sizes else vocabulary * shape.hidden_size
        return 4 * words + stream_element(setup) * tokens * shape.hidden_size
    waits = habits_of(setup.engine).tied_gradient_waits and shape.tied and stage.is_first
    return product_element(setup) * vocabulary * shape.hidden_size if waits else 0


def passing_logits_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of the output layer that are freed before the last layer's backward pass begins."""
    return logits_bytes(setup, stage) - loss_gradients(setup, stage)


def communication_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of communication buckets and, under ZeRO 3, of gathered parameters."""
    if setup.engine == "nbtrain":
        return _of_deepspeed(setup, stage)
    habits, count = habits_of(setup.engine), stage.elements
    element = 4 if setup.dtype == "fp32" else 2
    found = 0
    if habits.bucket and setup.zero_stage and setup.data_axis_size > 1:
        # One bucket is reduced at a time, or two in ZeRO 2 with overlap; parameters are gathered in place.
        buckets = 2 if setup.zero_stage == 2 and setup.overlap_comm else 1
        found += element * buckets * min(setup.reduce_bucket_elements, count)
    if habits.whole_in_pipeline and setup.zero_stage and setup.pipeline_parallel_size > 1:
        found += habits.whole_in_pipeline * count
    elif habits.gathered_blocks and setup.zero_stage == 2:
        # Gathered 16-bit weights stay until the backward pass; gradients of a few blocks are unsharded.
        found += element * (count + habits.gathered_blocks * _block(stage) + _largest_end(stage))
    elif habits.gathered_blocks and (setup.zero_stage or setup.shard_size):
        # Unsharded weights and gradients of a few blocks, and of embedding and output.
        blocks = min(habits.gathered_blocks, stage.layers)
        found += 2 * element * (blocks * _block(stage) + _largest_end(stage))
    elif setup.zero_stage == 3:
        found += element * min(count, setup.max_live_elements)
    return found


def _block(stage: Stage) -> int:
    """Return the number of parameters in one layer's matrices."""
    return (stage.parameters.attention + stage.parameters.mlp) // max(stage.layers, 1)


def _largest_end(stage: Stage) -> int:
    return max(stage.parameters.word_embeddings, stage.parameters.output_layer)


def _of_deepspeed(setup: Setup, stage: Stage) -> int:
    """Return the bytes of DeepSpeed's buckets and gathered parameters.

    Read in DeepSpeed 0.19.8: stage_1_and_2.py, setup_buckets and reduce_gradients; stage3.py.
    """
    zero, count, asked = setup.zero_stage, stage.elements, setup.reduce_bucket_elements
    # A buffer is filled only up to the number of gradients; on a CPU, the unused rest takes no memory.
    bucket = asked if setup.on_gpu else min(asked, count)
    element, found = weight_element(setup), 0
    if zero in (1, 2) and not is_bf16_optimizer(setup) and setup.contiguous_gradients:
        # ZeRO 1 reduces the fp32 sums. Nothing overlaps in a pipeline, which reduces after the last micro
        # batch, or on a single rank, which reduces nothing.
        two = setup.overlap_comm and setup.pipeline_parallel_size == 1 and setup.data_axis_size > 1
        found += (4 if zero == 1 else element) * bucket * (2 if two else 1)
    if zero == 3:
        found += element * (min(count, setup.max_live_elements) + bucket)
        if setup.quantized_weights:
            # int8 copies of what is gathered ahead (ZeRO++, arXiv:2306.10209, section 3.1).
            found += min(count, setup.prefetch_elements)
        if setup.quantized_gradients:
            # int4 halves of a bucket, sent and received (section 3.3).
            found += bucket
    return found


def pipeline_bytes(setup: Setup, stage: Stage, micro_batches: float) -> int:
    """Return the bytes of the outputs sent to the next stage, and of up to two receive buffers.

    Outputs are kept until their gradients arrive. The last stage sends nothing, but some programs keep the
    logits of the previous micro batch there. The result is 0 without a pipeline.
    """
    if setup.pipeline_parallel_size == 1:
        return 0
    stream = stream_bytes(setup)
    sent = micro_batches * stream
    if stage.is_last:
        logits = setup.tokens_per_micro_batch * setup.shape.padded_vocab_size / setup.tensor_parallel_size
        sent = habits_of(setup.engine).waiting_logits * logits if setup.accumulation_steps > 1 else 0
    received = (not stage.is_first) + (not stage.is_last)
    return int(sent + received * stream)


def workspace_bytes(setup: Setup, stage: Stage, freed_before_step: float, room: float) -> int:
    """Return the bytes that the peak needs in addition to activations and logits.

    The last layer's backward pass or the optimizer's step needs them, whichever is more. The step can use the
    `freed_before_step` bytes that activations and logits have freed by then. The backward pass can use the
    `room` bytes of logits that are freed before it begins.
    """
    backward = max(_backward_bytes(setup) - room, 0)
    return int(max(backward, _step_bytes(setup, stage) - freed_before_step, 0))


def _backward_bytes(setup: Setup) -> float:
    """Return the bytes of temporary tensors in a layer's backward pass.

    These are gradients of the MLP's inner tensors (two, or in nbtrain's gated MLP three: product, gate and
    gated values) and of the residual stream, or the temporary tensors of attention if they are larger.
    """
    shape, tokens, tensor = setup.shape, setup.tokens_per_micro_batch, setup.tensor_parallel_size
    chunk = setup.fpdt_chunk_tokens
    inside = tokens if not chunk else min(chunk * setup.micro_batch_size // setup.ulysses_size, tokens)
    wide = inside * shape.ffn_hidden_size // tensor
    gradients = 3 if shape.gated and setup.engine == "nbtrain" else 2
    backward = gradients * product_element(setup) * wide + stream_bytes(setup)
    if setup.fp8 and setup.engine == "nbtrain":
        # Rounding the MLP's inner activation makes two fp32 copies (scaled, clamped) and the result (fp8.py).
        backward += (8 + 1) * wide
    # A matrix product with 4-bit weights restores the whole matrix first.
    backward += dequantized_bytes(setup)
    return max(backward, _block_bytes(setup) + stream_bytes(setup), _key_gradient_bytes(setup))


def _key_gradient_bytes(setup: Setup) -> float:
    """Return the bytes of the gradients of keys and values in nbtrain's context parallelism; else 0.

    The unit is the keys and values of one whole sequence. With c context-parallel ranks, the gradients of a
    rank's two chunks together take at most 1 + 1/c of it. Their sum over the whole sequence and its copy in
    rank order take 1 each (parallel/context.py).
    """
    context = setup.context_parallel_size
    if setup.engine != "nbtrain" or context == 1:
        return 0
    keys = 2 * setup.attended_groups * setup.shape.kv_channels * setup.tokens_per_micro_batch
    return product_element(setup) * keys * (2 * context + context + 1) + stream_bytes(setup)


def _block_bytes(setup: Setup) -> float:
    """Return the bytes that nbtrain's own attention kernel needs in the backward pass; 0 if it does not run.

    It holds scores, attention weights and the gradients of both for a block of queries (and capped scores, if
    scores are capped), the gradient of the query, and the fp32 gradients of key and value
    (model/attention.py).
    """
    shape, tensor = setup.shape, setup.tensor_parallel_size
    if not (shape.attn_softcap or (shape.window_size and own_kernel(setup, window=True))):
        return 0
    rows = GPU_BLOCK_ROWS if setup.on_gpu else CPU_BLOCK_ROWS
    columns = shape.seq_length if shape.attn_softcap else min(shape.window_size + rows, shape.seq_length)
    # A Ulysses rank has a part of the heads and all tokens.
    heads = shape.num_attention_heads / tensor / setup.ulysses_size
    tensors = 5 if shape.attn_softcap else 4
    block = tensors * setup.micro_batch_size * heads * min(rows, shape.seq_length) * columns
    # Without a window, a context-parallel rank has gradients for the keys of the whole sequence.
    context = setup.context_parallel_size if shape.attn_softcap and setup.engine == "nbtrain" else 1
    gradients = product_element(setup) * shape.query_width + 8 * context * shape.kv_width
    return product_element(setup) * block + setup.tokens_per_micro_batch * gradients / tensor


def _step_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of the flat gradient that the optimizer's step creates, plus Muon's buffers."""
    if setup.offload_optimizer != "none":
        return 0
    ranks = setup.zero_size if setup.zero_stage else 1
    if setup.engine != "nbtrain":
        return habits_of(setup.engine).step_gradients * stage.elements // ranks
    with_copy = setup.zero_stage in (1, 2) and not is_bf16_optimizer(setup)
    # Frozen weights have no flat gradient.
    held = adapter_tensors(setup, stage)
    stepped = sum(size * copies for size, copies in held) if held else stage.elements
    return (4 * stepped // ranks if with_copy else 0) + _muon_bytes(setup, stage)


def _muon_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of Muon's buffers: exchanged shards, whole matrices and stacks; 0 with AdamW.

    Matrices are distributed evenly, so a rank receives as much as it sends. While a stack of matrices is
    multiplied, its Gram matrices, their polynomial and the next stack are in memory too: together at most
    four times the stack's bytes (train/engine/muon.py).
    """
    if not setup.muon_steps:
        return 0
    shape, element = setup.shape, 2 if setup.dtype == "bf16" else 4
    widest = max(shape.query_width, shape.ffn_hidden_size) * shape.hidden_size
    stack = min(max(widest, STACK_ELEMENTS), shape.num_layers * (shape.attention_weights + shape.mlp_weights))
    exchanged = 0
    if setup.muon_ranks > 1:
        exchanged = 3 * stage.blocks * setup.tensor_parallel_size // setup.muon_ranks
    return element * (exchanged + 4 * stack)


def runtime_bytes(setup: Setup) -> int:
    """Return the bytes of CUDA's context and NCCL, or of a CPU process.

    Each kind of parallelism with more than one rank has its own NCCL communicator.
    """
    if not setup.on_gpu:
        return CPU_RUNTIME_BYTES
    kinds = setup.tensor_parallel_size, setup.pipeline_parallel_size, setup.data_axis_size
    communicators = sum(size > 1 for size in kinds)
    first = NCCL_BYTES if communicators else 0
    context = CUDA_CONTEXT_BYTES
    if setup.engine != "nbtrain":
        old = habits_of(setup.engine).old_torch
        capability = setup.device.compute_capability if setup.device else (8, 0)
        context = OLD_CONTEXT_BYTES[capability >= (8, 0)] if old else CUDA_CONTEXT_BYTES
    return context + first + max(communicators - 1, 0) * NCCL_MORE_BYTES


def reserve_bytes(setup: Setup, allocated: int) -> int:
    """Return the bytes lost to fragmentation on a full GPU; 0 on a CPU."""
    return int(RESERVE_FRACTION * allocated) if setup.on_gpu else 0


def fragmented_bytes(allocated: int) -> int:
    """Return the bytes that torch reserves for `allocated` bytes at the average published fragmentation."""
    return int(allocated / (1 - AVERAGE_FRAGMENTATION))


def free_block_bytes(setup: Setup, stage: Stage, allocated: int) -> int:
    """Return the bytes of torch's free blocks, including the reserve, which nvidia-smi shows as used.

    The logits and the recomputed layer are never in memory at the same time, but they need separate segments:
    torch does not join segments, and returns them only when memory runs short. Until then, the smaller of the
    two stays reserved as free blocks. The result is limited by the size of the device's memory.
    """
    least = reserve_bytes(setup, allocated)
    if not setup.on_gpu:
        return least
    again = live(setup, stage) + (_backward_bytes(setup) if setup.recompute == "full" else 0)
    beside = int(min(again, passing_logits_bytes(setup, stage)))
    wanted = beside + int(FREE_FRACTION * (allocated + beside))
    usable = usable_bytes(setup)
    return wanted if usable is None else max(min(wanted, usable - allocated - runtime_bytes(setup)), least)


def usable_bytes(setup: Setup) -> int | None:
    """Return the bytes of GPU memory that CUDA offers to a program; None if the GPU is not known."""
    return int(USABLE_FRACTION * setup.device.memory_bytes) if setup.device else None
