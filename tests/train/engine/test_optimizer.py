"""Two groups, and a rate for each step."""

import pytest
import torch

from nbtrain.config.schedule_section import OptimizerConfig
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.train.engine.optimizer import build_optimizer, parameter_groups, set_rates


@pytest.fixture
def model():
    return GPT(GPTConfig(2, 16, 2, 32, 32, 8))


def test_exactly_two_groups_hold_every_parameter_once(model):
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(weight_decay=0.3))
    assert [(group["name"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("decay", 0.3),
        ("no_decay", 0.0),
    ]
    held = [id(value) for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(id(value) for value in model.parameters())
    assert all(value.dim() == 1 for value in optimizer.param_groups[1]["params"])


def test_the_rate_is_set_in_both_groups(model):
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    set_rates(optimizer, 0.25, 0.05)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.25, 0.05),
        (0.25, 0.0),
    ]


def test_names_decide_not_shapes():
    """Inside zero.Init every parameter is empty and of one dimension."""
    empty = torch.nn.Parameter(torch.empty(0))
    named = [("layers.0.mlp.dense_h_to_4h.weight", empty), ("final_layernorm.weight", empty)]
    assert [len(group["params"]) for group in parameter_groups(named, 0.1)] == [1, 1]
