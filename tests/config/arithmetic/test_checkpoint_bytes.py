"""Bytes of a checkpoint computed by hand; tests/parity compares them with the files that runs write."""

import pytest

from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes, checkpoint_room_bytes, state_bytes
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.load import load


@pytest.mark.parametrize(
    "dtype, autocast, zero_stage, bytes_per_parameter",
    [
        ("fp32", False, 0, 4 + 8),
        ("fp32", False, 1, 4 + 4 + 8),
        ("bf16", True, 2, 4 + 4 + 8),
        ("bf16", False, 1, 2 + 4 + 8),
        ("bf16", False, 3, 4 + 8),
        ("fp32", False, 3, 4 + 8),
    ],
)
def test_state_is_weights_masters_and_two_moments(dtype, autocast, zero_stage, bytes_per_parameter):
    """A checkpoint holds weights, masters and two moments; ZeRO 0 has no masters, ZeRO 3 no weights."""
    overrides = {"precision.dtype": dtype, "precision.autocast": autocast, "parallel.zero_stage": zero_stage}
    config = load("gpt3-tiny", overrides)
    assert state_bytes(config) == bytes_per_parameter * count_parameters(config).total


@pytest.mark.parametrize("zero_stage", [0, 1, 3])
def test_a_matrix_that_muon_steps_has_one_moment(zero_stage):
    """Muon stores one moment for a matrix: 12 bytes per parameter with ZeRO 0 and 3, 16 with ZeRO 1."""
    config = load("gpt3-tiny", {"parallel.zero_stage": zero_stage, "optimizer.type": "Muon"})
    whole = (16 if zero_stage == 1 else 12) * count_parameters(config).total
    assert state_bytes(config) == whole - 4 * 4 * 12 * 256 * 256


@pytest.mark.parametrize("zero_stage, each", [(0, 4 + 8), (1, 4 + 4 + 8), (3, 4 + 8)])
def test_adapters_alone_are_written(zero_stage, each):
    """With LoRA only the adapters are stored: four layers of h = 256 and r = 8, with
    3 h + 3 h, 2 h, twice 5 h.
    """
    overrides = {"parallel.zero_stage": zero_stage, "lora.rank": 8, "init_from": "a-run"}
    assert state_bytes(load("gpt3-tiny", overrides)) == each * 4 * 8 * 18 * 256
    overrides["lora.targets"] = ["dense"]
    assert state_bytes(load("gpt3-tiny", overrides)) == each * 4 * 8 * 2 * 256
    # Three rows of the embedding, and three of an untied output layer.
    overrides["lora.trainable_token_indices"] = [5, 6, 9]
    assert state_bytes(load("gpt3-tiny", overrides)) == each * (4 * 8 * 2 + 3) * 256
    overrides["model.untie_embeddings_and_output_weights"] = True
    assert state_bytes(load("gpt3-tiny", overrides)) == each * (4 * 8 * 2 + 6) * 256


def test_tied_rows_have_moments_on_both_ends_of_a_pipeline():
    """With tied embeddings, the last stage stores moments for its copy, and only the
    first stage stores the weights.
    """
    more = {"init_from": "a-run", "lora.targets": ["dense"], "lora.rank": 8}
    rows = {"lora.trainable_token_indices": [5, 6, 9]}
    plain, found = (state_bytes(load("gpt-13b-4xdp-4xpp-4xtp", {**more, **each})) for each in ({}, rows))
    hidden = load("gpt-13b-4xdp-4xpp-4xtp").model.hidden_size
    assert found - plain == 4 * 3 * hidden * (2 + 2 * 12)


def test_ranks_write_what_they_hold_alike_each_for_itself():
    """Each of 4 tensor ranks stores the unsharded LayerNorms, positions and
    row-parallel biases of its stage.
    """
    config = load("gpt-13b-4xdp-4xpp-4xtp")
    model, hidden = config.model, config.model.hidden_size
    alike = model.resolved_max_position_embeddings * hidden + 2 * hidden + model.num_layers * 6 * hidden
    tied = config.padded_vocab_size * hidden
    # The last stage updates its copy of the embeddings, and only the first stage's file has the weight.
    expected = 14 * (count_parameters(config).total + 3 * alike) + 12 * tied
    assert state_bytes(config) == expected


def test_every_model_file_holds_the_random_state_of_every_rank():
    """With ZeRO 3, each rank's model file has the random states of all ranks: 64 ranks
    write 4,096, 256 write 65,536.
    """
    few, many = (
        load(
            "gpt-125m",
            {
                "parallel.data_parallel_size": ranks,
                "parallel.zero_stage": 3,
                "batch.micro_batch_size": 1,
                "batch.global_batch_size": 256,
                "resources.nodes": ranks // 8,
                "resources.gpus_per_node": 8,
            },
        )
        for ranks in (64, 256)
    )
    assert state_bytes(few) == state_bytes(many)
    assert checkpoint_bytes(many) - checkpoint_bytes(few) > (65_536 - 4_096) * 12_000


def test_room_is_more_than_the_files_take():
    config = load("gpt-125m")
    assert state_bytes(config) < checkpoint_bytes(config) < checkpoint_room_bytes(config)
