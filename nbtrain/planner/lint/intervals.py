"""Save and validation intervals that a finding may propose, because the run's other settings allow them."""

import math

from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig

SAVE_INTERVAL = "checkpoint.save_interval_steps"


def saves_every(config: RunConfig, steps: int, at_least: bool = False) -> int | None:
    """Return the legal save interval nearest to `steps`; None if no interval is legal.

    The interval is shorter than the run. With `at_least`, an interval of at least `steps` is preferred to a
    shorter one.

    keep_every_steps must stay a multiple of the interval. With keep_best, if the run's interval is a multiple
    of the validation interval, the returned interval is too, because only a checkpoint with a validation can
    be the best.
    """
    checkpoint, validate = config.checkpoint, config.evaluation.eval_interval_steps
    unit = validate if checkpoint.keep_best and checkpoint.save_interval_steps % validate == 0 else 1
    if checkpoint.keep_every_steps:
        found = [interval for interval in divisors(checkpoint.keep_every_steps) if interval % unit == 0]
    else:
        found = [-(-steps // unit) * unit]
    found.sort(key=lambda interval: (at_least and interval < steps, abs(math.log(interval / steps))))
    before_end = (interval for interval in found if interval < config.train_steps)
    return next((interval for interval in before_end if _is_legal(config, interval)), None)


def _is_legal(config: RunConfig, steps: int) -> bool:
    return not find_problems(with_values(config, {SAVE_INTERVAL: steps}))


def validations_every(config: RunConfig, steps: int) -> int:
    """Return the shortest allowed validation interval of at least `steps`.

    If keep_best requires a validation at every save, the interval is a divisor of the save interval. The save
    interval itself is then returned if `steps` is longer.
    """
    checkpoint = config.checkpoint
    saves = checkpoint.save_interval_steps
    if not checkpoint.keep_best or saves % config.evaluation.eval_interval_steps:
        return steps
    return next((interval for interval in divisors(saves) if interval >= steps), saves)


def rounded_up(number: int) -> int:
    """Round a number up to two significant digits."""
    unit = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // unit) * unit
