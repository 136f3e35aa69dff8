"""The gradient of a parameter that two stages share is summed in the tensor that ZeRO reads, wherever that
is.
"""

import torch
from torch import nn

from nbtrain.parallel.pipeline import _TiedGradient


def test_the_accumulated_gradient_is_the_one_that_is_summed():
    """The accumulated gradient itself is summed: with ZeRO 1 and fp16 weights, `grad` is None after the
    backward pass.
    """
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    tied = _TiedGradient(weight)
    assert tied.grad is None
    weight.grad = torch.ones(3, dtype=torch.float16)
    assert tied.grad is weight.grad
    weight.grad_accum = torch.full((3,), 2.0)
    weight.grad = None
    assert tied.grad is weight.grad_accum
    weight.grad_accum = None
    assert tied.grad is None
    weight._hp_grad = torch.ones(3)
    assert tied._hp_grad is weight._hp_grad
