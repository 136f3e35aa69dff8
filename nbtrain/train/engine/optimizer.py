"""AdamW in exactly two groups, `decay` and `no_decay`, chosen by canonical name.

Every rank has both groups, whatever it holds: ZeRO makes one collective per group. torch's fused kernel runs
on CPU and CUDA and needs no compiler; DeepSpeed's FusedAdam would be built on first use.
"""

from collections.abc import Iterable

import torch
from torch import nn

from nbtrain.config.schedule_section import OptimizerConfig
from nbtrain.model.names import DECAY, NO_DECAY, optimizer_group
from nbtrain.train.engine.engine import TrainEngine


def parameter_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict]:
    """[decay, no_decay], each in the order of `named_parameters`, whose names are canonical."""
    members: dict[str, list[nn.Parameter]] = {DECAY: [], NO_DECAY: []}
    for name, parameter in named_parameters:
        members[optimizer_group(name)].append(parameter)
    return [
        {"name": group, "params": parameters, "weight_decay": weight_decay if group == DECAY else 0.0}
        for group, parameters in members.items()
    ]


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig
) -> torch.optim.AdamW:
    """AdamW for parameters by canonical name; the trainer sets each step's rate and decay."""
    return torch.optim.AdamW(
        parameter_groups(named_parameters, config.weight_decay),
        lr=0.0,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )


def set_rates(optimizer: torch.optim.Optimizer, learning_rate: float, weight_decay: float) -> None:
    """Set learning rate and decay of the coming step; only the group `decay` has a decay."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
        group["weight_decay"] = weight_decay if group["name"] == DECAY else 0.0


def set_batch_size(engine: TrainEngine, batch_size: int) -> int:
    """The sequences of the coming step; returns the micro batches that each rank makes of them.

    DeepSpeed takes the mean over the micro batches, but finds the last one by counting all micro batches
    since it was built, modulo the number in a step. If that number changes, the weights would move in the
    middle of a step. So the plain engine says which micro batch ends a step; a pipeline's schedule knows it.
    """
    deepspeed = engine.deepspeed
    # To DeepSpeed, Ulysses ranks are data-parallel ranks: each of them counts the sequence again.
    counted = batch_size * engine.groups.sequence_parallel.size
    if deepspeed.train_batch_size() != counted:
        deepspeed.set_train_batch_size(counted)
        if hasattr(deepspeed.optimizer, "gradient_accumulation_steps"):
            # ZeRO keeps a copy: with offloading it decides where a gradient's norm is taken.
            deepspeed.optimizer.gradient_accumulation_steps = deepspeed.gradient_accumulation_steps()
    return deepspeed.gradient_accumulation_steps()
