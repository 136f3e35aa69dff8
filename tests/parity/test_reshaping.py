"""A run continues in layouts of every kind, each of which loads the checkpoint that the previous one saved
(reshaping.py).
"""

import pytest

from tests.parity.reshaping import chained, reshape_cases, reshape_cases_muon, turns

# Every second layout of a list, then the others backwards: neighbors differ in more than one kind. The chain
# omits layouts of 8 ranks, whose three kinds of parallelism other layouts have, and one of the two layouts
# with context parallelism.
# `make parity` has every pair of all layouts, also in bf16, with Muon and for the model with every other
# field; tests/checkpoint/test_reshape.py has some pairs in bf16.
CHAINS = {
    "adamw": [case for case in turns(reshape_cases()) if case.ranks < 8 and (case.cp == 1 or case.tp > 1)],
    "muon": turns(reshape_cases_muon())[:3],
}
# Parameters of the model of cases.py.
TENSORS = 52


def test_the_chain_holds_every_kind_of_layout():
    """The chain has every kind of parallelism, every ZeRO stage and offloading."""
    cases = CHAINS["adamw"]
    for kind in ("dp", "tp", "pp", "us", "cp"):
        assert any(getattr(case, kind) > 1 for case in cases), kind
    assert {case.zero for case in cases} == {0, 1, 2, 3}
    assert any(case.sp for case in cases) and any(case.offload != "none" for case in cases)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_a_run_changes_its_layout_every_step(runner, kind):
    found = runner.run(chained(runner, CHAINS[kind], f"chain-{kind}"))
    assert found.tensors == TENSORS * (len(CHAINS[kind]) - 1)
