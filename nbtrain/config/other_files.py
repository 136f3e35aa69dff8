"""Files that are given as a run YAML and are something else: what each is, and what reads it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import data_home, display

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
OTHER_ENDINGS = (*SCRIPTS, ".json", ".jsonc")
# Keys at the top that no run YAML has; all keys of a table of prices (planner/cost.py reads it).
PRICES = ("currency", "date", "source", "per_kwh", "per_device_hour")
MANIFEST = {"apiVersion", "kind"}
# Kinds of manifests that hold a training job (foreign/manifests.py reads them).
JOB_KINDS = ("DeepSpeedJob", "PyTorchJob", "MPIJob", "TrainJob")
DEEPSPEED = {"zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "fp16", "bf16"}


def refuse_script(path: Path) -> None:
    """Raises ConfigError for a shell script, before it is read as YAML."""
    if path.suffix in SCRIPTS:
        raise _other(path, "a shell script", _import(path))


def refuse_other(path: Path, value: Mapping[str, Any]) -> None:
    """Raises ConfigError if the top keys of a file are those of another kind of file."""
    keys = {str(key) for key in value}
    if is_price_table(keys):
        place = display(data_home() / "prices.yaml")
        fix = f"Plans read it at {place}; `nbtrain check {path.name}` checks it. Name a run here."
        raise _other(path, "a table of prices", fix)
    if keys >= MANIFEST:
        kind = str(value["kind"])
        other = f"Of manifests {', '.join(JOB_KINDS)} are read."
        fix = _import(path) if kind in JOB_KINDS else other
        raise _other(path, f"a manifest of Kubernetes ({kind})", fix)
    if path.suffix in (".json", ".jsonc") and keys & DEEPSPEED:
        fix = f"`nbtrain import {path.name} --onto gpt-125m -o run.yaml` puts it on a run."
        raise _other(path, "a DeepSpeed JSON", fix)


def is_price_table(keys: Iterable[object]) -> bool:
    """Whether these are the top keys of a table of prices."""
    return any(key in PRICES for key in keys)


def _import(path: Path) -> str:
    return f"`nbtrain import {path.name} -o run.yaml` makes a run YAML of it, and `nbtrain check` checks it."


def _other(path: Path, kind: str, fix: str) -> ConfigError:
    return ConfigError(f"{path.name}: is {kind}, no run YAML. {fix}")
