"""The seconds of a step by hand: with round rates, each part equals its formula."""

import itertools
from dataclasses import fields, replace

import pytest

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.flops import attention_forward, block_forward, logits_forward, model_flops
from nbtrain.config.shape import Shape
from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.explain import traffic
from nbtrain.planner.time.rates import INFINITE, Link, Rates, generation, rates_of_device, rates_of_setup
from nbtrain.planner.time.step import StepTime, estimate_step, step_of_size
from nbtrain.planner.time.traffic import group_of, ring_latency

SHAPE = Shape(
    num_layers=8, hidden_size=1024, num_attention_heads=16, ffn_hidden_size=4096, padded_vocab_size=51200,
    seq_length=2048, num_query_groups=16, kv_channels=64,
)  # fmt: skip
# 12 matrices of 1024 x 1024 per block, their biases (9 x 1024 and 4 x 1024), two norms; V h; the last norm.
PARAMETERS = 8 * (12 * 1024**2 + 13 * 1024) + 51200 * 1024 + 2 * 1024

# Only products take time: attention runs as fast as other products, memory and links are free.
PRODUCTS = Rates(
    matmul_flops={"bf16": 1e12, "fp8": 2e12, "fp32": 1e11},
    attention_flops={1: 1e12, 2: 1e12, 3: 1e12},
    memory_bytes_per_second=INFINITE,
    inside=Link(INFINITE),
    across=Link(INFINITE),
    host_times=0.0,
)
TOKENS = 16 * 2048
# Flash attention skips half of the scores; its backward pass costs 2.5 forward passes.
ATTENTION = 8 * attention_forward(SHAPE) / 2 * TOKENS / 1e12
PRODUCT_SECONDS = model_flops(SHAPE) * TOKENS / 1e12 - 3 * 2 * ATTENTION + 3.5 * ATTENTION


def setup(**changes: object) -> Setup:
    """Return a setup of eight blocks of width 1024 on one GPU, with 16 sequences in 4 micro batches."""
    return replace(Setup(SHAPE, micro_batch_size=4, global_batch_size=16), **changes)


def step(rates: Rates = PRODUCTS, **changes: object) -> StepTime:
    found = estimate_step(setup(**changes), rates)
    assert found is not None
    return found


def linked(bytes_per_second: float = 1e9, across: float = 1e8, **changes: object) -> Rates:
    """Return a setup in which products take no time and links have neither latency nor a message-size
    ramp.
    """
    free = {"bf16": INFINITE, "fp32": INFINITE}
    kernels = dict.fromkeys((1, 2, 3), INFINITE)
    slow = replace(PRODUCTS, matmul_flops=free, attention_flops=kernels)
    return replace(slow, inside=Link(bytes_per_second), across=Link(across), **changes)


def test_one_gpu_takes_its_flops_over_its_rate():
    """A step on one GPU takes the model's FLOPs, with the causal half of attention, divided by the GPU's
    rate.
    """
    found = step()
    assert found.compute == pytest.approx(PRODUCT_SECONDS, rel=1e-12)
    assert found.seconds == found.compute


def test_the_parts_add_up():
    """The seconds of a step are the sum of its parts, in a setup where every part is above 0."""
    found = estimate_step(
        setup(
            device=find_device("A100-40GB"), nodes=4, devices_per_node=8, tensor_parallel_size=2,
            pipeline_parallel_size=4, data_parallel_size=2, ulysses_size=2, zero_stage=1, recompute="full",
            offload_optimizer="cpu", micro_batch_size=1, global_batch_size=16, fpdt_chunk_tokens=256,
        )
    )  # fmt: skip
    assert found is not None
    parts = {field.name: getattr(found, field.name) for field in fields(found)}
    assert all(seconds > 0 for seconds in parts.values()), parts
    assert found.seconds == pytest.approx(sum(parts.values()), rel=1e-12)


def test_steps_of_several_sizes_are_the_steps_of_their_setups():
    """The parts that a ramp-up computes once depend on none of its batch sizes."""
    for changes in ({}, {"data_parallel_size": 2, "zero_stage": 2}, {"pipeline_parallel_size": 2}):
        own = setup(**changes)
        step_of = step_of_size(own, linked())
        for size in (8, 16, 64):
            assert step_of(size) == estimate_step(replace(own, global_batch_size=size), linked())


def test_full_recomputation_makes_the_blocks_forward_pass_again():
    """Full recomputation adds another forward pass, a third of the blocks' work; selective recomputation with
    flash attention adds no products.
    """
    full = step(recompute="full").recompute
    blocks = 8 * block_forward(SHAPE) * TOKENS / 1e12 - ATTENTION
    assert full == pytest.approx(blocks, rel=1e-12)
    assert step(recompute="selective").recompute == 0
    kept = step(recompute="selective", keeps_scores=True)
    assert kept.recompute == pytest.approx(2 * ATTENTION / 0.6, rel=1e-12)
    with_mlp = step(recompute="selective", recomputes_mlp=True).recompute
    assert with_mlp == pytest.approx(8 * 2 * SHAPE.mlp_weights * TOKENS / 1e12, rel=1e-12)


def test_selective_recomputation_moves_the_mlps_activation_again():
    """Selective recomputation reads and writes the MLP's 4 h activations (2 bytes each) once more per token
    and block.
    """
    slow = replace(PRODUCTS, memory_bytes_per_second=1e9)
    moved = 8 * 2 * 2 * SHAPE.ffn_hidden_size * TOKENS / 1e9
    assert step(slow, recompute="selective").recompute == pytest.approx(moved, rel=1e-12)
    assert step(slow, recompute="selective", tensor_parallel_size=2).recompute == pytest.approx(moved / 2)
    assert step(slow, recompute="selective", engine="megatron-core").recompute == 0
    assert step(slow, recompute="selective", compiled=True).recompute == 0


def test_fp8_is_for_the_blocks_products():
    """FP8 applies only to the products of the blocks; attention and the output layer stay in 16 bits."""
    blocks = 3 * 8 * (block_forward(SHAPE) - attention_forward(SHAPE)) * TOKENS / 1e12
    assert step(fp8=True).compute == pytest.approx(PRODUCT_SECONDS - blocks / 2, rel=1e-12)


def test_memory_traffic_takes_time():
    """Memory traffic takes time: for matrices, activations, logits, and 42 bytes per parameter in the
    optimizer.
    """
    found = step(replace(PRODUCTS, memory_bytes_per_second=1e12))
    assert found.optimizer == pytest.approx(PARAMETERS * (34 + 8) / 1e12, rel=1e-12)
    # The weights of a block, and the inputs and outputs of its four products.
    moved = 3 * 2 * (12 * 1024**2 + 8192 * (4 * 1024 + (3 + 1 + 4 + 4) * 1024))
    kept = 8192 * 1024 * (8 + 8 + 16) * ENGINES["nbtrain"].traffic
    logits = 22 * 8192 * 51200
    expected = PRODUCT_SECONDS + 4 * (8 * (moved + kept) + logits) / 1e12
    assert found.compute == pytest.approx(expected, rel=1e-12)


def test_scores_that_are_kept_are_moved():
    """Without flash attention, each score is written and read: 8 + 16 bytes, and with dropout 5 + 10 more."""
    slow = replace(PRODUCTS, memory_bytes_per_second=1e12)
    plain = step(slow, keeps_scores=True).compute - step(PRODUCTS, keeps_scores=True).compute
    flash = step(slow).compute - step().compute
    scores = 8 * 4 * 4 * 16 * 2048**2
    assert plain - flash == pytest.approx(scores * 24 / 1e12, rel=1e-9)
    dropped = replace(SHAPE, attention_dropout=0.1)
    more = step(slow, keeps_scores=True, shape=dropped).compute - step(slow, keeps_scores=True).compute
    assert more == pytest.approx(scores * 15 / 1e12, rel=1e-9)


def test_heads_that_are_no_multiple_of_8_are_slow():
    """With heads of size 60, which is not a multiple of 8, the products for attention scores take 5.5 times
    as long.
    """
    odd = replace(SHAPE, kv_channels=60, num_attention_heads=16, num_query_groups=16)
    even = step(keeps_scores=True, shape=replace(odd, kv_channels=64)).compute
    scores = 3 * 8 * attention_forward(odd) * TOKENS / 0.6 / 1e12
    less = 3 * 8 * 2 * 4 * 1024 * 4 * 16 * TOKENS / 1e12 + 3 * 8 * 4 * 2048 * 64 * TOKENS / 0.6 / 1e12
    assert step(keeps_scores=True, shape=odd).compute == pytest.approx(even - less + 4.5 * scores, rel=1e-9)


@pytest.mark.parametrize(("virtual", "expected"), [(1, 3), (2, 1.5)])
def test_the_bubble_of_equal_stages(virtual: int, expected: float):
    """With equal stages, the bubble is the time of (p - 1) / v micro batches on a stage, for 4 stages and 16
    micro batches.
    """
    no_logits = replace(SHAPE, padded_vocab_size=0)
    layout = {"pipeline_parallel_size": 4, "virtual_stages": virtual, "micro_batch_size": 1}
    found = step(shape=no_logits, stage_layers=(2, 2, 2, 2), **layout)
    assert found.bubble == pytest.approx(expected * found.compute / 16, rel=1e-12)
    share = found.bubble / found.seconds
    assert share == pytest.approx(expected / (16 + expected), rel=1e-12)


def test_unequal_stages_wait_for_the_slowest():
    """With unequal stages, a step takes m times the slowest stage, plus each other stage once."""
    layout = {"pipeline_parallel_size": 4, "micro_batch_size": 1, "stage_layers": (3, 2, 2, 1)}
    found = step(**layout)
    one = (PRODUCT_SECONDS - 3 * logits_forward(SHAPE) * TOKENS / 1e12) / 8 / 16
    last = one + 3 * logits_forward(SHAPE) * TOKENS / 1e12 / 16
    slowest, whole = max(3 * one, last), 7 * one + last
    assert found.seconds == pytest.approx(16 * slowest + whole - slowest, rel=1e-12)


def test_tensor_ranks_wait_for_four_sums_of_each_block():
    """Tensor-parallel ranks wait for four all-reduces of s b h bf16 numbers per block, six with full
    recomputation, and longer between machines.
    """
    layout = {"tensor_parallel_size": 4, "devices_per_node": 4}
    one = 2 * 3 / 4 * 2 * 8192 * 1024 / 1e9
    assert step(linked(), **layout).tensor == pytest.approx(4 * 8 * 4 * one, rel=1e-12)
    assert step(linked(), recompute="full", **layout).tensor == pytest.approx(4 * 8 * 6 * one, rel=1e-12)
    hidden = step(linked(), overlap_tensor=True, **layout).tensor
    assert hidden == pytest.approx(0.4 * 4 * 8 * 4 * one, rel=1e-12)
    # Two machines of two ranks: each pair uses the entire network of its machine.
    two = step(linked(), tensor_parallel_size=4, devices_per_node=2, nodes=2).tensor
    assert two == pytest.approx(10 * 4 * 8 * 4 * one, rel=1e-12)


def test_gradients_are_sent_twice_and_zero_3_sends_three_times_in_each_micro_batch():
    """DDP all-reduces fp32 gradients once per step; ZeRO 1 reduces them and gathers bf16 weights once; ZeRO 2
    reduces in each micro batch; ZeRO 3 also gathers twice in each.
    """
    layout = {"data_parallel_size": 2, "devices_per_node": 2, "global_batch_size": 32, "engine": "metaseq"}
    half, rates = PARAMETERS / 2 / 1e9, linked()
    assert step(rates, **layout).data == pytest.approx(2 * 4 * half, rel=1e-12)
    assert step(rates, zero_stage=1, **layout).data == pytest.approx((4 + 2) * half, rel=1e-12)
    assert step(rates, zero_stage=2, **layout).data == pytest.approx((4 * 4 + 2) * half, rel=1e-12)
    assert step(rates, zero_stage=3, **layout).data == pytest.approx(4 * (2 + 2 + 4) * half, rel=1e-12)
    # Our own ZeRO reaches a quarter of the link's bandwidth.
    ours = step(rates, zero_stage=1, **{**layout, "engine": "nbtrain"}).data
    assert ours == pytest.approx(4 * (4 + 2) * half, rel=1e-12)


def test_zero_plus_plus_sends_less_between_machines():
    """ZeRO++ sends less between machines: qwZ halves the first gather, hpZ keeps the second inside a machine,
    and qgZ sends half a byte per gradient.
    """
    layout = {
        "data_parallel_size": 4, "nodes": 2, "devices_per_node": 2, "engine": "metaseq", "zero_stage": 3,
        "global_batch_size": 16,
    }  # fmt: skip
    part = PARAMETERS * 3 / 4 / 1e8
    plain = step(linked(), **layout).data
    assert plain == pytest.approx((2 + 2 + 4) * part, rel=1e-12)
    assert step(linked(), quantized_weights=True, **layout).data == pytest.approx(7 * part, rel=1e-12)
    for dtype in ("fp32", "bf16"):
        quantized = {**layout, "quantized_gradients": True, "communication_dtype": dtype}
        assert step(linked(), **quantized).data == pytest.approx(4.5 * part, rel=1e-12)
        (sent,) = (one.value for one in traffic(setup(**quantized)) if one.name == "traffic / data")
        assert sent == pytest.approx(4.5 * PARAMETERS * 3 / 4, rel=1e-12)
    inside = 2 * PARAMETERS / 2 / 1e9
    assert step(linked(), hpz_size=2, **layout).data == pytest.approx(6 * part + inside, rel=1e-12)
    # ZeRO's share of the network is not one of the link inside a machine.
    ours = {**layout, "engine": "megatron-deepspeed"}
    shown = step(linked(), hpz_size=2, **ours).data
    assert shown == pytest.approx(6 * part / ENGINES["megatron-deepspeed"].zero_share + inside, rel=1e-12)


def test_gradients_are_not_quantized_on_one_machine():
    """On a single machine, gradients are not quantized, as in DeepSpeed, and the plan reports this as a
    finding.
    """
    layout = {"data_parallel_size": 4, "devices_per_node": 4, "zero_stage": 3, "global_batch_size": 16}
    quantized = {**layout, "quantized_gradients": True}
    assert step(linked(), **quantized) == step(linked(), **layout)
    assert traffic(setup(**quantized)) == traffic(setup(**layout))


def test_traffic_hides_behind_computation():
    """Traffic is hidden behind computation up to a fraction that depends on the program, and never by more
    than there is.
    """
    layout = {"data_parallel_size": 2, "devices_per_node": 2, "global_batch_size": 32}
    busy = replace(linked(1e8), matmul_flops=PRODUCTS.matmul_flops, attention_flops=PRODUCTS.attention_flops)
    bare, hidden = (step(busy, engine=name, **layout).data for name in ("megatron-lm", "metaseq"))
    assert bare - hidden == pytest.approx(0.5 * PRODUCT_SECONDS * 2 / 3 / 4, rel=1e-9)
    fast = replace(busy, inside=Link(1e13))
    assert step(fast, engine="metaseq", **layout).data == 0


def test_ulysses_and_ring_attention_send_less_than_tensor_ranks():
    """Ulysses sends less than tensor parallelism: 8 all-to-alls of s b h / p numbers, of which (p - 1) / p
    leave the rank.
    """
    layout = {"ulysses_size": 4, "devices_per_node": 4}
    found = step(linked(), **layout).sequence
    assert found == pytest.approx(4 * 8 * 8 * 3 / 4 * 2 * 2048 * 1024 / 1e9, rel=1e-12)
    layout = {"context_parallel_size": 4, "devices_per_node": 4}
    passed = 4 * 8 * 3 * 2 * 2 * 2048 * 1024 / 1e9
    ring = step(linked(), engine="megatron-core", **layout).sequence
    assert ring == pytest.approx(3 * passed, rel=1e-12)
    # Gathered and scattered, and with full recomputation gathered again.
    for recompute, times in (("none", 2), ("full", 3)):
        found = step(linked(), recompute=recompute, **layout).sequence
        assert found == pytest.approx(times * passed, rel=1e-12)


def test_context_parallelism_sends_less_than_ulysses_if_queries_share_few_keys():
    """With g of n heads for keys, c ranks send less by context parallelism if c < 1 + n/g."""

    def sent(groups: int, **layout: int) -> float:
        (found,) = (
            term.value
            for term in traffic(setup(shape=replace(SHAPE, num_query_groups=groups), **layout))
            if term.name in ("traffic / Ulysses", "traffic / context parallelism")
        )
        return found

    for groups, ranks in itertools.product((16, 8, 4), (2, 4)):
        ratio = sent(groups, context_parallel_size=ranks) / sent(groups, ulysses_size=ranks)
        assert ratio == pytest.approx(ranks / (1 + 16 / groups), rel=1e-12)


@pytest.mark.parametrize(("engine", "times"), [("torchtitan", 2 - 1 / 4), ("megatron-core", 1)])
def test_a_ring_without_balanced_chunks_waits_for_its_last_rank(engine, times):
    """The last rank of four chunks in order sees three and a half, twice the average less a quarter."""
    found = step(engine=engine, context_parallel_size=4)
    products = PRODUCT_SECONDS - 3.5 * ATTENTION
    assert found.compute == pytest.approx((products + times * 3.5 * ATTENTION) / 4, rel=1e-12)


def test_masks_of_context_parallel_chunks_compute_more_than_the_causal_half():
    """With masks, the two chunks of each of four ranks compute 9/16 of all pairs."""
    found = step(context_parallel_size=4, masks_parts=True)
    products = PRODUCT_SECONDS - 3.5 * ATTENTION
    assert found.compute == pytest.approx((products + 9 / 8 * 3.5 * ATTENTION) / 4, rel=1e-12)


@pytest.mark.parametrize(("device", "kernel"), [("H100", 3), ("A100-80GB", 2), ("B200", 2)])
def test_deterministic_attention_is_slower_and_cudnns_only_on_hopper(device, kernel):
    rates = replace(PRODUCTS, attention_flops={1: 1e12, 2: 1e12, 3: 4e12})
    layout = {"engine": "megatron-core", "device": find_device(device)}
    usual, found = step(rates, **layout), step(rates, deterministic=True, **layout)
    forward = ATTENTION / (4 if kernel == 3 else 1)
    assert found.compute - usual.compute == pytest.approx(
        forward * (1 + 2.5 / 0.62) - ATTENTION / 4 * 3.5, rel=1e-9
    )


def test_fsdp_waits_for_memory_if_there_is_no_room_for_the_next_blocks():
    """On 64 A100-40GB, FSDP with a 70B frees memory and allocates it again for each block; on 80 GB it does
    not: 3 x 12 h^2 x 2 bytes of 80 blocks at 140 GB/s.
    """
    shape = replace(SHAPE, num_layers=80, hidden_size=8192, num_attention_heads=64, ffn_hidden_size=32768)
    layout = {
        "shape": replace(shape, kv_channels=128, num_query_groups=64, learned_positions=2048),
        "engine": "composer", "zero_stage": 3, "data_parallel_size": 64, "micro_batch_size": 2,
        "global_batch_size": 128, "recompute": "full", "communication_dtype": "bf16",
    }  # fmt: skip
    small, large = (step(device=find_device(name), **layout).data for name in ("A100-40GB", "A100-80GB"))
    assert (small, large) == (pytest.approx(3 * 80 * 12 * 8192**2 * 2 / 140e9), 0)


def test_offloading_moves_the_optimizer_to_the_hosts_cores():
    """With an offloaded optimizer, 2 bytes per gradient go to the host and 2 bytes per weight come back, and
    Adam runs at the host's rate for all ranks of a machine.
    """
    rates = replace(PRODUCTS, host_bytes_per_second=1e9, host_adam_parameters_per_second=1e8)
    layout = {"offload_optimizer": "cpu", "zero_stage": 2, "data_parallel_size": 2, "devices_per_node": 2}
    found = step(rates, **layout)
    assert found.offload == pytest.approx(PARAMETERS / 2 * 4 / 1e9, rel=1e-12)
    assert found.optimizer == pytest.approx(PARAMETERS / 1e8, rel=1e-12)


def test_weights_on_the_host_come_up_for_every_pass():
    """Weights in host memory are copied to the device twice per micro batch, 2 bytes for each weight in the
    rank's shard; offloading the optimizer as well adds nothing.
    """
    rates = replace(PRODUCTS, host_bytes_per_second=1e9)
    layout = {"offload_param": "cpu", "zero_stage": 3, "data_parallel_size": 2, "devices_per_node": 2}
    found = step(rates, **layout)
    assert found.offload == pytest.approx(2 * 2 * PARAMETERS / 2 * 2 / 1e9, rel=1e-12)
    assert found.optimizer == 0


def test_nvme_reads_and_writes_the_states_of_all_ranks_of_a_machine():
    """With NVMe offloading, 24 bytes per parameter are read and written for the master weights and moments of
    all ranks of a machine, in addition to the weights.
    """
    rates = replace(PRODUCTS, host_bytes_per_second=INFINITE, nvme_bytes_per_second=1e9)
    layout = {"zero_stage": 3, "data_parallel_size": 2, "devices_per_node": 2}
    states = step(rates, offload_optimizer="nvme", **layout)
    assert states.offload == pytest.approx(24 * PARAMETERS / 1e9, rel=1e-12)
    weights = step(rates, offload_param="nvme", **layout)
    assert weights.offload == pytest.approx(2 * 2 * 2 * PARAMETERS / 1e9, rel=1e-12)


def test_hybrid_shards_gather_inside_a_machine():
    """With hybrid sharding on two machines of two GPUs, weights are gathered over the link inside a machine,
    and each half of the gradients is all-reduced between machines.
    """
    layout = {
        "data_parallel_size": 4, "nodes": 2, "devices_per_node": 2, "engine": "metaseq", "zero_stage": 3,
        "global_batch_size": 16,
    }  # fmt: skip
    inside = (2 + 2 + 4) * PARAMETERS / 2 / 1e9
    # Each of the two ranks of a machine has half of its network, and sends half of the gradients.
    across = 4 * PARAMETERS / 2 * 2 / 2 / 0.5e8
    assert step(linked(), shard_size=2, **layout).data == pytest.approx(inside + across, rel=1e-12)


def test_kernels_that_are_too_small_wait_for_the_host():
    """A block takes at least the time to launch its kernels, and a step has a fixed overhead."""
    found = step(replace(linked(), host_times=1.0))
    engine = ENGINES["nbtrain"]
    assert found.host == pytest.approx(4 * 8 * engine.launch_seconds + engine.step_seconds, rel=1e-12)
    full = step(replace(linked(), host_times=1.0), recompute="full").host
    assert full == pytest.approx(4 * 8 * engine.launch_seconds * 4 / 3 + engine.step_seconds, rel=1e-12)


def test_groups_share_the_network_of_their_machine():
    """Eight groups with one rank on each machine share its network, an eighth each; a group of all ranks of a
    machine has the whole network.
    """
    rates = replace(PRODUCTS, inside=Link(230e9), across=Link(160e9, 0.0, 1e-5))
    layout = setup(nodes=4, devices_per_node=8, data_parallel_size=32)
    assert group_of(layout, rates, 32, 1).bytes_per_second == 160e9
    assert group_of(layout, rates, 4, 8).bytes_per_second == 20e9
    assert group_of(layout, rates, 8, 1).bytes_per_second == 230e9
    assert ring_latency(layout, rates, 32) == pytest.approx(4e-5)
    # An NVL72 rack joins 72 GPUs by NVLink.
    rack = replace(rates, inside_devices=72)
    assert group_of(setup(nodes=16, devices_per_node=4), rack, 64, 1).bytes_per_second == 230e9


def test_a_message_has_to_be_large_to_reach_the_link_s_rate():
    """A message whose size equals the ramp reaches half of the link's bandwidth."""
    rates = replace(PRODUCTS, inside=Link(1e9, ramp_bytes=5e6))
    group = group_of(setup(devices_per_node=8), rates, 8, 1)
    assert group.seconds(5e6) == pytest.approx(2 * 7 / 8 * 5e6 / 1e9)
    assert group.seconds(0) == 0
    assert group_of(setup(), rates, 1, 1).seconds(5e6) == 0


def test_rates_of_devices():
    """Devices reach a fraction of their datasheet rates that depends on the generation; PCIe cards have a
    slower link and less power.
    """
    found = {
        name: find_device(name) for name in ("A100-40GB", "A100-PCIe-40GB", "H100", "V100-32GB", "MI300X")
    }
    kinds = {name: generation(device) for name, device in found.items() if device}
    expected = ["A100", "A100", "Hopper", "V100", "AMD"]
    assert list(kinds.values()) == expected
    newest = [find_device(name) for name in ("B200", "GB300", "B300")]
    assert [generation(device) for device in newest if device] == ["Blackwell"] + ["Blackwell Ultra"] * 2
    assert found["A100-40GB"] and found["A100-PCIe-40GB"]
    sxm, pcie = rates_of_device(found["A100-40GB"]), rates_of_device(found["A100-PCIe-40GB"])
    assert sxm.inside.bytes_per_second == pytest.approx(0.78 * 300e9)
    assert pcie.inside.bytes_per_second == pytest.approx(0.88 * 32e9)
    assert pcie.matmul_flops["bf16"] == pytest.approx(sxm.matmul_flops["bf16"] * (250 / 400) ** 0.5)
    assert sxm.across.bytes_per_second == pytest.approx(0.73 * 200e9)
    assert rates_of_device(found["A100-40GB"], 50e9).across.bytes_per_second == pytest.approx(0.73 * 50e9)


def test_a_machine_with_more_devices_has_more_network_cards():
    """A DGX-2 has 16 V100 and twice the cards of a DGX-1."""
    usual, twice = (
        rates_of_setup(setup(device=find_device("V100-32GB"), devices_per_node=count)) for count in (8, 16)
    )
    assert usual and twice
    assert twice.across.bytes_per_second == 2 * usual.across.bytes_per_second
    assert usual.network.startswith("400 Gb/s") and usual.network.endswith(
        "; assumed for a typical machine with V100-32GB"
    )
    assert twice.network.startswith("800 Gb/s") and twice.network.endswith(
        "; assumed for a machine with 16 V100-32GB"
    )


@pytest.mark.parametrize("names", [("RTX-4090", "RTX-5090"), ("RTX-6000-Ada", "RTX-PRO-6000")])
def test_a_newer_card_attends_faster_with_every_kernel(names):
    """The cards of the generation of Blackwell have the instructions of earlier ones, unlike a B200."""
    older, newer = (find_device(name) for name in names)
    assert older and newer
    before, after = rates_of_device(older).attention_flops, rates_of_device(newer).attention_flops
    assert all(after[kernel] > before[kernel] for kernel in (1, 2, 3))


def test_no_device_no_time():
    """For an unknown device, there is no step time."""
    assert estimate_step(setup()) is None


# Queries, keys, values and projection are 1024 x 1024, both MLP matrices 4096 x 1024; n = 1024.
BLOCK_MUON = 5 * (4 * (4 + 2) + 2 * (4 * 4 + 2)) * 1024**3


@pytest.mark.parametrize(
    "layout, shared",
    [
        ({}, 8),
        ({"zero_stage": 0, "data_parallel_size": 4}, 8),
        ({"zero_stage": 1, "data_parallel_size": 4}, 8 / 4),
        ({"zero_stage": 3, "data_parallel_size": 2, "tensor_parallel_size": 2}, 8 / 4),
        ({"zero_stage": 1, "pipeline_parallel_size": 4, "stage_layers": (2, 2, 2, 2)}, 8 / 4),
    ],
)
def test_muon_makes_its_products_once_a_step(layout, shared):
    """Muon's products run once per step: on every rank without ZeRO, and shared between data- and
    tensor-parallel ranks with ZeRO.
    """
    free, muon = (step(**layout, muon_steps=steps).optimizer for steps in (0, 5))
    assert muon - free == pytest.approx(shared * BLOCK_MUON / 1e12)
    assert step(**layout, muon_steps=5, dtype="fp32").optimizer == pytest.approx(shared * BLOCK_MUON / 1e11)


def test_more_ranks_than_matrices_wait_for_the_dearest_one():
    """With more ranks than matrices, the step waits for the most expensive matrix: the MLP's, which takes 18
    of the 60 units of a block.
    """
    found = step(zero_stage=1, data_parallel_size=64, global_batch_size=256, muon_steps=5).optimizer
    assert found == pytest.approx(18 / 60 * BLOCK_MUON / 1e12)


def test_muons_parts_go_to_the_rank_that_has_the_matrix_and_back():
    """Muon sends each shard to the rank that owns the matrix, and back: two all-to-alls of 2 bytes per
    parameter, for 12 x 1024^2 parameters in each of 8 blocks, over 4 ranks.
    """
    layout = {"zero_stage": 1, "data_parallel_size": 4, "devices_per_node": 4}
    free, muon = (step(linked(1e9), **layout, muon_steps=steps).optimizer for steps in (0, 5))
    assert muon - free == pytest.approx(2 * 3 / 4 * (2 * 8 * 12 * 1024**2 / 4) / 1e9, rel=1e-6)
    terms = {term.name: term.value for term in traffic(setup(**layout, muon_steps=5))}
    assert terms["traffic / Muon"] == 2 * 3 / 4 * (2 * 8 * 12 * 1024**2 / 4)


def test_a_window_leaves_out_what_no_query_sees():
    """A window skips the pairs outside it: w (2 s - w + 1) / 2 pairs per sequence remain, and the model's
    FLOPs count only these.
    """
    pairs = 2048 * 2049 / 2
    of_window = 256 * (2 * 2048 - 256 + 1) / 2
    for pattern, share in (((True,) * 8, 1.0), ((True, False) * 4, 0.5)):
        shape = replace(SHAPE, window_layers=pattern, window_size=256)
        seen = share * of_window + (1 - share) * pairs
        # Without a window half of all positions count, half a token less than a query sees.
        kept = (seen / 2048 - 0.5) / (pairs / 2048 - 0.5)
        expected = PRODUCT_SECONDS - (1 - kept) * 3.5 * ATTENTION
        assert step(shape=shape).compute == pytest.approx(expected, rel=1e-12)
        assert model_flops(shape) == model_flops(SHAPE)
    # A mask for a kernel that computes all pairs; kept scores.
    masked = step(shape=shape, masks_windows=True).compute
    assert masked == pytest.approx(PRODUCT_SECONDS + 0.5 * 3.5 * ATTENTION, rel=1e-12)
    assert step(shape=shape, keeps_scores=True).compute == step(keeps_scores=True).compute


def test_capped_scores_are_written_and_read():
    """Capped scores use nbtrain's own kernel, which writes and reads half of the pairs in the forward pass,
    and twice as many in the backward pass.
    """
    shape = replace(SHAPE, attn_softcap=True)
    unfused = replace(PRODUCTS, scores_flops=0.5e12)
    expected = PRODUCT_SECONDS - 3.5 * ATTENTION + 3 * 2 * ATTENTION
    assert step(unfused, shape=shape).compute == pytest.approx(expected, rel=1e-12)


def test_ranks_that_share_groups_gather_what_they_computed():
    """Ranks that share query groups all-gather query, key and value once in the forward pass, and their
    gradients once in the backward pass.
    """
    shape = replace(SHAPE, num_query_groups=2)
    whole, shared = (
        step(linked(), shape=one, tensor_parallel_size=4).tensor
        for one in (replace(SHAPE, num_query_groups=4), shape)
    )
    packed = 2 * 4 * 2048 * (1024 + 2 * 128)
    assert shared - whole == pytest.approx(4 * 8 * 2 * 3 / 4 * packed / 1e9, rel=1e-9)
    [term] = [
        one
        for one in traffic(setup(shape=shape, tensor_parallel_size=4))
        if one.name == "traffic / shared query groups"
    ]
    assert term.value == 4 * 8 * 2 * 3 / 4 * packed


def test_ulysses_trades_what_the_groups_are():
    """With 16 heads in 4 groups, Ulysses exchanges 4 (h + h/4) instead of 8 h numbers; a single group is
    repeated on all 4 ranks. Each of 2 tensor-parallel ranks exchanges its half of the heads, and repeats its
    2 groups.
    """
    sent = {
        (groups, tensor): next(
            term.value
            for term in traffic(
                setup(
                    shape=replace(SHAPE, num_query_groups=groups),
                    tensor_parallel_size=tensor,
                    ulysses_size=4,
                )
            )
            if term.name == "traffic / Ulysses"
        )
        for groups, tensor in itertools.product((16, 4, 1), (1, 2))
    }
    whole = sent[16, 1]
    assert sent[4, 1] == sent[1, 1] == whole * (1 + 1 / 4) / 2
    assert sent[16, 2] == whole / 2
    assert sent[4, 2] == sent[1, 2] == whole * (1 / 2 + 1 / 4) / 2
