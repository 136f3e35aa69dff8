"""Memory of LoRA training by hand: trained parameters, smaller optimizer states, and a model as large as
Falcon 180B.
"""

import dataclasses

import pytest

from nbtrain.config.arithmetic.devices import GIB, find_device
from nbtrain.config.load import load
from nbtrain.config.shape import Shape
from nbtrain.planner.memory import buffers
from nbtrain.planner.memory.estimate import estimate, estimate_memory
from nbtrain.planner.memory.explain import explain
from nbtrain.planner.memory.lora import adapter_parameters, estimate_lora
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.memory.states import dequantized_bytes, states
from nbtrain.planner.plan import plan
from nbtrain.planner.setup.setup import Setup, setup_of

GPT3 = Shape(96, 12288, 96, 49152, 50304, 2048, 96, 128, learned_positions=2048)
FALCON = Shape(80, 14848, 232, 59392, 65024, 2048, 8, 64, bias=False, parallel_residual=True)


def test_the_trained_numbers_by_hand():
    """LoRA with r = 4 on GPT-3's query, key, value and output projections trains 4 x ((h + 3 h) + (h + h))
    parameters per layer.
    """
    assert adapter_parameters(GPT3, 96, 4, ("attention",)) == 96 * 4 * 6 * 12288
    assert adapter_parameters(GPT3, 1, 4, ("mlp",)) == 4 * 2 * (12288 + 49152)
    gated = dataclasses.replace(GPT3, gated=True)
    assert adapter_parameters(gated, 1, 4, ("mlp",)) == 4 * 3 * (12288 + 49152)


def test_only_the_weights_stay():
    """Only the weights of the frozen model remain: 2 instead of 18 bytes per parameter, plus 18 bytes per
    trained parameter.
    """
    shape = Shape(12, 768, 12, 3072, 52096, 2048, 12, 64, learned_positions=2048)
    setup = Setup(shape, device=find_device("A100-40GB"), zero_stage=2)
    full, lora = estimate(setup), estimate_lora(setup, 8)
    count, trained = 126_638_592, adapter_parameters(shape, 12, 8, ("attention", "mlp"))
    assert lora.states_bytes == 2 * count + 18 * trained
    assert full.states_bytes == pytest.approx(18 * count, abs=8)
    assert full.parts["logits"] - lora.parts["logits"] == 4 * 52096 * 768
    # Four matrices per layer keep 8 numbers per token.
    more = lora.parts["activations"] - full.parts["activations"]
    assert more == 12 * 2048 * 4 * 8 * 2


def test_a_run_with_adapters_has_their_states_and_no_others():
    """gpt3-tiny with rank 8 has optimizer states for 147,456 adapter parameters, 4 + 8 bytes each, and 4
    bytes for each frozen weight.
    """
    full, config = load("gpt3-tiny"), load("gpt3-tiny", {"lora.rank": 8, "init_from": "a-run"})
    before, found = estimate_memory(full).parts, estimate_memory(config).parts
    trained = 4 * 8 * 18 * 256
    assert found["weights"] == before["weights"] + 4 * trained
    assert found["gradients"] == 4 * trained
    assert found["optimizer"] == 8 * trained + 4 * 32
    assert before["logits"] - found["logits"] == 4 * config.padded_vocab_size * 256
    # 8 numbers for each of the six projections, per token.
    assert found["activations"] - before["activations"] == 4 * 8 * 256 * 4 * 6 * 8
    terms = explain(setup_of(config))
    assert sum(term.value for term in terms) == estimate_memory(config).total_bytes
    assert "147,456 adapter parameters" in str([term.formula for term in terms])
    planned = plan(config, use_measured=False)
    assert planned.sections()["Model"]["adapters"] == "147,456 parameters, trained next to frozen weights"
    assert planned.memory.total_bytes < plan(full, use_measured=False).memory.total_bytes


def test_a_step_makes_no_flat_gradient_of_frozen_weights():
    """With ZeRO 2 in fp16, the flat gradient of a step has 4 bytes per trained parameter and none for frozen
    weights.
    """
    settings = {"lora.rank": 8, "init_from": "a-run", "precision.dtype": "fp16", "parallel.zero_stage": 2}
    setup = setup_of(load("gpt-125m", settings, check=False))
    trained = 12 * sum(setup.adapter_sizes)
    assert buffers.workspace_bytes(setup, stage_of(setup, 0), 0, 10**15) == 4 * trained


def test_rows_of_tokens_are_trained_numbers_too():
    """Trainable embedding rows are counted too: two rows of 256 numbers, shared by embedding and output,
    whose fp32 gradient is kept with the loss.
    """
    settings = {"lora.rank": 8, "init_from": "a-run", "checkpoint.async_save": False}
    without = estimate_memory(load("gpt3-tiny", settings)).parts
    config = load("gpt3-tiny", settings | {"lora.trainable_token_indices": [1022, 1023]})
    found = estimate_memory(config).parts
    more = {part: found[part] - without[part] for part in found if part != "reserve"}
    rows = 2 * 256
    wanted = {"weights": 4 * rows, "gradients": 4 * rows, "optimizer": 8 * rows + 4, "logits": 4 * rows}
    assert {part: size for part, size in more.items() if size} == wanted
    terms = explain(setup_of(config))
    assert sum(term.value for term in terms) == estimate_memory(config).total_bytes
    assert "147,968 adapter parameters" in str([term.formula for term in terms])
    assert plan(config, use_measured=False).sections()["Model"]["adapters"] == (
        "147,968 parameters, trained next to frozen weights"
    )


def test_matrices_in_4_bits_by_hand():
    """Bytes of frozen matrices in 4 bits are counted by hand, for 4 blocks with 12 x 256 x 256 numbers. With
    double quantization, each matrix also stores a mean.
    """
    settings = {"lora.rank": 8, "init_from": "a-run"}
    in_fp32 = estimate_memory(load("gpt3-tiny", settings)).parts
    numbers = 4 * 12 * 256**2
    for double, held in (
        (False, numbers // 2 + numbers // 16),
        (True, numbers // 2 + numbers // 64 + 4 * 192 + 4 * 16),
    ):
        more = {"lora.load_in_4bit": True, "lora.bnb_4bit_use_double_quant": double}
        config = load("gpt3-tiny", settings | more)
        found = estimate_memory(config).parts
        assert in_fp32["weights"] - found["weights"] == 4 * numbers - held
        assert all(found[part] == in_fp32[part] for part in ("gradients", "optimizer", "activations"))
        # The widest matrix is dequantized in fp32 together with its constants.
        setup = setup_of(config)
        made = 4 * 1024 * 256 + (4 * 1024 * 256 // 64 if double else 0)
        assert dequantized_bytes(setup) == made
        terms = explain(setup)
        assert sum(term.value for term in terms) == estimate_memory(config).total_bytes
        assert "3,145,728 of them in 4 bits" in str([term.formula for term in terms])
        words = plan(config, use_measured=False).sections()["Model"]["adapters"]
        assert words == "147,456 parameters, trained next to frozen 4-bit weights (nf4)"


def test_a_run_with_ia3_has_the_states_of_its_vectors():
    """IA3 has optimizer states for its vectors only: in each of 4 blocks, 256 numbers for keys, 256 for
    values and 1,024 for the MLP.
    """
    found = estimate_memory(load("gpt3-tiny", {"lora.kind": "ia3", "init_from": "a-run"})).parts
    trained = 4 * (2 * 256 + 1024)
    assert found["gradients"] == 4 * trained
    assert found["optimizer"] == 8 * trained + 4 * 8


def test_every_micro_batch_in_flight_keeps_the_numbers_of_its_adapters():
    """Each micro batch in flight keeps the activations of its adapters; the first of four stages has four
    micro batches in flight.
    """
    shape = Shape(12, 768, 12, 3072, 512, 2048, 12, 64, learned_positions=2048)
    setup = Setup(
        shape, device=find_device("A100-40GB"), zero_stage=1, pipeline_parallel_size=4, global_batch_size=8
    )
    full, lora = estimate(setup), estimate_lora(setup, 8)
    assert full.stage == 0 and setup.layers_by_stage[0] == 3
    more = lora.parts["activations"] - full.parts["activations"]
    assert more == 4 * 3 * 2048 * 4 * 8 * 2


def test_a_model_of_falcons_size_fits_eight_gpus_with_adapters_alone():
    """A model with 180B parameters fits on 8 GPUs when only adapters are trained (42 GiB of weights each),
    but not in full training (375 GiB).
    """
    device = find_device("A100-80GB")
    assert device is not None
    setup = Setup(
        FALCON, device=device, devices_per_node=8, data_parallel_size=8, zero_stage=3, recompute="full",
        global_batch_size=64, reduce_bucket_elements=50_000_000, logits_chunk_tokens=1024,
    )  # fmt: skip
    lora = estimate_lora(setup, 64)
    assert lora.parts["weights"] / GIB == pytest.approx(42, abs=1)
    assert lora.fits is True
    assert estimate(setup).states_bytes / GIB > 370


def test_a_plan_that_does_not_fit_says_what_adapters_would_need():
    """If a plan does not fit, it states the memory needed with adapters; a plan that fits has no such row."""
    alone = ["parallel.data_parallel_size=1", "resources.gpus_per_node=1", "resources.gpu_type=T4"]
    text = str(plan(load("gpt-1-3b-4xdp", alone), use_measured=False))
    assert "per rank with LoRA adapters of rank 16 next to frozen weights (lora, init_from)" in text
    assert "adapters" not in str(plan(load("gpt-125m"), use_measured=False))


def test_autocast_keeps_no_copy_of_matrices_in_4_bits():
    """Autocast keeps 16-bit copies of embeddings, biases and adapters, but not of the 4-bit matrices."""
    settings = {"lora.rank": 8, "init_from": "a-run", "precision.dtype": "fp32"}
    for four_bits in (False, True):
        config = load("gpt-125m", settings | {"lora.load_in_4bit": four_bits}, check=False)
        setup = setup_of(config)
        both = (setup, dataclasses.replace(setup, autocast=True))
        plain, cast = (states(found, stage_of(found, 0)).weights for found in both)
        blocks, biases = 0 if four_bits else 12 * 12 * 768**2, 12 * 9 * 768
        copied = config.padded_vocab_size * 768 + blocks + biases + 12 * sum(setup.adapter_sizes)
        assert cast - plain == 2 * copied
