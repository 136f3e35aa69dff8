"""Actions that a user can take on a run now, with the labels of their buttons, for views and server.

    run_shown(RunView)  ->  the snapshot with "actions": [{"key", "words", "title", "ask"?}]

key names the REST route, except clone, which opens the form. `ask` is the question that the page asks first.
"""

import math
import time
import weakref
from typing import Any

from nbtrain.base.checkpoint_files import measured_save_seconds, newest_saved_step
from nbtrain.base.errors import NbtrainError
from nbtrain.base.jobstate import ACTIVE
from nbtrain.base.rundir import RunDir
from nbtrain.config.kept import kept_config
from nbtrain.jobs.backends.base import capabilities_of_job
from nbtrain.jobs.supervisor.phases import patience_seconds
from nbtrain.monitor.run_view import RunView
from nbtrain.monitor.runs import NO_JOB


def run_shown(view: RunView) -> dict[str, Any]:
    """Return RunView.snapshot() and the actions that its state allows."""
    snapshot, now = view.snapshot(), time.monotonic()
    key = (snapshot["state"], snapshot["asked"])
    at, kept, found = _kept.get(view, (-math.inf, None, []))
    if kept != key or now - at > KEPT_SECONDS:
        found = actions(view.run, *key)
        _kept[view] = (now, key, found)
    return {**snapshot, "actions": found}


# Their titles name checkpoints, which are looked for on disk.
KEPT_SECONDS = 5.0
_kept: "weakref.WeakKeyDictionary[RunView, tuple[float, Any, list[dict[str, Any]]]]" = (
    weakref.WeakKeyDictionary()
)


def actions(run: RunDir, state: str, asked: str | None = None) -> list[dict[str, Any]]:
    """Return the actions on a run, in the order of their buttons."""
    clone = _action("clone", "Clone", "Open the form with this run's settings under a new name.")
    if state in ACTIVE:
        return [*_of_active(run, state, asked), clone]
    found = [] if state in ("SUCCEEDED", NO_JOB) else [_resume(run)]
    return [*found, clone, _delete(run)]


def _action(key: str, words: str, title: str, ask: str = "") -> dict[str, Any]:
    return {"key": key, "words": words, "title": title} | ({"ask": ask} if ask else {})


def _of_active(run: RunDir, state: str, asked: str | None) -> list[dict[str, Any]]:
    if state == "SUSPENDED":
        saved = newest_saved_step(run)
        start = "from its beginning" if saved is None else f"from the checkpoint of step {saved:,}"
        going_on = f"Go on with this job, {start}."
        return [_action("resume", "Resume", going_on), _stop(run)]
    if asked is None and state == "QUEUED":
        waits = "Stay without devices until Resume puts it back into the queue."
        return [_action("stop", "Stop", "Remove it from the queue."), *_pause(run, waits)]
    if asked is not None:
        title = "End the job now. What was trained since the newest checkpoint is lost."
        return [_action("kill", "Kill", title, f"Kill {run.name} without waiting for its checkpoint?")]
    return [_stop(run), *_pause(run)]


def _stop(run: RunDir) -> dict[str, Any]:
    config = kept_config(run.config_yaml)
    if config.mode != "full":
        return _action("stop", "Stop", f"End the job. mode: {config.mode} saves nothing.")
    patience = patience_seconds(config.backend.shutdown_timeout_seconds, measured_save_seconds(run))
    title = (
        "The ranks save a checkpoint at the next step and leave. Those that are left after "
        f"{patience:.0f} s, and do not save any more, are killed. Resume continues from the newest "
        "checkpoint."
    )
    return _action("stop", "Stop", title)


SAVES = "Save a checkpoint and free the devices; Resume continues this job."


def _pause(run: RunDir, title: str = SAVES) -> list[dict[str, Any]]:
    job = run.newest_job()
    try:
        if job is None or not capabilities_of_job(job).pause or kept_config(run.config_yaml).mode != "full":
            return []
    except NbtrainError:
        return []
    return [_action("pause", "Pause", title)]


def _resume(run: RunDir) -> dict[str, Any]:
    saved = newest_saved_step(run)
    start = (
        "at step 0: no checkpoint was saved" if saved is None else f"from the checkpoint of step {saved:,}"
    )
    return _action("resume", "Resume", f"Submit a new job of this run, which continues {start}.")


def _delete(run: RunDir) -> dict[str, Any]:
    saved = newest_saved_step(run)
    newest = "" if saved is None else f", its checkpoints (the newest is of step {saved:,})"
    ask = f"Delete {run.name} with all its files{newest} and logs? This cannot be undone."
    return _action("delete", "Delete", "Delete the run with all its files; asks first.", ask)
