"""Activations: the tensors of one micro batch that autograd keeps for the backward pass, by kind.

    norms            inputs of a layer's two norms, which are the residual stream, and the norms' statistics
    attention        input; query, key, value; output; the log-sum-exp of the scores with flash attention; the
                     inputs of query and key norms; the mask of a sliding window, for kernels that need one
    mlp              input, and the activation's input and output; in a gated MLP, gate, up projection and
                     their product
    dropout_masks    masks of both branches of a layer, and of the embedding
    scores           softmax, its dropout mask and the dropped-out softmax for every pair of positions, if the
                     kernel keeps them
    layer_inputs     the layer inputs, which are all that full recomputation keeps
    ends             token ids, and the final norm's input

The tensors are counted as in arXiv:2205.05198, section 4.1 (equations 1, 2 and 4; s b h 34 with dropout),
extended to grouped queries, gated MLPs and explicit head sizes. Tensor parallelism shards the tensors inside
attention and MLP, and sequence parallelism shards the others. Ulysses and context parallelism shard the
tokens. Selective recomputation drops the scores and, in nbtrain, the MLP's activation (section 5;
model/recompute.py).

torch's math kernel computes its scores in fp32 in every number format, and keeps fp32 copies of query, key
and value (aten, transformers/attention.cpp). nbtrain's own kernel (for bf16 and windows on a CPU, and for
capped scores) keeps only query, key and value. A dropout mask takes one byte per element on a GPU; on a CPU
it has the format of the tensor that it masks. With Ulysses or context parallelism, attention's output exists
twice if the kernel keeps it. With context parallelism, each rank holds the keys and values of the whole
sequence (parallel/context.py). FPDT (arXiv:2408.16978) keeps query, key, value, input and output in host
memory, and recomputes the MLP one chunk at a time.

The counts are within 5 % of the bytes that autograd keeps, on one rank
(tests/planner/memory/test_activations_saved.py) and on each of two ranks across which the model
is sharded (test_activations_cut.py).
"""

import operator
from typing import NamedTuple

from nbtrain.planner.memory.stage import Stage
from nbtrain.planner.memory.states import weight_element
from nbtrain.planner.setup.engines import habits_of
from nbtrain.planner.setup.setup import Setup

# Numbers of chunks that FPDT holds on the device in its backward pass: 16-bit chunks of query, key, value,
# output and the output's gradient, each twice so that copying overlaps with computation, and fp32 chunks of
# three gradients (DeepSpeed 0.19.8, sequence/fpdt_layer.py, _FPDTGPUOffloadingAttentionImpl_.backward).
FPDT_HALF_CHUNKS = 10
FPDT_FLOAT_CHUNKS = 3
# Bytes of a 4-bit number, whose block of 16 numbers shares a one-byte scale (NVIDIA, "Pretraining LLMs with
# NVFP4", arXiv:2509.25149).
NVFP4_BYTES = 9 / 16
# Number of tensors as wide as a layer's input that FPDT keeps in host memory: input, query, key, value,
# output.
FPDT_HOST_TENSORS = 5


class Kinds(NamedTuple):
    """Bytes of activations by kind."""

    norms: float = 0
    attention: float = 0
    mlp: float = 0
    dropout_masks: float = 0
    scores: float = 0
    layer_inputs: float = 0
    ends: float = 0

    @property
    def total(self) -> float:
        return sum(self)

    def times(self, factor: float) -> "Kinds":
        """Return Kinds in which the bytes of every kind are multiplied by `factor`."""
        return Kinds._make([factor * value for value in self])

    def plus(self, other: "Kinds") -> "Kinds":
        """Return Kinds with the sum of `self` and `other` for each kind."""
        return Kinds._make(map(operator.add, self, other))


def product_element(setup: Setup) -> int:
    """Return the bytes of one element of a matrix product's inputs and outputs."""
    return 4 if setup.dtype == "fp32" else 2


def stream_element(setup: Setup) -> int:
    """Return the bytes of one element of the residual stream.

    nbtrain keeps the residual stream in the format of the weights, also under autocast.
    """
    return weight_element(setup) if setup.engine == "nbtrain" else product_element(setup)


def stream_cut(setup: Setup) -> int:
    """Return the number of ranks across which sequence parallelism shards the tokens; 1 without it.

    Megatron's sequence parallelism applies outside attention and MLP.
    """
    return setup.tensor_parallel_size if setup.sequence_parallel else 1


def stream_bytes(setup: Setup) -> int:
    """Return the bytes of a layer's input for one micro batch.

    Pipeline stages send this tensor to the next stage, and full recomputation keeps it.
    """
    hidden = setup.shape.hidden_size
    return stream_element(setup) * setup.tokens_per_micro_batch * hidden // stream_cut(setup)


def layer(setup: Setup, recompute: str | None = None, window: bool = False) -> Kinds:
    """Return the bytes that one layer keeps for one micro batch.

    `recompute` overrides the setup's value. `window` says whether the layer has sliding-window attention.
    """
    recompute = setup.recompute if recompute is None else recompute
    if recompute == "full":
        return Kinds(layer_inputs=stream_bytes(setup) / setup.recompute_interval)
    habits = habits_of(setup.engine)
    if recompute == "selective" and habits.selective == "every other product":
        return _every_other_product(setup)
    shape, tokens, tensor = setup.shape, setup.tokens_per_micro_batch, setup.tensor_parallel_size
    element, stream, cut = product_element(setup), stream_element(setup), stream_cut(setup)
    hidden, own = shape.hidden_size, setup.engine == "nbtrain"
    # Inputs of matrix products: if the program keeps the rounded copies, one byte each in FP8, and in NVFP4
    # half a byte each plus a one-byte scale per 16 numbers.
    kept_input: float = element
    if habits.keeps_fp8 and (setup.fp8 or setup.fp4):
        kept_input = NVFP4_BYTES if setup.fp4 else 1
    input_cut = 1 if habits.gathered_inputs else cut
    norms = tokens * (2 * stream * hidden + (8 if shape.rmsnorm else 16)) / cut
    masks = 0.0
    if shape.hidden_dropout:
        masks = 2 * _mask_bytes(setup, element) * tokens * hidden / cut
    if setup.fpdt_chunk_tokens:
        attention, scores = 0.0, 0.0
        mlp = element * tokens * hidden / cut
        return Kinds(norms, attention, mlp, masks, scores)
    heads, query = shape.num_attention_heads / tensor, shape.query_width / tensor
    groups = setup.attended_groups
    key = groups * shape.kv_channels
    scores = 0.0
    drops_core = recompute == "selective"
    # With context parallelism, a rank holds the keys and values of the whole sequence: `seen` times as many
    # as those of its own tokens.
    seen = setup.context_parallel_size if own else 1
    copied = 2 * seen * _pairs(setup, window) / (tokens * shape.seq_length) if seen > 1 else 1
    inside = element * (query + 2 * seen * key)
    copies = element * habits.copied_widths * query
    if setup.keeps_scores and not drops_core:
        pairs = heads * _pairs(setup, window)
        score = 4 if own else element
        dropped = score + _mask_bytes(setup, score) if shape.attention_dropout else 0
        scores = (score + dropped) * pairs
        # The keys and values of a query group are repeated for each of its heads.
        wide = max(score, element)
        repeats = groups < heads
        inside = wide * (query + 2 * copied * (query if repeats else key))
        if seen > 1 and not repeats and wide == element:
            # If no copy in another format is needed, the values are the ones gathered with the keys.
            inside += wide * (2 * seen - copied) * key
    # Fraction of the tokens whose output the kernel keeps. If sequences are split across ranks, the kernel's
    # output is another tensor than attention's output, so both are counted.
    kernel_keeps = _kept_outputs(setup, window)
    inside += 4 * heads * kernel_keeps
    inside += element * query * (1 + (kernel_keeps if setup.sharing > 1 and own else 0))
    if own and shape.qk_layernorm:
        inside += _normed_heads(setup, query, key, heads + groups)
        if seen > 1 or (setup.keeps_scores and not drops_core):
            # The kernel keeps a copy of the value.
            inside += element * key
    if _masks(setup, window) and not setup.keeps_scores:
        # All sequences and heads use the same mask.
        inside += element * _pairs(setup, window) / setup.micro_batch_size / tokens
    if kept_input < element:
        inside += kept_input * query
    attention = tokens * (kept_input * hidden / input_cut + inside + copies)
    widths = 1 if recompute == "selective" and habits.selective == "core and activation" else 2
    if shape.gated:
        widths += 2 if habits.unfused_gate else 1
    ffn = shape.ffn_hidden_size / tensor
    if setup.recomputes_mlp:
        widths, ffn = 1, 0.0
    mlp = tokens * (kept_input * hidden / input_cut + ((widths - 1) * element + kept_input) * ffn)
    # The activations of all adapters, including those in the attention, are counted with the MLP.
    between, dropped_inputs = setup.adapter_activations
    mlp += tokens * (element * between + (element + _mask_bytes(setup, element)) * dropped_inputs)
    return Kinds(norms, attention, mlp, masks, scores)


def ends(setup: Setup, stage: Stage) -> Kinds:
    """Return the bytes that only the first or the last stage keeps for one micro batch.

    The first stage keeps token ids and the embedding's dropout mask, and the last stage keeps the final
    norm's input and the labels.
    """
    shape, tokens, cut = setup.shape, setup.tokens_per_micro_batch, stream_cut(setup)
    masks = kept = 0.0
    if stage.is_first:
        # Context-parallel ranks keep position ids too.
        has_positions = setup.context_parallel_size > 1 and shape.learned_positions > 0
        kept += 8 * tokens * (2 if has_positions and setup.engine == "nbtrain" else 1)
        if shape.hidden_dropout:
            masks = _mask_bytes(setup, stream_element(setup)) * tokens * shape.hidden_size / cut
    if stage.is_last:
        kept += stream_bytes(setup) + 8 * tokens / cut
    return Kinds(dropout_masks=masks, ends=kept)


def in_flight(setup: Setup, index: int) -> float:
    """Return the number of micro batches whose activations stage `index` holds at the same time.

    With p stages and 1F1B, stage k holds p - k micro batches (arXiv:2104.04473, section 2.2). With v virtual
    stages per rank (the interleaved schedule) it holds the activations of 2 (p - k - 1) + (v - 1) p + 1 model
    chunks, each 1 / v of a stage (Megatron-LM, theoretical_memory_usage.py, has the formula for the first
    stage). The result never exceeds the number of accumulated micro batches.
    """
    stages, pieces = setup.pipeline_parallel_size, setup.virtual_stages
    if stages == 1:
        return 1
    held: float = stages - index
    if pieces > 1:
        held = (2 * (stages - index - 1) + (pieces - 1) * stages + 1) / pieces
    return min(held, setup.accumulation_steps)


class Layers:
    """Activation bytes of one layer with and without a sliding window, each computed once and cached.

    Both methods take `window`, which says whether the layer has sliding-window attention.
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        self._kept: dict[bool, Kinds] = {}
        self._again: dict[bool, float] = {}

    def kept(self, window: bool) -> Kinds:
        """Return the bytes that a layer keeps for one micro batch."""
        if window not in self._kept:
            self._kept[window] = layer(self.setup, window=window)
        return self._kept[window]

    def again(self, window: bool) -> float:
        """Return the bytes that are allocated again while the backward pass recomputes one layer."""
        if window not in self._again:
            whole = layer(self.setup, "none", window).total
            dropped = self.setup.recompute == "selective"
            self._again[window] = whole - self.kept(window).total if dropped else whole
        return self._again[window]


def kept(setup: Setup, stage: Stage, layers: Layers | None = None) -> Kinds:
    """Return the bytes of activations that a stage keeps for all micro batches in flight.

    A caller that computes several stages passes the same `layers` for all of them, because their bytes are
    cached.
    """
    layers, count = layers or Layers(setup), _kept_layers(setup, stage)
    found = layers.kept(False).times(count - stage.window_layers)
    if stage.window_layers:
        found = found.plus(layers.kept(True).times(stage.window_layers))
    return found.plus(ends(setup, stage)).times(in_flight(setup, stage.number))


def kept_bytes(setup: Setup, stage: Stage, layers: Layers) -> float:
    """Return kept(...).total in half the time, because a search needs this sum for every layout."""
    found = layers.kept(False).total * (_kept_layers(setup, stage) - stage.window_layers)
    if stage.window_layers:
        found += layers.kept(True).total * stage.window_layers
    return (found + ends(setup, stage).total) * in_flight(setup, stage.number)


def _kept_layers(setup: Setup, stage: Stage) -> int:
    """Return the number of layers in a stage.

    Full recomputation rounds it up to whole groups of recompute_interval layers.
    """
    if setup.recompute != "full":
        return stage.layers
    return -(-stage.layers // setup.recompute_interval) * setup.recompute_interval


def live(setup: Setup, stage: Stage, layers: Layers | None = None) -> float:
    """Return the bytes that are allocated again while the backward pass recomputes a group of layers.

    FPDT's working set is included. For `layers`, see kept().
    """
    whole: float = 0
    if setup.recompute != "none":
        layers = layers or Layers(setup)
        windows = {True} if stage.window_layers == stage.layers else {False, stage.window_layers > 0}
        largest = max(map(layers.again, windows))
        if setup.recompute == "full":
            whole = largest * min(setup.recompute_interval, stage.layers)
        else:
            whole = max(largest, 0)
    return whole + _fpdt_chunks(setup)


def fpdt_host_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of host memory in which FPDT keeps a stage's activations.

    All micro batches in flight are counted. The result is 0 without FPDT, and if one chunk holds the whole
    sequence.
    """
    if not setup.fpdt_chunk_tokens or setup.fpdt_chunk_tokens >= setup.shape.seq_length:
        return 0
    tokens, shape = setup.tokens_per_micro_batch, setup.shape
    token = product_element(setup) * FPDT_HOST_TENSORS * shape.hidden_size + 4 * shape.num_attention_heads
    # With full recomputation, only the layers that are being recomputed have activations.
    layers = min(setup.recompute_interval, stage.layers) if setup.recompute == "full" else stage.layers
    return int(tokens * token * layers * in_flight(setup, stage.number))


def _fpdt_chunks(setup: Setup) -> float:
    """Return the bytes of FPDT's working set: attention's chunks or one chunk of the MLP, the larger."""
    if not setup.fpdt_chunk_tokens:
        return 0
    shape, element = setup.shape, product_element(setup)
    tokens = min(setup.fpdt_chunk_tokens, shape.seq_length) * setup.micro_batch_size / setup.ulysses_size
    chunk = FPDT_HALF_CHUNKS * element + FPDT_FLOAT_CHUNKS * 4
    return max(tokens * shape.hidden_size * chunk, tokens * 2 * element * shape.ffn_hidden_size)


def _masks(setup: Setup, window: bool) -> bool:
    """Return whether a layer passes an attention mask to a kernel that computes all pairs of positions."""
    if setup.engine == "nbtrain" and setup.context_parallel_size > 1 and not window:
        return setup.masks_parts and not own_kernel(setup)
    return window and setup.masks_windows


def _pairs(setup: Setup, window: bool) -> float:
    """Return the number of (query, key) pairs in a micro batch for which a rank stores scores or a mask.

    Each of a context-parallel rank's two chunks sees the keys up to the chunk's own end, or those in its
    window.
    """
    shape, context = setup.shape, setup.context_parallel_size
    tokens = setup.tokens_per_micro_batch
    if setup.engine != "nbtrain" or context == 1:
        return tokens * shape.seq_length / context
    chunk = shape.seq_length / (2 * context)
    keys = [context * chunk, (context + 1) * chunk]
    if window:
        keys = [min(each, chunk + shape.window_size - 1) for each in keys]
    return tokens / 2 * sum(keys)


def _normed_heads(setup: Setup, query: float, key: float, heads: float) -> float:
    """Return the bytes per token that the query and key norms keep: their inputs and statistics.

    The inputs are slices of the fused query-key-value projection. On a GPU, autocast copies the input of a
    LayerNorm to fp32.
    """
    element, statistics = product_element(setup), 4 if setup.shape.rmsnorm else 8
    copies = 4 if setup.on_gpu and setup.autocast and not setup.shape.rmsnorm else 0
    return (element + copies) * (query + key) + statistics * heads


def own_kernel(setup: Setup, window: bool = False) -> bool:
    """Return whether attention runs on nbtrain's own block-wise kernel (model/attention.py)."""
    if setup.engine != "nbtrain" or setup.keeps_scores:
        return False
    if setup.shape.attn_softcap:
        return True
    return not setup.on_gpu and (not setup.masks_windows if window else product_element(setup) == 2)


def _kept_outputs(setup: Setup, window: bool) -> float:
    """Return the fraction of tokens (0, 0.5 or 1) whose output the attention kernel keeps.

    torch's math kernel and nbtrain's own kernel keep no output for the backward pass.
    """
    if setup.keeps_scores:
        return 0
    if not own_kernel(setup, window):
        return 1
    # In the first of a context-parallel rank's two chunks, a long window may mask nothing.
    chunk = setup.shape.seq_length / (2 * setup.context_parallel_size)
    is_plain = window and setup.context_parallel_size > 1 and setup.shape.window_size >= chunk
    return 0.5 if is_plain and not own_kernel(setup) else 0


def _mask_bytes(setup: Setup, element: int) -> int:
    """Return the bytes per element of the dropout mask of a tensor whose elements have `element` bytes.

    torch's CPU kernel keeps the scaled mask in the format of the masked tensor. Its GPU kernel keeps one byte
    per element.
    """
    return 1 if setup.on_gpu else element


def _every_other_product(setup: Setup) -> Kinds:
    """Return the bytes that torchtitan's selective recomputation keeps of a layer.

    It keeps the layer's input, attention's output, and every other matrix product. The products in order are
    query, key, value, attention output projection, gate, up and down projection; the first, third, fifth and
    seventh are kept (torchtitan, parallelize_llama.py, _get_custom_policy).
    """
    shape, tokens, tensor = setup.shape, setup.tokens_per_micro_batch, setup.tensor_parallel_size
    element, cut = product_element(setup), stream_cut(setup)
    query, key = shape.query_width / tensor, setup.attended_groups * shape.kv_channels
    attention = tokens * (element * (2 * query + key) + 4 * shape.num_attention_heads / tensor)
    mlp = tokens * element * (shape.ffn_hidden_size / tensor + shape.hidden_size / cut)
    return Kinds(attention=attention, mlp=mlp, layer_inputs=stream_bytes(setup))
