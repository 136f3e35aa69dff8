"""The TensorBoard panel without a front end."""

from pathlib import Path

import pytest

from nbtrain.base.rundir import RunDir
from nbtrain.lab.widgets import mime
from nbtrain.lab.widgets.tensorboard import TensorBoardPanel
from nbtrain.monitor.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob


@pytest.fixture
def view(workspace: Path) -> RunView:
    job = FakeJob(RunDir.named("gpt-fake"), steps=10)
    job.one_step()
    job.finish("CANCELLED", "only a test")
    return RunView(job.run)


def test_filter_names_the_run_and_no_other(view: RunView) -> None:
    """TensorBoard's run names are paths below the output root; gpt-fake-2 must not match."""
    panel = TensorBoardPanel(view)
    assert panel.run_filter == "^gpt-fake/"
    panel.close()
    every = TensorBoardPanel()
    assert every.run_filter == ""
    every.close()


def test_plain_script_is_told_how_to_start_it(view: RunView) -> None:
    """The words are a command; a path with a blank and a quote is quoted for a shell."""
    panel = TensorBoardPanel(view)
    path = str(view.run.tensorboard).replace("'", "'\"'\"'")
    assert repr(panel) == f"Start TensorBoard with:  tensorboard --reload_interval 5 --logdir '{path}'"
    panel.close()


def test_static_picture_has_the_curves(view: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody watches: a PNG of the curves and the command, and no widget."""
    panel = TensorBoardPanel(view)
    bundle, _ = panel._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "data:image/png;base64,iVBOR" in bundle["text/html"]
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    assert mime.WIDGET_MIME in panel._repr_mimebundle_()[0]
    panel.close()
