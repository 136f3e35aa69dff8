"""Terms of step time and traffic: they add up to the estimate, and their formulas contain the numbers."""

from dataclasses import replace

import pytest

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.setup.terms import below, total
from nbtrain.planner.time.compute import chunks_of
from nbtrain.planner.time.explain import explain, traffic
from nbtrain.planner.time.step import estimate_step
from tests.benchmarks import published
from tests.planner.time.test_step import PARAMETERS, SHAPE

LAYOUTS = {
    "one": {},
    "tensor": {"tensor_parallel_size": 4, "sequence_parallel": True},
    "piped": {"pipeline_parallel_size": 4, "micro_batch_size": 1, "virtual_stages": 2},
    "zero 3": {"data_parallel_size": 16, "nodes": 2, "zero_stage": 3, "recompute": "full"},
    "hpz": {
        "data_parallel_size": 16, "nodes": 2, "zero_stage": 3, "hpz_size": 8, "quantized_weights": True,
        "quantized_gradients": True,
    },
    "offload": {"data_parallel_size": 8, "zero_stage": 2, "offload_optimizer": "cpu"},
    "nvme": {"data_parallel_size": 8, "zero_stage": 3, "offload_optimizer": "nvme", "offload_param": "nvme"},
    "hybrid": {"data_parallel_size": 16, "nodes": 2, "zero_stage": 3, "shard_size": 8},
    "lora": {"data_parallel_size": 8, "zero_stage": 1, "lora_rank": 16},
    "ulysses": {"ulysses_size": 8, "zero_stage": 1},
    "fpdt": {"ulysses_size": 2, "zero_stage": 1, "fpdt_chunk_tokens": 512},
    "fpdt, recomputed": {"fpdt_chunk_tokens": 256, "recompute": "full"},
    "ring": {"engine": "megatron-core", "context_parallel_size": 4, "recompute": "selective"},
    "context": {"context_parallel_size": 4, "recompute": "selective", "keeps_scores": True},
    "shared groups": {"tensor_parallel_size": 4, "shape": replace(SHAPE, num_query_groups=2)},
    "windows": {"shape": replace(SHAPE, window_layers=(True, False) * 4, window_size=256)},
    "caps": {"shape": replace(SHAPE, attn_softcap=True, logit_softcap=True)},
}  # fmt: skip


def setup(name: str) -> Setup:
    device = find_device("A100-80GB")
    batch = {"micro_batch_size": 2, "global_batch_size": 64, "devices_per_node": 8}
    return Setup(**{"shape": SHAPE, "device": device, **batch, **LAYOUTS[name]})


@pytest.mark.parametrize("name", LAYOUTS)
def test_terms_sum_to_the_estimate(name):
    """The terms add up to the seconds of a step, and the four parts of the computation to its total."""
    step, terms = estimate_step(setup(name)), explain(setup(name))
    assert step is not None
    assert total(terms, "seconds") == pytest.approx(step.seconds, rel=1e-12)
    assert total(below(terms, "compute"), "seconds") == pytest.approx(step.compute, rel=1e-12)
    assert all(term.formula and term.source and term.value > 0 for term in terms)


def test_terms_sum_to_the_estimate_of_every_published_case():
    if not published.CASES.is_file():
        pytest.skip("no ../shared/reference/planner next to the repository")
    for case in published.load_cases():
        step = estimate_step(case.setup)
        assert step is not None
        assert total(explain(case.setup), "seconds") == pytest.approx(step.seconds, rel=1e-9), case.id


def test_traffic_by_hand():
    """The bytes that a rank sends, computed by hand: 4 all-reduces per block, and with ZeRO 3, 2 + 2 + 4
    bytes per parameter.
    """
    sent = {term.name: term for name in ("tensor", "zero 3", "ulysses") for term in traffic(setup(name))}
    message = 2 * 2 * 2048 * 1024
    tensor = sent["traffic / tensor"]
    assert tensor.value == 32 * 8 * 4 * 2 * 3 / 4 * message
    assert tensor.formula == "32 micro batches x 8 blocks x 4 sums x 2 x 3/4 x 8,388,608 bytes"
    ulysses = sent["traffic / Ulysses"]
    assert ulysses.value == 32 * 8 * 8 * 7 / 8 * message / 8
    (zero,) = traffic(setup("zero 3"))
    assert zero.value == pytest.approx(2 * 15 / 16 * 8 * PARAMETERS)
    weight, gradient = f"{2 * PARAMETERS:,}", f"{4 * PARAMETERS:,}"
    assert zero.formula == f"15/16 x 2 x (2 gathers x {weight} + 1 scatter x {gradient} bytes)"
    (less,) = traffic(setup("hpz"))
    assert less.value == pytest.approx(2 * 15 / 16 * (0.5 * 2 + 0.5) * PARAMETERS)
    assert traffic(setup("one")) == []
    (plain,) = traffic(replace(setup("one"), data_parallel_size=4))
    assert plain.value == 2 * 3 / 4 * 4 * PARAMETERS
    assert plain.formula == f"all-reduce: 2 x 3/4 x {4 * PARAMETERS:,} bytes"


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("full", 2)])
def test_chunks_pass_the_host_once_for_each_forward_and_backward_pass(recompute, forwards):
    chunked = replace(setup("fpdt, recomputed"), recompute=recompute)
    (sent,) = (term for term in traffic(chunked) if term.name == "traffic / host memory (FPDT)")
    chunks = chunks_of(chunked)
    assert chunks.forward_bytes > 0 < chunks.backward_bytes
    assert sent.value == 32 * 8 * (forwards * chunks.forward_bytes + chunks.backward_bytes)


def test_the_formulas_of_a_gpus_products_and_sums_name_what_else_they_take():
    """The formula for products also names memory bandwidth, and the formula for all-reduces also names the
    part that is not hidden.
    """
    formulas = {term.name: term.formula for term in explain(setup("tensor"))}
    assert any(formula.endswith(", and the matrices at 1.73 TB/s)") for formula in formulas.values())
    assert formulas["tensor"].endswith(" 4 sums of 8.39 MB at 234 GB/s")
    hidden = {term.name: term.formula for term in explain(replace(setup("tensor"), overlap_tensor=True))}
    assert hidden["tensor"].endswith(
        " 4 sums of 8.39 MB at 234 GB/s, of which 40% does not overlap with computation"
    )


def test_40b_on_two_nodes_sends_120_gigabytes_a_node():
    """ZeRO 3 in 16 bits sends 48 bits per parameter, divided by the number of nodes: 120 GB per node for 40B
    on 2 nodes.
    """
    per_parameter = 2 + 2 + 2
    assert 40e9 * per_parameter * (2 - 1) / 2 == 120e9
    layout = {"zero_stage": 3, "data_parallel_size": 2, "communication_dtype": "bf16", "global_batch_size": 2}
    two = Setup(SHAPE, micro_batch_size=1, nodes=2, **layout)
    (term,) = traffic(two)
    assert term.value == pytest.approx(per_parameter * PARAMETERS / 2)


def test_nothing_is_explained_without_a_device():
    assert explain(Setup(SHAPE)) == []


def test_hybrid_shards_send_less_of_the_weights_and_sum_their_gradients_between_copies():
    """With hybrid sharding on 8 ranks and 2 replicas, a rank sends 7/8 of two all-gathers and one
    reduce-scatter, and all-reduces the fp32 gradient of its shard.
    """
    (sent,) = (term for term in traffic(setup("hybrid")) if term.name == "traffic / data")
    one = 7 / 8 * (2 * 2 + 4) * PARAMETERS + 2 * 1 / 2 * 4 * PARAMETERS / 8
    assert sent.value == pytest.approx(2 * one, rel=1e-12)
    assert sent.formula.startswith("7/8 x 2 x (2 gathers x ")
    assert sent.formula.endswith(" bytes between replicas")


def test_lora_sends_the_adapters_alone():
    lora = setup("lora")
    (sent,) = (term for term in traffic(lora) if term.name == "traffic / data")
    assert sent.value == pytest.approx(7 / 8 * (4 + 2) * lora.adapter_parameters, rel=1e-12)
