"""The TensorBoard panel without a front end."""

from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.widgets import mime
from nbtrain.lab.widgets.tensorboard import TensorBoardPanel, how_to_start
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob


@pytest.fixture
def view(workspace: Path) -> RunView:
    job = FakeJob(RunDir.named("gpt-fake"), steps=10)
    job.one_step()
    job.finish("CANCELLED", "only a test")
    return RunView(job.run)


def test_a_run_of_another_root_is_named_by_its_folder(view: RunView, tmp_path: Path) -> None:
    """For a run in another output directory, the panel shows a command in which a path with a space and a
    quote is escaped for a shell.
    """
    panel = TensorBoardPanel(view)
    assert (panel.name, repr(panel)) == ("gpt-fake", "Start TensorBoard with:  nbtrain tensorboard gpt-fake")
    panel.close()
    every = TensorBoardPanel()
    assert (every.name, repr(every)) == ("", "Start TensorBoard with:  nbtrain tensorboard")
    every.close()
    elsewhere = FakeJob(RunDir(tmp_path / "a b's" / "gpt-fake"), steps=10)
    elsewhere.finish("CANCELLED", "only a test")
    path = str(elsewhere.run.path).replace("'", "'\"'\"'")
    assert how_to_start(RunView(elsewhere.run)) == f"Start TensorBoard with:  nbtrain tensorboard '{path}'"


@pytest.mark.slow
def test_static_picture_has_the_curves(view: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a live front end, the output is a PNG of the curves and a command, without a widget."""
    panel = TensorBoardPanel(view)
    bundle, _ = panel._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "data:image/png;base64,iVBOR" in bundle["text/html"]
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    assert mime.WIDGET_MIME in panel._repr_mimebundle_()[0]
    panel.close()
