"""Muon compared with AdamW in one process; tests/parity compares Muon in every layout."""

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from nbtrain.checkpoint.live.live_parts import LivePart, LiveTensor, live_tensors, misplaced
from nbtrain.config.arithmetic.flops import muon_flops_by_parameter, newton_schulz_flops
from nbtrain.config.load import load
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.model.names import MATRICES, optimizer_group
from nbtrain.model.packing import matrices_of
from nbtrain.parallel.groups import ALONE
from nbtrain.train.engine.muon import Exchange, Muon
from nbtrain.train.engine.optimizer import bind_optimizer, build_optimizer, set_rates
from tests.parity.plain_muon import PlainMuon
from tests.train import launch

MODEL = GPTConfig(2, 64, 4, 256, 504, 32)
GROUPS = SimpleNamespace(tensor_model_parallel=ALONE, tensor_and_data_parallel=ALONE)


class Engine(SimpleNamespace):
    """A stand-in for a DeepSpeed engine without ZeRO."""

    def zero_optimization_stage(self):
        return 0


@pytest.fixture
def trained(tmp_path):
    """Train three steps and return the model, its optimizer, the configuration, and the gradients of each
    step.
    """

    def trained(**settings):
        (tmp_path / "tiny.yaml").write_text(launch.TINY)
        overrides = {f"optimizer.{key}": value for key, value in settings.items()}
        config = load(tmp_path / "tiny.yaml", {"optimizer.type": "Muon", **overrides})
        torch.manual_seed(0)
        model = GPT(MODEL)
        start = copy.deepcopy(model)
        optimizer = build_optimizer(model.named_parameters(), config)
        bind_optimizer(Engine(module=model, optimizer=optimizer), GROUPS)
        gradients = []
        for step in range(3):
            set_rates(optimizer, 1e-3 * (step + 1), config.optimizer.weight_decay)
            gradients.append({name: torch.randn_like(value) for name, value in model.named_parameters()})
            for name, value in model.named_parameters():
                value.grad = gradients[-1][name].clone()
            optimizer.step()
        return start, model, optimizer, config, gradients

    return trained


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"muon_nesterov": False, "muon_momentum": 0.8, "muon_scale_mode": "unit_rms_norm"},
        {"muon_lr": 2e-2, "muon_num_ns_steps": 3, "muon_scale_mode": "shape_scaling", "weight_decay": 0.5},
        {"muon_extra_scale_factor": 1.0},
    ],
)
def test_matrices_go_as_in_plain_torch_and_the_rest_by_adamw(trained, settings):
    start, model, optimizer, config, gradients = trained(**settings)
    plain = PlainMuon(start, config)
    others = [
        (name, value) for name, value in start.named_parameters() if optimizer_group(name, True) != MATRICES
    ]
    adam = torch.optim.AdamW(
        [{"params": [value], "weight_decay": config.optimizer.weight_decay if value.dim() > 1 else 0.0}
         for _, value in others],
        betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    for step, found in enumerate(gradients):
        for group in adam.param_groups:
            group["lr"] = 1e-3 * (step + 1)
        for name, value in start.named_parameters():
            value.grad = found[name].clone()
        adam.step()
        plain.step(1e-3 * (step + 1))
    for (name, ours), (_, theirs) in zip(model.named_parameters(), start.named_parameters()):
        assert (ours - theirs).abs().max() < 2e-6, name
    for name, value in model.named_parameters():
        state = optimizer.state[value]
        assert state["step"] == 3
        kinds = {"momentum_buffer"} if optimizer_group(name, True) == MATRICES else {"exp_avg", "exp_avg_sq"}
        assert set(state) == {"step", *kinds}, name


def test_torchs_own_muon_agrees_as_far_as_bf16_goes(trained):
    """Our Muon agrees with torch.optim.Muon on unpacked matrices, within the rounding of bf16, in which torch
    orthogonalizes.
    """
    start, model, _, _, gradients = trained(weight_decay=0.1)
    theirs = {
        name: value
        for name, value in start.named_parameters()
        if optimizer_group(name, True) == MATRICES and "query_key_value" not in name
    }
    before = {name: value.detach().clone() for name, value in theirs.items()}
    optimizer = torch.optim.Muon(theirs.values(), momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step, found in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1)
        for name, value in theirs.items():
            value.grad = found[name].clone()
        optimizer.step()
    for name, value in theirs.items():
        moved, expected = model.get_parameter(name) - before[name], value - before[name]
        assert (moved - expected).norm() / expected.norm() < 0.03, name


def test_a_saved_state_goes_on_as_if_it_had_not_been_saved(trained):
    _, model, optimizer, config, gradients = trained()
    other = build_optimizer((again := copy.deepcopy(model)).named_parameters(), config)
    bind_optimizer(Engine(module=again, optimizer=other), GROUPS)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for held, stepped in ((model, optimizer), (again, other)):
        set_rates(stepped, 1e-3, 0.1)
        for name, value in held.named_parameters():
            value.grad = gradients[0][name].clone()
        stepped.step()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), again.named_parameters()):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_queries_keys_and_values_are_matrices_of_their_own(groups):
    config = replace(MODEL, num_query_groups=groups)
    shape = (groups, 4 // groups + 2, 16, 64)
    weight = torch.arange(torch.Size(shape).numel()).view(shape)
    query, key, value = matrices_of(config, "layers.1.attention.query_key_value.weight", weight.view(-1, 64))
    assert (
        query.shape[:-1].numel() == 64 and key.shape[:-1].numel() == value.shape[:-1].numel() == 16 * groups
    )
    assert torch.equal(query, weight[:, :-2])
    assert torch.equal(key, weight[:, -2]) and torch.equal(value, weight[:, -1])
    one = torch.zeros(256, 64)
    assert matrices_of(MODEL, "layers.1.mlp.dense_h_to_4h.gate_weight", one) == [one]


def test_every_rank_gets_as_much_work_as_it_can():
    """Matrices are assigned in order of cost, the most expensive first, each to the rank with the least work
    so far.
    """
    exchange = object.__new__(Exchange)
    exchange.stage = SimpleNamespace(size=3)
    costs = {"a": 5, "b": 5, "c": 4, "d": 3, "e": 3, "f": 1}
    owners = exchange._owners(costs)
    loads = [sum(costs[name] for name in costs if owners[name] == rank) for rank in range(3)]
    assert sorted(loads) == [6, 7, 8]
    assert owners == exchange._owners(dict(reversed(costs.items())))


def test_parts_of_a_plain_engine_are_whole_parameters():
    model = GPT(MODEL)
    optimizer = torch.optim.AdamW([{"name": "decay", "params": list(model.parameters())}], lr=0.0, fused=True)
    found = list(live_tensors(Engine(module=model, optimizer=optimizer), dict(model.named_parameters())))
    assert [held.names for held in found] == [[name] for name, _ in model.named_parameters()]
    assert all(held.parts[0][1:] == (0, held.tensor.numel(), 0) for held in found)


def test_parameters_that_are_not_where_they_should_be_are_named():
    """If two parameters of equal size are swapped in the record of a flat tensor, the error names both."""
    parameters = {name: torch.nn.Parameter(torch.randn(4, 3)) for name in ("a", "b", "c")}
    flat = torch.cat([value.detach().view(-1) for value in parameters.values()])
    parts = [LivePart(name, 0, 12, 12 * place) for place, name in enumerate(parameters)]
    assert misplaced([LiveTensor({}, flat, parts, list(parameters))], parameters) == []
    turned = [parts[0], parts[1]._replace(name="c"), parts[2]._replace(name="b")]
    assert misplaced([LiveTensor({}, flat, turned, list(parameters))], parameters) == ["c", "b"]


def test_costs_are_those_of_the_parts(tmp_path):
    """A packed matrix costs as much as three matrices of 64 x 64, and not as much as one of 192 x 64; the
    planner counts the same.
    """
    optimizer = SimpleNamespace(matrices_of=partial(matrices_of, MODEL), num_ns_steps=5)
    cost = Muon._cost(optimizer, "layers.0.attention.query_key_value.weight", (192, 64))
    assert cost == 3 * newton_schulz_flops(64, 64, 5)
    overrides = {"model.num_query_groups": 2, "model.activation": "swiglu", "model.kv_channels": 24}
    (tmp_path / "tiny.yaml").write_text(launch.TINY)
    config = load(tmp_path / "tiny.yaml", overrides)
    layer = GPT(GPTConfig.of(config)).layers[0]
    optimizer.matrices_of = partial(matrices_of, GPTConfig.of(config))
    counted = [
        Muon._cost(optimizer, f"layers.0.{name}", value.shape)
        for name, value in layer.named_parameters()
        if value.dim() == 2
    ]
    assert sorted(counted) == sorted(muon_flops_by_parameter(config.shape, 5))
