"""The planner's copy of DeepSpeed's memory estimators gives the same results as the installed functions."""

import itertools

import deepspeed
import pytest

from nbtrain.planner import second_opinion

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
