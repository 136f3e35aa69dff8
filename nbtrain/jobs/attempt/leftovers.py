"""Find and remove the leftovers of killed processes in a run directory.

These are temporary files, incomplete checkpoints and interrupted submissions. The functions are called only
under the run's lock, when no process of the run's jobs is alive. At that time, no file is still being
written, except those that any process may write (ANYONES).
"""

import shutil
import time
from pathlib import Path

from nbtrain.base.run_directory.checkpoint_files import MANIFEST, REJECTED, checkpoint_problem
from nbtrain.base.run_directory.rundir import RunDir

TEMPORARY = ".*.tmp"
# Files written by processes without the run's lock, such as those that pause a job or query its scheduler.
# Writing takes moments, and two machines' clocks differ by less than an hour, so older files are leftovers.
ANYONES = frozenset(
    {"pause.json", "ask.json", "devices.json", "given_up.json", "engine.json", "kubernetes.json"}
)
ANYONES_SECONDS = 3600.0


def temporaries(run: RunDir) -> list[Path]:
    """Return the temporary files of atomic writes that were not completed, except those in notebooks/."""
    found = list(run.path.glob(TEMPORARY))
    for folder in (run.jobs, run.model, run.tensorboard, run.profiling):
        found += folder.rglob(TEMPORARY) if folder.is_dir() else ()
    return sorted(path for path in found if not _may_be_written(path))


def _may_be_written(path: Path) -> bool:
    """Return whether a process without the run's lock may still be writing this temporary file."""
    # .<name>.<random part or pid>.tmp: base/files.py
    name = path.name[1:].rpartition(".")[0].rpartition(".")[0]
    try:
        return name in ANYONES and time.time() - path.stat().st_mtime < ANYONES_SECONDS
    except FileNotFoundError:
        # The writer has renamed the file meanwhile.
        return True


def torn_checkpoints(run: RunDir) -> list[Path]:
    """Return the folders of invalid checkpoints.

    Their manifest is unreadable, or files are missing or have the wrong size.
    """
    return [
        run.checkpoint(step) for step in run.checkpoint_steps() if checkpoint_problem(run.checkpoint(step))
    ]


def cut_off_submissions(run: RunDir) -> list[Path]:
    """Return the job folders without a job.json, whose submission was interrupted."""
    return [run.job(job_id).path for job_id in run.job_ids() if not run.job(job_id).job_json.exists()]


def sweep(run: RunDir, since: float | None, keep: Path | None = None) -> list[str]:
    """Remove temporary files and checkpoints that were being written when their ranks ended.

    Only checkpoints that were written at or after the time `since` are removed; None removes none. Older torn
    checkpoints stay as evidence. `keep` is a temporary file of the caller, which stays too. Returns the
    removed paths, relative to the run directory.
    """
    removed = [path for path in temporaries(run) if path != keep]
    if since is not None:
        for path in (run.checkpoint(step) for step in run.checkpoint_steps()):
            finished = (path / MANIFEST).exists() or (path / REJECTED).exists()
            if not finished and path.stat().st_mtime >= since:
                removed.append(path)
    for path in removed:
        remove(path)
    return [str(path.relative_to(run.path)) for path in removed]


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
