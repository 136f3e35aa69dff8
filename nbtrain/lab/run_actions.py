"""The actions possible on a run now, with button labels and confirmation questions, for views and server.

    run_shown(RunView)  ->  the JSON of its description with "actions": [{"key", "words", "title", "ask"?}]
                            and "off": {slot: {"key", "words", "title"}}

`key` is the name of the REST route, except for clone, which opens the form. `words` is the button's label and
`title` its tooltip. `ask` is the question that the page asks before the action.

On a run's page each button has a fixed place (SLOTS), so that a second click on the same place never does
something worse than the first. "off" has a disabled button for every place without a possible action; its
title says why.
"""

import math
import time
import weakref
from typing import Any

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.checkpoint_files import measured_save_seconds, newest_saved_step
from nbtrain.base.run_directory.jobstate import ACTIVE, NO_JOB, QUEUED, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load.resolved_cache import kept_config
from nbtrain.jobs.attempt.backend import capabilities_of_job
from nbtrain.jobs.attempt.phases import patience_seconds
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.status.resume_start import only_measured, resume_start
from nbtrain.monitor.status.steps_left import has_steps_left

SLOTS = {
    "save": ("save",),
    "pause": ("pause", "resume"),
    "clone": ("clone",),
    "delete": ("kill", "delete"),
    "stop": ("stop",),
}
"""Places of the buttons from left to right, with the actions that share a place. Stop is last."""


def run_shown(view: RunView) -> dict[str, Any]:
    """Return the JSON of a run's description, with the actions that its state allows and disabled buttons."""
    description, now = view.describe(), time.monotonic()
    key = (description.status.state, description.status.asked)
    at, kept, buttons = _kept.get(view, (-math.inf, None, {}))
    if kept != key or now - at > KEPT_SECONDS:
        possible = actions(view.run, *key)
        buttons = {"actions": possible, "off": off(view.run, possible, *key)}
        _kept[view] = (now, key, buttons)
    return {**description.to_dict(), **buttons}


# Maximum age of the cached buttons: their titles name checkpoints, and finding these reads the disk.
KEPT_SECONDS = 5.0
_kept: "weakref.WeakKeyDictionary[RunView, tuple[float, Any, dict[str, Any]]]" = weakref.WeakKeyDictionary()


def actions(run: RunDir, state: str, asked: str | None = None) -> list[dict[str, Any]]:
    """Return the actions on a run that are possible now, in the order of their places."""
    clone = _action("clone", "Clone", "Open the form with this run's settings under a new name.")
    if state not in ACTIVE:
        is_done = state == NO_JOB or (state == SUCCEEDED and not has_steps_left(run, state))
        resume = [] if is_done or only_measured(run) else [_resume(run)]
        return [*resume, clone, _delete(run)]
    if state == SUSPENDED:
        return [_unpause(run), clone, _stop(run)]
    if asked is not None:
        title = "End the job now. Everything trained since the newest checkpoint is lost."
        return [clone, _action("kill", "Kill", title, f"Kill {run.name} without waiting for its checkpoint?")]
    if state == QUEUED:
        waits = "Hold the job without devices until Resume puts it back into the queue."
        return [*_pause(run, waits), clone, _action("stop", "Stop", "Remove the job from the queue.")]
    return [*_save(run), *_pause(run), clone, _stop(run)]


def off(
    run: RunDir, possible: list[dict[str, Any]], state: str, asked: str | None = None
) -> dict[str, dict[str, str]]:
    """Return {slot: button} of the places that have no action in `possible`. The button's title says why."""
    active, there = state in ACTIVE, {action["key"] for action in possible}
    asked_words = {"stop": "The job is already stopping.", "pause": "The job is already pausing."}
    nothing = "No job was submitted." if state == NO_JOB else "The job has ended."
    ended = nothing if state == NO_JOB else _why_no_resume(run)
    buttons = {
        "save": _action("save", "Save", asked_words[asked] if asked and active else nothing),
        "pause": _action(*(("pause", "Pause") if active else ("resume", "Resume")), ended),
        "delete": _action("delete", "Delete", "Stop the job before you delete its run."),
        "stop": _action("stop", "Stop", asked_words[asked] if asked and active else nothing),
    }
    if active:
        buttons["pause"]["title"] = asked_words[asked] if asked else _why_no_pause(run)
    if active and not asked:
        buttons["save"]["title"] = _why_no_save(run, state)
    return {slot: button for slot, button in buttons.items() if not there.intersection(SLOTS[slot])}


def _action(key: str, words: str, title: str, ask: str = "") -> dict[str, Any]:
    return {"key": key, "words": words, "title": title} | ({"ask": ask} if ask else {})


def _why_no_pause(run: RunDir) -> str:
    mode = kept_config(run.config_yaml).mode
    if mode != "full":
        return f"With mode: {mode}, no checkpoint is saved, so the job could not continue after a pause."
    return "This job's backend cannot pause a job."


def _why_no_save(run: RunDir, state: str) -> str:
    if state == SUSPENDED:
        return "The job is paused and has already saved."
    if state == QUEUED:
        return "The job is waiting, and none of its ranks is running."
    mode = kept_config(run.config_yaml).mode
    if mode != "full":
        return f"With mode: {mode}, no checkpoint is saved."
    return "This job's backend cannot request a checkpoint."


def _why_no_resume(run: RunDir) -> str:
    if only_measured(run):
        return "The last job only measured speed (mode: perf) and left no checkpoint to continue from."
    return "The run has trained on all its tokens."


def _stop(run: RunDir) -> dict[str, Any]:
    config = kept_config(run.config_yaml)
    if config.mode != "full":
        return _action("stop", "Stop", f"End the job. With mode: {config.mode}, no checkpoint is saved.")
    patience = patience_seconds(config.backend.shutdown_timeout_seconds, measured_save_seconds(run))
    title = (
        "The ranks save a checkpoint at the next step and exit. Ranks that still run after "
        f"{patience:.0f} s and are no longer saving are killed. Resume continues from the newest "
        "checkpoint."
    )
    return _action("stop", "Stop", title)


def _save(run: RunDir) -> list[dict[str, Any]]:
    if not _can(run, "save"):
        return []
    return [_action("save", "Save", "Save a checkpoint at the next step; the job continues.")]


def _can(run: RunDir, what: str) -> bool:
    """Return whether the backend of the newest job has a capability, and the job's mode saves checkpoints."""
    job = run.newest_job()
    try:
        saves = job is not None and kept_config(run.config_yaml).mode == "full"
        return job is not None and saves and getattr(capabilities_of_job(job), what)
    except NbtrainError:
        return False


SAVES = "Save a checkpoint and free the devices; Resume continues this job."


def _pause(run: RunDir, title: str = SAVES) -> list[dict[str, Any]]:
    return [_action("pause", "Pause", title)] if _can(run, "pause") else []


def _resume(run: RunDir) -> dict[str, Any]:
    start = resume_start(run)
    title = "Submit a new job of this run. It starts at step 0, because no checkpoint was saved."
    if start.torn:
        title = f"Submit a new job. It will be refused: no checkpoint is complete ({start.torn_names})."
    elif start.step is not None:
        title = f"Submit a new job of this run, which continues from the checkpoint of step {start.step:,}."
    return _action("resume", "Resume", title)


def _unpause(run: RunDir) -> dict[str, Any]:
    start = resume_start(run)
    title = "Continue this job from its beginning."
    if start.torn:
        title = f"Continue this job, which will fail: no checkpoint is complete ({start.torn_names})."
    elif start.step is not None:
        title = f"Continue this job from the checkpoint of step {start.step:,}."
    return _action("resume", "Resume", title)


def _delete(run: RunDir) -> dict[str, Any]:
    saved = newest_saved_step(run)
    ask = f"Delete {run.name} with all its files and logs? This cannot be undone."
    if saved is not None:
        ask = (
            f"Delete {run.name} with all its files, checkpoints (the newest is from step {saved:,}) and logs?"
            " This cannot be undone."
        )
    return _action("delete", "Delete", "Delete the run with all its files, after a confirmation.", ask)
