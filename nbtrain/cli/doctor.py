"""Is this machine ready: Python, torch, DeepSpeed, devices, disk, known-bad versions, and what to do.

Reads package metadata and /proc; imports neither torch nor deepspeed, so it answers in a fraction of a second
even if they are broken.
"""

import importlib.metadata
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from nbtrain.base.workspace import data_home, output_root

GIB = 1 << 30

# (package, first bad, first good again or None, why and what to do)
KNOWN_BAD = (
    (
        "deepspeed",
        "0.0",
        "0.19.8",
        "checkpoints and traps were proven with 0.19.8: pip install deepspeed==0.19.8",
    ),
    ("tensorboard", "0.0", "2.20", "older ones need a protobuf that torch 2.11+ rules out"),
    ("ipykernel", "7.0", "7.1", "7.0 drops widget messages while a cell runs: pip install -U ipykernel"),
)


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    level: str
    """ok, note, warning or error."""
    subject: str
    found: str
    advice: str = ""

    def line(self) -> str:
        mark = {"ok": "ok  ", "note": "note", "warning": "WARN", "error": "FAIL"}[self.level]
        return f"{mark}  {self.subject:<12} {self.found}" + (
            f"\n      -> {self.advice}" if self.advice else ""
        )


def examine() -> list[Finding]:
    """Every finding, in reading order."""
    gpus = nvidia_gpus()
    return [
        python_finding(),
        *torch_findings(gpus),
        package_finding("deepspeed", "pip install deepspeed==0.19.8"),
        *(
            package_finding(name, f"pip install {name}")
            for name in ("jupyterlab", "tensorboard", "papermill")
        ),
        tokenizer_finding(),
        *known_bad_findings(),
        device_finding(gpus),
        memory_finding(),
        *(
            disk_finding(subject, path)
            for subject, path in (("output", output_root()), ("data", data_home()))
        ),
        shared_memory_finding(),
        compiler_finding(),
    ]


def python_finding() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok", "Python", f"{version} ({sys.executable})")


def torch_findings(gpus: int) -> list[Finding]:
    version = installed("torch")
    if version is None:
        return [Finding("error", "torch", "not installed", "pip install -c constraints.txt torch")]
    build = "CUDA" if has_cuda_build() else "CPU"
    findings = [Finding("ok", "torch", f"{version}, {build} build")]
    if build == "CUDA" and not gpus:
        findings.append(
            Finding(
                "warning",
                "torch",
                "a CUDA build on a machine without a GPU: several GB on disk, slow to import",
                "Install a CPU build: the README's section on torch says how to set pip for one.",
            )
        )
    if build == "CPU" and gpus:
        findings.append(
            Finding(
                "warning",
                "torch",
                f"a CPU build on a machine with {gpus} GPU(s): training would not use them",
                "Install the CUDA build of the same version from PyTorch's install page.",
            )
        )
    return findings


def package_finding(name: str, advice: str) -> Finding:
    version = installed(name)
    if version is None:
        return Finding("error", name, "not installed", advice)
    return Finding("ok", name, version)


def tokenizer_finding() -> Finding:
    version = installed("fastokens")
    if version is None:
        return Finding(
            "note",
            "fastokens",
            "not installed: encoding falls back to tokenizers, same tokens, about 20 times slower",
            "pip install fastokens",
        )
    return Finding("ok", "fastokens", version)


def known_bad_findings() -> list[Finding]:
    findings = []
    for name, first_bad, first_good, advice in KNOWN_BAD:
        version = installed(name)
        if version and release(first_bad) <= release(version) < release(first_good):
            findings.append(Finding("warning", name, f"{version} is known to cause trouble", advice))
    return findings


def device_finding(gpus: int) -> Finding:
    cores = len(os.sched_getaffinity(0))
    if gpus:
        return Finding("ok", "devices", f"{gpus} NVIDIA GPU(s), {cores} cores")
    return Finding(
        "note",
        "devices",
        f"no GPU, {cores} cores{', bf16 in hardware' if cpu_has_bf16() else ''}",
        "gpt-tiny trains here; the larger runs plan and check here and train elsewhere.",
    )


def memory_finding() -> Finding:
    fields = dict(
        re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.M)
    )
    total, free = (int(fields[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < 3 * GIB:
        return Finding("warning", "memory", text, "gpt-tiny and JupyterLab together want about 3 GiB.")
    return Finding("ok", "memory", text)


def disk_finding(subject: str, path: Path) -> Finding:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    text = f"{path}: {free / GIB:.1f} GiB free"
    if not os.access(existing, os.W_OK):
        return Finding(
            "error", subject, f"{path} is not writable", f"Set NBTRAIN_{subject.upper()} elsewhere."
        )
    if free < 2 * GIB:
        return Finding(
            "warning", subject, text, f"Free some space or set NBTRAIN_{subject.upper()} elsewhere."
        )
    return Finding("ok", subject, text)


def shared_memory_finding() -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Finding(
            "warning", "/dev/shm", "absent", "Several ranks on one machine need it; mount a tmpfs there."
        )
    free = shutil.disk_usage(path).free
    if free < GIB // 2:
        return Finding(
            "warning", "/dev/shm", f"{free / GIB:.2f} GiB free", "NCCL and data workers want 1 GiB."
        )
    return Finding("ok", "/dev/shm", f"{free / GIB:.1f} GiB free")


def compiler_finding() -> Finding:
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler):
        return Finding("ok", "compiler", compiler)
    return Finding(
        "note", "compiler", "none", "Needed by model.compile: true only; everything else does without."
    )


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def has_cuda_build() -> bool:
    """Whether the installed torch contains CUDA, judged by its files."""
    files = importlib.metadata.files("torch") or []
    return any(file.name == "libtorch_cuda.so" for file in files)


def nvidia_gpus() -> int:
    """GPUs that the NVIDIA driver shows."""
    folder = Path("/proc/driver/nvidia/gpus")
    return (
        sum(1 for _ in folder.iterdir()) if folder.is_dir() else len(list(Path("/dev").glob("nvidia[0-9]*")))
    )


def cpu_has_bf16() -> bool:
    """avx512_bf16 or amx_bf16 in the CPU's flags."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), flags=re.M)
    return bool(flags and {"avx512_bf16", "amx_bf16"} & set(flags[1].split()))
