"""Live panel of a run: an anywidget whose script (lab/ui/) sends requests to the Jupyter server itself.

    live front end        widget + rescue   data by REST each second, Stop by REST: works while a cell runs
    no server extension   widget            a thread sets the trait `snap`; Stop by the kernel
    papermill, HTML       static picture    lab/widgets/static.py

The rescue is a second, invisible output: a script that watches the widget next to it. After a page reload
during a long cell, JupyterLab shows "Loading widget..." until the cell ends; after a kernel's end, "model not
found". The rescue then shows a panel that does not need a kernel. It runs only in trusted notebooks.
"""

import base64
import contextlib
import html
import threading
import uuid
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.run_directory.jobstate import ACTIVE, NO_JOB
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.lab.run_actions import run_shown
from nbtrain.lab.run_pages import run_pages
from nbtrain.lab.ui.script import panel_script
from nbtrain.lab.widgets.mime import bundle
from nbtrain.lab.widgets.static import run_html, run_text
from nbtrain.monitor.job.job_tables import job_tables
from nbtrain.monitor.run.run_view import RunView

PUSH_SECONDS = 1.0

# {run folder: display handles of static pictures that show the run while it is active}
_PICTURES: dict[Path, list[Any]] = {}

RESCUE = """<div class="nbtrain-rescue" data-run="{name}" data-run-id="{run_id}" style="display:none">\
</div><script>
(() => {{
  const place = document.currentScript.previousElementSibling;
  const node = document.getElementById("jupyter-config-data");
  const base = node && JSON.parse(node.textContent).baseUrl;
  if (base) import(base + "nbtrain/static/panel.js").then((panel) => panel.rescue(place), () => {{}});
}})();
</script>"""


class RunPanel(anywidget.AnyWidget):
    """The panel of one run. Its thread ends with the job or the widget, whichever comes first."""

    _esm = panel_script()
    name = traitlets.Unicode().tag(sync=True)
    run_id = traitlets.Unicode().tag(sync=True)
    snap = traitlets.Dict().tag(sync=True)
    """JSON from run_shown(). Sent when the panel is created, then only while the server extension does not
    respond.
    """
    served = traitlets.Bool(False).tag(sync=True)
    """Whether the server extension responds, so that the kernel sends no data. Set by the script."""

    def __init__(self, view: RunView, **arguments: Any):
        self.view = view
        snapshot = run_shown(view)
        self.handle: Any = None
        """Display handle of the output that shows the panel."""
        super().__init__(name=view.name, run_id=snapshot["run_id"] or "", snap=snapshot, **arguments)
        self._closed = threading.Event()
        self.on_msg(self._on_message)
        self._thread = threading.Thread(target=self._push, name=f"nbtrain-panel-{view.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the panel and end its thread."""
        self._closed.set()
        super().close()

    def _push(self) -> None:
        self._follow()
        if self.handle is None or self._closed.is_set() or self._replaced():
            return
        if self.view.state not in ACTIVE:
            # The saved output then shows the final picture to readers without the kernel.
            self.handle.update({**self._repr_mimebundle_()[0], **_picture(self.view)}, raw=True)

    def _replaced(self) -> bool:
        """Return whether this panel's run was deleted and another run now has its name."""
        there = self.view.run.run_id
        return bool(self.run_id and there and there != self.run_id)

    def _follow(self) -> None:
        """Update the panel until the job has ended, the run was replaced, or the panel is closed."""
        while not self._closed.wait(PUSH_SECONDS):
            # A folder that cannot be read for a moment, e.g. during a remount, is tried again at the next
            # tick.
            with contextlib.suppress(NbtrainError, OSError):
                if self._has_ended():
                    return

    def _has_ended(self) -> bool:
        """Read the run once and update the panel. Return whether the updates are to end.

        They end when the job has ended, the run was replaced, or the panel was closed.
        """
        from nbtrain.lab.engine_watch import look_after

        if self.served:
            return self.view.state not in ACTIVE
        if (job := self.view.job) is not None:
            look_after(job)
        snapshot = run_shown(self.view)
        if self._closed.is_set() or self._replaced():
            return True
        # Only set the trait here: text printed by a thread would appear in whichever cell is running.
        self.snap = snapshot
        return not snapshot["active"] and snapshot["state"] != NO_JOB

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if self._replaced():
            text = f"The run {self.view.name} was deleted, and another run now has its name."
            self.send({"kind": "job", "error": text})
        elif content.get("kind") == "job":
            try:
                self.send({"kind": "job", "value": job_tables(self.view.run, content.get("job"))})
            except NbtrainError as error:
                self.send({"kind": "job", "error": str(error)})
        elif content.get("kind") == "stop" and (job := self.view.job) is not None:
            # In a thread, because cancel() waits for the end of the job and the kernel must not wait.
            threading.Thread(target=self._stop, args=[job], daemon=True).start()

    def _stop(self, job: JobDir) -> None:
        from nbtrain.jobs.control.control import cancel

        try:
            cancel(job)
        except NbtrainError as error:
            # The page shows it like any other error.
            self.send({"kind": "job", "error": f"stop: {error}"})

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle(self, report_html(self.view), run_text(self.view.describe().status)), {}


def finish_pictures(view: RunView) -> None:
    """Replace pictures that this kernel's cells showed while the run was active with its final picture."""
    if handles := _PICTURES.pop(view.run.path, []):
        picture = _picture(view)
        for handle in handles:
            handle.update(picture, raw=True)


def mimebundle(view: RunView) -> dict[str, Any]:
    """Return a run's output as a MIME bundle: panel and picture; without a front end, the picture only."""
    if is_watched():
        return RunPanel(view)._repr_mimebundle_()[0]
    return _picture(view)


def _picture(view: RunView) -> dict[str, Any]:
    """Return the static picture. For GitHub, which shows neither SVG nor styles, it includes the loss as
    PNG.
    """
    bundle = {"text/html": report_html(view), "text/plain": run_text(view.describe().status)}
    if "loss" in view.scalar_names():
        from nbtrain.monitor.run.pictures import loss_png

        bundle["image/png"] = base64.b64encode(loss_png(view)).decode()
    return bundle


def report_html(view: RunView) -> str:
    """Return the static picture of a run, with every tab of the panel."""
    return run_html(view.describe(), _kept(view), run_pages(view))


def _kept(view: RunView) -> dict[str, Any] | None:
    """Return the job page of the newest job; None without a job, or if its submission was interrupted."""
    try:
        return job_tables(view.run)
    except NbtrainError:
        return None


def display_run(view: RunView) -> None:
    """Show a run in the running cell: as the live panel with its rescue, or as the static picture.

    The picture is updated when the run ends, because a saved or exported notebook would otherwise say
    STARTING indefinitely.
    """
    from IPython.display import display

    watched = is_watched()
    panel = RunPanel(view) if watched else None
    bundle = panel._repr_mimebundle_()[0] if panel is not None else mimebundle(view)
    handle = display(bundle, raw=True, display_id=f"nbtrain-{uuid.uuid4()}")
    if panel is not None:
        panel.handle = handle
    elif handle is not None and view.state in ACTIVE:
        _PICTURES.setdefault(view.run.path, []).append(handle)
    if watched:
        run_id = view.run.run_id or ""
        script = RESCUE.format(name=html.escape(view.name), run_id=html.escape(run_id))
        display({"text/html": script, "text/plain": ""}, raw=True)
