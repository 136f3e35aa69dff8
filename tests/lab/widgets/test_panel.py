"""The panel widget without a front end: its state, and when its thread ends."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtrain.base.errors import JobError, RecordError
from nbtrain.base.files import write_json
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.lab.widgets import mime, panel
from nbtrain.lab.widgets.panel import RunPanel, display_run, finish_pictures, mimebundle
from nbtrain.monitor.run import run_view
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob, measure
from tests.waiting import wait_until


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    monkeypatch.setattr(panel, "PUSH_SECONDS", 0.05)
    monkeypatch.setattr(run_view, "DESCRIPTION_AGE_SECONDS", 0.01)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=100)
    job.one_step()
    yield job
    # A panel's thread ends with its job: it must not read files while another test runs as another user.
    if job.record.state == "RUNNING":
        job.finish("CANCELLED", "the test is over")
    wait_until(lambda: not pushing(), "the thread has not ended")
    job.tensorboard.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate that JupyterLab, a live front end, displays the notebook."""
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    monkeypatch.setattr(panel, "is_watched", lambda: True)


def pushing() -> bool:
    """Return whether the thread of a panel is alive."""
    return any(thread.name == "nbtrain-panel-gpt-fake" for thread in threading.enumerate())


def test_snapshots_follow_the_job_and_the_thread_ends_with_it(job: FakeJob) -> None:
    """Without a server, the panel's snapshots follow the job. The last one shows its end, and then the thread
    ends.
    """
    shown = RunPanel(RunView(job.run))
    assert shown.snap["progress"]["step"] == 1
    job.one_step()
    wait_until(lambda: shown.snap["progress"]["step"] == 2, "no snapshot of step 2")
    job.finish("SUCCEEDED", "all tokens are done and saved")
    wait_until(lambda: not pushing(), "the thread has not ended")
    assert (shown.snap["state"], shown.snap["active"]) == ("SUCCEEDED", False)
    shown.close()


@pytest.mark.parametrize("error", [PermissionError, RecordError])
def test_a_run_that_may_not_be_read_for_a_moment(
    job: FakeJob, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """If a run cannot be read for a moment, the thread tries again at its next tick."""
    shown, failed, real = RunPanel(RunView(job.run)), [], panel.run_shown

    def fail_once(view: RunView) -> dict:
        if not failed:
            failed.append(view)
            raise error("Permission denied")
        return real(view)

    monkeypatch.setattr(panel, "run_shown", fail_once)
    wait_until(lambda: failed, "the run was not read")
    job.one_step()
    wait_until(lambda: shown.snap["progress"]["step"] == 2, "no snapshot of step 2")
    shown.close()


def test_closing_ends_the_thread_while_the_job_runs(job: FakeJob) -> None:
    """Closing a panel ends its thread even while the job is running."""
    shown = RunPanel(RunView(job.run))
    assert pushing()
    shown.close()
    wait_until(lambda: not pushing(), "the thread has not ended")


def test_a_served_panel_sends_nothing(job: FakeJob) -> None:
    """While the page gets its data from the server extension, the kernel sends nothing; the thread still ends
    with the job.
    """
    shown = RunPanel(RunView(job.run), served=True)
    before = shown.snap
    job.one_step()
    time.sleep(0.2)
    assert shown.snap is before
    job.finish("CANCELLED", "stopped on request after step 2")
    wait_until(lambda: not pushing(), "the thread has not ended")
    shown.close()


def test_stop_message_cancels_the_newest_job(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server extension, the message of the Stop button is passed to jobs.control, and its error
    is sent to the page.
    """
    from nbtrain.jobs.control import control

    stopped = []
    monkeypatch.setattr(control, "cancel", lambda of: stopped.append(of.job_id))
    shown = RunPanel(RunView(job.run))
    shown._handle_custom_msg({"kind": "stop"}, [])
    wait_until(lambda: stopped == [job.job.job_id], "the job is not stopped")
    shown._handle_custom_msg({"kind": "something else"}, [])
    assert stopped == [job.job.job_id]
    sent: list[dict] = []

    def refuse(of: JobDir) -> None:
        raise JobError("the job was asked to stop 180 s ago")

    monkeypatch.setattr(control, "cancel", refuse)
    monkeypatch.setattr(shown, "send", sent.append)
    shown._handle_custom_msg({"kind": "stop"}, [])
    wait_until(lambda: sent, "the error is not sent")
    assert sent == [{"kind": "job", "error": "stop: the job was asked to stop 180 s ago"}]
    shown.close()


def test_a_run_made_anew_under_its_name_is_left_alone(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a run was deleted and created again under its name, the panel of the old run neither shows nor stops
    it.
    """
    from nbtrain.jobs.control import control

    stopped, sent = [], []
    monkeypatch.setattr(control, "cancel", stopped.append)
    shown = RunPanel(RunView(job.run))
    monkeypatch.setattr(shown, "send", sent.append)
    before = shown.snap
    write_json(job.run.run_json, {**job.run.record(), "run_id": "another"})
    for kind in ("job", "stop"):
        shown._handle_custom_msg({"kind": kind}, [])
    words = "The run gpt-fake was deleted, and another run now has its name."
    assert [one.get("error") for one in sent] == [words, words] and stopped == []
    wait_until(lambda: not pushing(), "the thread has not ended")
    assert shown.snap["run_id"] == before["run_id"]
    shown.close()


def test_a_job_message_is_answered_with_its_pages(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the server extension, the kernel sends the page of a job, or the reason why it cannot."""
    measure(job)
    shown, sent = RunPanel(RunView(job.run)), []
    monkeypatch.setattr(shown, "send", sent.append)
    shown._handle_custom_msg({"kind": "job", "job": None}, [])
    shown._handle_custom_msg({"kind": "job", "job": "yesterday"}, [])
    shown.close()
    pages, wrong = sent
    assert (pages["kind"], pages["value"]["job_id"]) == ("job", job.job.job_id)
    assert pages["value"]["charts"][0]["title"] == "CPU"
    assert wrong["error"].endswith(f"has no job 'yesterday'. Its jobs: {job.job.job_id}.")


def test_bundle_is_a_picture_alone_where_nobody_watches(job: FakeJob, capsys: pytest.CaptureFixture) -> None:
    """In papermill and plain scripts, a panel is displayed as HTML and text, without a widget that would hide
    them.
    """
    bundle = mimebundle(RunView(job.run))
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    assert "RUNNING" in bundle["text/html"]
    display_run(RunView(job.run))
    assert "gpt-fake: RUNNING, step 1 / 100" in capsys.readouterr().out


def test_bundle_is_widget_and_picture_in_a_live_front_end(job: FakeJob, watched: None) -> None:
    """JupyterLab shows the widget; other viewers of the same notebook show the picture."""
    bundle = mimebundle(RunView(job.run))
    assert set(bundle) == {mime.WIDGET_MIME, "text/html", "text/plain"}
    assert bundle[mime.WIDGET_MIME]["model_id"]


class Handle:
    """A stand-in for the handle that IPython's display() returns, with which an output is updated."""

    def __init__(self):
        self.shown: list[dict] = []

    def update(self, data, raw):
        self.shown.append(data)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    import IPython.display

    made: list[Handle] = []
    monkeypatch.setattr(IPython.display, "display", lambda *_, **__: made.append(Handle()) or made[-1])
    return made


@pytest.mark.slow
def test_a_picture_of_an_earlier_cell_becomes_that_of_the_end(job: FakeJob, handles: list[Handle]) -> None:
    """In a notebook without a live front end, each output of a run is updated once, when the run has
    ended.
    """
    view = RunView(job.run)
    display_run(view)
    display_run(view)
    finish_before = [len(handle.shown) for handle in handles]
    job.finish("SUCCEEDED", "all done")
    finish_pictures(RunView(job.run))
    finish_pictures(RunView(job.run))
    display_run(RunView(job.run))
    finish_pictures(RunView(job.run))
    assert finish_before == [0, 0] and [len(handle.shown) for handle in handles] == [1, 1, 0]
    final = handles[0].shown[0]
    assert ">SUCCEEDED<" in final["text/html"]
    assert final["image/png"].startswith("iVBOR")


def test_the_output_of_a_panel_keeps_the_picture_of_the_end(
    job: FakeJob, watched: None, handles: list[Handle]
) -> None:
    """The output of a live panel contains the widget and a picture, which the panel's thread updates when the
    run has ended.
    """
    display_run(RunView(job.run))
    job.finish("SUCCEEDED", "all done")
    wait_until(lambda: handles[0].shown, "nothing is shown")
    (final,) = handles[0].shown
    assert "SUCCEEDED" in final["text/html"] and mime.WIDGET_MIME in final


def test_rescue_is_published_beside_the_widget(
    job: FakeJob, watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second output contains the run's name and id, so that the page can show the panel without a
    kernel.
    """
    import IPython.display

    published = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: published.append(data))
    display_run(RunView(job.run))
    widget, rescue = published
    assert mime.WIDGET_MIME in widget
    assert 'data-run="gpt-fake"' in rescue["text/html"]
    assert f'data-run-id="{job.run.record()["run_id"]}"' in rescue["text/html"]
    assert 'import(base + "nbtrain/static/panel.js")' in rescue["text/html"]
