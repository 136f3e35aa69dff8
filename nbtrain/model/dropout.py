"""Dropout with random numbers that are the same on all ranks, or different on each tensor-parallel rank."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.random import TensorParallelStream


def dropout(
    x: torch.Tensor, probability: float, training: bool, stream: TensorParallelStream | None
) -> torch.Tensor:
    """Apply F.dropout, with random numbers from `stream` or, if it is None, from the device's generator."""
    return drawing(stream if training and probability else None, F.dropout, x, probability, training)


def drawing(stream: TensorParallelStream | None, function: Callable, *arguments) -> torch.Tensor:
    """Call function(*arguments), whose random numbers come from `stream` unless it is None."""
    return function(*arguments) if stream is None else _drawing_from(stream, function, *arguments)


@uncompiled
def _drawing_from(stream: TensorParallelStream, function: Callable, *arguments) -> torch.Tensor:
    # The compiler cannot trace a change of the generator's state.
    with stream.fork():
        return function(*arguments)
