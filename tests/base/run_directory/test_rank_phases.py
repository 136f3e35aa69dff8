"""The phase of a rank, in the same words for all views."""

import os
import time
from dataclasses import replace

import pytest

from nbtrain.base.run_directory.jobstate import CANCELLED, LOST, QUEUED, RESTARTING, RUNNING, STARTING
from nbtrain.base.run_directory.rank_phases import ACTIVITIES, OUTCOMES, RankPhase, phase_of_rank
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, ProcessIdentity


def beat(phase: str, attempt: int = 0, lives: bool = True) -> Heartbeat:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    process = process if lives else replace(process, start_ticks=1)
    return Heartbeat(0, attempt, process, time.time(), 5, phase, time.time())


@pytest.mark.parametrize(
    ("state", "report", "words"),
    [
        (QUEUED, None, "Pending"),
        (STARTING, None, "Starting"),
        (RUNNING, beat("evaluate"), "Running (validating)"),
        (RUNNING, beat("warp"), "Running (warp)"),
        (RUNNING, beat("train", lives=False), "Gone (training)"),
        (LOST, beat("save", lives=False), "Gone (saving)"),
        # A rank of the next attempt has not reported yet.
        (RESTARTING, beat("train", attempt=-1), "Pending"),
        (STARTING, beat("train", attempt=-1, lives=False), "Starting"),
        (CANCELLED, None, "Not started"),
        (LOST, None, "Gone"),
    ],
)
def test_phase_of_a_rank_without_an_exit_record(state, report, words):
    """A rank that has reported shows its activity, one that has not shows what its job waits for."""
    assert phase_of_rank(state, 0, report, None).words == words


def test_exit_record_decides_the_phase():
    """The outcome of a rank decides its phase, whatever its last heartbeat and the state of its job are."""
    record = ExitRecord(0, 0, 0.0, None, 9, "killed", 5, "killed by SIGKILL")
    found = {
        outcome: phase_of_rank(RUNNING, 0, beat("train"), replace(record, outcome=outcome)).words
        for outcome in (*OUTCOMES, "vanished")
    }
    assert found == {
        "finished": "Succeeded",
        "stopped": "Stopped (on request)",
        "rollback": "Stopped (to resume from a checkpoint)",
        "failed": "Error",
        "killed": "Error (killed by a signal)",
        "vanished": "Stopped (vanished)",
    }


def test_short_words_of_a_rank():
    """A cell of the strip shows the activity of a rank that runs, and the phase of any other."""
    assert RankPhase("Running", "saving").short == "saving"
    assert RankPhase("Gone", "saving").short == "Gone"
    assert all(words != phase for phase, words in ACTIVITIES.items())
