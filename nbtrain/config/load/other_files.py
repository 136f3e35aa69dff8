"""Recognize files that are passed as a run YAML but are something else, and say which command reads them."""

import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import data_home, display
from nbtrain.config.names.other_programs import is_accelerate, program_of_file
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.kubernetes_section import Workload

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".job")
"""File name extensions of shell scripts, including Slurm batch scripts."""
TEXTS = (
    ".txt",
    ".md",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".parq",
    ".pq",
    ".arrow",
    ".gz",
    ".zst",
    ".bz2",
    ".xz",
)
OTHER_ENDINGS = (*SCRIPTS, *TEXTS, ".json", ".jsonc")
# Top-level keys of a price table, which no run YAML has. planner/budget/cost.py reads the table.
PRICES = ("currency", "date", "source", "per_kwh", "per_device_hour")
MANIFEST = {"apiVersion", "kind"}
# Kinds of Kubernetes manifests that contain a training job. foreign/job_files/manifests.py reads them.
JOB_KINDS = get_args(Workload)
DEEPSPEED = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16"}


def refuse_script(path: Path) -> None:
    """Raise ConfigError if the file is a script or a program, before it is read as YAML."""
    if path.suffix in SCRIPTS:
        raise _other(path, "a shell script", _import(path))
    if path.suffix == ".py":
        raise _other(
            path,
            "a Python program",
            "Specify a run YAML, or import the shell script that starts the program.",
        )


def refuse_text(path: Path) -> None:
    """Raise ConfigError if the file is plain text, before it is read as YAML."""
    if path.suffix.lower() in TEXTS or (path.suffix == ".json" and begins_array(path)):
        raise _other(path, "a text file", for_text(path))


def holds_text_files(folder: Path) -> bool:
    """Return whether some of the first entries of a folder are text files, judged by their names."""
    with contextlib.suppress(OSError):
        return any(Path(entry).suffix.lower() in TEXTS for entry in islice(os.listdir(folder), 1000))
    return False


def for_text(path: Path) -> str:
    """Return a sentence with the command that creates a run YAML for a text file."""
    return f"Run `nbtrain new my-run --text {shlex.quote(display(path))}` to create a run YAML for it."


def begins_array(path: Path) -> bool:
    """Return whether the content of a file begins like a JSON array, as files of records do."""
    with path.open("rb") as stream:
        return stream.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def refuse_other(path: Path, value: Mapping[str, Any]) -> None:
    """Raise ConfigError if the top-level keys of a file belong to another kind of file."""
    keys = {str(key) for key in value}
    if is_price_table(keys) and not keys & {"extends", "model", "batch"}:
        place = display(data_home() / "prices.yaml")
        fix = f"Plans read prices from {place}. Run `nbtrain check {path.name}` to check the file."
        raise _other(path, "a price table", fix)
    if keys >= MANIFEST:
        kind = str(value["kind"])
        other = f"nbtrain only reads manifests of kind {', '.join(JOB_KINDS)}."
        fix = _import(path) if kind in JOB_KINDS else other
        raise _other(path, f"a Kubernetes manifest ({kind})", fix)
    onto = f"Run `nbtrain import {path.name} --onto gpt-125m -o run.yaml` to combine it with a run."
    if path.suffix in (".json", ".jsonc") and keys & DEEPSPEED:
        raise _other(path, "a DeepSpeed JSON", onto)
    if is_accelerate(value):
        raise _other(path, "an Accelerate configuration", onto)
    if not is_run(value) and (program := program_of_file(value)):
        raise _other(path, f"a configuration file for {program}", "nbtrain does not read it.")


def is_run(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a run YAML, judged by its top-level keys."""
    keys = {str(key) for key in value}
    return "extends" in keys or (("model" in keys or "batch" in keys) and keys <= {*RunConfig.model_fields})


def is_price_table(keys: Iterable[object]) -> bool:
    """Return whether these are the top-level keys of a price table."""
    return any(key in PRICES for key in keys)


def _import(path: Path) -> str:
    return (
        f"Run `nbtrain import {path.name} -o run.yaml` to create a run YAML from it, or "
        f"`nbtrain check {path.name}` to check it."
    )


def _other(path: Path, kind: str, fix: str) -> ConfigError:
    return ConfigError(f"{path.name}: is {kind}, not a run YAML. {fix}")
