"""Linear products in FP8, for the matrices of a block (arXiv:2209.05433): on Hopper at twice the rate of
bf16.

Inputs and weights are rounded to e4m3 (3 bits of mantissa), gradients to e5m2 (2 bits, more range), each
tensor by a scale of its own that brings its largest number to the format's, taken anew at every product (the
"tensorwise dynamic" recipe of torchao and torchtitan). Sums are of fp32 and come out in bf16; weights,
optimizer, activations between the products, embedding and logits are what they are without FP8. Under tensor
parallelism each rank scales its own part.

Not yet seen running on a GPU. torch._scaled_mm, which this rests on, gives the same products on a CPU,
slowly.

Shapes: n tokens, i inputs, o outputs; cuBLAS wants each of them to be a multiple of 16 where it is summed
over or put out
"""

import torch

INPUT, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias.  [.., i], [o, i], [o] -> [.., o], in bf16.

    Raises ValueError where a size is no multiple of 16.
    """
    y = _product(x.flatten(0, -2), weight, INPUT, INPUT, use_fast_accum=True)
    y = y.unflatten(0, x.shape[:-1])
    return y if bias is None else y + bias


def input_gradient(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """d loss / d x.  [.., o], [o, i] -> [.., i]."""
    return _product(grad.flatten(0, -2), weight.T, GRADIENT, INPUT).unflatten(0, grad.shape[:-1])


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """d loss / d weight.  [.., o], [.., i] -> [o, i]."""
    return _product(grad.flatten(0, -2).T, x.flatten(0, -2).T, GRADIENT, INPUT)


def _product(
    a: torch.Tensor, b: torch.Tensor, of_a: torch.dtype, of_b: torch.dtype, use_fast_accum: bool = False
) -> torch.Tensor:
    """a b^T.  [m, k], [n, k] -> [m, n]; rounded first and laid out after, as one byte an element."""
    if a.shape[1] % MULTIPLE or b.shape[0] % MULTIPLE:
        raise ValueError(
            f"a product of {tuple(a.shape)} and {tuple(b.T.shape)} cannot be taken in FP8: tokens, inputs "
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
    """x in FP8, and what to multiply it with to have x back, fp32 []."""
    largest = torch.finfo(dtype).max
    # No number is divided by 0; a tensor of zeros stays one.
    scale = x.detach().abs().amax().float().clamp(min=1e-12) / largest
    # The cast does not saturate: what rounding lifts above the largest would be no number.
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale
