"""A job's environment: a description of the machine, the variables of every rank, and environment.json.

This module never loads torch: versions come from package metadata, GPUs from the driver's tools. No secret is
written: only environment variables on a list are recorded.
"""

import contextlib
import importlib.metadata
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.git import ask_git
from nbtrain.base.hardware.nvml import CUDA_DEVICES
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, JobDir
from nbtrain.base.text.addresses import text_without_secrets
from nbtrain.base.version import PACKAGE, __version__
from nbtrain.base.workspace import folder_variables, queue_folder
from nbtrain.config.code_file import code_sha256
from nbtrain.config.load.attempt import environment_of_ranks
from nbtrain.config.rules.environment import may_be_secret
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.debug import debug_variables
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.machine.processes import JOB_MARKER, NODE_MARKER

if TYPE_CHECKING:
    from nbtrain.dataset.of_run import RunData

RECORDED_PACKAGES = (
    *("torch", "deepspeed", "numpy", "tokenizers", "fastokens"),
    *("pydantic", "tensorboard", "psutil"),
)
# Recorded by name or prefix; everything else in the environment may be a secret.
RECORDED_VARIABLES = (
    *(CUDA_DEVICES, "DS_ACCELERATOR", "LD_PRELOAD", "PYTHONPATH"),
    *("GLOO_SOCKET_IFNAME", "LANG", "LC_ALL"),
)
RECORDED_PREFIXES = ("OMP_", "KMP_", "MKL_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "CUBLAS_")
# Variables that a kernel or a server sets for itself; ranks do not need them, and some are secret.
DROPPED_PREFIXES = ("JPY_", "JUPYTER", "IPYTHON", "NBTRAIN_EXIT", "TORCHELASTIC_")
# Set by a supervisor for itself and its ranks: the devices from the queue (supervisor/queue_place.py).
HELD_GPUS = "NBTRAIN_GPUS"
HELD_CORES = "NBTRAIN_CORES"
DROPPED_VARIABLES = (
    "MPLBACKEND",
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("NBTRAIN_ATTEMPT", "NBTRAIN_RUN_DIR", JOB_MARKER, NODE_MARKER, HELD_GPUS, HELD_CORES),
)
# Besides the recorded variables, those that a job needs to be started again from another shell.
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME")
KEPT_PREFIXES = ("NBTRAIN_",)


def supervisor_environment() -> dict[str, str]:
    """Return the caller's environment with absolute paths, since a supervisor does not run in the caller's
    working directory.
    """
    names = (name for name in os.environ if not name.startswith(DROPPED_PREFIXES))
    kept = {name: os.environ[name] for name in names if name not in DROPPED_VARIABLES}
    return kept | folder_variables() | {"NBTRAIN_QUEUE": str(queue_folder())}


def variables_to_keep() -> dict[str, str]:
    """Return the environment variables that a job needs again when it is started from another shell."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _is_kept(name) and name not in DROPPED_VARIABLES and not may_be_secret(name, value)
    }


def kept_variables(environment: dict[str, str], kept: dict[str, str]) -> dict[str, str]:
    """Return `environment` with the variables that variables_to_keep() returned as `kept` restored."""
    others = {name: value for name, value in environment.items() if not _is_kept(name)}
    return {**others, **kept}


def _is_kept(name: str) -> bool:
    return name in (*RECORDED_VARIABLES, *KEPT_VARIABLES) or name.startswith(
        (*RECORDED_PREFIXES, *KEPT_PREFIXES)
    )


def threads_per_rank(config: RunConfig, cores: int) -> int:
    """Return the number of cores divided by ranks, at least 1. A smaller resources.cpus_per_node replaces the
    number of cores.
    """
    return max(1, min(cores, config.resources.cpus_per_node or cores) // config.world_size)


def rank_variables(config: RunConfig, job: JobDir, attempt: int, cores: int) -> dict[str, str]:
    """Return variables to add to the environment of every rank, if all run on this machine; `backend.env`
    overrides them.

    The GPUs that this job holds are chosen among those that backend.env names, and take precedence over it.
    """
    held = os.environ.get(HELD_GPUS)
    return {
        "OMP_NUM_THREADS": str(threads_per_rank(config, cores)),
        # All ranks are on this machine; otherwise gloo looks up the host's name, which may wait for DNS.
        "GLOO_SOCKET_IFNAME": "lo",
        **common_variables(config, job, attempt),
        **({CUDA_DEVICES: held} if held else {}),
    }


def common_variables(config: RunConfig, job: JobDir, attempt: int) -> dict[str, str]:
    """Return the added variables that are equal on every machine, except those in the attempt's record."""
    variables = {
        JOB_MARKER: job.job_id,
        "NBTRAIN_ATTEMPT": str(attempt),
        "NBTRAIN_RUN_DIR": str(job.run.path),
        # Logs are read while the rank runs.
        "PYTHONUNBUFFERED": "1",
    }
    if config.resources.device == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
        # Threads that spin at a barrier delay the last one: on 2 busy cores, steps took 4 times as long.
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    variables |= debug_variables(config.backend.debug)
    return {**variables, **environment_of_ranks(config)}


def environment_record(config: RunConfig, job: JobDir, machine: Machine, data: "RunData") -> dict[str, Any]:
    """Return the contents of environment.json: everything but the configuration that this job's results
    depend on.
    """
    cpu = {"name": machine.cpu, "cores": machine.cores}
    return {
        "schema_version": SCHEMA_VERSION,
        "nbtrain": {"version": __version__, "commit": source_commit()},
        "python": platform.python_version(),
        "executable": Path(sys.executable).name,
        "packages": {name: package_version(name) for name in RECORDED_PACKAGES},
        "host": machine.host,
        "kernel": platform.release(),
        "cpu": {**cpu, "threads_per_rank": threads_per_rank(config, machine.cores)},
        "memory_bytes": machine.memory_bytes,
        "memory_available_bytes": machine.memory_available_bytes,
        "gpus": [asdict(gpu) for gpu in machine.gpus],
        "dataset_sha256": data.dataset_sha256,
        "tokenizer_sha256": data.tokenizer_sha256,
        "code_sha256": code_sha256(config),
        "backend_env": {name: hidden(name, value) for name, value in config.backend.env.items()},
        "debug": config.backend.debug,
        "variables": recorded_variables({**os.environ, **rank_variables(config, job, 0, machine.cores)}),
    }


def recorded_variables(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that affect how a rank computes, by name, and never a variable that may contain a
    secret.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in RECORDED_VARIABLES or name.startswith(RECORDED_PREFIXES))
        and not may_be_secret(name, value)
    }


def hidden(name: str, value: str) -> str:
    """Return the value without passwords in addresses; return "(hidden)" if it may be a secret."""
    return "(hidden)" if may_be_secret(name, value) else text_without_secrets(value)


def package_version(name: str) -> str | None:
    """Return the installed version from the package's metadata, None if it is not installed. The package is
    not imported.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def source_commit() -> str | None:
    """Return the git commit of nbtrain's source, "+changes" if modified; None for an installed wheel."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    # One process answers both questions: the commit, and whether a file of the package differs from it.
    options = ("--porcelain=v2", "--branch", "--untracked-files=no")
    lines = (ask_git(PACKAGE, "status", *options, "--", ".") or "").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    if commit in (None, "(initial)"):
        return None
    return f"{commit}+changes" if any(not line.startswith("#") for line in lines) else commit
