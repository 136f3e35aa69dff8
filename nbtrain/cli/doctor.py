"""Checks of this machine, each with a fix: Python, torch, DeepSpeed, devices, disk, versions with known bugs.

Reads package metadata and /proc; imports neither torch nor deepspeed, so it answers in a fraction of a second
even if they are broken.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from nbtrain.base.files import is_read_only, nearest_existing
from nbtrain.base.findings import Finding, Level
from nbtrain.base.hardware.cgroup import available_memory_bytes, usable_cores, usable_memory_bytes
from nbtrain.base.hardware.nvml import driver_gpus
from nbtrain.base.printing.report import Report, Table
from nbtrain.base.text.amounts import counted, size
from nbtrain.base.workspace import data_home, output_root, queue_folder
from nbtrain.jobs.machine.build_tools import nvme_tools, quantization_tools

GIB = 1 << 30

FREELY_INSTALLED = ("jupyterlab", "tensorboard", "papermill")
WITHOUT_FASTOKENS = (
    ": the tokenizers package is used instead; it gives the same tokens but takes about 20 times as long"
)

# (package, first bad version, first good version, the fix)
KNOWN_BAD = (
    (
        "deepspeed",
        "0.0",
        "0.19.8",
        "Run `pip install deepspeed==0.19.8`: checkpoints are tested with this version.",
    ),
    (
        "tensorboard",
        "0.0",
        "2.20",
        "Run `pip install -U tensorboard`: older versions conflict with the protobuf that torch 2.11 needs.",
    ),
    (
        "ipykernel",
        "7.0",
        "7.1",
        "Run `pip install -U ipykernel`: 7.0 drops widget messages while a cell runs.",
    ),
)


def report_of(findings: Sequence[Finding]) -> Report:
    """Return a table of the findings: level, subject and result, with any fix in the row below."""
    rows: list[tuple[str, str, str]] = []
    for finding in findings:
        rows.append((finding.level, finding.rule, finding.message))
        if finding.fix:
            rows.append(("", "", f"-> {finding.fix}"))
    return Report("", [Table(("", "", ""), rows)])


def _found(level: Level, subject: str, message: str, fix: str = "") -> Finding:
    return Finding(level, subject, "", "", message, fix)


def examine() -> list[Finding]:
    """Examine the machine and return every finding, in the order of the report."""
    gpus = len(driver_gpus())
    return [
        _found("ok", "Python", f"{platform.python_version()} ({sys.executable})"),
        *torch_findings(gpus),
        package_finding("deepspeed", "pip install deepspeed==0.19.8"),
        *(package_finding(name, pip_install(name)) for name in FREELY_INSTALLED),
        package_finding("fastokens", pip_install("fastokens"), "note", WITHOUT_FASTOKENS),
        *known_bad_findings(),
        device_finding(gpus),
        memory_finding(),
        disk_finding("output", output_root()),
        disk_finding("data", data_home()),
        queue_finding(),
        shared_memory_finding(),
        compiler_finding(),
        *extension_findings(gpus),
    ]


def pip_install(name: str) -> str:
    """Return the pip command that installs a package in a version that nbtrain works with."""
    requirements = importlib.metadata.requires("nbtrain") or []
    plain = (line.partition(";")[0].strip() for line in requirements)
    wanted = next((line for line in plain if re.fullmatch(rf"{name}\b(?!-).*", line)), name)
    return f"pip install '{wanted}'"


def torch_findings(gpus: int) -> list[Finding]:
    version = installed("torch")
    if version is None:
        cpu = "" if gpus else "; for a CPU build, set up pip first (README, CPU-only torch)"
        return [_found("error", "torch", "not installed", f"{pip_install('torch')}{cpu}")]
    build = "CUDA" if has_cuda_build() else "CPU"
    findings = [_found("ok", "torch", f"{version}, {build} build")]
    if build == "CUDA" and not gpus:
        text = (
            "a CUDA build on a machine without a GPU: it takes several GB of disk space and is slow to import"
        )
        advice = "Install a CPU build; the README explains how to set up pip (CPU-only torch)."
        findings.append(_found("warning", "torch", text, advice))
    if build == "CPU" and gpus:
        text = f"a CPU build on a machine with {counted(gpus, 'GPU')}: training would run on the CPU"
        advice = "Install the CUDA build of the same version from PyTorch's install page."
        findings.append(_found("warning", "torch", text, advice))
    return findings


def package_finding(name: str, advice: str, level: Level = "error", without: str = "") -> Finding:
    """Return a finding about a package.

    If the package is not installed, the finding has `level`, and its message is "not installed" followed by
    `without`, which explains the consequence.
    """
    version = installed(name)
    if version is None:
        return _found(level, name, f"not installed{without}", advice)
    return _found("ok", name, version)


def known_bad_findings() -> list[Finding]:
    findings = []
    for name, first_bad, first_good, advice in KNOWN_BAD:
        version = installed(name)
        if version and release(first_bad) <= release(version) < release(first_good):
            findings.append(_found("warning", name, f"{version} has a known problem", advice))
    return findings


def device_finding(gpus: int) -> Finding:
    cores = usable_cores()
    if gpus:
        return _found("ok", "devices", f"{counted(gpus, 'NVIDIA GPU')}, {counted(cores, 'core')}")
    text = f"no GPU, {counted(cores, 'core')}{', bf16 in hardware' if cpu_has_bf16() else ''}"
    advice = (
        "gpt-tiny can be trained here. Plan and check larger runs here, and train them on another machine."
    )
    return _found("note", "devices", text, advice)


def memory_finding() -> Finding:
    available = available_memory_bytes()
    text = f"{size(available)} of {size(usable_memory_bytes())} free"
    if available < 3 * GIB:
        return _found("warning", "memory", text, "gpt-tiny and JupyterLab together need about 3 GiB.")
    return _found("ok", "memory", text)


def why_not_writable(path: Path) -> str:
    """Return why the folder cannot be created or written to; "" if it can be."""
    existing = nearest_existing(path)
    of = "it " if existing == path else f"{existing} "
    if not existing.is_dir():
        return f"{of}is not a folder"
    if is_read_only(existing):
        return f"{of}is on a read-only disk"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"the permissions of {existing} forbid it"


def queue_finding() -> Finding:
    """Check the queue's folder, without which no job can be submitted on this machine."""
    path = queue_folder()
    if why := why_not_writable(path):
        advice = (
            "Set NBTRAIN_QUEUE to a folder of your own on a local disk, or set backend.share_devices=true."
        )
        return _found("error", "queue", f"{path} is not writable: {why}", advice)
    return _found("ok", "queue", str(path))


def disk_finding(subject: str, path: Path) -> Finding:
    variable = f"NBTRAIN_{subject.upper()}"
    if why := why_not_writable(path):
        return _found(
            "error", subject, f"{path} is not writable: {why}", f"Set {variable} to a writable folder."
        )
    free = shutil.disk_usage(nearest_existing(path)).free
    text = f"{path}: {size(free)} free"
    if free < 2 * GIB:
        return _found(
            "warning", subject, text, f"Free up space, or set {variable} to a folder on another disk."
        )
    return _found("ok", subject, text)


def shared_memory_finding() -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        advice = "Mount a tmpfs at /dev/shm: several ranks on one machine need it."
        return _found("warning", "/dev/shm", "does not exist", advice)
    if (free := shutil.disk_usage(path).free) < GIB // 2:
        text = f"{size(free)} free"
        return _found("warning", "/dev/shm", text, "Enlarge /dev/shm: NCCL and data workers need 1 GiB.")
    return _found("ok", "/dev/shm", f"{size(free)} free")


def compiler_finding() -> Finding:
    if shutil.which(compiler := os.environ.get("CXX") or "g++"):
        return _found("ok", "compiler", compiler)
    advice = "Install g++ if a run sets model.compile: true; nothing else needs it."
    return _found("note", "compiler", "not found", advice)


def extension_findings(gpus: int) -> list[Finding]:
    """Return a finding for each DeepSpeed extension: whether it can be compiled, or which tools are missing.

    The extension for quantized ZeRO++ is checked only if the machine has GPUs.
    """
    uses = [("NVMe", "offloading to NVMe (parallel.offload_optimizer.device: nvme)", nvme_tools())]
    if gpus:
        words = "quantized ZeRO++ (parallel.zero_quantized_weights, zero_quantized_gradients)"
        uses.append(("ZeRO++", words, quantization_tools()))
    findings = []
    for subject, use, tools in uses:
        lacking = [what for what, is_there in tools.items() if not is_there]
        if lacking:
            advice = f"Needed only for {use}, for which DeepSpeed compiles an extension."
            findings.append(_found("note", subject, f"missing: {', '.join(lacking)}", advice))
        else:
            findings.append(_found("ok", subject, "DeepSpeed can compile its extension"))
    return findings


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def has_cuda_build() -> bool:
    """Return whether the installed torch contains CUDA, judged by its files."""
    files = importlib.metadata.files("torch") or []
    return any(file.name == "libtorch_cuda.so" for file in files)


def cpu_has_bf16() -> bool:
    """Return whether the CPU computes bf16 itself: it has the flag avx512_bf16 or amx_bf16."""
    from nbtrain.base.hardware.cpu import cpu_model

    return bool({"avx512_bf16", "amx_bf16"} & cpu_model()[1])
