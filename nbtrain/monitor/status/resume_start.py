"""Predicts where a resume would start, for views that show this before a resume is submitted."""

import contextlib

from nbtrain.base.errors import NbtrainError
from nbtrain.base.run_directory.checkpoint_files import ResumeStart, read_checkpoints
from nbtrain.base.run_directory.rundir import RunDir


def resume_start(run: RunDir, on_nodes: bool = True) -> ResumeStart:
    """Return where a resume with the run's own settings would start (see SavedCheckpoints.resume_start)."""
    checkpoints = read_checkpoints(run)
    start = checkpoints.resume_start("full", on_nodes)
    if start.torn:
        # Imported here, because it loads pydantic, and few runs have torn checkpoints.
        from nbtrain.config.load.resolved_cache import kept_config

        # If the file is invalid, a resume reads it too and reports the error.
        with contextlib.suppress(NbtrainError):
            start = checkpoints.resume_start(kept_config(run.config_yaml).mode, on_nodes)
    return start


def only_measured(run: RunDir) -> bool:
    """Return whether the run has mode: perf, which measures speed and saves no checkpoint.

    Such a run can be resumed only with mode=perf.
    """
    from nbtrain.config.load.resolved_cache import kept_config

    with contextlib.suppress(NbtrainError):
        return kept_config(run.config_yaml).mode == "perf"
    return False


def measure_again(name: str) -> str:
    """Return a clause, for the end of a sentence, with the command that repeats a measurement."""
    return f"`nbtrain resume {name} mode=perf` measures again"


def resume_words(run: RunDir) -> str:
    """Return a clause, for the end of a sentence, that says how to continue or repeat a LOST run."""
    return measure_again(run.name) if only_measured(run) else f"`nbtrain resume {run.name}` continues the run"
