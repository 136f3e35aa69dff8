"""A run continues in layouts of every kind, each of which loads the checkpoint that the previous one saved
(reshaping.py).
"""

import pytest

from tests.parity.reshaping import (
    chained,
    reshape_cases,
    reshape_cases_all,
    reshape_cases_bf16,
    reshape_cases_muon,
    turns,
)

# Every second layout of a list, then the others backwards: neighbors differ in more than one kind.
CHAINS = {"fp32": turns(reshape_cases()), "bf16": turns(reshape_cases_bf16()[::2])}
CHAINS["all"] = turns(reshape_cases_all())
CHAINS["muon"] = turns(reshape_cases_muon())
# Parameters of the model of cases.py, and of the one with every other field.
TENSORS = {"fp32": 52, "bf16": 52, "all": 43, "muon": 52}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_a_run_changes_its_layout_every_step(runner, kind):
    found = runner.run(chained(runner, CHAINS[kind], f"chain-{kind}"))
    assert found.tensors == TENSORS[kind] * (len(CHAINS[kind]) - 1)
