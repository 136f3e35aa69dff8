"""Clipping without ZeRO: the norm counts each parameter of the model once, and DeepSpeed does not clip again.

That several ranks clip like one process is shown in tests/parity.
"""

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nbtrain.parallel.groups import ALONE, Group, ParallelGroups
from nbtrain.train.engine.clipping import clip_without_zero, model_norm


def groups_of(tensor_rank: int) -> ParallelGroups:
    """Return the groups of a rank whose model-parallel sum is left out, so that its own share shows."""
    tensor = Group((0, 1), tensor_rank)
    alone = {field.name: ALONE for field in fields(ParallelGroups)}
    return ParallelGroups(**alone | {"tensor_model_parallel": tensor})


def parts() -> nn.ParameterList:
    """Return a sharded parameter, one that all tensor-parallel ranks hold, a tied copy, and a frozen one."""
    held = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in (2, 3, 4, 5))
    for parameter, value in zip(held[:3], (1.0, 10.0, 100.0)):
        parameter.grad = torch.full_like(parameter, value)
    held[0].tensor_model_parallel, held[0].partition_dim = True, 0
    held[2].tensor_model_parallel, held[2].partition_dim = True, 0
    held[2].ds_pipe_replicated = True
    return held


def test_the_norm_is_that_of_the_whole_model():
    """The first tensor-parallel rank adds the parameters that all of them hold, and no rank a tied copy."""
    assert model_norm(parts(), groups_of(0)) == pytest.approx((2 + 300) ** 0.5)
    assert model_norm(parts(), groups_of(1)) == pytest.approx(2**0.5)


def engine_of(stage: int, limit: float) -> SimpleNamespace:
    module, steps = parts(), []
    return SimpleNamespace(
        module=module,
        zero_optimization_stage=lambda: stage,
        gradient_clipping=lambda: limit,
        clip_fp32_gradients=lambda: pytest.fail("clipped a second time"),
        _take_model_step=lambda arguments: (engine_clips(module, steps), steps.append(arguments)),
        steps=steps,
    )


def engine_clips(module: nn.ParameterList, steps: list) -> None:
    """Note the gradients at the time of the step."""
    steps.append([float(parameter.grad[0]) for parameter in module[:3]])


@pytest.mark.parametrize(("limit", "factor"), [(1.0, 1 / 302**0.5), (1000.0, 1.0), (0.0, 1.0)])
def test_gradients_are_scaled_before_the_step_and_the_norm_is_reported(limit, factor):
    """All gradients, a tied copy's too, are scaled to the limit if the norm is larger; 0 turns it off."""
    engine = engine_of(0, limit)
    clip_without_zero(engine, groups_of(0))
    engine._take_model_step({"epoch": 1})
    seen, arguments = engine.steps
    assert seen == pytest.approx([factor, 10 * factor, 100 * factor], rel=1e-5)
    assert arguments == {"epoch": 1}
    assert float(engine._global_grad_norm) == pytest.approx(302**0.5)
    engine.clip_fp32_gradients()


def test_zero_clips_by_itself():
    engine = engine_of(1, 1.0)
    before = engine._take_model_step
    clip_without_zero(engine, groups_of(0))
    assert engine._take_model_step is before
