"""A job's conditions and events, derived from the events that its processes wrote."""

from typing import Any

import pytest

from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.monitor.job.conditions import conditions, failure_reason, job_events


def state(time: float, name: str, cause: str | None = None, **more: Any) -> dict[str, Any]:
    more |= {"cause": cause} if cause else {}
    return {"time": time, "writer": "supervisor", "kind": "state", "state": name, "message": "", **more}


def restart(time: float, reason: str) -> dict[str, Any]:
    return {"time": time, "writer": "supervisor", "kind": "restart", "reason": reason, "message": "again"}


STORY = [
    state(10, "QUEUED"),
    state(12, "STARTING"),
    state(20, "RUNNING"),
    restart(30, "hang"),
    state(30, "RESTARTING", "no progress for 60 s: rank 1 stopped"),
    state(35, "STARTING"),
    state(40, "RUNNING"),
]


def test_each_state_is_a_condition_with_its_last_change() -> None:
    """Each state of a job becomes a condition with the time of its last change; a condition that is no longer
    true gives the next state as its reason.
    """
    found = conditions(STORY, 9.0, ("RUNNING", None, 50.0, None))
    assert [
        (condition.type, condition.status, condition.last_change, condition.reason) for condition in found
    ] == [
        ("Submitted", True, 9.0, "Submitted"),
        ("Queued", False, 12, "Starting"),
        ("Restarting", False, 35, "Starting"),
        ("Starting", False, 40, "Running"),
        ("Running", True, 40, "Rank0Trains"),
    ]
    assert found[2].message == "no progress for 60 s: rank 1 stopped"
    restarting = conditions(STORY[:5], 9.0, ("RESTARTING", "x", 31.0, None))[-1]
    assert (restarting.reason, restarting.status) == ("Hang", True)


def test_what_only_a_reader_knows_comes_last() -> None:
    """LOST and SUSPENDED, which no event records, become the last condition. The reason for a failure is the
    recorded exit code.
    """
    lost = conditions(STORY, 9.0, ("LOST", "its supervisor died", 99.0, None))
    assert [(condition.type, condition.status, condition.last_change) for condition in lost[-2:]] == [
        ("Running", False, 99.0),
        ("Lost", True, 99.0),
    ]
    assert (lost[-1].reason, lost[-1].message) == ("NoSignOfLife", "its supervisor died")
    held = conditions(STORY, 9.0, ("SUSPENDED", "Slurm job 7 is SUSPENDED", 99.0, None))[-1]
    assert (held.type, held.reason) == ("Suspended", "HeldByScheduler")
    paused = conditions([*STORY, state(60, "SUSPENDED", "paused")], 9.0, ("SUSPENDED", "paused", 61.0, None))
    assert (paused[-1].reason, paused[-1].last_change) == ("PausedOnRequest", 60)
    left = [*STORY, state(60, "SUSPENDED", "paused"), state(61, "QUEUED", "left") | {"paused": True}]
    assert conditions(left, 9.0, ("SUSPENDED", "paused", 99.0, None))[-1] == paused[-1]
    failed = conditions([*STORY, state(60, "FAILED", "boom")], 9.0, ("FAILED", "boom", 61.0, "ExitCode137"))
    assert (failed[-1].reason, failed[-1].message, failed[-1].last_change) == ("ExitCode137", "boom", 60)


@pytest.mark.parametrize(
    ("state", "cause", "codes", "reason"),
    [
        ("FAILED", "deadline: backend.deadline_seconds = 60 have passed; saved", [137], "DeadlineExceeded"),
        ("FAILED", "rank 1 failed", [None, 3, 4], "ExitCode3"),
        ("FAILED", None, [], None),
        ("CANCELLED", "deadline: no", [3], None),
    ],
)
def test_the_reason_of_a_failure(state, cause, codes, reason) -> None:
    """If a job exceeds its deadline, that is the reason for the failure, not the exit codes of the ranks that
    were stopped.
    """
    assert failure_reason(state, cause, codes) == reason


def test_events_have_type_reason_and_object() -> None:
    """Events have a type, a reason and an object, and the scheduler's message is kept unchanged."""
    events = [
        state(10, "RUNNING"),
        {"time": 11, "writer": "rank3", "kind": "alert", "message": "memory"},
        {"time": 12, "writer": "supervisor", "kind": "hang", "rank": 5, "message": "stood"},
        restart(13, "hang"),
        {
            "time": 14,
            "writer": "kubernetes",
            "kind": "engine",
            "type": "Warning",
            "reason": "FailedScheduling",
            "object": "pod/gpt-worker-0",
            "message": "0/4 nodes are available",
        },
    ]
    assert [(event.type, event.reason, event.object) for event in job_events(events)] == [
        ("Normal", "Running", "job"),
        ("Warning", "Alert", "rank 3"),
        ("Warning", "Hang", "rank 5"),
        ("Warning", "Restart", "job"),
        ("Warning", "FailedScheduling", "pod/gpt-worker-0"),
    ]


def test_a_clock_that_is_set_back_does_not_turn_events_around(tmp_path, monkeypatch) -> None:
    """The events of one process stay in order even if its clock is set back."""
    job = JobDir(RunDir(tmp_path), "20270101-000000-abcd")
    clock = iter([100.0, 200.0, 50.0, 60.0])
    monkeypatch.setattr("nbtrain.base.run_directory.events.time.time", lambda: next(clock))
    submit, supervisor = EventWriter(job, "submit"), EventWriter(job, "supervisor")
    submit.write("state", "first")
    for message in ("second", "third", "fourth"):
        supervisor.write("state", message)
    assert [event["message"] for event in read_events(job)] == ["first", "second", "third", "fourth"]
