"""A job's environment: the variables of every rank, and environment.json, which describes the machine.

This module never imports torch: versions come from package metadata, and GPUs from the driver's tools. It
writes no secrets: only listed environment variables are recorded.
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
# Variables that are recorded, by name or prefix. Everything else in the environment may be a secret.
RECORDED_VARIABLES = (
    *(CUDA_DEVICES, "DS_ACCELERATOR", "LD_PRELOAD", "PYTHONPATH"),
    *("GLOO_SOCKET_IFNAME", "LANG", "LC_ALL"),
)
RECORDED_PREFIXES = ("OMP_", "KMP_", "MKL_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "CUBLAS_")
# Variables that a notebook kernel or a server sets for itself. Ranks do not need them, and some are secret.
DROPPED_PREFIXES = ("JPY_", "JUPYTER", "IPYTHON", "NBTRAIN_EXIT", "TORCHELASTIC_")
# Variables that a supervisor sets for itself and its ranks: the devices that it has from the queue
# (supervisor/queue_place.py).
HELD_GPUS = "NBTRAIN_GPUS"
HELD_CORES = "NBTRAIN_CORES"
DROPPED_VARIABLES = (
    "MPLBACKEND",
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("NBTRAIN_ATTEMPT", "NBTRAIN_RUN_DIR", JOB_MARKER, NODE_MARKER, HELD_GPUS, HELD_CORES),
)
# Variables, besides the recorded ones, that a job needs to be restarted from another shell.
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HF_HOME")
KEPT_PREFIXES = ("NBTRAIN_",)


def supervisor_environment() -> dict[str, str]:
    """Return the environment for a supervisor: the caller's environment with absolute paths.

    The paths are absolute because a supervisor does not run in the caller's working directory.
    """
    names = (name for name in os.environ if not name.startswith(DROPPED_PREFIXES))
    kept = {name: os.environ[name] for name in names if name not in DROPPED_VARIABLES}
    return kept | folder_variables() | {"NBTRAIN_QUEUE": str(queue_folder())}


def variables_to_keep() -> dict[str, str]:
    """Return the environment variables that a job needs if it is restarted from another shell."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if _is_kept(name) and name not in DROPPED_VARIABLES and not may_be_secret(name, value)
    }


def kept_variables(environment: dict[str, str], kept: dict[str, str]) -> dict[str, str]:
    """Return `environment` with the variables in `kept`, the earlier result of variables_to_keep().

    Variables of the same kinds that are not in `kept` are removed.
    """
    others = {name: value for name, value in environment.items() if not _is_kept(name)}
    return {**others, **kept}


def _is_kept(name: str) -> bool:
    return name in (*RECORDED_VARIABLES, *KEPT_VARIABLES) or name.startswith(
        (*RECORDED_PREFIXES, *KEPT_PREFIXES)
    )


def threads_per_rank(config: RunConfig, cores: int) -> int:
    """Return the number of threads per rank: the number of cores divided by the number of ranks, at least 1.

    If resources.cpus_per_node is smaller than `cores`, it is used instead.
    """
    return max(1, min(cores, config.resources.cpus_per_node or cores) // config.world_size)


def rank_variables(config: RunConfig, job: JobDir, attempt: int, cores: int) -> dict[str, str]:
    """Return the variables to add to every rank's environment, if all ranks run on this machine.

    backend.env overrides them, except the GPUs that the job has from the queue, which were chosen among those
    in backend.env.
    """
    held = os.environ.get(HELD_GPUS)
    return {
        "OMP_NUM_THREADS": str(threads_per_rank(config, cores)),
        # All ranks are on this machine. Without this, gloo would look up the host's name and might wait for
        # DNS.
        "GLOO_SOCKET_IFNAME": "lo",
        **common_variables(config, job, attempt),
        **({CUDA_DEVICES: held} if held else {}),
    }


def common_variables(config: RunConfig, job: JobDir, attempt: int) -> dict[str, str]:
    """Return the variables to add to a rank's environment that are the same on every machine."""
    variables = {
        JOB_MARKER: job.job_id,
        "NBTRAIN_ATTEMPT": str(attempt),
        "NBTRAIN_RUN_DIR": str(job.run.path),
        # Logs are read while the rank runs.
        "PYTHONUNBUFFERED": "1",
    }
    if config.resources.device == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
        # Threads that spin at a barrier delay the last thread: on 2 busy cores, steps took 4 times as long.
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    variables |= debug_variables(config.backend.debug)
    return {**variables, **environment_of_ranks(config)}


def environment_record(config: RunConfig, job: JobDir, machine: Machine, data: "RunData") -> dict[str, Any]:
    """Return the contents of environment.json.

    It contains everything on which the job's results depend, except the configuration.
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
    """Return the environment variables that affect how a rank computes.

    Variables that may contain a secret are omitted.
    """
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in RECORDED_VARIABLES or name.startswith(RECORDED_PREFIXES))
        and not may_be_secret(name, value)
    }


def hidden(name: str, value: str) -> str:
    """Return a variable's value without passwords in addresses; "(hidden)" if it may be a secret."""
    return "(hidden)" if may_be_secret(name, value) else text_without_secrets(value)


def package_version(name: str) -> str | None:
    """Return the installed version of a package, from its metadata; None if it is not installed.

    The package is not imported.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def source_commit() -> str | None:
    """Return the git commit of nbtrain's source; None for an installed wheel.

    If a file has been modified, the commit is followed by "+changes".
    """
    if not (PACKAGE.parent / ".git").exists():
        return None
    # One process returns both the commit and whether a file of the package differs from it.
    options = ("--porcelain=v2", "--branch", "--untracked-files=no")
    lines = (ask_git(PACKAGE, "status", *options, "--", ".") or "").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), None)
    if commit in (None, "(initial)"):
        return None
    return f"{commit}+changes" if any(not line.startswith("#") for line in lines) else commit
