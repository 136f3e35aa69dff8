"""Adds adapters to the layers of a GPT (the section `lora` of a run) and freezes all other parameters."""

import functools
from collections.abc import Iterable

import torch
from torch import nn

from nbtrain.model.dropout import dropout
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.names import is_adapter
from nbtrain.parallel import ia3
from nbtrain.parallel.four_bits import FourBits
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.lora import ColumnLowRank, Rank, RowLowRank
from nbtrain.parallel.random import TensorParallelStream
from nbtrain.parallel.tensor import ColumnParallelLinear, GatedColumnParallelLinear, RowParallelLinear


def adapt(
    layer: ColumnParallelLinear | RowParallelLinear,
    name: str,
    config: GPTConfig,
    init: Initializer,
    parallel: ModelParallel,
) -> None:
    """Add the adapter that the run trains on `layer`, if any, and store the layer in 4 bits if requested.

    `name` is the layer's canonical name. Raises ValueError if an adapter of packed queries, keys and values
    would split the rows of a query group between tensor-parallel ranks.
    """
    lora, target = config.lora, name.rpartition(".")[2]
    if lora is None:
        return
    if lora.load_in_4bit:
        layer.hold_in_four_bits(FourBits(lora.bnb_4bit_quant_type, lora.bnb_4bit_use_double_quant))
    if lora.kind == "ia3":
        _rescale(layer, target, config, init, parallel)
        return
    if target not in lora.targets:
        return
    is_row = isinstance(layer, RowParallelLinear)
    # Dropout applies to the layer's input, and each rank has a different input of a row layer.
    stream = parallel.stream if is_row else parallel.hidden_stream
    how = Rank(lora.rank, lora.scale, functools.partial(_dropped, lora.dropout, stream))
    options = (init, how, parallel.tensor, parallel.sequence_parallel)
    hidden, ffn = config.hidden_size, config.ffn_hidden_size
    width = config.num_attention_heads * config.head_size
    if isinstance(layer, RowParallelLinear):
        inputs = width if target == "dense" else ffn
        layer.lora = RowLowRank(f"{name}.lora", inputs, hidden, *options)
    elif target == "query_key_value":
        if config.query_groups % parallel.tensor.size:
            raise ValueError(
                f"{name}: {parallel.tensor.size} tensor-parallel ranks cannot hold complete query groups: "
                f"their number ({config.query_groups}) must be a multiple of {parallel.tensor.size}"
            )
        parts = qkv_parts(config)
        outputs = config.query_groups * sum(parts)
        layer.lora = ColumnLowRank(f"{name}.lora", hidden, outputs, *options, parts=parts)
    else:
        layer.lora = ColumnLowRank(f"{name}.lora", hidden, ffn, *options)
        if isinstance(layer, GatedColumnParallelLinear):
            layer.gate_lora = ColumnLowRank(f"{name}.gate_lora", hidden, ffn, *options)


def _rescale(
    layer: ColumnParallelLinear | RowParallelLinear,
    target: str,
    config: GPTConfig,
    init: Initializer,
    parallel: ModelParallel,
) -> None:
    """Add an IA3 vector to `layer`, for its keys and values or for its inputs (activations inside the MLP).

    Does nothing if `target`, the layer's kind, is neither query_key_value nor dense_4h_to_h.
    """
    if target == "query_key_value":
        if config.query_groups % parallel.tensor.size:
            raise ValueError(
                f"{parallel.tensor.size} tensor-parallel ranks cannot hold complete query groups: their "
                f"number ({config.query_groups}) must be a multiple of {parallel.tensor.size}"
            )
        queries, *others = qkv_parts(config)
        layer.ia3 = ia3.output_scale(init, config.query_groups, sum(others), parallel.tensor)
        layer.rescaled = functools.partial(ia3.scaled_outputs, unit=queries + sum(others), part=sum(others))
    elif target == "dense_4h_to_h":
        layer.ia3 = ia3.input_scale(init, config.ffn_hidden_size, parallel.tensor)


def qkv_parts(config: GPTConfig) -> tuple[int, int, int]:
    """Return the numbers of rows of (queries, keys, values) in one query group."""
    size = config.head_size
    return config.num_attention_heads // config.query_groups * size, size, size


def freeze(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Freeze all parameters except adapters. `named_parameters` has canonical names (names.py)."""
    for name, parameter in named_parameters:
        parameter.requires_grad_(is_adapter(name))


def _dropped(
    probability: float, stream: TensorParallelStream | None, x: torch.Tensor, training: bool
) -> torch.Tensor:
    return dropout(x, probability, training, stream) if probability else x
