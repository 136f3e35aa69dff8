"""The machine's Python packages, GPUs, driver and versions. Nothing in this module loads torch.

The packages are checked before anything runs, so that a missing one is reported in the first second. A
machine without a network installs them from a folder of wheels (--wheels).
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
SITE = REPOSITORY / "build" / "gpu" / "site"

# Module: the distribution to install. These are imported by training, the plan and the steps' data;
# tests/gpu/test_trained.py trains with every other package hidden.
NEEDED = {
    "torch": "torch",
    "deepspeed": "deepspeed",
    "numpy": "numpy",
    "yaml": "pyyaml",
    "pydantic": "pydantic",
    "pydantic_core": "pydantic-core",
    "annotated_types": "annotated-types",
    "typing_inspection": "typing-inspection",
    "typing_extensions": "typing-extensions",
    "tensorboard": "tensorboard",
    "tqdm": "tqdm",
    "psutil": "psutil",
    "einops": "einops",
    "hjson": "hjson",
    "msgpack": "msgpack",
    "packaging": "packaging",
}
# Module: (distribution, what is skipped without it).
OPTIONAL = {
    "pynvml": ("nvidia-ml-py", "memory: what the driver counted before the process began"),
    "ninja": ("ninja", "zeropp, offload: what DeepSpeed compiles on first use"),
    "transformers": ("transformers", "speed: the row of transformers"),
    "flash_attn": ("flash-attn", "fpdt: the rows with flash-attn's own kernels"),
}
VERSIONS = ("torch", "deepspeed", "triton", "numpy", "pydantic", "flash-attn", "transformers")


@dataclass(frozen=True)
class Machine:
    """The GPUs and versions for which results are valid."""

    gpus: int
    gpu_name: str
    capability: str
    """Compute capability, e.g. "9.0"."""
    gpu_bytes: int
    driver: str
    cuda: str
    """CUDA version that torch was built for."""
    python: str
    cores: int
    versions: dict[str, str]

    @property
    def label(self) -> str:
        """Label of the machine in the results, e.g. "1 x NVIDIA H200"."""
        return f"{self.gpus} x {self.gpu_name}"

    @property
    def words(self) -> str:
        """Description of the machine in one sentence, for the page."""
        names = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        gpu = (
            f"{self.label}, compute capability {self.capability}, {self.gpu_bytes / 2**30:.1f} GiB; driver "
            f"{self.driver}; CUDA {self.cuda}"
        )
        return f"{gpu if self.gpus else 'no GPU'}; {names}; Python {self.python}; {self.cores} CPU cores"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def missing() -> list[str]:
    """Return the missing packages without which a step cannot run."""
    return [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]


def left_out() -> list[str]:
    """Return a line for each optional package, compiler or header that is missing, with what is skipped."""
    from nbtrain.jobs.machine.build_tools import nvme_tools, quantization_tools

    lines = [
        f"{name} is not installed; skipped: {what}"
        for module, (name, what) in OPTIONAL.items()
        if importlib.util.find_spec(module) is None
    ]
    for tools, what in (
        (nvme_tools(), "offload: the cases on NVMe"),
        (quantization_tools(), "zeropp: the kernels, qwZ and qgZ"),
    ):
        lines += [f"missing: {tool}; skipped: {what}" for tool, is_there in tools.items() if not is_there]
    return lines


def install(wheels: Path) -> None:
    """Unpack all wheels of a folder into build/gpu/site, which takes precedence over installed packages.

    Raises OSError with pip's message if that fails.
    """
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise OSError(f"--wheels {wheels}: there is no .whl file in it")
    stamp = SITE / "wheels.json"
    names = [path.name for path in files]
    if not stamp.exists() or json.loads(stamp.read_text()) != names:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-compile",
        ]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--upgrade", "--target", str(SITE)]
        done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"--wheels {wheels}: pip failed: {(done.stdout + done.stderr).strip()[-800:]}")
        stamp.write_text(json.dumps(names))
    sys.path.insert(0, str(SITE))
    importlib.invalidate_caches()


def environment() -> dict[str, str]:
    """Return the environment for a step's processes, in which this source tree and
    the wheels can be imported.
    """
    paths = [str(REPOSITORY), *([str(SITE)] if (SITE / "wheels.json").exists() else [])]
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *paths)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *before]),
        "PYTHONUNBUFFERED": "1",
        # torch then asks the driver's library how many GPUs there are, and creates no context on them.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


_ASK = """
import json, sys, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
found = torch.cuda.get_device_properties(0) if count else None
print(json.dumps({
    "gpus": count,
    "gpu_name": found.name if found else "",
    "capability": f"{found.major}.{found.minor}" if found else "",
    "gpu_bytes": found.total_memory if found else 0,
    "cuda": torch.version.cuda or "none",
}))
"""


def look() -> Machine:
    """Query torch, in a separate process, and the driver. Raises OSError with torch's message."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, env=environment())
    if done.returncode:
        raise OSError(f"torch cannot be loaded: {done.stderr.strip()[-800:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return Machine(
        **answer,
        driver=_driver() if answer["gpus"] else "none",
        python=sys.version.split()[0],
        cores=len(os.sched_getaffinity(0)),
        versions={name: version for name in VERSIONS if (version := version_of(name))} | {"nbtrain": _own()},
    )


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is not None and done.returncode == 0 and done.stdout.strip():
        return done.stdout.split()[0]
    module = Path("/proc/driver/nvidia/version")
    return module.read_text().split("Module")[-1].split()[0] if module.exists() else "not reported"


def version_of(name: str) -> str:
    """Return the version of a distribution; "" if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _own() -> str:
    """Return nbtrain's version, and the commit if the tree is a Git clone."""
    from nbtrain.base.version import __version__

    command: Sequence[str] = ("git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return __version__
    return f"{__version__} ({done.stdout.strip()})" if done.returncode == 0 else __version__
