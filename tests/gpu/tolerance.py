"""Limits for the difference of a loss curve from fp32 on the CPU, in units of the roundoff u of its format.

u is 2 to the power of minus the significand's bits: 8 for bf16, 11 for fp16, 4 for FP8's e4m3. INT8 and INT4
with one scale per group have an error of at most half a step, which is 2 / 254 or 2 / 14 of the group's
largest number.

The first loss comes from a single forward pass. Rounding every weight and activation changes it by far less
than u, because the errors of many numbers average out (bf16 on a CPU: u / 100). Later losses also depend on
weights that were updated with rounded gradients. On a CPU, 30 steps of the step `parity` differed by 0.7 u in
the loss and 2.5 u in the gradient norm in bf16 with fp32 masters, and by 0.1 u and 0.6 u in autocast. A
learning rate that is 5 % wrong gives 16 u in bf16. The limits are u / 8, 4 u and 8 u, so that a wrong scale,
a missing gradient or a bad kernel is detected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

UNIT_ROUNDOFF = {
    "bf16": 2.0**-8,
    "autocast": 2.0**-8,
    "fp16": 2.0**-11,
    "fp8": 2.0**-4,
    "int8": 1 / 254,
    "int4": 1 / 14,
}


@dataclass(frozen=True)
class Allowed:
    """The largest differences that are allowed."""

    first_loss: float
    """Difference of the first step's loss, in nats."""
    loss: float
    """Difference of any step's loss, in nats."""
    norm: float
    """Relative difference of any step's gradient norm."""


def allowed(number_format: str) -> Allowed:
    """Return the limits for a run in this format, compared with a run in fp32."""
    if number_format == "fp32":
        # Another order of sums: a loss of 6 has steps of 5e-7, of which 30 steps may accumulate a hundred.
        return Allowed(5e-6, 5e-5, 5e-4)
    unit = UNIT_ROUNDOFF[number_format]
    # fp16 and bf16 have fp32 masters and an fp32 loss: no format is better than fp32's own limits.
    least = allowed("fp32")
    return Allowed(max(unit / 8, least.first_loss), max(4 * unit, least.loss), max(8 * unit, least.norm))


@dataclass(frozen=True)
class Difference:
    """The largest differences between two curves."""

    first_loss: float
    loss: float
    norm: float

    def exceeds(self, limit: Allowed) -> list[str]:
        """Return the differences that exceed the limits; NaN always does."""
        pairs = {name: (getattr(self, name), getattr(limit, name)) for name in ("first_loss", "loss", "norm")}
        return [
            f"{name} {found:.2g} > {most:.2g}" for name, (found, most) in pairs.items() if not found <= most
        ]


def difference(
    losses: Sequence[float],
    norms: Sequence[float],
    other_losses: Sequence[float],
    other_norms: Sequence[float],
) -> Difference:
    """Return the largest differences of two curves. Raises ValueError if they have
    different numbers of steps.
    """
    if not len(losses) == len(other_losses) == len(norms) == len(other_norms) or not losses:
        raise ValueError(f"{len(losses)} steps against {len(other_losses)}")
    apart = [abs(ours - theirs) for ours, theirs in zip(losses, other_losses)]
    norm = [abs(ours / theirs - 1) for ours, theirs in zip(norms, other_norms)]
    return Difference(apart[0], _largest(apart), _largest(norm))


def _largest(values: Sequence[float]) -> float:
    """Return the largest value, or NaN if any value is NaN, which max() could skip."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)
