"""A run continues in layouts of every kind, each of which loads the checkpoint that the previous one saved
(reshaping.py).
"""

import pytest

from tests.parity.reshaping import chained, reshape_cases, reshape_cases_muon, turns

# Every second layout of a list, then the others backwards: neighbors differ in more than one kind.
# `make parity` has every pair of them, also in bf16, with Muon and for the model with every other field;
# tests/checkpoint/test_reshape.py has some pairs in bf16.
CHAINS = {"adamw": turns(reshape_cases()), "muon": turns(reshape_cases_muon())[:3]}
# Parameters of the model of cases.py.
TENSORS = 52


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_a_run_changes_its_layout_every_step(runner, kind):
    found = runner.run(chained(runner, CHAINS[kind], f"chain-{kind}"))
    assert found.tensors == TENSORS * (len(CHAINS[kind]) - 1)
