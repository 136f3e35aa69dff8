"""Newton-Schulz iterations bring singular values near 1, and give the same result for a matrix alone and in a
stack.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nbtrain.config.arithmetic.flops import newton_schulz_flops
from nbtrain.train.engine import newton_schulz as schulz
from nbtrain.train.engine.newton_schulz import newton_schulz, orthogonalize_
from tests.parity.plain_muon import orthogonal


def matrix(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16), (1, 7)])
def test_singular_values_come_near_1(shape):
    found = matrix(*shape)
    before = torch.linalg.svd(found)
    orthogonalize_([(found, 1.0)], 5, torch.float32)
    values = torch.linalg.svdvals(found)
    # Singular values below 0.003 of the norm need more than five iterations: these matrices have none.
    assert values.min() > 0.6 and values.max() < 1.25
    # The singular vectors are unchanged, so the direction is the nearest orthogonal matrix.
    nearest = before.U[:, : len(values)] @ before.Vh[: len(values)]
    assert torch.nn.functional.cosine_similarity(found.flatten(), nearest.flatten(), dim=0) > 0.97


def test_alike_matrices_are_one_stack_and_each_comes_out_as_alone(monkeypatch):
    """Matrices of the same shape are stacked, and each gets the same result as alone: wide, tall, strided,
    with its own factor, or in a divided stack.
    """
    packed = matrix(4, 3, 8, 32, seed=1)
    alone = [orthogonal(packed[:, part].reshape(-1, 32), 5) for part in range(3)]
    tall, wide = matrix(32, 12, seed=2), matrix(12, 32, seed=3)
    expected = orthogonal(tall, 5), orthogonal(wide, 5) * 0.5
    stacks = []
    monkeypatch.setattr(
        schulz, "newton_schulz", lambda x, n: (stacks.append(x.shape), newton_schulz(x, n))[1]
    )
    monkeypatch.setattr(schulz, "STACK_ELEMENTS", 2 * 32 * 32)
    orthogonalize_(
        [*((packed[:, part], 2.0) for part in range(3)), (tall, 1.0), (wide, 0.5)], 5, torch.float32
    )
    assert [tuple(shape) for shape in stacks] == [(2, 32, 32), (1, 32, 32), (2, 12, 32)]
    for part in range(3):
        assert (packed[:, part].reshape(-1, 32) - 2 * alone[part]).abs().max() < 1e-5
    assert (tall - expected[0]).abs().max() < 1e-5
    assert (wide - expected[1]).abs().max() < 1e-5


def test_bf16_moves_an_update_by_a_few_per_cent():
    exact, rounded = matrix(64, 96), matrix(64, 96)
    orthogonalize_([(exact, 1.0)], 5, torch.float32)
    orthogonalize_([(rounded, 1.0)], 5, torch.bfloat16)
    assert rounded.dtype == torch.float32
    assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.1


def test_a_matrix_of_zeros_stays_one():
    zeros = torch.zeros(8, 16)
    orthogonalize_([(zeros, 3.0)], 5, torch.float32)
    assert not zeros.any()


@pytest.mark.slow
def test_flops_count_the_products():
    counted = FlopCounterMode(display=False)
    with counted:
        newton_schulz(matrix(1, 16, 48), 3)
    assert counted.get_total_flops() == newton_schulz_flops(48, 16, 3) == newton_schulz_flops(16, 48, 3)
