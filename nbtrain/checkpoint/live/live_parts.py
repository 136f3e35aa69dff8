"""Finds each parameter's elements in the tensors that a live optimizer steps, for every ZeRO stage.

The tensors depend on the ZeRO stage:

    ZeRO 0                  every parameter is a separate tensor
    ZeRO 1, 2               one flat tensor for each parameter group, with this rank's fragments of the
    (and BF16_Optimizer)    group's parameters; it may contain no element of some parameters
    ZeRO 3                  one flat tensor for each sub-group: the parameters' padded parts, concatenated
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn


class LivePart(NamedTuple):
    """Elements [start, start + count) of this tensor rank's part of a parameter."""

    name: str
    start: int
    count: int  # type: ignore[assignment]  # not tuple's method
    offset: int
    """Index of the part's first element in the flat LiveTensor.tensor."""


class LiveTensor(NamedTuple):
    """A tensor that the optimizer steps, and the parts of parameters in it."""

    group: dict[str, Any]
    """The optimizer's parameter group to which the tensor belongs. Its entry "name" is the name that
    train/engine/optimizer.py gives the group.
    """
    tensor: torch.Tensor
    """fp32: the master weights or, in ZeRO 0, the parameter itself."""
    parts: list[LivePart]
    names: list[str]
    """Names of the parameters that have a part in this tensor, on this rank or on any other rank."""


def misplaced(tensors: Iterable[LiveTensor], parameters: dict[str, nn.Parameter]) -> list[str]:
    """Return the names of the parameters whose elements differ from their parts in `tensors`.

    Call it before the first step, while masters and weights are equal. Parts on another device or on a disk
    are not checked.
    """
    found = []
    for held in tensors:
        flat = held.tensor.detach().view(-1)
        for part in held.parts:
            parameter = parameters[part.name]
            if hasattr(parameter, "ds_tensor"):
                own = parameter.ds_tensor.detach().view(-1)[: part.count]
            else:
                own = parameter.detach().view(-1)[part.start : part.start + part.count]
            there = flat[part.offset : part.offset + part.count]
            if len(own) == part.count and own.device == there.device and not torch.equal(own.float(), there):
                found.append(part.name)
    return found


def base_optimizer(engine: Any) -> Any:
    """Return the optimizer that DeepSpeed's optimizer wraps; without ZeRO there is no wrapper."""
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def live_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of this tensor rank's part of a parameter, even if ZeRO 3 has partitioned the part."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def local_elements(parameter: Any) -> tuple[torch.Tensor, int]:
    """Return (this rank's elements of a parameter, flat; the index of the first of these elements in the
    tensor rank's part).

    Under ZeRO 3, this rank's elements are its own part without the padding, otherwise all elements.
    """
    if not hasattr(parameter, "ds_tensor"):
        return parameter.data.view(-1), 0
    share = parameter.ds_tensor.ds_numel
    start = torch.distributed.get_rank(parameter.ds_process_group) * share
    return parameter.ds_tensor.data.view(-1)[: max(0, min(share, parameter.ds_numel - start))], start


def live_tensors(engine: Any, parameters: dict[str, nn.Parameter]) -> Iterator[LiveTensor]:
    """Yield the tensors that this rank's optimizer steps; `parameters` are given by canonical name."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp16_partitioned_groups_flat"):
        return _partitioned(optimizer, names)
    if engine.zero_optimization_stage() or hasattr(optimizer, "bf16_groups"):
        return _flat(optimizer, names)
    return _plain(optimizer, names)


def _plain(optimizer: Any, names: dict[int, str]) -> Iterator[LiveTensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            part = LivePart(name, 0, parameter.numel(), 0)
            yield LiveTensor(group, parameter, [part], [name])


def _flat(optimizer: Any, names: dict[int, str]) -> Iterator[LiveTensor]:
    is_bf16 = hasattr(optimizer, "bf16_groups")
    groups = optimizer.bf16_groups if is_bf16 else optimizer.bit16_groups
    flats = optimizer.fp32_groups_flat_partition if is_bf16 else optimizer.single_partition_of_fp32_groups
    for live_group, group, flat in zip(optimizer.optimizer.param_groups, groups, flats, strict=True):
        parts = []
        for parameter in group:
            if (mapping := parameter._hp_mapping) is not None:
                here, there = mapping.get_hp_fragment_address(), mapping.lp_fragment_address
                parts.append(LivePart(names[id(parameter)], there.start, there.numel, here.start))
        yield LiveTensor(live_group, flat, parts, [names[id(parameter)] for parameter in group])


def _partitioned(optimizer: Any, names: dict[int, str]) -> Iterator[LiveTensor]:
    rank = torch.distributed.get_rank(optimizer.dp_process_group)
    flats = zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True)
    for number, (group, flat) in enumerate(flats):
        live_group = optimizer.optimizer.param_groups[optimizer.sub_group_to_group_id[number]]
        parts, offset = [], 0
        for parameter in group:
            share = parameter.ds_tensor.ds_numel
            count = min(share, parameter.ds_numel - rank * share)
            if count > 0:
                parts.append(LivePart(names[id(parameter)], rank * share, count, offset))
            offset += share
        yield LiveTensor(live_group, flat, parts, [names[id(parameter)] for parameter in group])
