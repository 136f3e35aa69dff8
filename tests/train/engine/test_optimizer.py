"""The optimizer's two parameter groups and its learning rate at each step."""

import pytest
import torch

from nbtrain.config.load import load
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.train.engine.muon import Muon
from nbtrain.train.engine.optimizer import build_optimizer, parameter_groups, set_rates
from tests.train import launch


@pytest.fixture
def model():
    return GPT(GPTConfig(2, 16, 2, 32, 32, 8))


@pytest.fixture
def configured(tmp_path):
    def configured(**optimizer):
        (tmp_path / "tiny.yaml").write_text(launch.TINY)
        return load(tmp_path / "tiny.yaml", {f"optimizer.{key}": value for key, value in optimizer.items()})

    return configured


def test_exactly_two_groups_hold_every_parameter_once(model, configured):
    optimizer = build_optimizer(model.named_parameters(), configured(weight_decay=0.3))
    assert type(optimizer) is torch.optim.AdamW
    assert [(group["name"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("decay", 0.3),
        ("no_decay", 0.0),
    ]
    held = [id(value) for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(id(value) for value in model.parameters())
    assert all(value.dim() == 1 for value in optimizer.param_groups[1]["params"])


def test_with_muon_they_are_matrices_and_others(model, configured):
    optimizer = build_optimizer(model.named_parameters(), configured(type="Muon", weight_decay=0.3))
    assert type(optimizer) is Muon
    assert [(group["name"], group["weight_decay"]) for group in optimizer.param_groups] == [
        ("matrices", 0.3),
        ("others", 0.0),
    ]
    assert optimizer.param_groups[1]["embedding_decay"] == 0.3
    held = [id(value) for group in optimizer.param_groups for value in group["params"]]
    assert sorted(held) == sorted(id(value) for value in model.parameters())
    matrices = {id(value) for value in optimizer.param_groups[0]["params"]}
    expected = {name for name, value in model.named_parameters() if "layers." in name and value.dim() == 2}
    assert {name for name, value in model.named_parameters() if id(value) in matrices} == expected
    assert len(expected) == 2 * 4


def test_the_rate_is_set_in_both_groups(model, configured):
    optimizer = build_optimizer(model.named_parameters(), configured())
    set_rates(optimizer, 0.25, 0.05)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.25, 0.05),
        (0.25, 0.0),
    ]


def test_muon_has_a_rate_of_its_own(model, configured):
    """With Muon, the learning rate of matrices is a fixed multiple of the scheduled learning rate at every
    step.
    """
    for muon_lr, factor in ((None, 1.0), (2e-2, 20.0)):
        optimizer = build_optimizer(model.named_parameters(), configured(type="Muon", muon_lr=muon_lr))
        set_rates(optimizer, 0.25, 0.05)
        matrices, others = optimizer.param_groups
        assert (matrices["lr"], matrices["weight_decay"]) == pytest.approx((0.25 * factor, 0.05))
        assert (others["lr"], others["weight_decay"], others["embedding_decay"]) == (0.25, 0.0, 0.05)


def test_parameters_that_zero_3_has_sharded_keep_their_groups():
    """Inside zero.Init, all parameters are empty and have one dimension; ds_shape has their shapes."""

    def sharded(*shape: int) -> torch.nn.Parameter:
        empty = torch.nn.Parameter(torch.empty(0))
        empty.ds_shape = torch.Size(shape)
        return empty

    named = {
        "layers.0.mlp.dense_h_to_4h.weight": sharded(8, 4),
        "final_layernorm.weight": sharded(4),
        "word_embeddings.weight": sharded(16, 4),
        # A parameter of the user's block, whose name says nothing.
        "layers.0.gate": sharded(4),
    }
    for muon, expected in ((False, [2, 2]), (True, [1, 3])):
        groups = parameter_groups(list(named.items()), 0.1, muon)
        assert [len(group["params"]) for group in groups] == expected
