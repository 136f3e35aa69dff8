"""The functions between matrix products, which keep only what their backward passes need.

    rms_norm        x / sqrt(mean(x^2) + epsilon) * weight; keeps x and one number for each token
    gelu            GELU in its tanh form; keeps x
    swiglu          silu(gate) * up; keeps gate and up
    squared_relu    relu(x)^2; keeps x

Torch's autograd would keep every intermediate result. If no gradient is needed, the same operations run
without an autograd.Function, whose overhead is as large as one of the operations. On a GPU, rms_norm uses
torch's own kernel. Inside a compiled layer, the compiler decides what to keep.

Shapes: [..] tokens, h hidden, f MLP width
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Apply RMSNorm (arXiv:1910.07467), computed in fp32 and rounded once. [.., h], [h] -> [.., h]."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, epsilon)
    if not torch.is_grad_enabled():
        return _normed(x, weight, epsilon)[0]
    return _RMSNorm.apply(x, weight, epsilon)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Apply GELU (arXiv:1606.08415) in the tanh form of GPT-2 and Megatron. [.., f] -> [.., f]."""
    return F.gelu(x, approximate="tanh")


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Compute silu(gate) * up (arXiv:2002.05202). [.., f], [.., f] -> [.., f]."""
    if torch.compiler.is_compiling():
        return F.silu(gate) * up
    if not torch.is_grad_enabled():
        return F.silu(gate).mul_(up)
    return _SwiGLU.apply(gate, up)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Compute relu(x)^2 (arXiv:2109.08668). [.., f] -> [.., f]."""
    if torch.compiler.is_compiling():
        return F.relu(x).square()
    if not torch.is_grad_enabled():
        return F.relu(x).square_()
    return _SquaredReLU.apply(x)


ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "gelu": gelu,
    "swiglu": swiglu,
    "squared_relu": squared_relu,
}
GATED = frozenset({"swiglu"})
"""Activation functions that take two arguments."""


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class _SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.relu(x).square_()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return F.relu(x).mul_(2).mul_(grad)


def _normed(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (rms_norm(x), 1 / sqrt(mean(x^2) + epsilon) for each token in fp32)."""
    wide = x.float()
    factor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
    factor = factor.div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return (wide * factor).mul_(weight).to(x.dtype), factor


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        normed, factor = _normed(x, weight, epsilon)
        ctx.save_for_backward(x, weight, factor)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, factor = ctx.saved_tensors
        normed, grad = x.float() * factor, grad.float()
        grad_weight = (grad * normed).flatten(0, -2).sum(0).to(weight.dtype)
        grad_normed = grad * weight
        # d normed / d x = factor (1 - normed normed^T / h)
        along = (grad_normed * normed).mean(-1, keepdim=True)
        grad_x = grad_normed.sub_(normed.mul_(along)).mul_(factor)
        return grad_x.to(x.dtype), grad_weight, None
