"""One run goes through layouts of every kind, each loading what the one before has saved (reshaping.py)."""

import pytest

from tests.parity.reshaping import chained, reshape_cases, reshape_cases_bf16, turns

# Every second of a list, then the others backwards: neighbours differ in more than one kind.
CHAINS = {"fp32": turns(reshape_cases()), "bf16": turns(reshape_cases_bf16())}


@pytest.mark.slow
@pytest.mark.parametrize("precision", CHAINS)
def test_a_run_changes_its_layout_every_step(runner, precision):
    found = runner.run(chained(runner, CHAINS[precision], f"chain-{precision}"))
    assert found.tensors == 52 * (len(CHAINS[precision]) - 1)
