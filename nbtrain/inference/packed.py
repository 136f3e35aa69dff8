"""A weight layout that speeds up fp32 products with few rows on a CPU, as in decoding.

    one row       matrices with more outputs than inputs are stored by columns, which is faster for gemv
    some rows     a second copy of each matrix in oneDNN's own order: 1.1 to 1.4 times as fast as torch's
                  product, and twice as fast for the output matrix

tests/benchmarks/generate_cpu.py measures the speeds. The products are operators that torch has for its
compiler (torch.ops.mkldnn). If they are missing or memory is short, the weights stay unchanged.
"""

import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.base.hardware.cgroup import available_memory_bytes
from nbtrain.model.gpt import GPT
from nbtrain.parallel.tensor import ColumnParallelLinear, GatedColumnParallelLinear, RowParallelLinear

logger = logging.getLogger(__name__)

# Number of rows for which oneDNN optimizes its order. Of 1, 8 and 64, the value 8 suits 2 to 64 rows best.
ROWS = 8
# Fraction of the free memory that the second copy of the weights may use.
MOST_SHARE = 0.25

Linear = Callable[[torch.Tensor], torch.Tensor]


def pack(model: GPT) -> bool:
    """Change a CPU model's weight layout, for inference only. Return whether the layout was changed."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    is_plain = all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights)
    needed = sum(weight.nbytes for weight in weights)
    if not is_plain or not _can_pack() or needed > MOST_SHARE * available_memory_bytes():
        return False
    for module in model.modules():
        # With several ranks, a product needs communication, so it stays as in parallel/tensor.py.
        if isinstance(module, ColumnParallelLinear | RowParallelLinear) and module.group.size == 1:
            linear = _packed(module.weight, module.bias)
            if isinstance(module, GatedColumnParallelLinear):
                gate = _packed(module.gate_weight, module.gate_bias)
                module.forward = _both(gate, linear)  # type: ignore[method-assign,assignment]
            else:
                module.forward = linear  # type: ignore[method-assign,assignment]
    tied = not model.config.untie_embeddings_and_output_weights
    output = _packed((model.word_embeddings if tied else model.output_layer).weight, None)
    model.output_product = _without_weight(output)
    return True


def _without_weight(linear: Linear) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda x, weight: linear(x)


def _both(gate: Linear, linear: Linear) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    return lambda x: (gate(x), linear(x))


def _packed(weight: nn.Parameter, bias: torch.Tensor | None) -> Linear:
    """Return a function that computes x W^T + b with the packed weight."""
    outputs, inputs = weight.shape
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
    if outputs > inputs:
        weight.data = weight.data.t().contiguous().t()
    product = torch.ops.mkldnn._linear_pointwise

    def linear(x: torch.Tensor) -> torch.Tensor:
        if x.numel() <= inputs:
            return F.linear(x, weight, bias)
        return product(x, packed, bias, "none", [], "")

    return linear


def _can_pack() -> bool:
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(4, 4), ROWS)
        product = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 2, 4), weight, None, "none", [], "")
        return bool((product == 4).all())
    except (AttributeError, RuntimeError, TypeError) as error:
        logger.info("the weights keep torch's layout, because oneDNN's products are not available: %s", error)
        return False
