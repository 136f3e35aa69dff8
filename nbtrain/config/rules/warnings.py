"""Warnings about runs that may be launched but will disappoint: one function for each rule.

`nbtrain check` prints them, and a plan lists them among its warnings.
"""

import math
from collections.abc import Callable
from pathlib import Path

from nbtrain.config.rules.wording import Problems, found
from nbtrain.config.schema import RunConfig


def find_warnings(config: RunConfig) -> list[str]:
    """One or two sentences each; empty if there is nothing to warn about."""
    return [warning for rule in RULES for warning in rule(config)]


def hpz_stays_inside_a_machine(config: RunConfig) -> Problems:
    """ZeRO++'s second copy saves traffic between machines only if it is shared inside one."""
    parallel, size = config.parallel, config.zero_hpz_partition_size
    if not parallel.zero_hpz:
        return
    if size != config.ranks_per_node:
        yield (
            f"{config.where('parallel.zero_hpz_partition_size')}: parallel.zero_hpz_partition_size = {size}, "
            f"and a machine has {config.ranks_per_node} ranks: parameters are gathered "
            + (
                "across machines anyway."
                if size > config.ranks_per_node
                else "from fewer ranks than could share them."
            )
        )
    elif config.resources.nodes == 1:
        yield (
            f"{found(config, 'parallel.zero_hpz')}: on one machine the second copy takes memory and saves no "
            "traffic."
        )


def quantized_gradients_cross_machines(config: RunConfig) -> Problems:
    """DeepSpeed quantizes gradients only if there are machines to send them between."""
    if config.parallel.zero_quantized_gradients and config.resources.nodes == 1:
        yield (
            f"{found(config, 'parallel.zero_quantized_gradients')}: on one machine gradients are not "
            "quantized; DeepSpeed quantizes them between machines only."
        )


def best_is_looked_for_often(config: RunConfig) -> Problems:
    """The best checkpoint is one of those at a step with a validation."""
    checkpoint, evaluation = config.checkpoint, config.evaluation
    save, validate = checkpoint.save_interval_steps, evaluation.eval_interval_steps
    if checkpoint.keep_best and save % validate:
        both = math.lcm(save, validate)
        yield (
            f"{found(config, 'checkpoint.keep_best')}: a checkpoint and a validation fall on the same step "
            f"only every {both:,} steps, with save_interval_steps({save}) and "
            f"eval_interval_steps({validate}); make "
            "save_interval_steps a multiple of eval_interval_steps."
        )


def nvme_folder_is_here(config: RunConfig) -> Problems:
    """The folder may be on the machine that trains, not here; the launch there looks for it again."""
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(config.parallel, name)
        if offload.device == "nvme" and offload.nvme_path and not Path(offload.nvme_path).is_dir():
            yield (
                f"{found(config, f'parallel.{name}.nvme_path')}: no such folder on this machine. The run is "
                "not started unless the folder exists on the machine that trains."
            )


RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    hpz_stays_inside_a_machine,
    quantized_gradients_cross_machines,
    best_is_looked_for_often,
    nvme_folder_is_here,
)
