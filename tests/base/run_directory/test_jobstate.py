"""The table of states: none is missing from a set or a table."""

from nbtrain.base.run_directory.jobstate import ACTIVE, FINAL, MEANING, RECORDED_ENDS, TONES


def test_every_state_is_active_or_final():
    """Every state of a job is described and is either active or final. Only a final state is reported."""
    assert MEANING.keys() == ACTIVE | FINAL and not ACTIVE & FINAL
    assert set(RECORDED_ENDS) < FINAL and TONES.keys() < MEANING.keys()
