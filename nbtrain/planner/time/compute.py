"""Seconds that one device computes for one micro batch: products, attention, memory traffic, the optimizer.

A matrix product of [m, k] and [k, n] takes the time of 2 m n k FLOPs at the rate of large products, plus the
time to read and write its three matrices, which makes narrow matrices (many tensor-parallel ranks, small
models) slower. The operations between the products take the time to move their bytes. The backward pass costs
twice the forward pass, and 2.5 times for flash attention (arXiv:2205.14135, section 3.1). Flash attention
skips the scores of future positions and of positions before a window.

    block    matrices    2 T (attention + MLP weights) / t FLOPs
             attention   4 s q T / t FLOPs; without flash attention, and if scores are capped, the scores are
                         also written and read
             the rest    norms, activation, dropout, residuals: the bytes that Korthikanti et al. count
                         (arXiv:2205.05198, section 4.1) times the program's `traffic`
    logits   2 T h V / t FLOPs, and reading and writing the logits
    chunks   with FPDT, traffic with host memory that does not overlap with attention

T: tokens of a micro batch on a rank, t: tensor-parallel ranks, s: sequence, q: width of all queries.

FPDT divides a sequence into N chunks. Attention computes N (N + 1) / 2 pairs of chunks, and while one pair is
computed, the chunks of the next pair are copied from host memory (arXiv:2408.16978; DeepSpeed 0.19.8,
sequence/fpdt_layer.py). For each block and micro batch, this number of chunks of a tensor of the block's
width is copied (down: to the host, up: to the device):

    forward    down  input, query, key, value, output: 5 N
               up    keys and values for pairs whose keys are not on the device: 2 (N - 2) (N + 1) / 2; at the
                     end, the first query, key, value and output for the backward pass: 4
    backward   up    query, output and the query's fp32 gradient for each pair except two; the output's
                     gradient, except for the N - 1 chunks that come from other ranks; keys, values and input
               down  the query's fp32 gradient after each pair; the output's gradient: N

A pair's computation grows with the square of the chunk size, and its traffic with the chunk size, so below
some size the link is slower than attention. Each pair's result is added to the sum of its row in fp32, in
device memory. A sequence of a single chunk stays on the device.
"""

from dataclasses import dataclass
from typing import NamedTuple

from nbtrain.config.arithmetic.flops import muon_flops_by_parameter
from nbtrain.planner.setup.engines import Engine, habits_of
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates
from nbtrain.planner.time.traffic import DTYPE_BYTES

# Bytes moved per logit in forward and backward: 16-bit product, fp32 copy, softmax and gradient.
LOGIT_BYTES = 22
# Rate of unfused attention's batched products, as a fraction of the rate of other matrix products. They are
# slower because one matrix dimension, the head size, is small.
SCORE_PRODUCTS_SHARE = 0.6
# Slowdown of attention if the head size is not a multiple of 8: at width 13,824, head sizes of 216 and 108
# gave 134 and 100 TFLOP/s (BigScience's prequel to the 176B model).
ODD_HEAD_SLOWDOWN = 5.5
# torch.compile fuses the operations between products: nanoGPT's step drops from 250 to 135 ms (nanoGPT's
# README).
COMPILED_TRAFFIC = 0.5
# Bytes moved per score without flash attention: written, scaled and masked, softmax, read. The backward pass
# moves twice as many.
SCORE_BYTES = 8.0
SCORE_DROPOUT_BYTES = 5.0
FLASH_BACKWARD = 2.5
# Relative rate of a deterministic backward pass, which is up to 37.9 % slower (arXiv:2601.21824, abstract).
DETERMINISTIC_BACKWARD = 0.62
# Bytes moved per parameter that a rank's optimizer updates: gradients, master copy and two moments are read,
# and master copy, moments and weights are written. GRADIENT_BYTES is for reading the fp32 sums and computing
# the gradient norm.
OPTIMIZER_BYTES = 34
GRADIENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one block for one micro batch on one rank.

    The first three fields add up to the forward pass.
    """

    products: float
    attention: float
    memory: float
    """Seconds of the memory-bound operations between the matrix products."""
    backward: float
    """Seconds of the backward pass of products, attention and memory-bound operations."""
    recompute: float
    """Seconds of the work that the backward pass repeats."""

    @property
    def forward(self) -> float:
        return self.products + self.attention + self.memory


def block_times(setup: Setup, engine: Engine, rates: Rates) -> BlockTimes:
    """Estimate the seconds of one block for one micro batch."""
    shape = setup.shape
    tensor, tokens = setup.tensor_parallel_size, setup.tokens_per_micro_batch
    hidden, query = shape.hidden_size, shape.query_width
    element = DTYPE_BYTES[setup.dtype]
    bandwidth = rates.memory_bytes_per_second
    rate = product_rate(setup, rates)
    # For the four matrix products (query/key/value, attention output, MLP up and gate, MLP down): the width
    # of the input or output that is not the hidden size.
    ends = (
        query + 2 * shape.kv_width,
        query,
        (1 + shape.gated) * shape.ffn_hidden_size,
        shape.ffn_hidden_size,
    )
    weights = hidden * sum(ends) / tensor
    sides = tokens * (4 * hidden + sum(ends) / tensor)
    products = 2 * tokens * weights / rate + element * (weights + sides) / bandwidth
    attention, attention_backward = attention_seconds(setup, engine, rates)
    kept = kept_bytes(setup) * element / 2
    memory = traffic(setup, engine) * kept / bandwidth / 3
    # With adapters, the matrices are frozen, so the product for their gradient is omitted.
    backward = (1 if setup.lora_rank else 2) * products + attention_backward + 2 * memory
    forward = products + attention + memory
    mlp = 2 * tokens * shape.mlp_weights / tensor / rate
    if setup.recompute == "full":
        recompute = forward
    elif setup.recompute == "selective" and engine.selective_share is not None:
        recompute = engine.selective_share * forward
    elif setup.recompute == "selective":
        recompute = (attention if setup.keeps_scores else 0.0) + _activation_again(setup, bandwidth)
        recompute += mlp if setup.recomputes_mlp else 0.0
    else:
        recompute = 0.0
    if setup.fpdt_chunk_tokens:
        # FPDT keeps no activations of the MLP and recomputes them for each chunk (model/layers.py).
        recompute += mlp
    return BlockTimes(products, attention, memory, backward, recompute)


def _activation_again(setup: Setup, bandwidth: float) -> float:
    """Return the seconds that selective recomputation takes for the MLP's activation; 0 if it is kept.

    The activation's input (in a gated MLP, two inputs) is read and its output is written
    (model/recompute.py). With torch.compile, the compiler decides what is recomputed, so the result is 0.
    """
    if habits_of(setup.engine).selective != "core and activation" or setup.compiled:
        return 0.0
    shape = setup.shape
    moved = (3 if shape.gated else 2) * DTYPE_BYTES[setup.dtype] * shape.ffn_hidden_size
    return setup.tokens_per_micro_batch * moved / setup.tensor_parallel_size / bandwidth


def traffic(setup: Setup, engine: Engine) -> float:
    """Return the number of times that a step moves each byte of activations; torch.compile halves it."""
    return engine.traffic * (COMPILED_TRAFFIC if setup.compiled else 1.0)


def attention_seconds(setup: Setup, engine: Engine, rates: Rates) -> tuple[float, float]:
    """Return the (forward, backward) seconds of one block's attention without its projections."""
    shape, tensor = setup.shape, setup.tensor_parallel_size
    tokens = setup.tokens_per_micro_batch
    seq: float = shape.seq_length
    flops = 4.0 * seq * shape.query_width / tensor * tokens
    # Fraction of all pairs of positions that is computed: about half without a window. A kernel that gets a
    # mask computes all pairs.
    share = (shape.visible_tokens - 0.5) / seq
    if masks_chunks(setup, engine):
        share = 0.5 + 0.25 / setup.context_parallel_size
    elif setup.masks_windows:
        share = 0.5 + shape.window_share / 2
    if not setup.keeps_scores and not shape.attn_softcap:
        share *= ring_imbalance(setup, engine)
        forward = share * flops / rates.attention_flops[flash_generation(setup, engine)]
        backward = FLASH_BACKWARD / (DETERMINISTIC_BACKWARD if setup.deterministic else 1.0)
        return forward, backward * forward
    if not setup.keeps_scores:
        # nbtrain's own kernel skips the positions that no query in a block of queries sees.
        flops, seq = share * flops, share * seq
    rate = rates.matmul_flops.get(setup.dtype) or next(iter(rates.matmul_flops.values()))
    slowdown = ODD_HEAD_SLOWDOWN if shape.kv_channels % 8 and setup.on_gpu else 1.0
    heads = shape.num_attention_heads / tensor
    each = SCORE_BYTES + (SCORE_DROPOUT_BYTES if shape.attention_dropout else 0.0)
    moved = each * heads * seq * tokens / rates.memory_bytes_per_second
    forward = slowdown * flops / (rates.scores_flops or rate * SCORE_PRODUCTS_SHARE) + moved
    return forward, 2 * forward


def masks_chunks(setup: Setup, engine: Engine) -> bool:
    """Return whether the attention kernel gets a mask for each of a context-parallel rank's two chunks.

    It then computes the pairs with all keys up to the chunk's end, which with c ranks is (2 c + 1) / 4 c of
    all pairs, compared with half for causal attention.
    """
    if setup.context_parallel_size == 1 or not engine.gathers_keys or setup.shape.attn_softcap:
        return False
    # On a CPU, nbtrain's own bf16 kernel needs no mask.
    return setup.masks_parts and (setup.on_gpu or setup.dtype == "fp32")


def flash_generation(setup: Setup, engine: Engine) -> int:
    """Return the generation of the flash attention kernel (Engine.flash_generation) that the setup uses.

    cuDNN's kernel (3) is deterministic only on Hopper. For deterministic runs on other GPUs, Transformer
    Engine uses FlashAttention 2.
    """
    on_hopper = setup.device is not None and setup.device.compute_capability[0] == 9
    if setup.deterministic and not on_hopper:
        return min(engine.flash_generation, 2)
    return engine.flash_generation


def ring_imbalance(setup: Setup, engine: Engine) -> float:
    """Return how much attention the slowest context-parallel rank computes, as a multiple of the average.

    If c ranks have consecutive chunks, the last rank computes c - 1 whole chunks and half of one, and the
    average is c / 2.
    """
    ranks = setup.context_parallel_size
    return 1.0 if engine.balanced_ring else 2 - 1 / ranks


def product_rate(setup: Setup, rates: Rates) -> float:
    """Return the FLOP/s of large matrix products in the setup's number format."""
    dtype = "fp4" if setup.fp4 else "fp8" if setup.fp8 else setup.dtype
    found = rates.matmul_flops.get(dtype) or rates.matmul_flops.get(setup.dtype)
    return found or next(iter(rates.matmul_flops.values()))


def kept_bytes(setup: Setup) -> float:
    """Return the bytes of a block's 16-bit activations on one rank, as in arXiv:2205.05198 (34 s b h)."""
    shape, tensor, tokens = setup.shape, setup.tensor_parallel_size, setup.tokens_per_micro_batch
    hidden = shape.hidden_size
    whole: float = tokens * hidden * (8 + (2 if shape.hidden_dropout else 0))
    if setup.sequence_parallel:
        whole /= tensor
    widths = 4 * shape.query_width + 4 * shape.kv_width + (8 if shape.gated else 4) * shape.ffn_hidden_size
    return whole + tokens * widths / tensor


def logit_products(setup: Setup) -> int:
    """Return the number of matrix products with the output matrix: one forward and two for gradients.

    With dpo there is a second forward product (model/preference.py).
    """
    return 4 if setup.prefers else 3


def logits_seconds(setup: Setup, rates: Rates) -> float:
    """Return the seconds of the output layer and the loss for one micro batch, forward and backward."""
    shape, tokens = setup.shape, setup.tokens_per_micro_batch
    rate = rates.matmul_flops.get(setup.dtype) or next(iter(rates.matmul_flops.values()))
    columns = shape.padded_vocab_size / setup.tensor_parallel_size
    products = 2 * logit_products(setup) * tokens * columns * shape.hidden_size / rate
    return products + LOGIT_BYTES * tokens * columns / rates.memory_bytes_per_second


def newton_schulz_seconds(setup: Setup, rates: Rates) -> float:
    """Return the seconds per step of Muon's matrix products on the busiest rank; 0 with AdamW.

    With ZeRO, whole matrices are distributed over data-parallel and tensor-parallel ranks; without ZeRO, over
    the tensor-parallel ranks of each replica. The products are in bf16 if the run is in bf16, else in fp32.
    """
    if not setup.muon_steps:
        return 0.0
    costs = muon_flops_by_parameter(setup.shape, setup.muon_steps)
    most = max(max(setup.layers_by_stage) * sum(costs) / setup.muon_ranks, max(costs))
    flops = rates.matmul_flops
    return most / flops.get("bf16" if setup.dtype == "bf16" else "fp32", product_rate(setup, rates))


def optimizer_seconds(setup: Setup, rates: Rates, parameters: int) -> float:
    """Return the seconds of the optimizer's step on the device; 0 if the optimizer is offloaded.

    `parameters` is the number of trained parameters on a model-parallel rank, before ZeRO.
    """
    zero = setup.zero_size if setup.zero_stage else 1
    if setup.offload_optimizer != "none":
        return 0.0
    moved = parameters * (OPTIMIZER_BYTES / zero + GRADIENT_BYTES / (zero if setup.zero_stage >= 2 else 1))
    return moved / rates.memory_bytes_per_second + newton_schulz_seconds(setup, rates)


# Bytes of device memory moved per element of a pair's result. Forward: it is read in 16 bits and converted to
# fp32 (6), both summands are scaled (8 each) and added (12). Backward: three gradients are initialized to 0
# (2 each) and added to fp32 sums (10 each).
MERGE_FORWARD_BYTES, MERGE_BACKWARD_BYTES = 34, 36


class Chunks(NamedTuple):
    """FPDT's traffic on one rank, for one block and one micro batch."""

    number: int
    forward_bytes: float
    """Bytes over PCIe in the forward pass, in both directions."""
    backward_bytes: float
    merged_bytes: float
    """Bytes of device memory read and written to sum the results of the pairs."""


ONE_CHUNK = Chunks(1, 0.0, 0.0, 0.0)


def number_of_chunks(setup: Setup) -> int:
    """Return the number of chunks into which FPDT divides a sequence; 1 without FPDT."""
    return max(setup.shape.seq_length // setup.fpdt_chunk_tokens, 1) if setup.fpdt_chunk_tokens else 1


def chunks_of(setup: Setup) -> Chunks:
    """Return the bytes that FPDT moves for the chunks of one block; ONE_CHUNK if they stay on the device."""
    number = number_of_chunks(setup)
    if number == 1:
        return ONE_CHUNK
    shape, element = setup.shape, DTYPE_BYTES[setup.dtype]
    # For one chunk of a tensor of the queries' width: `count` elements, `chunk` bytes, `full` bytes in fp32;
    # bytes of the block's input (`stream`) and of the scores' fp32 log-sum-exp (`sums`).
    count = setup.tokens_per_micro_batch * shape.query_width / number
    chunk, full = element * count, 4 * count
    stream = element * setup.tokens_per_micro_batch * shape.hidden_size / number
    sums = 4 * setup.tokens_per_micro_batch * shape.num_attention_heads / number
    pairs = number * (number + 1) // 2
    forward = number * (4 * chunk + stream + sums) + (number - 2) * (number + 1) * chunk + 4 * chunk + sums
    loads = pairs - 2
    up = loads * (2 * chunk + full + sums) + (loads - number + 1) * chunk
    up += 2 * (number - 1) * chunk + number * stream
    down = pairs * full + number * chunk
    merged = count * ((pairs - number) * MERGE_FORWARD_BYTES + pairs * MERGE_BACKWARD_BYTES)
    return Chunks(number, forward, up + down, merged)


def chunk_seconds(setup: Setup, rates: Rates, attention: tuple[float, float]) -> float:
    """Return the seconds that FPDT adds to one block for one micro batch; 0 for a single chunk.

    `attention` is the (forward, backward) time of the block's attention, with which the traffic overlaps.
    """
    chunks = chunks_of(setup)
    if chunks.number == 1:
        return 0.0
    host = rates.host_bytes_per_second
    forward = max(chunks.forward_bytes / host - attention[0], 0.0)
    backward = max(chunks.backward_bytes / host - attention[1], 0.0)
    passes = 2 if setup.recompute == "full" else 1
    return passes * forward + backward + chunks.merged_bytes / rates.memory_bytes_per_second
