"""Patches that let the host run ahead of a GPU, so that DeepSpeed's optimizer step does not wait for the
device.

In every step, DeepSpeed's ZeRO 1 and 2 check on the host whether the norm of the gradients is finite, to skip
the step if it is not, and its BF16_Optimizer checks whether there is anything to clip. Both also replace a
norm that is NaN or Inf by -1, and torch reads this -1 from a tensor on the host. Each of these operations
waits for the whole backward pass, and then the device waits for the host to launch the rest.

StepGuard (stability.py) checks loss and norm anyway, from a copy and one step later. If its policy is to stop
or to roll back, DeepSpeed's checks have no effect, because the weights after a bad step are never saved. The
checks are kept for fp16, whose loss scale depends on them, for the policy `skip`, which must decide before
the weights change, and for ZeRO 3.

The arithmetic is bit for bit the same: gradients that need no clipping are multiplied by 1.
"""

from typing import Any
from unittest.mock import patch

import torch
from deepspeed.runtime import bf16_optimizer, utils
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero import stage_1_and_2
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from nbtrain.config.schema import RunConfig


def may_run_ahead(config: RunConfig) -> bool:
    """Return whether the next step may start before the result of the previous one is known."""
    policies = (config.stability.on_nan, config.stability.on_loss_spike)
    return config.precision.dtype != "fp16" and "skip" not in policies


def let_run_ahead(engine: Any) -> None:
    """Let an engine's optimizer step without waiting; affects only ZeRO 1 and 2 and BF16_Optimizer."""
    optimizer = engine.optimizer
    if not isinstance(optimizer, BF16_Optimizer | DeepSpeedZeroOptimizer):
        return
    if isinstance(optimizer, DeepSpeedZeroOptimizer):
        optimizer.check_grad_overflow = False
    step = optimizer.step

    def without_waiting(*arguments: Any, **named: Any) -> Any:
        with (
            patch.object(bf16_optimizer, "is_invalid_grad_norm", _unseen),
            patch.object(stage_1_and_2, "is_invalid_grad_norm", _unseen),
            patch.object(bf16_optimizer, "clip_tensors_by_global_norm", _clip),
            patch.object(stage_1_and_2, "mask_nan_or_inf_with_val_inplace", _mask),
            patch.object(utils, "mask_nan_or_inf_with_val_inplace", _mask),
        ):
            return step(*arguments, **named)

    optimizer.step = without_waiting


def _unseen(norm: torch.Tensor | float) -> bool:
    return False


def _mask(input: torch.Tensor, device: Any = None, val: float = -1.0) -> None:
    """Replace deepspeed.runtime.utils.mask_nan_or_inf_with_val_inplace, without waiting for the device.

    The result is the same, but `val` stays a number instead of becoming a tensor.
    """
    input.masked_fill_(input.isfinite().logical_not(), val)


def _clip(
    input_tensors: list[torch.Tensor],
    max_norm: float = 1.0,
    global_norm: torch.Tensor | None = None,
    mpu: Any = None,
    eps: float = 1e-6,
) -> torch.Tensor:
    """Replace deepspeed.runtime.utils.clip_tensors_by_global_norm: the same result, by a multiplication with
    1 if nothing is clipped.
    """
    assert global_norm is not None
    factor = (max_norm / (global_norm + eps)).clamp(max=1.0)
    for tensor in input_tensors:
        tensor.detach().mul_(factor)
    return global_norm
