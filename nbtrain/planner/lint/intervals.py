"""Intervals of saves and validations that a finding may propose: the run's other settings must allow them."""

import math

from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig

SAVE_INTERVAL = "checkpoint.save_interval_steps"


def saves_every(config: RunConfig, steps: int, at_least: bool = False) -> int | None:
    """Return the save interval nearest to `steps` that the rules allow and that ends before the run; None if
    there is none. With `at_least`, one that is not shorter comes first.

    keep_every_steps is a multiple of it. With keep_best it stays a multiple of the validation interval, if it
    is one now: only a checkpoint with a validation can be the best.
    """
    checkpoint, validate = config.checkpoint, config.evaluation.eval_interval_steps
    unit = validate if checkpoint.keep_best and checkpoint.save_interval_steps % validate == 0 else 1
    if checkpoint.keep_every_steps:
        found = [each for each in divisors(checkpoint.keep_every_steps) if each % unit == 0]
    else:
        found = [-(-steps // unit) * unit]
    found.sort(key=lambda each: (at_least and each < steps, abs(math.log(each / steps))))
    return next((each for each in found if each < config.train_steps and _is_legal(config, each)), None)


def _is_legal(config: RunConfig, steps: int) -> bool:
    return not find_problems(with_values(config, {SAVE_INTERVAL: steps}))


def validations_every(config: RunConfig, steps: int) -> int:
    """Return the validation interval from `steps` on that still divides the save interval if keep_best needs
    that; at most the save interval then.
    """
    checkpoint = config.checkpoint
    saves = checkpoint.save_interval_steps
    if not checkpoint.keep_best or saves % config.evaluation.eval_interval_steps:
        return steps
    return next((each for each in divisors(saves) if each >= steps), saves)


def rounded_up(number: int) -> int:
    """Round a number up to two significant digits."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // unit) * unit
