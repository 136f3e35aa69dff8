"""TensorBoard inside a notebook: the live page of the server extension, filtered to one run.

Without the server extension, the widget shows how to start TensorBoard; without a front end, the output is a
Matplotlib picture of the curves.
"""

import base64
import html
import io
import shlex
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.workspace import output_root
from nbtrain.lab.widgets.mime import bundle, show
from nbtrain.monitor.run.run_view import RunView

HEIGHT_PIXELS = 720


class TensorBoardPanel(anywidget.AnyWidget):
    """TensorBoard of one run, or of all runs in the output directory. New points appear automatically."""

    _esm = Path(__file__).with_name("tensorboard.js").read_text(encoding="utf-8")
    name = traitlets.Unicode().tag(sync=True)
    run_id = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(HEIGHT_PIXELS).tag(sync=True)
    help = traitlets.Unicode().tag(sync=True)

    def __init__(self, view: RunView | None = None, **arguments: Any):
        self.view = view
        if view is not None:
            record = view.run.record() or {"run_id": ""}
            arguments |= {"name": view.name, "run_id": record["run_id"]}
        super().__init__(help=how_to_start(view), **arguments)

    def __repr__(self) -> str:
        return self.help

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, self.static_html(), self.help), {}

    def _ipython_display_(self) -> None:
        show(self._repr_mimebundle_()[0])

    def static_html(self) -> str:
        """Return the curves of the run as a picture, with the command that shows them live."""
        line = f"<p><code>{html.escape(self.help)}</code></p>"
        if self.view is None:
            return line
        from nbtrain.monitor.run.pictures import training_curves

        stream = io.BytesIO()
        training_curves(self.view).savefig(stream, format="png", dpi=80)
        data = base64.b64encode(stream.getvalue()).decode()
        title = f"Training curves of {html.escape(self.view.name)}"
        return f'<img alt="{title}" src="data:image/png;base64,{data}">{line}'


def how_to_start(view: RunView | None) -> str:
    """Return the command that shows the run in any browser."""
    if view is None:
        return "Start TensorBoard with:  nbtrain tensorboard"
    run = view.name if view.run.path.parent == output_root() else str(view.run.path)
    return f"Start TensorBoard with:  nbtrain tensorboard {shlex.quote(run)}"
