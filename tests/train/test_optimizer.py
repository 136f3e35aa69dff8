"""Two groups, and a rate for each step."""

import pytest

from nbtrain.config.schema import OptimizerConfig
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.train.optimizer import build_optimizer, set_learning_rate


@pytest.fixture
def model():
    return GPT(GPTConfig(2, 16, 2, 32, 32, 8))


def test_exactly_two_groups_hold_every_parameter_once(model):
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.3))
    assert [(group["name"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("decay", 0.3),
        ("no_decay", 0.0),
    ]
    held = [id(value) for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(id(value) for value in model.parameters())
    assert all(value.dim() == 1 for value in optimizer.param_groups[1]["params"])


def test_the_rate_is_set_in_both_groups(model):
    optimizer = build_optimizer(model, OptimizerConfig())
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
