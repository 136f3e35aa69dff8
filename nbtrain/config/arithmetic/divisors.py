"""Divisors and multiples of whole numbers: all divisors, or those nearest to a value that does not fit."""

import math


def divisors(number: int) -> list[int]:
    """Return all divisors of a positive number, smallest first."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def nearest_divisors(value: int, whole: int) -> list[int]:
    """Return the next smaller and the next larger divisor of `whole` around `value`, if they exist."""
    below = [divisor for divisor in divisors(whole) if divisor < value]
    above = [divisor for divisor in divisors(whole) if divisor > value]
    return [*below[-1:], *above[:1]]


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the multiples of `unit` around `value`, except 0."""
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple]
