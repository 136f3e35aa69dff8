"""Frozen 4-bit matrices use the same bytes as bitsandbytes' Linear4bit and give the same products and
gradients.
"""

import importlib.util
import itertools
import re
import sys

import pytest
import torch

from nbtrain.base.errors import ConfigError
from nbtrain.base.extras import install_command
from nbtrain.config.arithmetic import four_bits as arithmetic
from nbtrain.parallel import four_bits
from nbtrain.parallel.four_bits import FourBitMatrix, FourBits, rounded

# Importing bitsandbytes takes four seconds, so every process that collects tests only looks for it.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("bitsandbytes") is None,
        reason="bitsandbytes is not installed (extra qlora)",
    ),
]


@pytest.mark.parametrize(
    "kind, double, dtype",
    list(itertools.product(("nf4", "fp4"), (False, True), (torch.float32, torch.bfloat16))),
)
def test_a_product_is_linear4bits(kind, double, dtype):
    """The product and the gradient of its input equal Linear4bit's bit for bit, also if the last block has
    fewer than 64 numbers.
    """
    import bitsandbytes

    torch.manual_seed(1)
    weight = 0.02 * torch.randn(383, 127, dtype=dtype)
    weight[5] = 0
    matrix = FourBitMatrix(weight, FourBits(kind, double))
    matrix.hold(weight)
    theirs = bitsandbytes.nn.Linear4bit(
        127, 383, compute_dtype=dtype, compress_statistics=double, quant_type=kind
    )
    held = bitsandbytes.nn.Params4bit(
        weight.clone(), requires_grad=False, compress_statistics=double, quant_type=kind
    )
    theirs.weight, theirs.bias = held, torch.nn.Parameter(torch.randn(383, dtype=dtype))
    theirs = theirs.to("cpu")
    found = []
    x = torch.randn(2, 4, 127, dtype=dtype)
    for product in (lambda x: matrix(x, theirs.bias.detach()), theirs):
        given = x.clone().requires_grad_()
        y = product(given)
        y.square().sum().backward()
        found += [(y.detach(), given.grad)]
    for ours, its in zip(*found, strict=True):
        assert torch.equal(ours, its)
    assert found[0][0].any()
    assert torch.equal(matrix.dequantized(), rounded(weight, FourBits(kind, double)))
    assert not list(matrix.parameters()) and not matrix.state_dict()
    bytes_ = sum(buffer.nbytes for buffer in matrix.buffers())
    assert bytes_ == arithmetic.four_bit_bytes(383 * 127, double)


def test_block_sizes_are_those_of_the_planner():
    assert four_bits.BLOCK_ELEMENTS == arithmetic.BLOCK_ELEMENTS
    assert four_bits.NESTED_BLOCK_ELEMENTS == arithmetic.NESTED_BLOCK_ELEMENTS


def test_a_missing_package_is_named(monkeypatch):
    """If bitsandbytes is missing, the message names it, for example when text is generated on another
    machine.
    """
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    four_bits.bitsandbytes.cache_clear()
    with pytest.raises(ConfigError, match=re.escape(f"Install it: {install_command('qlora')}.")):
        rounded(torch.ones(8, 8), FourBits("nf4", False))
