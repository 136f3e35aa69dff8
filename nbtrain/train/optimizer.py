"""AdamW in exactly two groups, `decay` and `no_decay`, chosen by canonical name.

Two groups on every rank, whatever it holds: ZeRO makes one collective per group. torch's fused kernel serves
CPU and CUDA and needs no compiler; DeepSpeed's FusedAdam would be built on first use.
"""

from typing import Any

import torch
from torch import nn

from nbtrain.config.schema import OptimizerConfig
from nbtrain.model.names import DECAY, NO_DECAY, optimizer_group


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """[decay, no_decay], each with its canonical names in order."""
    members: dict[str, list[tuple[str, nn.Parameter]]] = {DECAY: [], NO_DECAY: []}
    for name, parameter in model.named_parameters():
        members[optimizer_group(name)].append((name, parameter))
    return [
        {
            "name": group,
            "params": [parameter for _, parameter in entries],
            "weight_decay": weight_decay if group == DECAY else 0.0,
        }
        for group, entries in members.items()
    ]


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW; the trainer sets each step's rate."""
    return torch.optim.AdamW(
        parameter_groups(model, config.weight_decay),
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The rate of the coming step, in both groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def set_batch_size(engine: Any, batch_size: int) -> int:
    """The sequences of the coming step; returns the micro batches that each rank makes of them.

    DeepSpeed takes the mean over them, but finds the last one by counting all micro batches since it was built,
    modulo those of a step. That count is right only where no step ever had another number of them: after a change of
    batch the weights would move in mid-step. So the trainer tells the engine which micro batch ends its step.
    """
    if engine.train_batch_size() != batch_size:
        engine.set_train_batch_size(batch_size)
        if hasattr(engine.optimizer, "gradient_accumulation_steps"):
            # ZeRO keeps a copy: with offloading it decides where a gradient's norm is taken.
            engine.optimizer.gradient_accumulation_steps = engine.gradient_accumulation_steps()
    return engine.gradient_accumulation_steps()
