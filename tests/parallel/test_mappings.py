"""Each tensor-parallel mapping, forward and backward, compared with its definition."""

import pytest
import torch

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import ALONE
from nbtrain.parallel.mappings import own_part
from tests.parallel import ranks
from tests.parallel.cut import draw, world

B, S, H = 2, 8, 16


def of_ranks(*shape: int) -> list[torch.Tensor]:
    """Return a tensor of small integers that differs between ranks; sums of them are exact in any order."""
    return [draw(*shape, seed=rank).mul(4).round() for rank in range(world().size)]


def apply(function, inputs: list[torch.Tensor], grads: list[torch.Tensor]):
    """Return (output, gradient of the input) on this rank."""
    group = world()
    x = inputs[group.rank].clone().requires_grad_()
    y = function(x, group)
    (grad,) = torch.autograd.grad(y, x, grads[group.rank])
    assert torch.equal(x, inputs[group.rank]), "the input was changed"
    return y, grad


def check_copy_to_sums_the_gradients():
    inputs, grads = of_ranks(B, S, H), of_ranks(B, S, H)
    y, grad = apply(mappings.copy_to_tensor_model_parallel_region, inputs, grads)
    assert torch.equal(y, inputs[world().rank])
    assert torch.equal(grad, sum(grads))


def check_reduce_from_sums():
    inputs, grads = of_ranks(B, S, H), of_ranks(B, S, H)
    y, grad = apply(mappings.reduce_from_tensor_model_parallel_region, inputs, grads)
    assert torch.equal(y, sum(inputs))
    assert torch.equal(grad, grads[world().rank])


def check_columns_are_gathered():
    group = world()
    whole, parts = of_ranks(B, S, H), of_ranks(B, S, H // group.size)
    y, grad = apply(mappings.gather_from_tensor_model_parallel_region, parts, whole)
    assert torch.equal(y, torch.cat(parts, 2))
    assert torch.equal(grad, own_part(whole[group.rank], 2, group))


def check_tokens_are_gathered_and_summed():
    group = world()
    whole, parts = of_ranks(B, S, H), of_ranks(B, S // group.size, H)
    y, grad = apply(mappings.gather_from_sequence_parallel_region, parts, whole)
    assert torch.equal(y, torch.cat(parts, 1))
    assert torch.equal(grad, own_part(sum(whole), 1, group))
    y, grad = apply(mappings.reduce_scatter_to_sequence_parallel_region, whole, parts)
    assert torch.equal(y, own_part(sum(whole), 1, group))
    assert torch.equal(grad, torch.cat(parts, 1))


def check_a_gradient_that_two_branches_share_is_not_changed():
    """A gradient that two branches share is not modified: for y = x + copy_to(x), autograd passes the same
    tensor to both.
    """
    group = world()
    grads = of_ranks(B, S, H)
    x = draw(B, S, H).requires_grad_()
    y = x + mappings.copy_to_tensor_model_parallel_region(x, group)
    (grad,) = torch.autograd.grad(y, x, grads[group.rank])
    assert torch.equal(grad, grads[group.rank] + sum(grads))


def check_parameters_are_summed_in_one_message():
    group = world()
    weight, bias = torch.ones(H, requires_grad=True), torch.zeros(3, H, requires_grad=True)
    grads = list(zip(of_ranks(H), of_ranks(3, H)))
    messages = []
    sent = mappings.all_reduce
    mappings.all_reduce = lambda x, group: messages.append(x.numel()) or sent(x, group)
    try:
        copies = mappings.copy_parameters_to_sequence_parallel_region(weight, bias, group=group)
        got = torch.autograd.grad(copies, (weight, bias), grads[group.rank])
    finally:
        mappings.all_reduce = sent
    assert messages == [4 * H]
    for ours, parts in zip(got, zip(*grads)):
        assert torch.equal(ours, sum(parts))


def check_16_bit_collectives_run():
    """Collectives run in 16 bits, which some releases of torch do not support with gloo."""
    group = world()
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.full((B, S, H), group.rank + 1.0, dtype=dtype)
        total = sum(range(1, group.size + 1))
        assert (mappings.all_reduce(x.clone(), group) == total).all()
        assert (mappings.reduce_scatter(x, 1, group) == total).all()
        assert mappings.all_gather(x, 1, group)[0, :, 0].unique().tolist() == list(range(1, group.size + 1))


def check_an_uneven_cut_is_refused():
    group = world()
    with pytest.raises(
        ValueError,
        match=r"dimension 1 of \(1, 7\) cannot be split into \d equal parts: its size must be a multiple",
    ):
        mappings.reduce_scatter_to_sequence_parallel_region(torch.zeros(1, 7), group)


@pytest.mark.parametrize(
    "name",
    [name for name in dir(mappings) if name.endswith("_region") and "parameters" not in name],
)
def test_alone_nothing_happens(name):
    x = torch.zeros(1, 3, 5)
    assert getattr(mappings, name)(x, ALONE) is x


def test_alone_parameters_stay_themselves():
    x = torch.zeros(3)
    assert mappings.copy_parameters_to_sequence_parallel_region(x, group=ALONE)[0] is x


CHECKS = dict.fromkeys((2, 4), ranks.names(globals()))


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
