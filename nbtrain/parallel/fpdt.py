"""FPDT (arXiv:2408.16978): attention of a sequence of millions of tokens, a chunk of queries, keys and values
at a time.

What is not at hand waits in host memory. DeepSpeed's layer does it, on flash-attn's kernels, on GPUs only;
here is what stands between it and our layers. Ulysses is part of it: of every chunk each rank holds an equal
piece, so that all have the same share of the causal triangle (ulysses.own_tokens).

Not yet seen running on a GPU; its CPU test puts plain attention in the place of flash-attn's kernels.

Shapes: b sequences, s tokens, h hidden, n heads, d head size, u Ulysses ranks
"""

import importlib.util
from types import SimpleNamespace

import torch

from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import uncompiled
from nbtrain.parallel.tensor import ColumnParallelLinear, RowParallelLinear


def problem(device: torch.device | str, dropout: float = 0.0) -> str | None:
    """Why FPDT cannot run here, or None where it can; of attention's `dropout` its kernels repeat no
    numbers."""
    if torch.device(device).type != "cuda":
        return f"FPDT streams between GPU and host memory, and the device is {torch.device(device).type}"
    if dropout:
        return f"FPDT's backward pass would draw other numbers: attention_dropout must be 0, not {dropout}"
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
    """Causal self-attention of [b, s/u, h] -> [b, s/u, h], both projections included.

    `chunk_tokens`: of the whole sequence. `group` must be a real one, of one rank too. Raises RuntimeError
    where FPDT cannot run here.
    """
    reason = problem(x.device)
    if reason is not None:
        raise RuntimeError(f"{reason}. Set parallel.fpdt_chunk_tokens: 0.")
    return _attention(x, query_key_value, dense, head_size, chunk_tokens, group)


def _attention(x, query_key_value, dense, head_size, chunk_tokens, group) -> torch.Tensor:
    from deepspeed.sequence.fpdt_layer import FPDT_Attention

    if group.process_group is None:
        raise RuntimeError("FPDT needs a process group of its Ulysses ranks, where there is one rank too")
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    heads = len(query_key_value.bias) // (3 * head_size)

    def unpacked(packed: torch.Tensor) -> torch.Tensor:
        # Ours are packed head by head, DeepSpeed's are all queries, all keys, all values.
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
        unpacked(query_key_value.bias),
        dense.weight.to(dtype),
        dense.bias.to(dtype),
        group.process_group,
        gather_idx=1,
        scatter_idx=2,
        return_bias=False,
        chunk_size=chunk_tokens,
    )
    # Its own dtypes all through: autocast would not reach its backward pass.
    with torch.autocast(device, enabled=False):
        # [b, s, h] -> [s, b, h] and back
        attended, _ = layer(
            x.to(dtype).transpose(0, 1).contiguous(), None, None, None, cpu_offloading=device == "cuda"
        )
    return attended.transpose(0, 1)
