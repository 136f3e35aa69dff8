"""FP8 products with the CPU's _scaled_mm, compared with products of the rounded numbers and with bf16."""

import pytest
import torch

from nbtrain.model.gpt import GPT
from nbtrain.parallel import fp8
from nbtrain.parallel.layout import WHOLE, ModelParallel
from tests.parallel import ranks
from tests.parallel.cut import draw, world
from tests.parallel.small import LLAMA, gpt_config, text

TOKENS, INPUTS, OUTPUTS = 48, 32, 64
# All sizes are multiples of 16, also with two ranks.
SIZES = {"hidden_size": 32, "ffn_hidden_size": 64, "init_method_std": 0.1}


def tensors():
    return (
        draw(TOKENS, INPUTS, seed=1).bfloat16(),
        (draw(OUTPUTS, INPUTS, seed=2) * 1e-3).bfloat16(),
        (draw(TOKENS, OUTPUTS, seed=3) * 1e4).bfloat16(),
    )


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return x rounded to an FP8 format, scaled so that its largest number becomes the format's largest
    number.
    """
    scale = x.abs().max().float() / torch.finfo(dtype).max
    return (x.float() / scale).to(dtype).float() * scale


def relative_error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return float((ours.float() - expected.float()).norm() / expected.float().norm())


def test_products_are_those_of_the_rounded_numbers():
    """FP8 products equal products of numbers rounded to e4m3 (gradients: e5m2), up to rounding the result to
    bf16.
    """
    x, weight, grad = tensors()
    x8, weight8 = (rounded(one, torch.float8_e4m3fn) for one in (x, weight))
    grad8 = rounded(grad, torch.float8_e5m2)
    for ours, expected in (
        (fp8.linear(x, weight), x8 @ weight8.T),
        (fp8.input_gradient(grad, weight), grad8 @ weight8),
        (fp8.weight_gradient(grad, x), grad8.T @ x8),
    ):
        assert ours.dtype == torch.bfloat16
        torch.testing.assert_close(
            ours.float(), expected, rtol=2**-8, atol=1e-3 * float(expected.abs().max())
        )


def test_products_are_near_those_of_bf16():
    """FP8 products are close to bf16 products, because rounding errors of at most 2^-4 and 2^-3 average out
    in the sums.
    """
    x, weight, grad = tensors()
    assert relative_error(fp8.linear(x, weight), x.float() @ weight.float().T) < 0.05
    assert relative_error(fp8.input_gradient(grad, weight), grad.float() @ weight.float()) < 0.08
    assert relative_error(fp8.weight_gradient(grad, x), grad.float().T @ x.float()) < 0.08


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1.0, 1e30])
def test_the_scale_follows_the_numbers(factor):
    """The relative error does not depend on the scale of the numbers, and zeros remain zeros."""
    x, weight, _ = tensors()
    product = fp8.linear(x * factor, weight)
    assert torch.isfinite(product).all()
    # Numbers of 1e-30 are below the smallest scale: they become 0 or almost 0.
    if factor >= 1:
        assert relative_error(product / factor, fp8.linear(x, weight)) < 0.02
    else:
        assert float(product.abs().max()) < 1e-12


def test_the_bias_is_added_and_leading_dimensions_are_kept():
    x, weight, _ = tensors()
    bias = draw(OUTPUTS, seed=4).bfloat16()
    product = fp8.linear(x.view(2, 24, INPUTS), weight, bias)
    assert torch.equal(product, fp8.linear(x, weight).view(2, 24, OUTPUTS) + bias)


def test_sizes_that_the_kernel_cannot_take_are_refused():
    x, weight, _ = tensors()
    with pytest.raises(
        ValueError, match=r"\(48, 24\) and \(24, 64\) cannot be computed in FP8: .* multiples of 16"
    ):
        fp8.linear(x[:, :24], weight[:, :24])


def step(parallel=WHOLE, **changes):
    """Run one step in bf16 and return (loss, gradients, number of FP8 products)."""
    model = GPT(gpt_config(64, **SIZES, **changes), parallel).bfloat16()
    calls, taken = [], torch._scaled_mm
    torch._scaled_mm = lambda *arguments, **keywords: calls.append(1) or taken(*arguments, **keywords)
    try:
        loss = model(*text())
        loss.backward()
    finally:
        torch._scaled_mm = taken
    return loss.detach(), [parameter.grad for parameter in model.parameters()], len(calls)


def assert_near(ours, plain, matrices=4) -> None:
    # The matrices of two layers, forward and twice backward; the output matrix is excluded.
    assert ours[2] == 2 * matrices * 3 and plain[2] == 0
    torch.testing.assert_close(ours[0], plain[0], rtol=2e-2, atol=0)
    for one, other in zip(ours[1], plain[1]):
        assert one.dtype == torch.bfloat16
        # The gradient of a key's bias is only rounding.
        if other.dim() > 1:
            assert relative_error(one, other) < 0.2


# 96 rows of query, key and value: 48 for each of two ranks.
SHARED = {"num_query_groups": 1, "kv_channels": 16, "qk_layernorm": True}


def test_a_gpt_takes_the_products_of_its_blocks_in_fp8():
    assert_near(step(fp8=True), step())
    assert_near(step(fp8=True, **LLAMA), step(**LLAMA), matrices=5)


def test_under_autocast_too():
    model = GPT(gpt_config(64, **SIZES, fp8=True, autocast=True))
    plain = GPT(gpt_config(64, **SIZES, autocast=True))
    losses = [one(*text()) for one in (model, plain)]
    losses[0].backward()
    assert losses[0] != losses[1]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-2, atol=0)
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_read_in_fp32_it_computes_in_fp32():
    """A model trained in FP8 gives its fp32 logits on a CPU."""
    with torch.no_grad():
        tokens = text()[0]
        exact = GPT(gpt_config(64, **SIZES))(tokens)
        torch.testing.assert_close(GPT(gpt_config(64, **SIZES, fp8=True))(tokens), exact)


def check_cut_layers_take_their_products_in_fp8():
    """Sharded layers compute their products in FP8, including the key and value heads that several ranks
    share.
    """
    for sequence_parallel in (False, True):
        parallel = ModelParallel(world(), sequence_parallel)
        assert_near(step(parallel, fp8=True), step(parallel))
        assert_near(step(parallel, fp8=True, **SHARED), step(parallel, **SHARED))
        assert_near(step(parallel, fp8=True, **LLAMA), step(parallel, **LLAMA), matrices=5)


CHECKS = {2: ranks.names(globals())}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
