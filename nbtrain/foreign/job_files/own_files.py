"""Recognizes files that nbtrain itself wrote, manifests and batch scripts, and finds the run in them.

A file written by `nbtrain submit RUN --dry-run FILE` holds the entire run in a variable. A file that
`nbtrain submit` sends names the run directory, whose config.yaml holds the run.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import valid_name
from nbtrain.config.load import load_resolved
from nbtrain.config.load.one_line import RUN_YAML, from_one_line
from nbtrain.config.schema import RunConfig
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.syntax.located import Word
from nbtrain.foreign.syntax.yaml_tree import Tree

# Modules that nbtrain's own files start, each followed by the run directory.
MODULES = ("nbtrain.jobs.supervisor", "nbtrain.jobs.node")
RUN_LABEL = "nbtrain/run"


def own_directory(words: Sequence[Word]) -> Word | None:
    """Return the run directory that an nbtrain command names, or None for another command."""
    for at, word in enumerate(words):
        if word.text in MODULES:
            return next((later for later in words[at + 1 :] if not later.text.startswith("-")), None)
    return None


def own_manifest(tree: Tree, job: Job) -> bool:
    """Set the run that a manifest of nbtrain names. Return False for another manifest."""
    labels = tree.find("metadata.labels")
    name = labels.value.get(RUN_LABEL) if labels and isinstance(labels.value, dict) else None
    if name is None or labels is None:
        return False
    job.own_run = Word(str(name), tree.places[f"metadata.labels.{RUN_LABEL}"])
    return True


def run_of(job: Job) -> RunConfig:
    """Return the run that a file was written for.

    Raises ConfigError if the file does not contain the run and the run directory does not exist here.
    """
    assert job.own_run is not None
    if text := job.environment.get(RUN_YAML):
        return from_one_line(text.text, text.place)
    path, name = Path(job.own_run.text), PurePosixPath(job.own_run.text).name
    if path.is_absolute() and (path / "config.yaml").is_file():
        return load_resolved(path / "config.yaml")
    if valid_name(name) and (run := RunDir.named(name)).config_yaml.is_file():
        return load_resolved(run.config_yaml)
    raise ConfigError(
        f"{job.own_run.place}: nbtrain wrote this file for the run {name}. The run's settings are in the "
        f"config.yaml of its run directory, {job.own_run.text}, which does not exist here. Give that "
        "config.yaml, or a file written by `nbtrain submit RUN --dry-run FILE`, which contains the run."
    )
