"""Clips gradients without ZeRO, by the norm over all ranks that hold a part of the model.

With ZeRO, DeepSpeed's optimizers clip by the norm of the whole model. Without ZeRO, DeepSpeed 0.19.8 adds up
the norms of a pipeline's first stage and of sharded parameters only, and reports no norm.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from nbtrain.parallel.groups import ParallelGroups
from nbtrain.parallel.tensor import partition_dim


def clip_without_zero(engine: Any, groups: ParallelGroups) -> None:
    """Have DeepSpeed's `engine` clip by the norm of the whole model before each step, and report that norm.

    Nothing changes with ZeRO. Call it before anything else replaces engine._take_model_step.
    """
    if engine.zero_optimization_stage():
        return
    take_step = engine._take_model_step

    def clip_and_step(lr_kwargs: dict[str, Any] | None = None) -> None:
        norm = model_norm(engine.module, groups)
        if (largest := engine.gradient_clipping()) > 0:
            nn.utils.clip_grads_with_norm_(engine.module.parameters(), largest, norm)
        engine._global_grad_norm = norm
        take_step(lr_kwargs)

    engine._take_model_step = clip_and_step
    # DeepSpeed would clip a second time.
    engine.clip_fp32_gradients = lambda: None


def model_norm(module: nn.Module, groups: ParallelGroups) -> torch.Tensor:
    """Return the norm over all gradients of the model, a scalar on the device that is equal on all ranks.

    A parameter that several tensor-parallel ranks hold counts only once. So does a tied embedding: its copy
    on the last stage is not counted.
    """
    is_first = groups.tensor_model_parallel.rank == 0
    gradients = [
        parameter.grad
        for parameter in module.parameters()
        if parameter.grad is not None
        and (is_first or partition_dim(parameter) is not None)
        and not getattr(parameter, "ds_pipe_replicated", False)
    ]
    norm = nn.utils.get_total_norm(gradients)
    if (group := groups.model_parallel).size == 1:
        return norm
    # On a rank without such gradients, torch returns a norm of 0 on the CPU.
    total = norm.to(next(module.parameters()).device).square()
    dist.all_reduce(total, group=group.process_group)
    return total.sqrt()
