"""Products with a block's matrices in FP8 (arXiv:2209.05433), twice as fast as bf16 on Hopper.

Inputs and weights are rounded to e4m3 (3 bits of mantissa), gradients to e5m2 (2 bits, with more range). For
every product, each tensor gets a new scale that maps its largest number to the largest number of the format
(the "tensorwise dynamic" recipe of torchao and torchtitan). With tensor parallelism, each rank scales its own
part. Sums are computed in fp32 and rounded to bf16. Everything outside of these products is the same as
without FP8.

This module has not been run on a GPU yet. torch._scaled_mm computes the same products on a CPU, but slowly.

Shapes: n tokens, i inputs, o outputs; cuBLAS requires each size to be a multiple of 16
"""

import torch

INPUT, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x weight^T + bias.  [.., i], [o, i], [o] -> [.., o], in bf16.

    Raises ValueError if a size is not a multiple of 16.
    """
    y = _product(x.flatten(0, -2), weight, INPUT, INPUT, use_fast_accum=True)
    y = y.unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias


def input_gradient(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return d loss / d x from d loss / d y.  [.., o], [o, i] -> [.., i]."""
    return _product(grad.flatten(0, -2), weight.T, GRADIENT, INPUT).unflatten(0, grad.shape[:-1])


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return d loss / d weight from d loss / d y.  [.., o], [.., i] -> [o, i]."""
    return _product(grad.flatten(0, -2).T, x.flatten(0, -2).T, GRADIENT, INPUT)


def _product(
    a: torch.Tensor, b: torch.Tensor, of_a: torch.dtype, of_b: torch.dtype, use_fast_accum: bool = False
) -> torch.Tensor:
    """Return a b^T. [m, k], [n, k] -> [m, n].

    The operands are rounded first, so that a copy moves one byte per element.
    """
    if a.shape[1] % MULTIPLE or b.shape[0] % MULTIPLE:
        raise ValueError(
            f"a product of {tuple(a.shape)} and {tuple(b.T.shape)} cannot be computed in FP8: tokens, inputs "
            f"and outputs must be multiples of {MULTIPLE}. Change the sizes, or set precision.fp8: false."
        )
    a, scale_a = _rounded(a, of_a)
    b, scale_b = _rounded(b, of_b)
    return torch._scaled_mm(
        a.contiguous(),
        b.contiguous().T,
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=torch.bfloat16,
        use_fast_accum=use_fast_accum,
    )


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x in FP8, the fp32 factor by which to multiply it to restore x)."""
    largest = torch.finfo(dtype).max
    # Avoid a division by 0; a tensor of zeros stays zero.
    scale = x.detach().abs().amax().float().clamp(min=1e-12) / largest
    # The cast does not saturate, so a number that rounding lifts above the maximum would become NaN.
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale
