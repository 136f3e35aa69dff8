"""Device memory that is neither model state nor activation: logits, buffers, CUDA, fragmentation.

logits         nbtrain: one chunk of the linear + cross entropy, the hidden states that enter it, and both
               gradients that it makes; with a loss() of the user, all logits of a micro batch; others: all
               logits of a micro batch; of logits and a layer that is recomputed only the larger one, because
               the logits are gone by then (estimate.py), but for a tied output layer's gradient
communication  DeepSpeed's buckets; under ZeRO 3 also the parameters that are whole at one time
pipeline       of each micro batch in flight the output that was sent on; two receive buffers
workspace      what the peak needs in addition: gradients inside a layer, FP8's rounded copies, or the flat
               gradient of the step if that is more than the activations leave
runtime        CUDA's context, and NCCL if there are several ranks; on a CPU the process itself
reserve        memory that torch's allocator holds between its blocks
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

# Elements of alike matrices that Muon orthogonalizes together (train/engine/newton_schulz.py).
STACK_ELEMENTS = 2**24
# Measured with torch 2.1: 0.47 GiB with lazily loaded kernels, 0.92 GiB with all of them (A100; stas00,
# ml-engineering, training/performance).
CUDA_CONTEXT_BYTES = int(0.9 * GIB)
# The same in logs of 2022, with torch 1.10: V100 1.24 GiB, A100 1.54 GiB (bigscience).
OLD_CONTEXT_BYTES = (int(1.24 * GIB), int(1.54 * GIB))
# The first NCCL communicator took a GPU from 0.55 to 2.00 GiB (same source).
NCCL_BYTES = int(1.5 * GIB)
# A CPU rank's resident memory in addition to the counted parts: measured with gpt3-tiny.
CPU_RUNTIME_BYTES = 434 * 2**20
# Each further communicator: 24 channels of 4 + 0.5 + 4.7 MiB for each peer (NCCL's constants), two peers.
NCCL_MORE_BYTES = int(24 * 2 * 9.2 * 2**20)
# Fraction of torch's allocated memory that is free between blocks and cannot be returned on a full device.
# Fitted to whether the runs of the training half fitted (docs/evidence/plan-accuracy.md); fragmentation alone
# has ended one run of the other half, with 58.8 of 80 GB allocated.
RESERVE_FRACTION = 0.05
# Fragmentation of what torch reserves without expandable segments, on average of eight models that were
# fine-tuned on A100-80GB (arXiv:2401.08156; at worst 33 %). No run is refused for it: of the runs that fitted
# one in ten would be (docs/evidence/plan-accuracy.md). A plan that it would fill names the fix: it is free.
AVERAGE_FRAGMENTATION = 0.15
# Queries that nbtrain's own kernel attends to at one time (model/attention.py).
CPU_BLOCK_ROWS, GPU_BLOCK_ROWS = 128, 256
# A plan that leaves less of the device than this is tight. With the reserve, which is counted, it keeps what
# torch allocates at 90 % of what CUDA leaves: the field's rule is 90 to 92 % (stas00, ml-engineering).
SPARE_FRACTION = 0.05
# Each logit that a loss() of the user gets: in fp32, its exponential or log-softmax, and its gradient twice.
OWN_LOSS_BYTES = 16
# The driver keeps some of a device's memory: torch gets 79.15 of 80 GiB on an A100, 31.75 of 32 GiB on a
# V100, and 139.8 of 141 GiB on an H200 (stas00, ml-engineering; torch's out-of-memory messages).
USABLE_FRACTION = 0.99
# Free blocks that it holds while there is room, the reserve included: fitted to published peaks of whole
# devices in the training half (docs/evidence/plan-accuracy.md).
FREE_FRACTION = 0.14


def logits_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of the output layer and its loss, on the last stage (parallel/cross_entropy.py)."""
    if not stage.is_last:
        return 0
    tokens, shape, tensor = setup.tokens_per_micro_batch, setup.shape, setup.tensor_parallel_size
    vocabulary = shape.padded_vocab_size // tensor
    if setup.engine != "nbtrain":
        habits = habits_of(setup.engine)
        fused = habits.compiled_logits if setup.compiled else None
        # The gradient of the weights is made when most of the logits are gone.
        return max((fused or habits.logits) * tokens * vocabulary, loss_gradients(setup, stage))
    entering = stream_element(setup) * tokens * shape.hidden_size
    if setup.own_loss:
        width = shape.padded_vocab_size if setup.own_loss == "whole" else vocabulary
        own = tokens * (product_element(setup) * vocabulary + OWN_LOSS_BYTES * width)
        return own + entering + loss_gradients(setup, stage)
    chunk = min(setup.logits_chunk_tokens or tokens, tokens)
    # A chunk's logits in the products' format, capped ones twice, and on a GPU, which has no small blocks of
    # rows, what the softmax makes of them.
    each = product_element(setup) * (2 if shape.logit_softcap else 1)
    each += _softmax_bytes(setup) if setup.on_gpu else 0
    transient = chunk * vocabulary * each
    return transient + entering + loss_gradients(setup, stage)


def _softmax_bytes(setup: Setup) -> int:
    """Return the softmax bytes of each logit on a GPU: fp32 log-softmax, and the fp32 copy of 16-bit logits.

    torch has a kernel without the copy for fp16 alone (ATen/native/SoftMax.cpp, log_softmax). Measured on an
    H200: 125M with chunks of 8,192 tokens takes 15.8 GiB; the plan, which counts the copy, says 15.7.
    """
    is_cast = setup.dtype == "bf16" or (setup.dtype == "fp16" and setup.tensor_parallel_size > 1)
    return 4 + (4 if is_cast else 0)


def loss_gradients(setup: Setup, stage: Stage) -> int:
    """Return the bytes of gradients that the loss leaves in memory for the layers' backward pass.

    nbtrain: the fp32 gradient of the word embeddings, and the gradient of the hidden states, which
    tensor-parallel ranks hold whole. Programs that leave it to autograd, with tied weights: the output
    layer's gradient, which ZeRO cannot cut before the embedding's own is added to it. DeepSpeed's estimate
    of ZeRO 3 has these 2 bytes of the largest layer too (docs/code-docs/source/memory.rst).
    """
    if not stage.is_last:
        return 0
    shape, tokens = setup.shape, setup.tokens_per_micro_batch
    vocabulary = shape.padded_vocab_size // setup.tensor_parallel_size
    if setup.engine == "nbtrain":
        # Frozen embeddings have no gradient, except for trained rows.
        words = setup.trained_row_elements if setup.adapter_sizes else vocabulary * shape.hidden_size
        return 4 * words + stream_element(setup) * tokens * shape.hidden_size
    waits = habits_of(setup.engine).tied_gradient_waits and shape.tied and stage.is_first
    return product_element(setup) * vocabulary * shape.hidden_size if waits else 0


def passing_logits_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of the logits that are freed before the last layer's backward pass begins."""
    return logits_bytes(setup, stage) - loss_gradients(setup, stage)


def communication_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of communication buckets, and under ZeRO 3 of gathered parameters."""
    if setup.engine == "nbtrain":
        return _of_deepspeed(setup, stage)
    habits, count = habits_of(setup.engine), stage.elements
    element = 4 if setup.dtype == "fp32" else 2
    found = 0
    if habits.bucket and setup.zero_stage and setup.data_axis_size > 1:
        # One bucket is reduced, two in stage 2 with overlap; parameters are gathered in place.
        buckets = 2 if setup.zero_stage == 2 and setup.overlap_comm else 1
        found += element * buckets * min(setup.reduce_bucket_elements, count)
    if habits.whole_in_pipeline and setup.zero_stage and setup.pipeline_parallel_size > 1:
        found += habits.whole_in_pipeline * count
    elif habits.gathered_blocks and setup.zero_stage == 2:
        # Gathered 16-bit weights stay from forward to backward pass; gradients of a few blocks are whole.
        found += element * (count + habits.gathered_blocks * _block(stage) + _largest_end(stage))
    elif habits.gathered_blocks and (setup.zero_stage or setup.shard_size):
        # Whole weights and gradients of a few blocks, and of embedding and output.
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
    """Read in DeepSpeed 0.19.8: stage_1_and_2.py, setup_buckets and reduce_gradients; stage3.py."""
    zero, count, asked = setup.zero_stage, stage.elements, setup.reduce_bucket_elements
    # Buffers are filled only as far as there are gradients, and a CPU gives no memory to the rest.
    bucket = asked if setup.on_gpu else min(asked, count)
    element, found = weight_element(setup), 0
    if zero in (1, 2) and not is_bf16_optimizer(setup) and setup.contiguous_gradients:
        # Stage 1 reduces the fp32 sums. A pipeline reduces after the last micro batch, and one rank reduces
        # nothing: nothing overlaps.
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
    """Return the bytes of sent outputs, kept until their gradients arrive, and of two receive buffers.

    The last stage sends nothing; some programs keep its logits for as long.
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
    """Return the peak bytes in addition to activations, in the last layer's backward pass or in the step.

    `freed_before_step` are the bytes of activations and logits that are free during the step. `room` are the
    bytes of logits that are freed before the layers' backward pass, which reuses them.
    """
    backward = max(_backward_bytes(setup) - room, 0)
    return int(max(backward, _step_bytes(setup, stage) - freed_before_step, 0))


def _backward_bytes(setup: Setup) -> float:
    """Return the bytes in a layer's backward pass: gradients of the MLP's inner width and of the stream.

    There are two of the inner width, and three in nbtrain's gated MLP: of the product, the gate and the gated
    values.
    """
    shape, tokens, tensor = setup.shape, setup.tokens_per_micro_batch, setup.tensor_parallel_size
    chunk = setup.fpdt_chunk_tokens
    inside = tokens if not chunk else min(chunk * setup.micro_batch_size // setup.ulysses_size, tokens)
    wide = inside * shape.ffn_hidden_size // tensor
    gradients = 3 if shape.gated and setup.engine == "nbtrain" else 2
    backward = gradients * product_element(setup) * wide + stream_bytes(setup)
    if setup.fp8 and setup.engine == "nbtrain":
        # Rounding the MLP's inner activation: fp32 scaled and clamped copies, and the result (fp8.py).
        backward += (8 + 1) * wide
    # A product uses a whole matrix that is restored from 4 bits.
    backward += dequantized_bytes(setup)
    return max(backward, _block_bytes(setup) + stream_bytes(setup), _key_gradient_bytes(setup))


def _key_gradient_bytes(setup: Setup) -> float:
    """Return the bytes of the gradients of keys and values in nbtrain's context parallelism.

    Gradients of both chunks, together at most 1 + 1/c sequences; their sum over the whole sequence, and its
    parts in the order of the ranks (parallel/context.py).
    """
    context = setup.context_parallel_size
    if setup.engine != "nbtrain" or context == 1:
        return 0
    keys = 2 * setup.attended_groups * setup.shape.kv_channels * setup.tokens_per_micro_batch
    return product_element(setup) * keys * (2 * context + context + 1) + stream_bytes(setup)


def _block_bytes(setup: Setup) -> float:
    """Return the bytes in the backward pass of nbtrain's own attention kernel over capped scores or windows.

    Scores, weights and gradients of both for a block of queries, capped scores too; gradients of query, and
    of key and value in fp32 (model/attention.py).
    """
    shape, tensor = setup.shape, setup.tensor_parallel_size
    if not (shape.attn_softcap or (shape.window_size and own_kernel(setup, window=True))):
        return 0
    rows = GPU_BLOCK_ROWS if setup.on_gpu else CPU_BLOCK_ROWS
    columns = shape.seq_length if shape.attn_softcap else min(shape.window_size + rows, shape.seq_length)
    # Ulysses ranks have a part of the heads, and all tokens.
    heads = shape.num_attention_heads / tensor / setup.ulysses_size
    tensors = 5 if shape.attn_softcap else 4
    block = tensors * setup.micro_batch_size * heads * min(rows, shape.seq_length) * columns
    # Without a window, a context-parallel rank has gradients for the keys of the whole sequence.
    context = setup.context_parallel_size if shape.attn_softcap and setup.engine == "nbtrain" else 1
    gradients = product_element(setup) * shape.query_width + 8 * context * shape.kv_width
    return product_element(setup) * block + setup.tokens_per_micro_batch * gradients / tensor


def _step_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of the flat gradient that the optimizer's step creates, and of Muon's buffers."""
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
    """Return the bytes of Muon's exchanged parts, whole matrices and stacks (train/engine/muon.py).

    Matrices are distributed evenly, so that a rank receives as much as it sends. While a stack is multiplied,
    its Gram matrices, their polynomial and the next stack are in memory too: at most four times its bytes.
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
    """Return the bytes of CUDA and NCCL, or of a CPU process. Each kind of parallelism has a communicator."""
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
    """Return the bytes of torch's free blocks that nvidia-smi shows as used, limited by the memory's size.

    The logits and the recomputed layer each need separate segments: torch does not join segments, and returns
    them only when memory runs short. While there is room, the smaller of the two stays allocated as free
    blocks. The reserve is included.
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
    """Return the bytes of a GPU's memory that CUDA offers to a program; None if the GPU is not known."""
    return int(USABLE_FRACTION * setup.device.memory_bytes) if setup.device else None
