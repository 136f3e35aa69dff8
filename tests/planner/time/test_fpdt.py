"""FPDT's chunk transfers, by hand and counted as DeepSpeed's loops make them, and the resulting step
times.
"""

from dataclasses import replace

import pytest

from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.compute import MERGE_BACKWARD_BYTES, MERGE_FORWARD_BYTES, chunks_of
from nbtrain.planner.time.rates import INFINITE
from tests.planner.time.test_step import PRODUCTS, SHAPE, linked, setup, step

LONG = replace(SHAPE, seq_length=1 << 18)


def chunked(number: int, **changes: object) -> Setup:
    return setup(fpdt_chunk_tokens=2048 // number, **changes)


def loops(number: int) -> tuple[int, int, int, int, int]:
    """Return how many chunks DeepSpeed's loops transfer: in the forward pass to the host and back; in the
    backward pass back to the device, back in fp32, and to the host in fp32.
    """
    down = up = 0
    for row in range(number):
        down += 5  # input, query, key, value; and output at the end of the row
        at = 0
        for key in range(row + 1):
            following = key + 1 if key < row else 0
            last = row == number - 1 and key == row
            # The keys of the row are already on the device.
            up += 2 * (not last and following not in (at, row))
            at = following
    up += 4
    back = full = lowered = 0
    present = {0}
    for row in range(number):
        back += 1 + 2 * (row > 0)  # input; keys and values
        for query in range(row, number):
            if row < number - 1:
                following = query + 1 if query < number - 1 else row + 1
            if following != query:
                back += 2 + (following in present)  # query, output, and its gradient if seen before
                full += 1
                present.add(following)
            lowered += 1
    return down, up, back, full, lowered


@pytest.mark.parametrize("number", [2, 4, 8])
def test_bytes_are_those_of_the_loops(number: int):
    """The planned bytes equal the transfers in the loops; a chunk has 4 x 2048 x 1024 / N numbers of 2 bytes,
    and 16 heads store one fp32 sum per token.
    """
    found = chunks_of(chunked(number))
    chunk, sums = 2 * 4 * 2048 * 1024 / number, 4 * 4 * 2048 * 16 / number
    down, up, back, full, lowered = loops(number)
    assert found.forward_bytes == (down + up) * chunk + (number + 1) * sums
    assert found.backward_bytes == (back + number) * chunk + 2 * (full + lowered) * chunk + full * sums


def test_two_chunks_by_hand():
    """With two chunks of 8.39 MB, the forward pass moves 14 chunks between device and host; the backward pass
    moves 8 chunks in 16 bits and 4 in fp32.
    """
    found, chunk, sums = chunks_of(chunked(2)), 8_388_608, 262_144
    assert found.forward_bytes == 14 * chunk + 3 * sums
    assert found.backward_bytes == (2 + 2 + 2) * chunk + 2 * chunk + (1 + 3) * 2 * chunk + sums
    merged = (3 - 2) * MERGE_FORWARD_BYTES + 3 * MERGE_BACKWARD_BYTES
    assert found.merged_bytes == merged * chunk / 2


def test_seconds_are_bytes_over_the_link_less_attention():
    """The time is the bytes divided by the link's bandwidth, less the attention time that hides transfers,
    for 4 micro batches and 8 blocks.
    """
    chunks = chunks_of(chunked(2))
    slow = linked(host_bytes_per_second=1e9)
    once = 32 * (chunks.forward_bytes + chunks.backward_bytes) / 1e9
    assert step(slow, fpdt_chunk_tokens=1024).chunks == pytest.approx(once, rel=1e-12)
    twice = once + 32 * chunks.forward_bytes / 1e9
    assert step(slow, fpdt_chunk_tokens=1024, recompute="full").chunks == pytest.approx(twice, rel=1e-12)
    hidden = 32 * 3.5 * 4 * 2048 * 1024 / 2 * 4 * 2048 / 1e12
    rates = replace(PRODUCTS, host_bytes_per_second=1e9)
    assert step(rates, fpdt_chunk_tokens=1024).chunks == pytest.approx(once - hidden, rel=1e-12)
    merged = replace(PRODUCTS, host_bytes_per_second=INFINITE, memory_bytes_per_second=1e9)
    found = step(merged, fpdt_chunk_tokens=1024).chunks
    assert found == pytest.approx(32 * chunks.merged_bytes / 1e9, rel=1e-12)


def test_one_chunk_stays_on_the_device_and_makes_the_mlp_again():
    whole, plain = step(fpdt_chunk_tokens=2048), step()
    assert whole.chunks == 0
    mlp = 8 * 2 * SHAPE.mlp_weights * 16 * 2048 / 1e12
    assert whole.recompute == pytest.approx(mlp, rel=1e-12)
    assert whole.seconds == pytest.approx(plain.seconds + mlp, rel=1e-12)


def test_smaller_chunks_never_make_a_step_faster():
    """Smaller chunks or a slower link never make a step faster; with large chunks, attention hides almost all
    of the transfer.
    """
    one = {"shape": LONG, "micro_batch_size": 1, "global_batch_size": 1}
    fast = replace(PRODUCTS, matmul_flops={"bf16": 180e12}, attention_flops=dict.fromkeys((1, 2, 3), 150e12))
    sizes = [1 << power for power in range(10, 19)]
    seconds = [step(fast, fpdt_chunk_tokens=size, **one).seconds for size in sizes]
    assert seconds == sorted(seconds, reverse=True)
    shares = [step(fast, fpdt_chunk_tokens=size, **one).chunks / total for size, total in zip(sizes, seconds)]
    assert shares[0] > 0.5
    assert shares[sizes.index(1 << 16)] < 0.01
    slower = replace(fast, host_bytes_per_second=5e9)
    assert (
        step(slower, fpdt_chunk_tokens=8192, **one).chunks > step(fast, fpdt_chunk_tokens=8192, **one).chunks
    )


def test_ulysses_exchanges_chunk_by_chunk():
    """With chunks, Ulysses exchanges the same number of bytes in more messages, and each message has its own
    latency.
    """
    layout = {"ulysses_size": 2, "micro_batch_size": 4, "devices_per_node": 2}
    assert step(linked(), fpdt_chunk_tokens=512, **layout).sequence == pytest.approx(
        step(linked(), **layout).sequence, rel=1e-12
    )
    ramped = linked()
    ramped = replace(ramped, inside=replace(ramped.inside, ramp_bytes=1e6))
    more = step(ramped, fpdt_chunk_tokens=512, **layout).sequence - step(ramped, **layout).sequence
    assert more == pytest.approx(32 * 8 * 3 * 1 / 2 * 1e6 / 1e9, rel=1e-12)
