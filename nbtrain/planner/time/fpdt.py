"""FPDT: bytes that its chunks move over PCIe, and the seconds of that traffic that attention does not hide.

A sequence is N chunks. Attention takes N (N + 1) / 2 pairs of them, and while one pair is computed the chunks
of the next one come up from host memory (arXiv:2408.16978; DeepSpeed 0.19.8, sequence/fpdt_layer.py). In
chunks of a tensor of a block's width, one block and micro batch move:

    forward    down  input, query, key, value, output: 5 N
               up    keys and values for pairs whose keys are not there: 2 (N - 2) (N + 1) / 2; at the end
                     the first query, key, value and output for the backward pass: 4
    backward   up    query, output and the query's gradient in fp32 for each pair but two; the output's
                     gradient, but for the N - 1 that come from the other ranks; keys, values and input
               down  the query's gradient in fp32 after each pair, the output's gradient: N

A pair's work grows with the square of a chunk and its traffic with the chunk itself: below some size the link
is slower than attention. Each pair's result is added to the sum of its row in fp32, in device memory. A
sequence of one chunk stays on the device.
"""

from typing import NamedTuple

from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates
from nbtrain.planner.time.traffic import DTYPE_BYTES

# Bytes of device memory for each number of a pair's result: forward it is read in 16 bit and made fp32 (6),
# both summands are scaled (8 each) and added (12); backward three gradients begin at 0 (2 each) and are added
# to fp32 sums (10 each).
MERGE_FORWARD_BYTES, MERGE_BACKWARD_BYTES = 34, 36


class Chunks(NamedTuple):
    """The traffic of one block and one micro batch of a rank with FPDT."""

    number: int
    forward_bytes: float
    """Bytes over PCIe in the forward pass, both directions."""
    backward_bytes: float
    merged_bytes: float
    """Bytes of device memory read and written to sum the results of the pairs."""


NONE = Chunks(1, 0.0, 0.0, 0.0)


def number_of_chunks(setup: Setup) -> int:
    """Return the number of chunks of a sequence; 1 without FPDT."""
    return max(setup.shape.seq_length // setup.fpdt_chunk_tokens, 1) if setup.fpdt_chunk_tokens else 1


def chunks_of(setup: Setup) -> Chunks:
    """Return the bytes that the chunks of one block move; NONE if they stay on the device."""
    number = number_of_chunks(setup)
    if number == 1:
        return NONE
    shape, element = setup.shape, DTYPE_BYTES[setup.dtype]
    # For one chunk: elements, bytes, bytes in fp32, bytes of its input, and bytes of its scores' fp32
    # log-sum-exp.
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
    """Return the seconds of one block that FPDT adds.

    `attention` are the seconds of its forward and backward pass, which hide the traffic.
    """
    chunks = chunks_of(setup)
    if chunks.number == 1:
        return 0.0
    host = rates.host_bytes_per_second
    forward = max(chunks.forward_bytes / host - attention[0], 0.0)
    backward = max(chunks.backward_bytes / host - attention[1], 0.0)
    passes = 2 if setup.recompute == "full" else 1
    return passes * forward + backward + chunks.merged_bytes / rates.memory_bytes_per_second
