"""Views of the runs that this server shows: one RunView each, so that each request reads only new data.

Files outside the output directory are not shown: a link to a path outside it is refused.
"""

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nbtrain.base.errors import ConfigError, JobError
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.workspace import display, output_root
from nbtrain.monitor.run.metrics_range import curve_view
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.runs.watched_runs import WatchedRuns
from nbtrain.monitor.status.status_records import why_no_run

if TYPE_CHECKING:
    from nbtrain.monitor.metrics.sparklines import Sparklines
    from nbtrain.monitor.runs.run_columns import RunColumns

# A view holds the thinned curves of one run, at most 2 MB.
MOST_VIEWS = 16
# Seconds of reading at a time, and so the maximum wait of another request for the same run.
CATCH_UP_SECONDS = 0.05
# Pause between two reads, in which other requests get their turn.
HAND_OVER_SECONDS = 0.05
# Subfolders of a job whose files the server reads.
FOLLOWED = ("logs", "heartbeat", "exit", "events", "nodes", "control", "resources")


class NoRun(JobError):
    """Raised for a run or job that does not exist."""


class NoSuchRun(NoRun):
    """Raised if the output directory has no folder with the run's name."""

    kind = "no_run"


class OutsideError(JobError):
    """Raised for a path that leads out of the output directory."""


def view_of(name: str) -> RunView:
    """Return the view of a run in the output directory. Raises NoRun, or OutsideError if the run is
    elsewhere.

    A run that was deleted and created again under the same name is a different run.
    """
    run = run_of(name)
    if run.newest_job() is None and (words := why_no_run(run)):
        raise NoRun(words)
    return _kept(str(run.path), run.run_id)


def run_of(name: str) -> RunDir:
    """Return a run whose folders are all inside the output directory. Raises NoRun or OutsideError."""
    try:
        run = RunDir.named(name)
    except ConfigError as error:
        raise NoRun(str(error)) from error
    if not run.exists():
        raise NoSuchRun(f"there is no run {name!r} under {display(output_root())}.")
    refuse_links(run)
    return run


def refuse_links(run: RunDir, job: JobDir | None = None) -> None:
    """Raise OutsideError if the run, or a link in it that readers follow, leads out of the output directory.

    The check covers the run's folder and the folders of the records, logs and event files of its newest job,
    or of `job`: all files that are shown.
    """
    confined(run.path)
    folders = [run.path, run.jobs, run.tensorboard]
    if job is None and (ids := run.job_ids()):
        job = run.job(ids[-1])
    if job is not None:
        folders += [job.path, *(job.path / name for name in FOLLOWED)]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                links = [entry.path for entry in entries if entry.is_symlink()]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in links:
            confined(Path(path))


def confined(path: Path) -> Path:
    """Return `path` if it points into the output directory. Raises OutsideError otherwise."""
    root = os.path.realpath(output_root())
    found = os.path.realpath(path)
    if found != root and not found.startswith(root + os.sep):
        raise OutsideError(
            f"{display(path)} leads out of the output root {display(output_root())}, and the server shows "
            "nothing outside it. Move the files there, or start the server with NBTRAIN_OUTPUT set to their "
            "folder."
        )
    return path


@functools.lru_cache(MOST_VIEWS)
def _kept(folder: str, run_id: str | None) -> RunView:
    return curve_view(RunDir(folder))


def catch_up(view: RunView) -> None:
    """Continue to read metrics files that were too long for one response, for a short time at once."""
    while view.reader.behind_bytes:
        with view.lock:
            view.reader.refresh(CATCH_UP_SECONDS)
        time.sleep(HAND_OVER_SECONDS)


@functools.lru_cache(1)
def watched(root: Path) -> WatchedRuns:
    """Return the object that lists the runs of an output directory. One object is kept for all requests."""
    return WatchedRuns(root)


@functools.lru_cache(1)
def columns(root: Path) -> "RunColumns":
    """Return the object that reads the values of added columns for the runs of an output directory."""
    # Imported here, because most lists have no such columns and a server should start without these modules.
    from nbtrain.monitor.runs.run_columns import RunColumns

    return RunColumns(root)


@functools.lru_cache(1)
def sparklines() -> "Sparklines":
    """Return the object that reads the small loss curves in the list of runs, and caches them."""
    from nbtrain.monitor.metrics.sparklines import Sparklines

    return Sparklines()


def changed() -> None:
    """Mark the list as out of date, because this server has changed a run."""
    watched(output_root()).expire()


def forget() -> None:
    """Discard all views, because a run was deleted."""
    _kept.cache_clear()
