"""The states of a run whose blocks are the user's own: by the parameters that its trial has counted."""

from dataclasses import replace

import pytest

from nbtrain.config.load import load
from nbtrain.config.shape import OwnBlock
from nbtrain.planner.memory.stage import stage_of, touched
from nbtrain.planner.memory.states import states
from nbtrain.planner.setup.setup import Setup, setup_of

# Two matrices, of 4,000,000 and 1,000,000 elements, and three vectors of 1,000.
BLOCK = OwnBlock(5_001_000, 2_000, 5_000_000, 0, 4_000_000, 1_000, 5)


def setup_with(block: OwnBlock | None, *overrides: str) -> Setup:
    setup = setup_of(load("gpt-125m-4xdp", list(overrides)))
    return replace(setup, shape=replace(setup.shape, own_block=block))


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("muon", [0, 5])
def test_states_have_the_counted_parameters(zero, muon):
    """12 blocks of 5,003,000 parameters are in the weights and moments of every ZeRO stage. 4 ranks divide
    every size here, so that nothing is padded.
    """
    setup = replace(setup_with(BLOCK, f"parallel.zero_stage={zero}"), muon_steps=muon)
    stage = stage_of(setup, 0)
    beside = setup.shape.output_weights + setup.shape.learned_positions * 768 + 2 * 768
    assert stage.elements == 12 * 5_003_000 + beside
    assert (stage.blocks, stage.tensors) == (12 * 5_000_000, 12 * 5 + 4)
    found = states(setup, stage)
    assert found.weights == 2 * stage.elements // (4 if zero == 3 else 1)
    assert found.master_copy == 4 * stage.elements // 4
    single = 12 * 5_000_000 if muon else 0
    # The rest are step counts, one for each flat tensor.
    assert 0 < found.optimizer - 4 * (2 * stage.elements - single) // 4 < 100


def test_zero_3_shards_less_if_the_block_is_smaller():
    setups = [setup_with(block, "parallel.zero_stage=3") for block in (None, BLOCK)]
    ours, own = (states(setup, stage_of(setup, 0)).weights for setup in setups)
    assert ours - own == 2 * 12 * (7_087_872 - 5_003_000) // 4


def test_every_counted_parameter_is_touched():
    """A single rank touches all parameters of its flat buffers."""
    setup = setup_with(BLOCK)
    stage = stage_of(setup, 0)
    assert touched(setup.shape, 1, 1, (stage.decay, stage.no_decay)) == (stage.elements,)
