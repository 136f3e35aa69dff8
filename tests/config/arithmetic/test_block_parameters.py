"""The list of a block's parameters, for a block of the user's own; nbtrain's is compared with the model in
tests/model/test_kinds.py.
"""

import dataclasses

import pytest

from nbtrain.config.arithmetic.block_parameters import block_parameters
from nbtrain.config.arithmetic.parameters import count_layers, largest_of, tensors_of_a_layer
from nbtrain.config.load import load
from nbtrain.config.shape import OwnBlock

# Matrices of 200 and 80, a whole one of 10, and vectors of 20, 8 and 2.
OWN = OwnBlock(300, 20, 280, 10, 200, 10, 6)


def listed(own: OwnBlock, tensor: int) -> tuple[list[int], list[int]]:
    """Return the sizes of the matrices and of the other parameters."""
    shape = dataclasses.replace(load("gpt3-tiny").shape, own_block=own)
    held = block_parameters(shape, tensor)
    assert sum(one.total for one in held) == count_layers(shape, 1, False, False, tensor).total
    assert max(one.elements for one in held) <= largest_of(shape, tensor)
    matrices, others = (
        [one.elements for one in held if one.is_matrix == wanted for _ in range(one.copies)]
        for wanted in (True, False)
    )
    assert len(matrices) + len(others) == tensors_of_a_layer(shape)
    return matrices, others


@pytest.mark.parametrize(
    ("own", "tensor", "matrices", "others"),
    [
        (OWN, 1, [200, 80, 10], [10, 10, 10]),
        (OWN, 2, [100, 40, 10], [7, 7, 6]),
        (OwnBlock(600, 0, 600, 0, 200, 0, 3), 2, [100, 100, 100], []),
        (OwnBlock(1000, 7, 100, 0, 800, 4, 5), 1, [100], [800, 4, 52, 51]),
    ],
    ids=["whole", "cut", "matrices-only", "a-stack-of-matrices"],
)
def test_the_sums_and_the_largest_are_those_of_the_trial(own, tensor, matrices, others):
    assert listed(own, tensor) == (matrices, others)
