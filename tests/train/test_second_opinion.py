"""The planner's copy of DeepSpeed's memory estimators gives the same results as the installed functions, and
is given the numbers that DeepSpeed counts in the model.
"""

import itertools
from dataclasses import replace

import deepspeed
import pytest

from nbtrain.config.load import load
from nbtrain.model.gpt import build_model
from nbtrain.planner import second_opinion
from nbtrain.planner.setup.setup import setup_of
from tests.parity.cases import MODELS
from tests.train import launch

COUNTS = (126_638_592, 1_316_000_000, 175_000_000_000)


def test_the_version_is_the_installed_one():
    assert deepspeed.__version__.split("+")[0] == second_opinion.VERSION


@pytest.mark.parametrize("offload", [False, True])
def test_zero_2(offload):
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as theirs

    for count, gpus, nodes in itertools.product(COUNTS, (1, 4, 8), (1, 2, 16)):
        assert second_opinion.zero2_bytes(count, gpus, nodes, offload) == theirs(count, gpus, nodes, offload)


@pytest.mark.parametrize(("optimizer", "weights"), [(False, False), (True, False), (True, True)])
def test_zero_3(optimizer, weights):
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as theirs

    for count, gpus, nodes in itertools.product(COUNTS, (1, 4, 8), (1, 2, 16)):
        ours = second_opinion.zero3_bytes(count, count // 20, gpus, nodes, optimizer, weights)
        wanted = theirs(count, count // 20, gpus, nodes, optimizer, weights)
        # DeepSpeed's function also returns the bytes of the largest layer.
        assert ours == tuple(int(size) for size in wanted[:2])


# Models whose largest module is the gated MLP; query, key and value; the positions; the vocabulary.
LARGEST = {
    "gate": {**MODELS["swiglu"], "model.hidden_size": 256, "model.ffn_hidden_size": 704},
    "query-key-value": {"model.hidden_size": 256, "model.ffn_hidden_size": 384},
    "positions": {"model.max_position_embeddings": 20_000},
    "vocabulary": MODELS["untied"],
}


@pytest.mark.parametrize("overrides", [*MODELS.values(), *LARGEST.values()], ids=[*MODELS, *LARGEST])
def test_zero_3_is_estimated_with_the_numbers_of_the_model(overrides, tmp_path):
    """The estimate equals estimate_zero3_model_states_mem_needs_all_live, which reads the model."""
    from deepspeed.runtime.zero.stage3 import model_to_params

    path = tmp_path / "tiny.yaml"
    path.write_text(launch.TINY)
    config = load(str(path), {**overrides, "parallel.zero_stage": 3}, check=False)
    setup = replace(setup_of(config), on_gpu=True)
    total, largest = model_to_params(build_model(config))
    assert second_opinion.largest_layer(setup.shape, 1) == largest
    ranks = setup.data_axis_size
    found = second_opinion.second_opinion(setup)
    wanted = second_opinion.zero3_bytes(total, largest, ranks, 1, False, False)
    assert (found.host_bytes, found.device_bytes) == wanted
