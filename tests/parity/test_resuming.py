"""A run that was stopped, killed and killed while saving ends as one that was not, bit for bit (resuming.py)."""

import pytest
from resuming import Resumed, resume_cases_of_ci, resumed

CASES = {case.name: case for case in resume_cases_of_ci()}


@pytest.fixture(scope="module")
def found(runner):
    return dict(runner.finish((name, resumed(runner, case)) for name, case in CASES.items()))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_run_ends_as_a_straight_one(found, name):
    assert isinstance(found[name], Resumed), found[name]
    assert len(found[name].interruptions) == 3
