"""Shapes of models beyond GPT; parameter counts are compared with published models."""

import dataclasses

import pytest

from nbtrain.config.arithmetic.flops import model_flops
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.load import load
from nbtrain.config.shape import Shape

LLAMA = {"gated": True, "rmsnorm": True, "bias": False, "tied": False}
LLAMA_3_8B = Shape(32, 4096, 32, 14336, 128256, 8192, 8, 128, **LLAMA)


def whole(shape: Shape) -> int:
    return count_layers(shape, shape.num_layers, first=True, last=True, tensor=1).total


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (LLAMA_3_8B, 8_030_261_248),
        (Shape(80, 8192, 64, 28672, 128256, 8192, 8, 128, **LLAMA), 70_553_706_496),
        (Shape(32, 4096, 32, 11008, 32000, 4096, 32, 128, **LLAMA), 6_738_415_616),
        (Shape(12, 768, 12, 3072, 50257, 1024, 12, 64, learned_positions=1024), 124_439_808),
        (Shape(36, 5120, 40, 20480, 50688, 2048, 40, 128, tied=False), 11_846_072_320),
    ],
    ids=["Llama 3 8B", "Llama 3 70B", "Llama 2 7B", "GPT-2", "Pythia 12B"],
)
def test_the_counts_of_published_models(shape, parameters):
    assert whole(shape) == parameters


def test_the_output_layer_counts_only_if_it_is_not_tied():
    tied = dataclasses.replace(LLAMA_3_8B, tied=True)
    assert whole(LLAMA_3_8B) - whole(tied) == 128256 * 4096
    parts = [count_layers(shape, 32, first=True, last=True, tensor=1) for shape in (LLAMA_3_8B, tied)]
    assert ["output_layer" in part.to_dict() for part in parts] == [True, False]


def test_tensor_ranks_beyond_the_groups_cut_their_rows_evenly():
    """With 8 query groups, each of 16 tensor ranks has half as many rows as each of 8 ranks."""
    attention = [count_layers(LLAMA_3_8B, 1, False, False, tensor).attention for tensor in (8, 16)]
    assert attention == [4096 * (2 * 512 + 2 * 128), 4096 * (2 * 256 + 128)]


def test_flops_of_grouped_queries_and_a_gated_mlp():
    """Llama 3 8B needs, per token of 8,192, 6 times its matrix weights plus 12 L s a d for attention."""
    matrices = 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 4096 * 128256
    assert model_flops(LLAMA_3_8B) == 6 * matrices + 12 * 32 * 8192 * 4096


def test_the_norms_of_queries_and_keys_by_hand():
    """Qwen3 has an RMSNorm of 128 weights each for queries and for keys; a LayerNorm also has biases."""
    qwen = Shape(36, 4096, 32, 12288, 151936, 4096, 8, 128, qk_layernorm=True, **LLAMA)
    assert qwen.head_norm_parameters == 2 * 128
    assert whole(qwen) == 8_190_735_360
    assert dataclasses.replace(qwen, rmsnorm=False).head_norm_parameters == 2 * 2 * 128
    assert dataclasses.replace(qwen, qk_layernorm=False).head_norm_parameters == 0


def test_a_run_has_one_shape_and_a_changed_copy_another():
    """A configuration builds its shape once; a copy with another model does not keep it."""
    config = load("gpt-tiny")
    assert config.shape is config.shape
    wider = config.model_copy(update={"model": config.model.model_copy(update={"hidden_size": 512})})
    assert (config.shape.hidden_size, wider.shape.hidden_size) == (config.model.hidden_size, 512)
