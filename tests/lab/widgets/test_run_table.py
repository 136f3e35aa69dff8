"""nb.runs() in a cell: the static picture, the live table, and its thread."""

import threading
from pathlib import Path
from typing import Any

import pytest

import nbtrain as nb
from nbtrain.api.shown_runs import ShownRuns
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.lab.widgets import run_table
from nbtrain.lab.widgets.run_table import MOST_STATIC_ROWS, RunTable, display_runs, runs_html
from nbtrain.monitor.runs.runs import RunList
from nbtrain.monitor.status.run_status import RunStatus
from tests.lab.widgets.fake_run import FakeJob
from tests.waiting import wait_until


def summary(name: str, **more: Any) -> RunStatus:
    return RunStatus(
        name, "FAILED", "rank 1 failed", 1, 0.0, step=5, progress=TrainingProgress(10, 10, loss=2.5), **more
    )


def test_the_picture_has_words_and_no_html_of_others() -> None:
    runs = [summary("gpt-a", labels={"team": "<b>nlp</b>"}, notes="<script>x</script>")]
    page = runs_html(runs)
    for words in ("gpt-a", "FAILED", "5 / 10", "2.5000", "1970-01-01 00:00", "team=&lt;b&gt;nlp&lt;/b&gt;"):
        assert words in page
    assert "&lt;script&gt;x&lt;/script&gt;. rank 1 failed" in page
    assert "<script" not in page and "<b>" not in page


def test_a_long_list_says_how_much_is_left_out() -> None:
    page = runs_html([summary(f"gpt-{number}") for number in range(MOST_STATIC_ROWS + 50)])
    assert "Runs (the first 200 of 250)" in page
    assert page.count("rank 1 failed") == MOST_STATIC_ROWS


def test_without_a_front_end_a_cell_has_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """With papermill, nb.runs() is displayed as a picture; it is still a list and prints as one."""
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    runs = ShownRuns([summary("gpt-a")])
    runs._ipython_display_()
    assert shown == [{"text/html": runs_html(runs), "text/plain": str(RunList(runs))}]
    assert (isinstance(runs, list), repr(runs), len(runs)) == (True, str(RunList(runs)), 1)


def test_a_live_table_has_new_runs_unless_some_were_asked_for(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live table adds new runs, unless certain runs were selected. Its thread runs between the messages
    "push" and "rest", and never after close().
    """
    monkeypatch.setattr(run_table, "PUSH_SECONDS", 0.02)
    FakeJob(RunDir(workspace / "output" / "gpt-fake"), steps=10).tensorboard.close()
    every, some = nb.runs(), nb.runs(name="fake")
    assert (every.everything, some.everything) == (True, False)
    table = RunTable(every, every.everything)
    assert (table.names, RunTable(some, some.everything).names) == ([], ["gpt-fake"])
    archived = nb.runs(archived=True)
    assert (archived.everything, archived.archived, every.archived) == (True, True, False)
    assert RunTable(archived, archived.everything, archived.archived).archived
    assert [row["name"] for row in table.rows] == ["gpt-fake"]
    renewed = threading.Event()
    table.observe(lambda change: len(change["new"]) == 2 and renewed.set(), names="rows")
    (workspace / "output" / "gpt-more").mkdir()
    (workspace / "output" / "gpt-more" / "run.json").write_text('{"schema_version": 1, "run_id": "ab"}')
    table._on_message(None, {"kind": "push"}, None)
    assert renewed.wait(600)
    thread = table._thread
    table._on_message(None, {"kind": "rest"}, None)
    assert thread is not None
    thread.join(600)
    assert not thread.is_alive()
    table.close()


def test_nothing_found_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no run matches the filter, a sentence says so, and not all runs are shown."""
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(run_table, "is_watched", lambda: True)
    display_runs([], everything=False)
    assert shown == [{"text/html": runs_html([]), "text/plain": str(RunList())}]


def test_the_page_is_told_why_a_job_cannot_be_stopped(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Stop button's message reaches jobs.control, and an error is sent back to the page."""
    from nbtrain.jobs.control import control

    fake = FakeJob(RunDir(workspace / "output" / "gpt-fake"), steps=10)
    fake.tensorboard.close()
    stopped: list[str] = []

    def refuse(job: JobDir) -> None:
        stopped.append(job.job_id)
        raise JobError("the job was asked to stop 180 s ago")

    monkeypatch.setattr(control, "cancel", refuse)
    table = RunTable(nb.runs(), True)
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(table, "send", sent.append)
    for name in ("no-such-run", "gpt-fake"):
        table._on_message(None, {"kind": "stop", "name": name}, None)
    wait_until(lambda: sent, "the error is not sent")
    assert sent == [{"kind": "stop", "name": "gpt-fake", "error": "the job was asked to stop 180 s ago"}]
    assert stopped == [fake.job.job_id]
    table.close()
