"""A job from submission to its end, with real processes: supervisor, torchrun, wrappers, and a fake rank.

torchrun takes a second to import, so each test follows one job through as much as it can show.
"""

import pytest

from nbtrain import files
from nbtrain.jobs import control
from nbtrain.rundir import read_events

pytestmark = pytest.mark.slow


def test_a_job_goes_to_its_end(fake, start, states_of):
    """Two ranks to SUCCEEDED: states in order with durations, logs by rank, summary, nothing left."""
    job = start(fake(ranks=2, steps=6))
    assert control.wait(job, 60) == ("SUCCEEDED", "all steps are trained and saved: 40 steps")
    assert states_of(job) == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
