"""The order in which the server's threads answer requests, and the errors of actions that take longer."""

import asyncio
import json
import logging
import threading
from pathlib import Path

import pytest

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.server import requests
from nbtrain.lab.server.requests import ACTIONS, LIST, READERS, NbtrainHandler, act
from nbtrain.lab.server.runs import _look
from nbtrain.lab.server.views import changed, watched
from tests.lab.widgets.fake_run import FakeJob
from tests.waiting import wait_until

MOST_SECONDS = 60.0


def test_what_was_not_begun_waits_for_the_list(monkeypatch):
    """The list of runs is answered before waiting requests about single runs, even if it was requested
    last.
    """
    monkeypatch.setattr(requests, "MOST_WAIT_SECONDS", MOST_SECONDS)
    begun, go_on, order = threading.Event(), threading.Event(), []

    def read_list() -> None:
        begun.set()
        assert go_on.wait(MOST_SECONDS)
        order.append("list")

    listed = LIST.submit(requests._before_all, read_list)
    assert begun.wait(MOST_SECONDS)
    looks = [READERS.submit(requests._after_the_list, order.append, "run") for _ in range(3)]
    assert not order
    go_on.set()
    for one in (listed, *looks):
        one.result(MOST_SECONDS)
    assert order == ["list", "run", "run", "run"]


def test_after_a_start_what_comes_before_the_list_waits_for_it(monkeypatch):
    """After the server has started, other requests wait for the first list of runs: pages request the list
    last, and the first requests are slow because they import modules.
    """
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", MOST_SECONDS)
    monkeypatch.setattr(requests, "MOST_WAIT_SECONDS", MOST_SECONDS)
    monkeypatch.setattr(requests, "_list_was_asked", threading.Event())
    order: list[str] = []
    looks = [READERS.submit(requests._after_the_list, order.append, "run") for _ in range(3)]
    LIST.submit(requests._before_all, lambda: order.append("list")).result(MOST_SECONDS)
    for one in looks:
        one.result(MOST_SECONDS)
    assert order == ["list", "run", "run", "run"]


def test_without_a_list_only_the_first_looks_wait(monkeypatch):
    """If no page requests the list, only the first request waits, and only for a moment."""
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(requests, "_list_was_asked", threading.Event())
    assert READERS.submit(requests._after_the_list, len, "run").result(MOST_SECONDS) == 3
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 10 * MOST_SECONDS)
    assert READERS.submit(requests._after_the_list, len, "run").result(MOST_SECONDS) == 3


def test_a_list_that_hangs_or_fails_stops_nothing(monkeypatch):
    """If the list hangs, as on a slow disk, other requests wait only for a moment; if it fails, only its own
    request fails.
    """
    monkeypatch.setattr(requests, "MOST_WAIT_SECONDS", 0.01)
    go_on = threading.Event()
    listed = LIST.submit(requests._before_all, lambda: go_on.wait(MOST_SECONDS))
    assert READERS.submit(requests._after_the_list, len, "run").result(MOST_SECONDS) == 3
    go_on.set()
    assert listed.result(MOST_SECONDS)
    with pytest.raises(OSError, match="no disk"):
        LIST.submit(requests._before_all, _fails).result(MOST_SECONDS)
    monkeypatch.setattr(requests, "MOST_WAIT_SECONDS", MOST_SECONDS)
    assert requests._list_was_read.is_set()


def _fails() -> None:
    raise OSError("no disk")


def test_a_body_is_what_was_sent_without_nulls():
    """The parsed body contains every known key that was sent; keys whose value is null count as omitted."""
    handler = NbtrainHandler.__new__(NbtrainHandler)
    handler.initialize()
    handler.data_received(b'{"notes": "", "archived": false, ')
    handler.data_received(b'"labels": {"a": null}, "state": null}')
    found = handler.body(notes=str, archived=bool, labels=dict, state=str)
    assert found == {"notes": "", "archived": False, "labels": {"a": None}}


@pytest.mark.parametrize("what", ["stop", "pause"])
def test_an_action_that_fails_after_its_answer_is_in_the_descriptions_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The error of an action that the answer did not wait for is in the run's description and in the list,
    until the next action begins or the job's state has changed.
    """
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path))
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.01)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=4)
    job.one_step()
    answered = threading.Event()

    def fail() -> None:
        assert answered.wait(MOST_SECONDS)
        raise JobError("the job was asked 180 s ago and is still RUNNING")

    def shown() -> list[dict | None]:
        changed()
        listed = json.loads(watched(tmp_path).answer(None, ACTIONS.all_failed))
        return [json.loads(_look("gpt-fake")[1])["failed_action"], listed["failed_actions"].get("gpt-fake")]

    def begin() -> None:
        answered.clear()
        assert not asyncio.run(act(job.job, what, fail, logging.getLogger("test")))
        assert shown() == [None, None]
        answered.set()
        wait_until(lambda: shown()[0], "the error is not shown")

    begin()
    message = "the job was asked 180 s ago and is still RUNNING"
    assert [(one["action"], one["message"]) for one in shown()] == [(what, message)] * 2
    begin()
    job.finish("CANCELLED", "stopped on request")
    wait_until(lambda: shown() == [None, None], "the error is still shown")
