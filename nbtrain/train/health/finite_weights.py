"""Checks that the weights are finite: weights with NaN or Inf must not be saved, and skipping steps cannot
repair them.
"""

import math
from typing import Any

import torch
import torch.distributed as dist

from nbtrain.parallel.agreement import gather_objects
from nbtrain.parallel.startup import World

NAMES_SHOWN = 3


def bad_weights(module: torch.nn.Module, world: World) -> str:
    """Return the names of the parameters with a NaN or Inf on any rank, as text for a message.

    The text has at most NAMES_SHOWN names. It is "" if all weights are finite.

    All ranks call it together, and each waits for its device. Each rank reads its own part of the weights;
    weights offloaded to NVMe are not read.
    """
    parts = {name: local_part(parameter) for name, parameter in module.named_parameters()}
    parts = {name: part for name, part in parts.items() if part.numel()}
    highest = torch.nn.utils.get_total_norm(list(parts.values()), math.inf) if parts else torch.zeros(())
    bad = (~highest.isfinite()).to(world.device, torch.int32)
    if world.size > 1:
        dist.all_reduce(bad, dist.ReduceOp.MAX)
    if not bad.item():
        return ""
    own = [name.replace("_orig_mod.", "") for name, part in parts.items() if not part.isfinite().all()]
    all_own = gather_objects(own) if world.size > 1 else [own]
    bad_names = list(dict.fromkeys(name for names in all_own for name in names))
    more = f" and {len(bad_names) - NAMES_SHOWN} more" if len(bad_names) > NAMES_SHOWN else ""
    return ", ".join(bad_names[:NAMES_SHOWN]) + more


def local_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the parameter or, under ZeRO 3, this rank's part of it without the uninitialized padding."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter.detach()
    zero: Any = parameter
    part = zero.ds_tensor.detach()
    if zero.ds_tensor.status.name != "AVAILABLE":
        return part[:0]
    size = part.numel()
    return part[: max(0, min(size, zero.ds_numel - zero.ds_zero_partition_rank * size))]
