"""What the backward pass computes again, so that its inputs need not be kept (arXiv:1604.06174).

full    a run of layers: only its input is kept
"""

from collections.abc import Callable

from torch.utils.checkpoint import checkpoint

from nbtrain.parallel.random import TensorParallelStream


def recomputed(stream: TensorParallelStream | None, function: Callable, *arguments):
    """function(*arguments), and again in the backward pass, with the same dropout.

    `stream`, where dropout draws from one: checkpoint restores the generators' own numbers only.
    """
    if stream is None:
        return checkpoint(function, *arguments, use_reentrant=False)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=stream.recompute_contexts)
