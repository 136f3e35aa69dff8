"""Computes the nearest matrix with orthogonal rows by Newton-Schulz iterations, Muon's update of a matrix.

    X = M / |M|, transposed if M has more rows than columns
    a few times:  A = X X^T,  X <- a X + (b A + c A^2) X

Five iterations move singular values between 0.003 and 1 into the range from 0.7 to 1.2. The coefficients and
the number of iterations are taken from Keller Jordan's Muon (kellerjordan.github.io/posts/muon, and
torch.optim.Muon). config/arithmetic/flops.py counts their FLOPs.
"""

from collections.abc import Iterable

import torch

A, B, C = 3.4445, -4.7750, 2.0315
# Smallest divisor: a matrix with a smaller norm is divided by this number, so that a zero matrix stays zero.
LEAST_NORM = 1e-7
# Small matrices of one shape are multiplied together, up to this many elements: a larger product fills a
# device by itself, and a larger stack would only use more memory.
STACK_ELEMENTS = 2**24


def orthogonalize_(matrices: Iterable[tuple[torch.Tensor, float]], steps: int, dtype: torch.dtype) -> None:
    """Replace each matrix [.., i] by the nearest orthogonal matrix times a factor.

    `matrices` has pairs (matrix, factor). All leading dimensions of a matrix count as rows. The products are
    computed in `dtype`: compared with exact arithmetic, bf16 changes an update by 1 to 10 %, fp32 by 1e-5.
    """
    by_shape: dict[tuple[int, int], list[tuple[torch.Tensor, float]]] = {}
    for view, factor in matrices:
        rows, columns = view.shape[:-1].numel(), view.shape[-1]
        by_shape.setdefault((min(rows, columns), max(rows, columns)), []).append((view, factor))
    for (rows, columns), alike in by_shape.items():
        at_once = max(STACK_ELEMENTS // (rows * columns), 1)
        for first in range(0, len(alike), at_once):
            _orthogonalize_stack(alike[first : first + at_once], steps, dtype)


def _orthogonalize_stack(alike: list[tuple[torch.Tensor, float]], steps: int, dtype: torch.dtype) -> None:
    flat = [view.reshape(-1, view.shape[-1]) for view, _ in alike]
    wide = torch.stack([one if len(one) <= one.shape[1] else one.T for one in flat]).to(dtype)
    found = newton_schulz(wide, steps)
    for (view, factor), one, own in zip(alike, flat, found):
        view.copy_((own if len(one) <= one.shape[1] else own.T).reshape(view.shape)).mul_(factor)


def newton_schulz(stack: torch.Tensor, steps: int) -> torch.Tensor:
    """Orthogonalize each matrix of [k, m, n], m <= n, in its own dtype, with `steps` iterations."""
    x = stack / torch.linalg.matrix_norm(stack, keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x
