"""Activations: the tensors of one micro batch that autograd keeps for the backward pass, by kind and by
layer.

    norms            inputs of the two norms of a layer, which are the residual stream, and their statistics
    attention        its input; query, key, value; output; with flash attention the log-sum-exp of the scores;
                     with norms of heads what was normed; the mask of a window, for kernels that need one
    mlp              its input, the activation's input and output; gated: gate, opening and their product
    dropout_masks    of both branches of a layer, and of the embedding
    scores           softmax, its mask and the dropped-out softmax, for every pair of positions, if the kernel
                     keeps them
    layer_inputs     all that full recomputation keeps
    ends             token ids; the final norm's input

Counted by tensor after arXiv:2205.05198, section 4.1 (equations 1, 2 and 4; s b h 34 with dropout), with
grouped queries, gated MLPs and explicit head sizes. Tensor parallelism shards the tensors inside attention
and MLP; sequence parallelism shards the rest; Ulysses and context parallelism shard the tokens. Selective
recomputation drops the scores and, in nbtrain, the MLP's activation (section 5; model/recompute.py).

torch's math kernel makes its scores in fp32 whatever the format, and keeps fp32 copies of query, key and
value (aten, transformers/attention.cpp). nbtrain's own kernel (for bf16 and windows on a CPU, and for capped
scores) keeps query, key and value alone. On a CPU a dropout mask has the format of what it masks, on a GPU it
has one byte. Where ranks share sequences, attention's output exists twice, if its kernel keeps it. With
context parallelism there are keys and values of the whole sequence (parallel/context.py). FPDT
(arXiv:2408.16978) keeps query, key, value, input and output in host memory, and recomputes the MLP a chunk at
a time.

The bytes that autograd really keeps: within 5 %, on one rank (tests/planner/memory/test_activations_saved.py)
and on each of two that share the model (test_activations_cut.py).
"""

import operator
from typing import NamedTuple

from nbtrain.planner.memory.stage import Stage
from nbtrain.planner.memory.states import weight_element
from nbtrain.planner.setup.engines import habits_of
from nbtrain.planner.setup.setup import Setup

# Chunks that FPDT holds on the device in its backward pass: 16-bit ones of query, key, value, output and the
# output's gradient, each twice so that copies hide; fp32 ones of three gradients (DeepSpeed 0.19.8,
# sequence/fpdt_layer.py, _FPDTGPUOffloadingAttentionImpl_.backward).
FPDT_HALF_CHUNKS = 10
FPDT_FLOAT_CHUNKS = 3
# A number in blocks of 16 with a scale of one byte (NVIDIA, "Pretraining LLMs with NVFP4", arXiv:2509.25149).
NVFP4_BYTES = 9 / 16
# Tensors of the width of a layer's input that FPDT keeps in host memory: input, query, key, value, output.
FPDT_HOST_TENSORS = 5


class Kinds(NamedTuple):
    """Bytes by kind."""

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
        """Multiply every kind by `factor`."""
        return Kinds._make([factor * value for value in self])

    def plus(self, other: "Kinds") -> "Kinds":
        """Add another amount, kind by kind."""
        return Kinds._make(map(operator.add, self, other))


def product_element(setup: Setup) -> int:
    """Return the bytes of one element of a matrix product's inputs and outputs."""
    return 4 if setup.dtype == "fp32" else 2


def stream_element(setup: Setup) -> int:
    """Return the bytes of one element of the residual stream. nbtrain's autocast keeps it in the weights'
    format.
    """
    return weight_element(setup) if setup.engine == "nbtrain" else product_element(setup)


def stream_cut(setup: Setup) -> int:
    """Return the number of ranks that share the tokens outside attention and MLP (Megatron's sequence
    parallelism).
    """
    return setup.tensor_parallel_size if setup.sequence_parallel else 1


def stream_bytes(setup: Setup) -> int:
    """Return the bytes of a layer's input for one micro batch. Stages send it, and full recomputation keeps
    it.
    """
    hidden = setup.shape.hidden_size
    return stream_element(setup) * setup.tokens_per_micro_batch * hidden // stream_cut(setup)


def layer(setup: Setup, recompute: str | None = None, window: bool = False) -> Kinds:
    """Return the bytes that one layer keeps of one micro batch; `recompute` replaces the setup's own value.

    `window`: the layer attends to a window of the sequence.
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
    # Inputs of products: in FP8 one byte if the program keeps the rounded copies, in NVFP4 half a byte and
    # one byte of scale for each 16 numbers.
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
    # Keys of the whole sequence, for each of the rank's own tokens.
    seen = setup.context_parallel_size if own else 1
    copied = 2 * seen * _pairs(setup, window) / (tokens * shape.seq_length) if seen > 1 else 1
    inside = element * (query + 2 * seen * key)
    copies = element * habits.copied_widths * query
    if setup.keeps_scores and not drops_core:
        pairs = heads * _pairs(setup, window)
        score = 4 if own else element
        dropped = score + _mask_bytes(setup, score) if shape.attention_dropout else 0
        scores = (score + dropped) * pairs
        # nbtrain's own kernel repeats the keys and values of groups.
        wide = max(score, element)
        repeats = groups < heads
        inside = wide * (query + 2 * copied * (query if repeats else key))
        if seen > 1 and not repeats and wide == element:
            # Without a copy in another format, the values are those that were gathered with the keys.
            inside += wide * (2 * seen - copied) * key
    # Share of the tokens whose output the kernel keeps too; where ranks share sequences, as another tensor.
    kernel_keeps = _kept_outputs(setup, window)
    inside += 4 * heads * kernel_keeps
    inside += element * query * (1 + (kernel_keeps if setup.sharing > 1 and own else 0))
    if own and shape.qk_layernorm:
        inside += _normed_heads(setup, query, key, heads + groups)
        if seen > 1 or (setup.keeps_scores and not drops_core):
            # The kernel keeps a copy of the value.
            inside += element * key
    if _masks(setup, window) and not setup.keeps_scores:
        # One for all sequences and heads.
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
    # Counted with the MLP: what adapters keep, in the attention too.
    between, dropped_inputs = setup.adapter_activations
    mlp += tokens * (element * between + (element + _mask_bytes(setup, element)) * dropped_inputs)
    return Kinds(norms, attention, mlp, masks, scores)


def ends(setup: Setup, stage: Stage) -> Kinds:
    """Return the bytes of ids and the embedding's mask (first stage) and the final norm's input (last)."""
    shape, tokens, cut = setup.shape, setup.tokens_per_micro_batch, stream_cut(setup)
    masks = kept = 0.0
    if stage.is_first:
        # Context-parallel ranks have ids of their positions too.
        has_positions = setup.context_parallel_size > 1 and shape.learned_positions > 0
        kept += 8 * tokens * (2 if has_positions and setup.engine == "nbtrain" else 1)
        if shape.hidden_dropout:
            masks = _mask_bytes(setup, stream_element(setup)) * tokens * shape.hidden_size / cut
    if stage.is_last:
        kept += stream_bytes(setup) + 8 * tokens / cut
    return Kinds(dropout_masks=masks, ends=kept)


def in_flight(setup: Setup, index: int) -> float:
    """Return the number of micro batches whose activations stage `index` holds at one time.

    1F1B: p - k (arXiv:2104.04473, section 2.2). Interleaved: 2 (p - k - 1) + (v - 1) p + 1 pieces of 1 / v
    (Megatron-LM, theoretical_memory_usage.py, has the first stage). Limited by the number of micro batches.
    """
    stages, pieces = setup.pipeline_parallel_size, setup.virtual_stages
    if stages == 1:
        return 1
    held: float = stages - index
    if pieces > 1:
        held = (2 * (stages - index - 1) + (pieces - 1) * stages + 1) / pieces
    return min(held, setup.accumulation_steps)


class Layers:
    """A setup's layers without and with a window: what one of them keeps, and what it allocates again."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self._kept: dict[bool, Kinds] = {}
        self._again: dict[bool, float] = {}

    def kept(self, window: bool) -> Kinds:
        """Return the bytes that a layer keeps of one micro batch."""
        if window not in self._kept:
            self._kept[window] = layer(self.setup, window=window)
        return self._kept[window]

    def again(self, window: bool) -> float:
        """Return the bytes that are allocated again while the backward pass recomputes a layer."""
        if window not in self._again:
            whole = layer(self.setup, "none", window).total
            dropped = self.setup.recompute == "selective"
            self._again[window] = whole - self.kept(window).total if dropped else whole
        return self._again[window]


def kept(setup: Setup, stage: Stage, layers: Layers | None = None) -> Kinds:
    """Return the bytes that a stage keeps after its last forward pass, over the micro batches in flight.

    `layers` are the setup's, for callers that look at several stages.
    """
    layers, count = layers or Layers(setup), _kept_layers(setup, stage)
    found = layers.kept(False).times(count - stage.window_layers)
    if stage.window_layers:
        found = found.plus(layers.kept(True).times(stage.window_layers))
    return found.plus(ends(setup, stage)).times(in_flight(setup, stage.number))


def kept_bytes(setup: Setup, stage: Stage, layers: Layers) -> float:
    """Return kept(...).total without its parts, in half of the time: a search needs it for every layout."""
    found = layers.kept(False).total * (_kept_layers(setup, stage) - stage.window_layers)
    if stage.window_layers:
        found += layers.kept(True).total * stage.window_layers
    return (found + ends(setup, stage).total) * in_flight(setup, stage.number)


def _kept_layers(setup: Setup, stage: Stage) -> int:
    """Return the number of a stage's layers, rounded up to whole pieces under full recomputation."""
    if setup.recompute != "full":
        return stage.layers
    return -(-stage.layers // setup.recompute_interval) * setup.recompute_interval


def live(setup: Setup, stage: Stage, layers: Layers | None = None) -> float:
    """Return the bytes that are allocated again while the backward pass recomputes a layer, or a chunk of
    layers. `layers` are the setup's, as in `kept`.
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
    """Return the host memory in bytes where FPDT keeps a stage's layers, over the micro batches in flight."""
    if not setup.fpdt_chunk_tokens or setup.fpdt_chunk_tokens >= setup.shape.seq_length:
        return 0
    tokens, shape = setup.tokens_per_micro_batch, setup.shape
    token = product_element(setup) * FPDT_HOST_TENSORS * shape.hidden_size + 4 * shape.num_attention_heads
    # With full recomputation, only the layers that are recomputed exist.
    layers = min(setup.recompute_interval, stage.layers) if setup.recompute == "full" else stage.layers
    return int(tokens * token * layers * in_flight(setup, stage.number))


def _fpdt_chunks(setup: Setup) -> float:
    """Return the bytes of FPDT's working set: chunks of attention, or one chunk of the MLP."""
    if not setup.fpdt_chunk_tokens:
        return 0
    shape, element = setup.shape, product_element(setup)
    tokens = min(setup.fpdt_chunk_tokens, shape.seq_length) * setup.micro_batch_size / setup.ulysses_size
    chunk = FPDT_HALF_CHUNKS * element + FPDT_FLOAT_CHUNKS * 4
    return max(tokens * shape.hidden_size * chunk, tokens * 2 * element * shape.ffn_hidden_size)


def _masks(setup: Setup, window: bool) -> bool:
    """Return whether a layer passes a mask to a kernel that attends to all pairs of positions."""
    if setup.engine == "nbtrain" and setup.context_parallel_size > 1 and not window:
        return setup.masks_parts and not own_kernel(setup)
    return window and setup.masks_windows


def _pairs(setup: Setup, window: bool) -> float:
    """Return the pairs of a query and a key in a micro batch for which a rank has scores or a mask.

    A context-parallel rank's two chunks have the keys up to their own ends, of which the last rank has the
    most in a window.
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
    """Return the bytes per token that norms of queries and keys keep: their input and its statistics.

    The input is a part of the packed product, whose other part is the value. On a GPU autocast's LayerNorm
    copies it to fp32.
    """
    element, statistics = product_element(setup), 4 if setup.shape.rmsnorm else 8
    copies = 4 if setup.on_gpu and setup.autocast and not setup.shape.rmsnorm else 0
    return (element + copies) * (query + key) + statistics * heads


def own_kernel(setup: Setup, window: bool = False) -> bool:
    """Return whether nbtrain's own attention kernel, which works in blocks, runs (model/attention.py)."""
    if setup.engine != "nbtrain" or setup.keeps_scores:
        return False
    if setup.shape.attn_softcap:
        return True
    return not setup.on_gpu and (not setup.masks_windows if window else product_element(setup) == 2)


def _kept_outputs(setup: Setup, window: bool) -> float:
    """Return the share of the tokens whose output the attention kernel keeps; torch's math kernel and ours
    keep none.
    """
    if setup.keeps_scores:
        return 0
    if not own_kernel(setup, window):
        return 1
    # From a first chunk, which is a half of a context-parallel rank's tokens, a window may hide nothing.
    chunk = setup.shape.seq_length / (2 * setup.context_parallel_size)
    is_plain = window and setup.context_parallel_size > 1 and setup.shape.window_size >= chunk
    return 0.5 if is_plain and not own_kernel(setup) else 0


def _mask_bytes(setup: Setup, element: int) -> int:
    """Return the bytes of one number of a dropout mask over numbers of `element` bytes.

    torch's CPU kernel keeps the scaled mask in the format of the masked tensor.
    """
    return 1 if setup.on_gpu else element


def _every_other_product(setup: Setup) -> Kinds:
    """Return the bytes that torchtitan's selective recomputation keeps of a layer.

    It keeps the layer's input, attention's output, and every other product. The products in order are query,
    key, value, projection, gate, opening, output; the first, third, fifth and seventh are kept (torchtitan,
    parallelize_llama.py, _get_custom_policy).
    """
    shape, tokens, tensor = setup.shape, setup.tokens_per_micro_batch, setup.tensor_parallel_size
    element, cut = product_element(setup), stream_cut(setup)
    query, key = shape.query_width / tensor, setup.attended_groups * shape.kv_channels
    attention = tokens * (element * (2 * query + key) + 4 * shape.num_attention_heads / tensor)
    mlp = tokens * element * (shape.ffn_hidden_size / tensor + shape.hidden_size / cut)
    return Kinds(attention=attention, mlp=mlp, layer_inputs=stream_bytes(setup))
