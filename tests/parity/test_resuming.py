"""A run that was stopped, killed, and killed while saving equals an uninterrupted run (resuming.py)."""

import pytest

from tests.parity.resuming import resume_cases_of_ci, resumed

CASES = {case.name: case for case in resume_cases_of_ci()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_run_ends_as_a_straight_one(runner, name):
    assert len(runner.run(resumed(runner, CASES[name])).interruptions) == 3
