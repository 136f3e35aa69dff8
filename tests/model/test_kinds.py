"""Each kind of layer compared with an independent implementation of its formula
(tests/parity/plain_gpt.py)."""

from types import SimpleNamespace

import pytest
import torch

from nbtrain.config.arithmetic.block_parameters import block_parameters
from nbtrain.config.arithmetic.parameters import count_parameters, tensors_of_a_layer
from nbtrain.config.load import load
from nbtrain.model import functions
from nbtrain.model.gpt import build_model
from nbtrain.model.names import optimizer_group
from nbtrain.model.rotary import inverse_frequencies, rotated, rotation_of
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.setup.setup import setup_of
from tests.parity.cases import MODELS
from tests.parity.oracle import plain_model
from tests.parity.plain_gpt import angles
from tests.train import launch

KINDS = {name: values for name, values in MODELS.items() if name != "gpt"}
OTHER_EPSILON = {"model.norm_epsilon": 1e-2}


@pytest.fixture
def config_of(tmp_path):
    def of(overrides=None):
        path = tmp_path / "tiny.yaml"
        path.write_text(launch.TINY)
        # A large standard deviation, so that every part of a layer matters.
        plain = {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0, "model.init_method_std": 0.2}
        return load(str(path), {**plain, **(overrides or {})})

    return of


def tokens_of(config):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(500, (2, 3, config.model.seq_length), generator=generator)


def moved(model):
    """Return the model after changing its norm weights and biases, so that they differ from their initial
    ones and zeros.
    """
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


def both(config):
    """Return (loss, {name: gradient}) of our model and of the reference model, with equal weights."""
    tokens, labels = tokens_of(config)
    ours, plain = moved(build_model(config)), plain_model(config)
    weights = ours.state_dict()
    plain.load_state_dict(
        {name: weights[name][: len(value)] for name, value in plain.state_dict().items()}, strict=True
    )
    found = []
    for model in (ours, plain):
        loss = model(tokens, labels)
        loss.backward()
        found.append((loss, {name: value.grad for name, value in model.named_parameters()}))
    return found


@pytest.mark.parametrize("kind", [*KINDS, "epsilon"])
def test_loss_and_gradients_are_those_of_the_formula(kind, config_of):
    """Loss and gradients equal the formula's with the same weights, and differ from another formula's."""
    config = config_of(KINDS.get(kind, OTHER_EPSILON))
    (loss, gradients), (expected, of_formula) = both(config)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert list(gradients) == list(of_formula)
    for name, gradient in of_formula.items():
        ours = gradients[name][: len(gradient)]
        assert float((ours - gradient).norm() / gradient.norm()) < 2e-5, name
    (other, _), _ = both(config_of())
    assert abs(other.item() - loss.item()) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_count_is_the_planners(kind, config_of):
    """The planner's parameter counts equal the model's: in all, each parameter of a layer in its order, and
    for weight decay.
    """
    config = config_of(KINDS[kind])
    held = dict(build_model(config).named_parameters())
    assert sum(value.numel() for value in held.values()) == count_parameters(config).total
    of_layer = {name: value for name, value in held.items() if name.startswith("layers.1.")}
    assert len(of_layer) == tensors_of_a_layer(config.shape)
    for is_matrix in (True, False):
        planned = [
            (one.module, one.elements)
            for one in block_parameters(config.shape, 1)
            if one.is_matrix == is_matrix
            for _ in range(one.copies)
        ]
        assert planned == [
            (name.split(".")[-2], value.numel())
            for name, value in of_layer.items()
            if (value.dim() == 2) == is_matrix
        ]
    stage = stage_of(setup_of(config), 0)
    decayed = [value.numel() for name, value in held.items() if optimizer_group(name) == "decay"]
    assert (stage.decay, stage.tensors) == (sum(decayed), len(held))


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_changes_no_bit(kind, recompute, config_of):
    results = []
    for granularity in ("none", recompute):
        section = "parallel.activation_checkpointing.granularity"
        config = config_of({**KINDS[kind], "model.hidden_dropout": 0.2, section: granularity})
        model = moved(build_model(config))
        torch.manual_seed(7)
        loss = model(*tokens_of(config))
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()))])
    assert all(torch.equal(kept, again) for kept, again in zip(*results))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_gives_the_logits_of_the_whole_sequence(kind, config_of):
    """With a cache, the logits equal the whole sequence's, with the prompt read in chunks and then token by
    token.
    """
    config = config_of(KINDS[kind])
    model, (tokens, _) = moved(build_model(config)).eval(), tokens_of(config)
    with torch.no_grad():
        whole, cache = model(tokens)[..., :500], model.new_cache(3)
        sizes = [7, 9, *[1] * (tokens.shape[1] - 16)]
        parts = [model(piece, cache=cache)[..., :500] for piece in tokens.split(sizes, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)


RESET = torch.stack([torch.arange(32) - 13 * (torch.arange(32) >= 13), *[torch.arange(32)] * 2])
APART = {"cu_seqlens": torch.tensor([0, 13, 32, 64, 96], dtype=torch.int32), "max_seqlen": 32}


def test_rotary_positions_of_a_packed_sequence(config_of):
    """A packed document has the same logits as the document alone. Absolute positions only matter if a
    document attends to another one.
    """
    config = config_of(MODELS["rope-llama3"])
    model, (tokens, _) = moved(build_model(config)).eval(), tokens_of(config)
    with torch.no_grad():
        packed = model(tokens, **APART, position_ids=RESET)[..., :500]
        alone = model(tokens[:1, 13:])[..., :500]
        torch.testing.assert_close(packed[:1, 13:], alone, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model(tokens, **APART)[..., :500], packed, rtol=1e-4, atol=1e-4)
        seen = model(tokens)[..., :500] - model(tokens, position_ids=RESET)[..., :500]
    assert float(seen[0, 13:].abs().max()) > 1e-2 and float(seen[1:].abs().max()) == 0


def test_angles_are_those_of_the_formulas():
    """Rotary angles equal the formulas at real sizes: Llama 3.1's scaling, and yarn with four times 32,768
    tokens.
    """
    llama3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3["original_max_position_embeddings"] = 8192
    yarn = {"kind": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn["original_max_position_embeddings"] = 32768
    for base, scaling in ((5e5, None), (5e5, llama3), (1e6, yarn)):
        section = SimpleNamespace(**scaling) if scaling else None
        config = SimpleNamespace(rotary_size=128, rotary_base=base, rope_scaling=section)
        ours, amplitude = inverse_frequencies(config.rotary_size, config.rotary_base, config.rope_scaling)
        expected, expected_amplitude = angles(128, base, scaling)
        torch.testing.assert_close(ours, torch.tensor(expected), rtol=2e-6, atol=0)
        assert amplitude == pytest.approx(expected_amplitude)


def test_the_width_of_a_gated_mlp_is_megatrons(config_of):
    """The width of a gated MLP is int(4 h * 2/3 / 64) * 64, as in Megatron, but at least 64."""
    for hidden, width in ((64, 128), (768, 2048), (2048, 5440), (4096, 10880), (20, 64)):
        values = {"model.activation": "swiglu", "model.hidden_size": hidden}
        assert config_of(values).model.resolved_ffn_hidden_size == width
        assert width == max(int((4 * hidden * 2 / 3) / 64) * 64, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "ours, plain, count",
    [
        (functions.swiglu, lambda gate, up: torch.nn.functional.silu(gate) * up, 2),
        (functions.squared_relu, lambda x: torch.nn.functional.relu(x) ** 2, 1),
    ],
)
def test_activations_are_their_formulas(ours, plain, count, dtype):
    """Activation functions equal their formulas, and gradcheck confirms their gradients in fp64."""
    generator = torch.Generator().manual_seed(2)
    x = [torch.randn(2, 5, 12, generator=generator) for _ in range(count + 1)]
    found = []
    for activation in (ours, plain):
        own = [tensor.to(dtype).requires_grad_() for tensor in x[:count]]
        y = activation(*own)
        found.append([y, *torch.autograd.grad(y, own, x[-1].to(dtype))])
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert torch.autograd.gradcheck(ours, [tensor.double().requires_grad_() for tensor in x[:count]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_torchs(dtype):
    """RMSNorm equals torch's, forward and backward. In bf16, torch's composite version rounds more often."""
    generator = torch.Generator().manual_seed(1)
    x, weight, grad = (torch.randn(*shape, generator=generator) for shape in ((2, 5, 48), (48,), (2, 5, 48)))
    found = []
    for norm in (
        functions.rms_norm,
        lambda x, w, epsilon: torch.nn.functional.rms_norm(x, w.shape, w, epsilon),
    ):
        own = [tensor.detach().to(dtype).requires_grad_() for tensor in (x, weight)]
        y = norm(*own, 1e-3)
        y.backward(grad.to(dtype))
        assert y.dtype == own[0].grad.dtype == own[1].grad.dtype == dtype
        found.append([y, *(tensor.grad for tensor in own)])
    for ours, theirs in zip(*found):
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_gradient_the_functions_give_the_same_bits(dtype):
    """Inference computes what training computes; rotary frequencies kept by inference serve training too."""
    generator = torch.Generator().manual_seed(4)
    x, y, weight = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 8), (3, 8), (8,)))
    with_gradient = [tensor.clone().requires_grad_() for tensor in (x, y, weight)]
    for function, at in ((functions.swiglu, (0, 1)), (functions.squared_relu, (0,))):
        with torch.inference_mode():
            found = function(*((x, y, weight)[index] for index in at))
        assert torch.equal(found, function(*(with_gradient[index] for index in at)))
    with torch.inference_mode():
        found = functions.rms_norm(x, weight, 1e-3)
    assert torch.equal(found, functions.rms_norm(with_gradient[0], with_gradient[2], 1e-3))
    config = SimpleNamespace(rotary_size=8, rotary_base=77.0, rope_scaling=None)
    with torch.inference_mode():
        rotation_of(config, torch.arange(3), dtype)
    rotation = rotation_of(config, torch.arange(3), dtype)
    rotated(with_gradient[0].view(1, 1, 3, 8), rotation).sum().backward()
