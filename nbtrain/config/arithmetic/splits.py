"""Megatron's rules for splits: which sequences of a dataset are for training, validation and test."""

import itertools
import re

from nbtrain.base.errors import ConfigError

SPLIT_NAMES = ("train", "valid", "test")


def split_bounds(split: str, rule: str, num_sequences: int) -> list[tuple[int, int]]:
    """Return the ranges [first, last) of sequences for train, valid and test.

    `split` holds relative sizes, e.g. "949,50,1"; missing sizes are 0. megatron-core rounds each cumulative
    bound. Megatron-DeepSpeed adds rounded sizes and subtracts the excess from every bound but the first,
    which can change the size of the test split by one document. Raises ConfigError for a split in another
    form.
    """
    weights = split_weights(split)
    total = sum(weights)
    if rule == "megatron-core":
        ends = [0.0, *itertools.accumulate(weight / total for weight in weights)]
        bounds = [round(end * float(num_sequences)) for end in ends]
    elif rule == "megatron-deepspeed":
        bounds = [
            0,
            *itertools.accumulate(round(weight / total * float(num_sequences)) for weight in weights),
        ]
        excess = bounds[-1] - num_sequences
        bounds = [0, *(bound - excess for bound in bounds[1:])]
    else:
        raise ConfigError(f"data.split_rule = {rule!r}: must be megatron-deepspeed or megatron-core.")
    # With a handful of documents, Megatron-DeepSpeed's subtraction goes below the previous bound.
    clipped = (min(max(bound, 0), num_sequences) for bound in bounds)
    return list(itertools.pairwise(itertools.accumulate(clipped, max)))


def split_weights(split: str) -> list[float]:
    """Return the three relative sizes in a split. Raises ConfigError if it has another form."""
    parts = [part.strip() for part in re.split(r"[,/]", split)]
    try:
        weights = [float(part) for part in parts]
    except ValueError:
        weights = []
    if not 1 <= len(weights) <= 3 or min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ConfigError(f'data.split = {split!r}: must be one to three relative sizes, e.g. "949,50,1".')
    return weights + [0.0] * (3 - len(weights))


def has_test_split(split: str) -> bool:
    """Return whether the test split gets any data. If not, the trainer runs no test.

    Raises ConfigError if the split has another form.
    """
    return split_weights(split)[SPLIT_NAMES.index("test")] > 0
