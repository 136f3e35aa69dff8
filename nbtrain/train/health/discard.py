"""Discards a bad step's gradients, in every kind of DeepSpeed engine."""

from typing import Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import INITIAL_MICRO_STEP_ID, DeepSpeedZeroOptimizer


def discard_gradients(engine: Any) -> None:
    """Discard the gradients accumulated for the coming step, as if the step had never begun.

    Weights, master weights, moments and the optimizer's step count do not change; DeepSpeed's counters are as
    after a step that DeepSpeed skips. For every optimizer that nbtrain builds, the effect is the same as that
    of an fp16 overflow in DeepSpeed, except that the loss scale does not change. All ranks call it instead of
    engine._take_model_step (deepspeed/runtime/engine.py; the branches on `overflow` in zero/stage_1_and_2.py,
    zero/stage3.py and bf16_optimizer.py, 0.19). Raises TypeError for an unknown optimizer.
    """
    optimizer = engine.optimizer
    if isinstance(optimizer, DeepSpeedZeroOptimizer_Stage3):
        optimizer._pre_step()
        optimizer._partition_all_parameters()
        optimizer._overflow_clean_up(optimizer.loss_scale)
        optimizer.inf_or_nan_tracker.zero_()
    elif isinstance(optimizer, DeepSpeedZeroOptimizer):
        _discard_stage_1_and_2(optimizer)
    elif isinstance(optimizer, BF16_Optimizer):
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
    elif isinstance(optimizer, torch.optim.Optimizer):
        engine.zero_grad()
    else:
        raise TypeError(f"discarding gradients is not supported for {type(optimizer).__name__}")
    engine._step_applied = False
    # Without this line, an earlier step's norm would be reported for this step.
    engine._global_grad_norm = None
    engine.losses = None
    engine.skipped_steps += 1
    engine.global_steps += 1
    engine.global_samples += engine.train_batch_size()


def gradient_norm(module: torch.nn.Module) -> torch.Tensor:
    """Return the norm over all gradients that this rank holds, a scalar on the device."""
    gradients = [parameter.grad for parameter in module.parameters()]
    return torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])


def _discard_stage_1_and_2(optimizer: DeepSpeedZeroOptimizer) -> None:
    optimizer.micro_step_id = INITIAL_MICRO_STEP_ID
    optimizer._wait_for_offload_copies()
    if optimizer.cpu_offload:
        optimizer._offload_accumulated_param_ids = set()
    optimizer.zero_grad(set_to_none=True)
    optimizer._release_preflattened_grad_buffers()
    if optimizer.cpu_offload:
        optimizer.reset_cpu_buffers()
    finish_own_skip(optimizer)


def finish_own_skip(optimizer: Any) -> None:
    """Clear the sums of gradients that DeepSpeed 0.19 keeps when it skips a step by itself.

    With 16-bit weights, fp32 accumulation and CPU offload, the sums would keep the NaN or Inf of the
    overflow, and every later step would overflow too.
    """
    if not isinstance(optimizer, DeepSpeedZeroOptimizer):
        return
    for sums in (optimizer.averaged_gradients, optimizer.all_grad_tensors):
        for group in sums:
            sums[group] = None
