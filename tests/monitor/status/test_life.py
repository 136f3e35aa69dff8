"""A job's timeline: the supervisor's states, refined by the phases of rank 0."""

from typing import Any

from nbtrain.monitor.status.life import MOST_SPANS, elapsed_words, life, paused_seconds


def state(name: str, time: float) -> dict[str, Any]:
    return {"kind": "state", "state": name, "time": time}


def phase(name: str, end: float, seconds: float) -> dict[str, Any]:
    return {"kind": "phase", "phase": name, "time": end, "seconds": seconds}


EVENTS = [
    state("STARTING", 10),
    phase("start", 12, 2),
    phase("build", 14, 2),
    phase("load", 15, 1),
    state("RUNNING", 15),
    phase("evaluate", 40, 5),
    phase("save", 41, 1),
    state("RESTARTING", 60),
    {"kind": "state", "message": "asked to stop", "time": 61},
    state("SUSPENDED", 70),
]


def test_every_second_of_a_job_is_in_one_span():
    """Every second of a job belongs to exactly one span. A restart or a pause ends a phase, and time without
    a phase counts for the job's state.
    """
    found = life(EVENTS, 0.0, 100.0)
    assert found["spans"] == [
        ["waiting", 0.0, 10],
        ["starting", 10, 12],
        ["building", 12, 14],
        ["loading", 14, 15],
        ["training", 15, 35],
        ["validating", 35, 40],
        ["saving", 40, 41],
        ["training", 41, 60],
        ["restarting", 60, 70],
        ["paused", 70, 100.0],
    ]
    assert ["training", "training", "39 s, 39.0 %"] in found["totals"]
    assert [kind for kind, *_ in found["totals"]][:2] == ["waiting", "starting"]


def test_an_unfinished_phase_lasts_until_now():
    found = life(EVENTS[:5], 0.0, 50.0, ("save", 45.0))
    assert found["spans"][-2:] == [["training", 15, 45.0], ["saving", 45.0, 50.0]]
    # A job that waits has no ranks; the phase is of an earlier attempt.
    assert life(EVENTS, 0.0, 100.0, ("save", 45.0))["spans"][-1] == ["paused", 70, 100.0]


def test_a_long_life_has_few_spans():
    saves = [phase("save", float(at), 0.25) for at in range(10, 5000)]
    found = life([state("RUNNING", 5), *saves], 0.0, 5000.0)
    assert len(found["spans"]) <= MOST_SPANS
    assert ["saving", "saving", "20 min 48 s, 24.9 %"] in found["totals"]
    assert all(first[2] == second[1] for first, second in zip(found["spans"], found["spans"][1:]))


def test_a_pause_without_a_supervisor_lasts_until_the_job_is_resumed():
    """A paused job of a cluster is recorded as QUEUED when its supervisor leaves; it is paused until it is
    resumed, and then waits for its pods.
    """
    events = [
        *EVENTS,
        state("QUEUED", 71) | {"paused": True},
        state("QUEUED", 80),
        state("STARTING", 90),
    ]
    assert life(events, 0.0, 100.0)["spans"][-3:] == [
        *(["paused", 70, 80], ["waiting", 80, 90], ["starting", 90, 100.0])
    ]
    assert paused_seconds(events, 0.0, 100.0) == 10.0


def test_a_pause_is_named_in_the_elapsed_time():
    """The elapsed time states separately how long the job was paused."""
    assert paused_seconds(EVENTS, 0.0, 100.0) == 30.0
    assert elapsed_words(100.0, 30.0) == "1 min 40 s (30 s paused)"
    assert elapsed_words(100.0, 0.0) == "1 min 40 s"
