"""The optimizer that DeepSpeed wraps: AdamW, or Muon with AdamW, in two groups chosen by canonical name.

    AdamW   decay         matrices and embeddings, which decay
            no_decay      biases and norms, which do not decay
    Muon    matrices      the matrices of the blocks, which decay
            others        everything else; of these, only embeddings and output layer decay (embedding_decay)

Every rank has both groups, because ZeRO runs one collective per group and does not accept an empty group. For
this reason Muon has no third group for embeddings, which a middle stage of a pipeline would not have.

torch's fused AdamW kernel runs on CPU and CUDA and needs no compiler; DeepSpeed's FusedAdam would be compiled
on first use.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from nbtrain.base.errors import ConfigError
from nbtrain.checkpoint.live.live_parts import base_optimizer, live_shape, live_tensors, misplaced
from nbtrain.config.schema import RunConfig
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.gpt_pipe import canonical_parameters
from nbtrain.model.names import DECAY, MATRICES, NO_DECAY, is_adapter, optimizer_group
from nbtrain.model.packing import matrices_of
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.parallel.tensor import partition_dim
from nbtrain.train.engine.engine import TrainEngine
from nbtrain.train.engine.muon import Muon, Shard

Named = Iterable[tuple[str, nn.Parameter]]
OTHERS = "others"


def parameter_groups(
    named_parameters: Named, weight_decay: float, muon: bool = False
) -> list[dict[str, Any]]:
    """Return the two parameter groups, each in the order of `named_parameters`, whose names are canonical.

    A run with adapters has a single group, because all adapters belong to the same one.
    """
    members: dict[str, list[nn.Parameter]] = {
        name: [] for name in ((MATRICES, OTHERS) if muon else (DECAY, NO_DECAY))
    }
    adapted = False
    for name, parameter in named_parameters:
        adapted = adapted or is_adapter(name)
        if parameter.requires_grad:
            group = optimizer_group(name, muon, len(live_shape(parameter)))
            members[group if group in members else OTHERS].append(parameter)
    if adapted:
        # Adapters are either all matrices or all vectors, so every rank has the same single group.
        members = {name: held for name, held in members.items() if held}
    return [{"name": name, "params": held, **_decay(name, weight_decay)} for name, held in members.items()]


def _decay(group: str, weight_decay: float) -> dict[str, float]:
    if group == OTHERS:
        return {"weight_decay": 0.0, "embedding_decay": weight_decay}
    return {"weight_decay": 0.0 if group == NO_DECAY else weight_decay}


def build_optimizer(named_parameters: Named, config: RunConfig) -> torch.optim.AdamW:
    """Build the optimizer for parameters given by canonical name.

    The trainer sets the learning rate and weight decay of each step.
    """
    settings = config.optimizer
    muon = settings.type == "Muon"
    groups = parameter_groups(named_parameters, settings.weight_decay, muon)
    betas, eps = (settings.adam_beta1, settings.adam_beta2), settings.adam_eps
    if not muon:
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
    groups[0] |= {
        "momentum": settings.muon_momentum,
        "nesterov": settings.muon_nesterov,
        "lr_factor": (settings.muon_lr or config.lr_schedule.lr) / config.lr_schedule.lr,
    }
    return Muon(
        groups,
        partial(matrices_of, GPTConfig.of(config)),
        settings.muon_num_ns_steps,
        settings.muon_scale_mode,
        settings.muon_extra_scale_factor,
        torch.bfloat16 if config.precision.dtype == "bf16" else torch.float32,
        betas=betas,
        eps=eps,
    )


def bind_optimizer(engine: Any, groups: ParallelGroups) -> None:
    """Tell Muon where DeepSpeed stores each parameter. All ranks call it together. Raises ConfigError if a
    parameter is not where DeepSpeed's records say.
    """
    optimizer = base_optimizer(engine)
    if not isinstance(optimizer, Muon):
        return
    parameters = dict(canonical_parameters(engine.module))
    kinds = {
        name: optimizer_group(name, muon=True, dimensions=len(live_shape(parameter)))
        for name, parameter in parameters.items()
    }
    shards = {
        name: Shard(live_shape(parameter), partition_dim(parameter))
        for name, parameter in parameters.items()
        if kinds[name] == MATRICES
    }
    decayed = frozenset(name for name, kind in kinds.items() if kind == DECAY)
    tensors = list(live_tensors(engine, parameters))
    if names := misplaced(tensors, parameters):
        raise ConfigError(
            f"optimizer.type = Muon: DeepSpeed's records of where it stores {', '.join(names[:3])} are "
            "wrong, so Muon would mix up matrices. Remove the settings in parallel.deepspeed_extra, or set "
            "optimizer.type: AdamW."
        )
    # Without ZeRO, every replica steps all of its parameters.
    without_zero, tensor = not engine.zero_optimization_stage(), groups.tensor_model_parallel
    stage = tensor if without_zero else groups.tensor_and_data_parallel
    optimizer.bind(tensors, shards, decayed, stage, tensor, at_once=without_zero)


def set_rates(optimizer: torch.optim.Optimizer, learning_rate: float, weight_decay: float) -> None:
    """Set the learning rate and weight decay of the next step; biases and norms do not decay."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_factor", 1.0)
        group |= _decay(group["name"], weight_decay)


def set_batch_size(engine: TrainEngine, batch_size: int) -> int:
    """Set the number of sequences of the next step, and return the number of micro batches of each rank.

    DeepSpeed averages over the micro batches, but finds the last one by counting all micro batches since the
    engine was built, modulo the number in a step. If that number changed, the weights would be updated in the
    middle of a step. The plain engine therefore marks the micro batch that ends a step; a pipeline's schedule
    knows its last micro batch.
    """
    deepspeed = engine.deepspeed
    # DeepSpeed treats ranks that share a sequence as data-parallel ranks, so it counts a sequence once for
    # each of them.
    counted = batch_size * engine.groups.sequence_parallel.size
    if deepspeed.train_batch_size() != counted:
        deepspeed.set_train_batch_size(counted)
        if hasattr(deepspeed.optimizer, "gradient_accumulation_steps"):
            # ZeRO keeps its own copy of the number, which decides with offloading when a gradient's norm is
            # computed.
            deepspeed.optimizer.gradient_accumulation_steps = deepspeed.gradient_accumulation_steps()
    return deepspeed.gradient_accumulation_steps()
