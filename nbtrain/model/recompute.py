"""Recomputes activations in the backward pass instead of keeping them.

    full         groups of layers are recomputed, and only their input is kept (arXiv:1604.06174)
    selective    large, cheap activations are recomputed (arXiv:2205.05198, section 5): the attention weights,
                 [b, n, s, s], and the output of the MLP's activation function, [b, s, f]. The attention
                 kernels flash and efficient keep no attention weights, so with them only the MLP's output is
                 recomputed. The kernel math keeps the weights; with dropout, it needs three times as much
                 memory for them

In both cases, the recomputation uses the same dropout and is bit-exact. Inside a compiled layer, `selective`
has no effect, because the compiler decides which activations to keep.

Shapes: b sequences, s tokens, n heads, f MLP width
"""

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from nbtrain.parallel.random import TensorParallelStream


def recomputed(stream: TensorParallelStream | None, function: Callable, *arguments):
    """Call function(*arguments), and call it again in the backward pass, with the same dropout."""
    if stream is None:
        return checkpoint(function, *arguments, use_reentrant=False)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=stream.recompute_contexts)


def without_keeping(
    activation: Callable[..., torch.Tensor],
    consumer: Callable[[torch.Tensor], torch.Tensor],
    *x: torch.Tensor,
) -> torch.Tensor:
    """Return consumer(activation(*x)), and recompute activation(*x) in the backward pass.

    Torch's checkpoint cannot do this: applied to the activation, it would keep the output for the consumer,
    and applied to both, it would run the consumer twice. Here, the consumer keeps only the shape of its
    input.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return consumer(activation(*x))
    y = activation(*x)
    sources, place, size = [one.detach() for one in x], y.data_ptr(), y.numel()

    def pack(kept: torch.Tensor) -> torch.Tensor | torch.Size:
        is_output = kept.data_ptr() == place and kept.numel() == size and kept.is_contiguous()
        return kept.shape if is_output else kept

    def unpack(packed: torch.Tensor | torch.Size) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        with torch.no_grad():
            return activation(*sources).view(packed)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return consumer(y)
