"""Fit of the plan's time constants to the training half of the published runs, and to no other run.

    python tests/benchmarks/plan_fit.py [--rounds 3]

The constants are the rates of a generation of devices and the properties of a program. Each in turn is moved
up and down, within bounds that its meaning and the vendors' data set, as long as the loss falls. The loss of
a case is the absolute logarithm of planned over published seconds, at most 0.6, plus 0.15 beyond 20 %, so
that one bad measurement has little influence. Prints each constant's current, rounded value and the result of
a search that starts there. Changes no file. Takes half a minute.
"""

import argparse
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.time import compute, rates
from nbtrain.planner.time.step import estimate_step
from tests.benchmarks.published import Published, load_cases

MOST_LOSS, MISS_FROM, MISS_LOSS = 0.6, 0.18, 0.15


@dataclass(frozen=True)
class Constant:
    """A constant of the planner, with its bounds and the functions that read and set it."""

    name: str
    low: float
    high: float
    get: Callable[[], float]
    set: Callable[[float], None]


def share(kind: str, field: str, low: float, high: float) -> Constant:
    """Return the constant for the fraction of the datasheet's rate that a generation of devices reaches."""

    def put(value: float) -> None:
        rates.SHARES[kind] = dataclasses.replace(rates.SHARES[kind], **{field: value})
        rates._rates_of_row.cache_clear()

    return Constant(f"{kind} {field}", low, high, lambda: getattr(rates.SHARES[kind], field), put)


def trait(engine: str, field: str, low: float, high: float) -> Constant:
    """Return the constant that describes a property of a program."""

    def put(value: float) -> None:
        ENGINES[engine] = dataclasses.replace(ENGINES[engine], **{field: value})

    return Constant(f"{engine} {field}", low, high, lambda: getattr(ENGINES[engine], field), put)


def kernel(name: str, low: float, high: float) -> Constant:
    """Return a constant of the attention kernel that writes its scores to memory."""
    put: Callable[[float], None] = lambda value: setattr(compute, name, value)  # noqa: E731
    return Constant(name, low, high, lambda: getattr(compute, name), put)


CONSTANTS = (
    share("V100", "matmul", 0.5, 0.8),
    share("A100", "matmul", 0.7, 0.87),
    share("Hopper", "matmul", 0.55, 0.8),
    share("Hopper", "low", 0.5, 0.71),
    share("Blackwell", "matmul", 0.55, 0.78),
    share("Blackwell", "low", 0.4, 0.76),
    share("Blackwell", "fp4", 0.4, 0.6),
    share("Blackwell Ultra", "low", 0.4, 0.76),
    kernel("ODD_HEAD_SLOWDOWN", 2, 8),
    kernel("SCORE_PRODUCTS_SHARE", 0.3, 0.7),
    trait("upstream", "traffic", 3, 25),
    trait("megatron-lm", "traffic", 2, 8),
    trait("megatron-core", "traffic", 2, 10),
    trait("megatron-core", "launch_seconds", 1e-3, 8e-3),
    trait("megatron-bridge", "traffic", 2, 8),
    trait("megatron-bridge", "hidden_pipeline", 0, 0.9),
    trait("megatron-deepspeed", "traffic", 3, 12),
    trait("megatron-deepspeed", "zero_share", 0.1, 0.6),
    trait("megatron-deepspeed", "hidden_pipeline", 0, 0.8),
    trait("transformers", "traffic", 4, 14),
    trait("transformers", "zero_share", 0.05, 0.6),
    trait("composer", "traffic", 3, 10),
    trait("torchtitan", "traffic", 4, 14),
    trait("torchtitan", "selective_share", 0.3, 0.8),
    trait("nanotron", "traffic", 4, 12),
    trait("nanotron", "zero_share", 0.1, 1),
    trait("nanotron", "hidden_data", 0, 0.8),
)


def loss(cases: list[Published]) -> float:
    """Return the sum of all cases' losses."""
    whole = 0.0
    for case in cases:
        step = estimate_step(case.setup)
        assert step is not None and case.step_seconds is not None
        off = abs(math.log(step.seconds / case.step_seconds))
        whole += min(off, MOST_LOSS) + (MISS_LOSS if off > MISS_FROM else 0)
    return whole


def fit(cases: list[Published], rounds: int) -> float:
    """Vary each constant in turn, and return the remaining loss."""
    best, factor = loss(cases), 1.15
    for _ in range(rounds):
        for constant in CONSTANTS:
            for move in (factor, 1 / factor):
                before = constant.get()
                constant.set(min(max(before * move, constant.low), constant.high))
                if (found := loss(cases)) < best - 1e-3:
                    best = found
                    break
                constant.set(before)
        factor = 1 + (factor - 1) * 0.7
    return best


def main() -> None:
    """Print the constants and the results of the search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    cases = [case for case in load_cases() if case.step_seconds and case.source.half == "train"]
    standing = [constant.get() for constant in CONSTANTS]
    first = loss(cases)
    last = fit(cases, rounds)
    print(f"{len(cases)} cases; loss {first:.2f} with the current constants, {last:.2f} after the search")
    for constant, value in zip(CONSTANTS, standing):
        bounds = f"{constant.low:g} to {constant.high:g}"
        print(f"{constant.name:40} {value:8.4g} {constant.get():8.4g}   ({bounds})")


if __name__ == "__main__":
    main()
