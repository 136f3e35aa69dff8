"""A small set of cases that covers every two ways of sharding a run, because most faults need only two
choices, and every value of all choices. `make parity` compares every combination of them all.
"""

import itertools
import random
from functools import cache
from typing import Any

from tests.parity.cases import Case

Row = dict[str, Any]
Pair = frozenset[tuple[str, Any]]

# `tensor` is tp and sp.
CHOICES: dict[str, tuple[Any, ...]] = {
    "dp": (1, 2),
    "tensor": ((1, False), (2, False), (2, True)),
    "pp": (1, 2),
    "us": (1, 2),
    "zero": (0, 1, 2, 3),
    "precision": ("fp32", "bf16", "autocast"),
    "data": ("stream", "documents", "masked", "packed", "ramp"),
    "recompute": ("none", "selective", "full", "every2"),
    "offload": ("none", "optimizer", "both"),
    "model": ("gpt", "all"),
    "optimizer": ("adamw", "muon"),
}
# The choices of which every two occur in a case: what shards a run, and the stage of ZeRO with it and with
# each 16-bit format.
SHARDS = (("dp", 2), ("tensor", (2, True)), ("pp", 2), ("us", 2))
STAGES = tuple(("zero", stage) for stage in CHOICES["zero"])
FORMATS = (("precision", "bf16"), ("precision", "autocast"))
TRIES = 150


def case_of(row: Row) -> Case:
    """Return the case for a row of CHOICES. A missing choice gets the first value in its list."""
    whole = {key: choices[0] for key, choices in CHOICES.items()} | {"zero": 1} | row
    tp, sp = whole.pop("tensor")
    return Case(tp=tp, sp=sp, **whole)


def goes_together(row: Row) -> bool:
    """Return whether nbtrain accepts this combination of choices; test_parity.py compares the answer with
    config/rules/check.py.
    """
    case = case_of(row)
    return not (
        (case.zero == 0 and case.precision == "bf16")
        or (case.zero > 1 and case.pp > 1)
        or (case.offload != "none" and case.zero == 0)
        or (case.offload == "both" and case.zero != 3)
        or (case.offload != "none" and case.optimizer == "muon")
    )


def covered(row: Row) -> set[Pair]:
    """Return the pairs of choices in a row, and each choice alone."""
    singles = {frozenset({choice}) for choice in row.items()}
    return singles | {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


@cache
def all_pairs() -> frozenset[Pair]:
    """Return every pair of choices that occurs in some compatible row."""
    found = set()
    for (first, ones), (second, others) in itertools.combinations(CHOICES.items(), 2):
        for one, other in itertools.product(ones, others):
            row = {first: one, second: other}
            if _completed(row, random.Random(0), 20 * TRIES) is not None:
                found.add(frozenset(row.items()))
    return frozenset(found)


@cache
def wanted() -> frozenset[Pair]:
    """Return what the cases have to cover: those pairs of all_pairs(), and each value of every choice."""
    pairs = {
        *map(frozenset, itertools.combinations(SHARDS, 2)),
        *map(frozenset, itertools.product(SHARDS, STAGES)),
        *map(frozenset, itertools.product(FORMATS, STAGES)),
    }
    values = {frozenset({(key, value)}) for key, choices in CHOICES.items() for value in choices}
    return frozenset(pairs & all_pairs() | values)


@cache
def cover() -> tuple[Case, ...]:
    """Return a small set of cases that together cover wanted(); every call returns the same set."""
    generator, missing, rows = random.Random(11), set(wanted()), []
    while missing:
        seed = dict(min(missing, key=lambda pair: sorted(map(repr, pair))))
        candidates = [_completed(seed, generator) for _ in range(TRIES)]
        best = max(
            (row for row in candidates if row is not None),
            # Among rows with equally many new pairs, the one with the fewest ranks.
            key=lambda row: len(covered(row) & missing) - case_of(row).ranks / 2,
        )
        missing -= covered(best)
        rows.append(best)
    return tuple(case_of(row) for row in rows)


def _completed(part: Row, generator: random.Random, tries: int = TRIES) -> Row | None:
    """Return a random compatible row that contains these choices, or None if `tries` attempts find none."""
    for _ in range(tries):
        row = {key: generator.choice(choices) for key, choices in CHOICES.items()} | part
        if goes_together(row):
            return row
    return None
