"""Checks of this machine's compilers, packages and local disks.

Compilers build extensions on first use; local disks serve NVMe offloading and node-local checkpoints.
preflight.py runs the checks.
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.extras import install_command
from nbtrain.base.files import file_system_of, is_read_only
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.checkpoint_files import local_folder
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import size
from nbtrain.base.workspace import display, output_root
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.rules.wording import value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.jobs.machine.build_tools import has_compiler, nvme_tools, quantization_tools
from nbtrain.jobs.machine.node_disk import node_disk, unfit_disk
from nbtrain.jobs.request.launch import Launch


def compiler_is_there(launch: Launch) -> Iterator[Finding]:
    """Check that model.compile finds its compiler.

    torch.compile calls a C++ compiler on CPU; on GPUs, Triton calls a C compiler.
    """
    config = launch.config
    if not config.model.compile:
        return
    device, variable, language, *names = ("GPUs", "CC", "C", "gcc", "clang")
    if config.resources.device == "cpu":
        device, variable, language, *names = ("CPU", "CXX", "C++", "g++", "clang++")
    if not has_compiler(variable, *names):
        yield mistake(
            config,
            "model.compile",
            f"model.compile = true needs a {language} compiler on {device}, "
            f"and neither ${variable} nor {' nor '.join(names)} was found.",
            f"Install one (Debian: apt-get install {names[0]}), or set model.compile=false.",
        )


# File systems that are not on a disk of this machine, as /proc/mounts names them.
REMOTE = re.compile(r"nfs\d?|cifs|smb\w*|lustre|ceph|beegfs|gpfs|glusterfs|afs|9p|virtiofs|fuse\..*sshfs")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


def nvme_is_ready(launch: Launch) -> Iterator[Finding]:
    """Check that the NVMe offloading folders are writable and are on a local disk with enough space."""
    config = launch.config
    keys = [f"parallel.{name}.nvme_path" for name in _on_nvme(config)]
    for key in keys:
        folder = Path(str(value_of(config, key)))
        found = f"{key} = {folder}"
        if not folder.is_dir():
            fix = "Create the folder on a local NVMe disk."
            yield mistake(config, key, f"{found} is not a folder.", fix)
            continue
        if not os.access(folder, os.W_OK | os.X_OK) or is_read_only(folder):
            fix = "Choose a writable folder on a local NVMe disk."
            yield mistake(config, key, f"{found} is not writable.", fix)
        kind = file_system_of(folder)
        if kind in MEMORY_FILE_SYSTEMS:
            yield mistake(
                config,
                key,
                f"{found} is in host memory ({kind}), the memory that offloading is meant to save.",
                f"Choose a folder on a local NVMe disk, or set {key}=null and "
                f"{key.replace('nvme_path', 'device')}=cpu.",
            )
        elif kind and REMOTE.fullmatch(kind):
            yield mistake(
                config,
                key,
                f"{found} is on a network file system ({kind}), and every step would wait for it.",
                "Choose a folder on a local NVMe disk.",
            )
    # Both folders may be on one disk, so each must have room for both parts. If they are on two disks, this
    # overstates the need by at most the smaller part.
    for folder in dict.fromkeys(Path(str(value_of(config, key))) for key in keys):
        if not folder.is_dir():
            continue
        there = [key for key in keys if Path(str(value_of(config, key))) == folder]
        needed = launch.needs.memory.nvme_bytes * min(config.ranks_per_node, config.world_size)
        if (free := shutil.disk_usage(folder).free) < needed:
            yield shortage(
                config,
                "",
                f"{folder}: the disk has {size(free)} free, but the state that is offloaded to NVMe needs "
                f"{size(needed)}.",
                f"Free up space, or set {' and '.join(there)} to a folder on a larger disk.",
            )


def local_dir_is_ready(launch: Launch) -> Iterator[Finding]:
    """Check that checkpoint.local_dir is outside the output directory, can be created here, and has room."""
    config, machine = launch.config, launch.machine
    if (local_dir := config.checkpoint.local_dir) is None or config.mode != "full":
        return
    key = "checkpoint.local_dir"
    if local_folder(local_dir, 0, machine.host).is_relative_to(output_root()):
        yield mistake(
            config,
            key,
            f"{key} = {local_dir} is inside {display(output_root())}, the folder that its checkpoints are "
            "copied to.",
            "Choose a folder on a local disk of each node.",
        )
    if config.backend.kind == "local":
        disk = node_disk(local_dir, 0, machine.host, RunDir.named(config.name))
        yield from unfit_disk(config, disk, machine.host, launch.needs.disk.local_bytes)


def _on_nvme(config: RunConfig) -> list[str]:
    """Return the sections of `parallel` that offload to NVMe."""
    names = ("offload_optimizer", "offload_param")
    return [name for name in names if getattr(config.parallel, name).device == "nvme"]


def extensions_can_be_built(launch: Launch) -> Iterator[Finding]:
    """Check the build tools for the NVMe and quantization extensions that DeepSpeed compiles on first use."""
    config = launch.config
    nvme = [f"parallel.{name}.device" for name in _on_nvme(config)]
    names = ("zero_quantized_weights", "zero_quantized_gradients")
    quantized = [f"parallel.{name}" for name in names if getattr(config.parallel, name)]
    for key in (*nvme[:1], *quantized[:1]):
        tools = nvme_tools() if key in nvme else quantization_tools()
        if lacking := [what for what, there in tools.items() if not there]:
            yield mistake(
                config,
                key,
                f"{key} = {show(value_of(config, key))} makes DeepSpeed compile an "
                f"extension, but this machine lacks what the build needs: {', '.join(lacking)}.",
                "Install what is missing, or leave the field at its default.",
            )


def packages_are_there(launch: Launch) -> Iterator[Finding]:
    """Check that the optional packages for FPDT (flash-attn) and 4-bit matrices (bitsandbytes) are installed.

    A plain installation of nbtrain includes neither package.
    """
    config = launch.config
    four_bits = config.lora is not None and config.lora.load_in_4bit
    if four_bits and importlib.util.find_spec("bitsandbytes") is None:
        yield mistake(
            config,
            "lora.load_in_4bit",
            "lora.load_in_4bit = true needs the package bitsandbytes, which is not installed.",
            f"Install it ({install_command('qlora')}), or set lora.load_in_4bit=false.",
        )
    if config.parallel.fpdt_chunk_tokens and importlib.util.find_spec("flash_attn") is None:
        yield mistake(
            config,
            "parallel.fpdt_chunk_tokens",
            f"parallel.fpdt_chunk_tokens = "
            f"{config.parallel.fpdt_chunk_tokens} needs the package flash-attn, which is not installed.",
            "Install it (pip install flash-attn --no-build-isolation), or set parallel.fpdt_chunk_tokens=0.",
        )
