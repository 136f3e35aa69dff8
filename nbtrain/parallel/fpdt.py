"""FPDT (arXiv:2408.16978): attention over millions of tokens, one chunk at a time.

The queries, keys and values of the other chunks are kept in host memory. DeepSpeed's layer does the work,
with flash-attn's kernels and only on GPUs; this module connects it to nbtrain's layers. Ulysses is part of
FPDT: each rank holds an equal part of every chunk, so that all ranks have equal shares of the causal triangle
(ulysses.own_tokens).

This module has not been run on a GPU yet. Its CPU test replaces flash-attn's kernels by plain attention.

Shapes: b sequences, s tokens, h hidden, n heads, d head size, u Ulysses ranks
"""

import importlib.util
from types import SimpleNamespace

import torch

from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.groups import Group
from nbtrain.parallel.tensor import ColumnParallelLinear, RowParallelLinear


def problem(device: torch.device | str, dropout: float = 0.0) -> str | None:
    """Return why FPDT cannot run here; None if it can run.

    `dropout` is the attention dropout, which FPDT's backward pass cannot repeat.
    """
    if torch.device(device).type != "cuda":
        return f"FPDT moves data between GPU and host memory, but the device is {torch.device(device).type}"
    if dropout:
        return f"FPDT's backward pass cannot repeat dropout: attention_dropout must be 0, not {dropout}"
    if importlib.util.find_spec("flash_attn") is None:
        return "FPDT needs flash-attn: pip install flash-attn --no-build-isolation"
    return None


@uncompiled
def attention(
    x: torch.Tensor,
    query_key_value: ColumnParallelLinear,
    dense: RowParallelLinear,
    head_size: int,
    chunk_tokens: int,
    group: Group,
) -> torch.Tensor:
    """Compute causal self-attention, including both projections. [b, s/u, h] -> [b, s/u, h].

    `chunk_tokens` counts tokens of the whole sequence. `group` must have a process group, even with a single
    rank. Raises RuntimeError if FPDT cannot run here.
    """
    if reason := problem(x.device):
        raise RuntimeError(f"{reason}. Set parallel.fpdt_chunk_tokens: 0.")
    if group.process_group is None:
        raise RuntimeError("FPDT needs a process group of its Ulysses ranks, even with a single rank")
    from deepspeed.sequence.fpdt_layer import FPDT_Attention

    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    heads = len(query_key_value.weight) // (3 * head_size)

    def unpacked(packed: torch.Tensor) -> torch.Tensor:
        # nbtrain packs rows head by head; DeepSpeed expects all queries, then all keys, then all values.
        return packed.to(dtype).unflatten(0, (heads, 3, head_size)).transpose(0, 1).flatten(0, 2)

    shape = SimpleNamespace(
        kv_channels=head_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        hidden_size=x.shape[-1],
        attention_dropout=0.0,
    )
    layer = FPDT_Attention(
        shape,
        unpacked(query_key_value.weight),
        unpacked(_bias(query_key_value)),
        dense.weight.to(dtype),
        _bias(dense).to(dtype),
        group.process_group,
        gather_idx=1,
        scatter_idx=2,
        return_bias=False,
        chunk_size=chunk_tokens,
    )
    # Autocast would have no effect in the layer's backward pass, so turn it off.
    with torch.autocast(device, enabled=False):
        # [b, s, h] -> [s, b, h] and back
        attended, _ = layer(
            x.to(dtype).transpose(0, 1).contiguous(), None, None, None, cpu_offloading=device == "cuda"
        )
    return attended.transpose(0, 1)


def _bias(layer: ColumnParallelLinear | RowParallelLinear) -> torch.Tensor:
    """Return the layer's bias; zeros if it has none, because DeepSpeed's layer adds one."""
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
