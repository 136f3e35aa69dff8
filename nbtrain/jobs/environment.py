"""What a job runs in: the machine as it is found, the variables of every rank, and environment.json.

Nothing here loads torch: versions come from package metadata, GPUs from the driver's own tools.
No secret is written down: of the environment only variables on a list are recorded.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

import nbtrain
from nbtrain.addresses import text_without_secrets
from nbtrain.config.schema import RunConfig
from nbtrain.data.dataset_files import DatasetFiles
from nbtrain.data.tokenizer import read_manifest
from nbtrain.errors import DataError
from nbtrain.jobs.processes import JOB_MARKER
from nbtrain.rundir import SCHEMA_VERSION, JobDir
from nbtrain.workspace import data_home, output_root, tokenizer_dir, workspace

RECORDED_PACKAGES = (
    "torch",
    "deepspeed",
    "numpy",
    "tokenizers",
    "fastokens",
    "pydantic",
    "tensorboard",
    "psutil",
)
# Recorded by name or prefix; everything else in the environment may be a secret.
RECORDED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "DS_ACCELERATOR",
    "LD_PRELOAD",
    "PYTHONPATH",
    "GLOO_SOCKET_IFNAME",
    "LANG",
    "LC_ALL",
)
RECORDED_PREFIXES = ("OMP_", "KMP_", "MKL_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "CUBLAS_")
SECRET_WORDS = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|AUTH", re.IGNORECASE)
# What a kernel or a server carries for itself; a rank has no use for it, and some of it is secret.
DROPPED_PREFIXES = ("JPY_", "JUPYTER", "IPYTHON", "NBTRAIN_EXIT", "TORCHELASTIC_")
DROPPED_VARIABLES = (
    "MPLBACKEND",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NBTRAIN_ATTEMPT",
    "NBTRAIN_RUN_DIR",
    JOB_MARKER,
)


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver shows it."""

    name: str
    memory_bytes: int | None


@dataclass(frozen=True)
class Machine:
    """This machine, as far as a job may use it."""

    host: str
    cores: int
    """Cores this process may run on, a container's limit counted."""
    cpu: str
    cpu_flags: frozenset[str]
    memory_bytes: int
    """Host memory, a container's limit counted."""
    memory_available_bytes: int
    gpus: tuple[Gpu, ...]
    """Those that CUDA_VISIBLE_DEVICES leaves visible."""


def this_machine() -> Machine:
    """Look at the machine now. Costs milliseconds, or one call of nvidia-smi where there is a GPU."""
    cpu, flags = _cpu()
    memory = psutil.virtual_memory()
    limit, used = _memory_limit()
    total, available = memory.total, memory.available
    if limit is not None and limit < total:
        total, available = limit, min(available, limit - used)
    return Machine(socket.gethostname(), usable_cores(), cpu, flags, total, available, visible_gpus())


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the CPU quota of its cgroup rounded up."""
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return max(1, min(cores, int(-(-quota // 1)))) if quota else cores


def visible_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves visible."""
    gpus = _driver_gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    visible = []
    for entry in (part.strip() for part in chosen.split(",")):
        if not entry or entry == "-1":
            break  # CUDA's own rule: what follows an invalid entry is hidden
        if not entry.isdigit():
            visible.append(Gpu(entry, None))  # a UUID, chosen by whoever set it
        elif int(entry) < len(gpus):
            visible.append(gpus[int(entry)])
        else:
            break
    return tuple(visible) if gpus else ()


def _driver_gpus() -> tuple[Gpu, ...]:
    folder = Path("/proc/driver/nvidia/gpus")
    present = len(list(folder.iterdir())) if folder.is_dir() else 0
    present = present or len(list(Path("/dev").glob("nvidia[0-9]*")))
    if not present:
        return ()
    if tool := shutil.which("nvidia-smi"):
        query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
        except subprocess.TimeoutExpired:
            answer = None
        rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines()] if answer else []
        if answer and answer.returncode == 0 and all(len(row) == 2 for row in rows):
            return tuple(
                Gpu(name.strip(), int(mib) * 2**20 if mib.strip().isdigit() else None) for name, mib in rows
            )
    return tuple(Gpu("NVIDIA GPU", None) for _ in range(present))


def _cpu() -> tuple[str, frozenset[str]]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine(), frozenset()
    name = re.search(r"^model name\s*:\s*(.*)$", text, flags=re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, flags=re.M)
    return name[1] if name else platform.machine(), frozenset(flags[1].split() if flags else ())


# --- cgroups: version 2 first, then version 1 ----------------------------------------------------------------


def cgroup_file(controller: str, v2_name: str, v1_name: str) -> Path | None:
    """The file of this process's own cgroup that answers to v2_name (version 2) or v1_name (version 1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    candidates = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            roots, name = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), v2_name
        elif controller in controllers.split(","):
            roots, name = (f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}"), v1_name
        else:
            continue
        # Inside a container the mount often shows the group itself at its root.
        candidates += [Path(root) / part / name for root in roots for part in (relative, "")]
    return next((path for path in candidates if path.is_file()), None)


def oom_kills() -> int | None:
    """Processes that the kernel's out-of-memory killer has ended in this cgroup, or None where unreadable."""
    path = cgroup_file("memory", "memory.events", "memory.oom_control")
    if path is None:
        return None
    try:
        counter = re.search(r"^oom_kill (\d+)$", path.read_text(), flags=re.M)
    except OSError:
        return None
    return int(counter[1]) if counter else None


def _memory_limit() -> tuple[int | None, int]:
    limit = _number(cgroup_file("memory", "memory.max", "memory.limit_in_bytes"))
    used = _number(cgroup_file("memory", "memory.current", "memory.usage_in_bytes"))
    return limit, used or 0


def _cpu_quota() -> float | None:
    path = cgroup_file("cpu", "cpu.max", "cpu.cfs_quota_us")
    if path is None:
        return None
    try:
        words = path.read_text().split()
        if path.name == "cpu.cfs_quota_us":
            words.append((path.parent / "cpu.cfs_period_us").read_text().strip())
    except OSError:
        return None
    if len(words) != 2 or words[0] == "max" or int(words[0]) <= 0:
        return None
    return int(words[0]) / int(words[1])


def _number(path: Path | None) -> int | None:
    try:
        text = path.read_text().strip() if path else ""
    except OSError:
        return None
    return int(text) if text.isdigit() else None


# --- the variables of every rank -----------------------------------------------------------------------------


def supervisor_environment() -> dict[str, str]:
    """The environment a supervisor is started with: the caller's, with its folders made absolute.

    A supervisor outlives the caller's working directory, so paths that depend on it are fixed here.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in DROPPED_VARIABLES and not name.startswith(DROPPED_PREFIXES)
    }
    return {
        **kept,
        "NBTRAIN_WORKSPACE": str(workspace()),
        "NBTRAIN_OUTPUT": str(output_root()),
        "NBTRAIN_DATA": str(data_home()),
    }


def threads_per_rank(config: RunConfig, cores: int) -> int:
    """Cores over ranks, at least 1; resources.cpus_per_node counts where it is less than the machine has."""
    return max(1, min(cores, config.resources.cpus_per_node or cores) // config.world_size)


def rank_variables(config: RunConfig, job: JobDir, attempt: int, cores: int) -> dict[str, str]:
    """What is added to the environment of every rank; `backend.env` has the last word."""
    variables = {
        JOB_MARKER: job.job_id,
        "NBTRAIN_ATTEMPT": str(attempt),
        "NBTRAIN_RUN_DIR": str(job.run.path),
        "OMP_NUM_THREADS": str(threads_per_rank(config, cores)),
        # Logs are read while the rank runs.
        "PYTHONUNBUFFERED": "1",
        # All ranks are on this machine, and gloo else looks the host's name up, which may wait for a DNS server.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if config.resources.device == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
        # Threads that spin at a barrier keep the late one off its core: with one other busy process on two
        # cores, spinning made steps 4 times longer than waiting in the kernel does.
        variables["OMP_WAIT_POLICY"] = "PASSIVE"
    if config.backend.debug == "nccl":
        variables["NCCL_DEBUG"] = "INFO"
    elif config.backend.debug == "distributed":
        variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return {**variables, **config.backend.env}


# --- environment.json ----------------------------------------------------------------------------------------


def environment_record(config: RunConfig, job: JobDir) -> dict[str, Any]:
    """environment.json: what the numbers of this job depend on and the configuration does not say."""
    machine = this_machine()
    return {
        "schema_version": SCHEMA_VERSION,
        "nbtrain": {"version": nbtrain.__version__, "commit": source_commit()},
        "python": platform.python_version(),
        "executable": Path(sys.executable).name,
        "packages": {name: package_version(name) for name in RECORDED_PACKAGES},
        "host": machine.host,
        "kernel": platform.release(),
        "cpu": {
            "name": machine.cpu,
            "cores": machine.cores,
            "threads_per_rank": threads_per_rank(config, machine.cores),
        },
        "memory_bytes": machine.memory_bytes,
        "memory_available_bytes": machine.memory_available_bytes,
        "gpus": [asdict(gpu) for gpu in machine.gpus],
        "dataset_sha256": dataset_sha256(config),
        "tokenizer_sha256": tokenizer_sha256(config),
        "backend_env": {name: hidden(name, value) for name, value in config.backend.env.items()},
        "debug": config.backend.debug,
        "variables": recorded_variables({**os.environ, **rank_variables(config, job, 0, machine.cores)}),
    }


def recorded_variables(environment: dict[str, str]) -> dict[str, str]:
    """Those variables that decide how a rank computes, by name; never one whose name speaks of a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in RECORDED_VARIABLES or name.startswith(RECORDED_PREFIXES))
        and not SECRET_WORDS.search(name)
    }


def hidden(name: str, value: str) -> str:
    """The value without passwords of addresses, or a note in its place where the name speaks of a secret."""
    return "(hidden)" if SECRET_WORDS.search(name) else text_without_secrets(value)


def package_version(name: str) -> str | None:
    """The installed version by metadata; the package is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """The git commit of nbtrain's source, with "+changes" where the tree differs; None for an installed wheel."""
    source = Path(nbtrain.__file__).parent
    git = shutil.which("git")
    if git is None or not (source.parent / ".git").exists():
        return None

    def ask(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                [git, "-C", str(source), *arguments], capture_output=True, text=True, timeout=20
            )
        except subprocess.TimeoutExpired:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}+changes" if commit and changed else commit


def dataset_sha256(config: RunConfig) -> str | None:
    """The hash that checkpoints refer to the dataset by; None where it is not there or cannot be read."""
    try:
        manifest = DatasetFiles.of(config).manifest()
    except DataError:
        return None
    return manifest.dataset_sha256 if manifest else None


def tokenizer_sha256(config: RunConfig) -> str | None:
    """The hash that checkpoints refer to the tokenizer by; None where it is not there or cannot be read."""
    try:
        manifest = read_manifest(tokenizer_dir(config.tokenizer.name))
    except DataError:
        return None
    return manifest["sha256"] if manifest else None
