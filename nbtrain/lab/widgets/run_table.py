"""nb.runs() in a cell: a live table, whose script (lab/ui/runs/runs_widget.js) queries the server.

live front end        table + rescue   rows and actions by REST: works while a cell runs
no server extension   table            a thread fills the trait `rows` while the table is open
papermill, HTML       static picture   runs_html()
"""

import html
import json
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from nbtrain.base.errors import NbtrainError
from nbtrain.base.printing.notebook import is_watched
from nbtrain.base.printing.report import Table
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text.amounts import utc
from nbtrain.base.workspace import output_root
from nbtrain.lab.ui.script import script
from nbtrain.lab.widgets.mime import bundle
from nbtrain.monitor.runs.runs import RunList
from nbtrain.monitor.runs.watched_runs import WatchedRuns, root_id, row_of
from nbtrain.monitor.status.run_status import RunStatus

PUSH_SECONDS = 2.0
MOST_STATIC_ROWS = 200
HEADS = (
    "run",
    "state",
    "backend",
    "step",
    "loss",
    "validation",
    "submitted (UTC)",
    "tags",
    "notes and cause",
)

RESCUE = """<div class="nbtrain-rescue" data-runs="{table}" style="display:none">\
</div><script>
(() => {{
  const place = document.currentScript.previousElementSibling;
  const node = document.getElementById("jupyter-config-data");
  const base = node && JSON.parse(node.textContent).baseUrl;
  if (base) import(base + "nbtrain/static/runs.js").then((runs) => runs.rescueRuns(place), () => {{}});
}})();
</script>"""


class RunTable(anywidget.AnyWidget):
    """The list of runs. A thread fills `rows` between the script's messages "push" and "rest"."""

    _esm = script("runs/runs_widget")
    table_id = traitlets.Unicode().tag(sync=True)
    root_id = traitlets.Unicode().tag(sync=True)
    names: Any = traitlets.List().tag(sync=True)
    """Names of the runs to show, in this order. If empty, all runs in the output directory are shown,
    including new runs.
    """
    archived = traitlets.Bool(False).tag(sync=True)
    """Whether archived runs are shown too if `names` is empty."""
    rows: Any = traitlets.List().tag(sync=True)

    def __init__(self, runs: Sequence[RunStatus], everything: bool, archived: bool = False):
        self.root: Path = output_root()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        super().__init__(
            table_id=uuid.uuid4().hex,
            root_id=root_id(self.root),
            names=[] if everything else [run.name for run in runs],
            archived=archived,
            rows=[row_of(run) for run in runs],
        )
        self.on_msg(self._on_message)

    def close(self) -> None:
        """Remove the table and end its thread."""
        self._closed.set()
        super().close()

    def _push(self, closed: threading.Event) -> None:
        watched = WatchedRuns(self.root)
        # Only set the trait here: text printed by a thread would appear in whichever cell is running.
        while not closed.is_set():
            rows = json.loads(watched.answer(None))["runs"]
            if self.names:
                rows = [row for row in rows if row["name"] in self.names]
            if not closed.is_set() and rows != self.rows:
                self.rows = rows
            closed.wait(PUSH_SECONDS)

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        kind = content.get("kind")
        if kind == "push" and (self._thread is None or not self._thread.is_alive()):
            self._closed = threading.Event()
            self._thread = threading.Thread(
                target=self._push, args=[self._closed], name="nbtrain-runs", daemon=True
            )
            self._thread.start()
        elif kind == "rest":
            self._closed.set()
            self._thread = None
        elif kind == "stop":
            self._stop_newest_job(content.get("name"))

    def _stop_newest_job(self, name: Any) -> None:
        if name not in [row["name"] for row in self.rows]:
            return
        if (job := RunDir(self.root / name).newest_job()) is not None:
            # In a thread, because cancel() waits for the end of the job and the kernel must not wait.
            threading.Thread(target=self._stop, args=[job], daemon=True).start()

    def _stop(self, job: JobDir) -> None:
        from nbtrain.jobs.control.control import cancel

        try:
            cancel(job)
        except NbtrainError as error:
            self.send({"kind": "stop", "name": job.run.name, "error": str(error)})


def runs_html(runs: Sequence[RunStatus]) -> str:
    """Return the list as a static HTML table with escaped text."""
    if not runs:
        return f"<p>{html.escape(str(RunList(runs)))}</p>"
    rows = []
    for run in runs[:MOST_STATIC_ROWS]:
        words = row_of(run)["words"]
        submitted = utc(run.created_at, "%Y-%m-%d %H:%M")
        tags = ", ".join(f"{key}={value}" for key, value in run.labels.items())
        about = ". ".join(text.strip().rstrip(".") for text in (run.notes, run.cause or "") if text.strip())
        figures = (words["step"], words["loss"], words["validation_loss"])
        where = ", ".join(part for part in (run.backend, words["size"]) if part)
        rows.append((run.name, run.state, where, *figures, submitted, tags, about))
    more = len(runs) - MOST_STATIC_ROWS
    caption = f"Runs (the first {MOST_STATIC_ROWS:,} of {len(runs):,})" if more > 0 else ""
    return Table(HEADS, rows, caption).html()


def display_runs(runs: Sequence[RunStatus], everything: bool, archived: bool = False) -> None:
    """Show runs in the running cell: as the live table with its rescue, or as the static picture."""
    from IPython.display import display

    words = {"text/html": runs_html(runs), "text/plain": str(RunList(runs))}
    if not is_watched() or not (runs or everything):
        display(words, raw=True)
        return
    table = RunTable(runs, everything, archived)
    display(bundle(table, words["text/html"], words["text/plain"]), raw=True)
    kept = {"id": table.table_id} | {name: getattr(table, name) for name in ("root_id", "names", "archived")}
    rescue = RESCUE.format(table=html.escape(json.dumps(kept)))
    display({"text/html": rescue, "text/plain": ""}, raw=True)
