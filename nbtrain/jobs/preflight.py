"""Everything about this machine that can be known before launch: data, folders, disk, memory, devices.

What the configuration alone decides stands in config/check.py. Every problem is told at once, and each says
whether it is a mistake to mend or a machine that does not suffice.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbtrain.config.schema import RunConfig
from nbtrain.data.dataset_files import DatasetFiles
from nbtrain.data.tokenizer import Tokenizer
from nbtrain.errors import DataError
from nbtrain.jobs.environment import Machine, this_machine
from nbtrain.planner.disk import estimate_disk
from nbtrain.planner.memory import estimate_memory
from nbtrain.rundir import RunDir
from nbtrain.workspace import display, output_root, tokenizer_dir

GIB = 1 << 30
# The memory estimate is no measurement: only what is over by more than this is refused.
ESTIMATE_SLACK = 1.1
# Event files, logs and records of a run.
SPARE_DISK_BYTES = 64 << 20
# Instructions without which a 16-bit format has no matrix products on CPU (oneDNN's own requirement).
CPU_FLAGS = {
    "fp16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
}


@dataclass(frozen=True)
class Problem:
    """One reason not to launch."""

    kind: str
    """error: a mistake to mend; data: prepare or mend the data; resource: this machine does not suffice;
    unsupported: this release cannot run it yet."""
    message: str
    """What was found, with the rule's numbers."""
    fix: str
    """What to do."""

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".rstrip()


Problems = Iterator[Problem]


def preflight(config: RunConfig, machine: Machine | None = None) -> list[Problem]:
    """Every problem that would stop this run on this machine; empty where it can start."""
    machine = this_machine() if machine is None else machine
    return [problem for check in CHECKS for problem in check(config, machine)]


# --- what this release cannot do yet -------------------------------------------------------------------------


def features_are_there(config: RunConfig, machine: Machine) -> Problems:
    """Layouts that load, check and plan, but do not train yet."""
    parallel = config.parallel
    wanted = [
        (
            parallel.tensor_parallel_size > 1,
            "parallel.tensor_parallel_size",
            parallel.tensor_parallel_size,
            "1",
        ),
        (
            parallel.pipeline_parallel_size > 1,
            "parallel.pipeline_parallel_size",
            parallel.pipeline_parallel_size,
            "1",
        ),
        (parallel.sequence_parallel, "parallel.sequence_parallel", "true", "false"),
    ]
    for present, key, value, plain in wanted:
        if present:
            yield Problem(
                "unsupported",
                f"{config.where(key)}: {key} = {value}: this release trains data-parallel runs only; "
                f"{_feature(key)} is missing.",
                f"It plans already (`nbtrain plan {shlex.join(config.as_arguments)}`); to train here set {key}={plain} and a layout that fits.",
            )


def _feature(key: str) -> str:
    return {
        "parallel.tensor_parallel_size": "tensor parallelism",
        "parallel.pipeline_parallel_size": "pipeline parallelism",
        "parallel.sequence_parallel": "sequence parallelism",
    }[key]


# --- devices -------------------------------------------------------------------------------------------------


def devices_suffice(config: RunConfig, machine: Machine) -> Problems:
    """One machine with a GPU for each rank, or a CPU."""
    resources = config.resources
    if resources.nodes > 1:
        yield Problem(
            "resource",
            f"{config.where('resources.nodes')}: the run needs {resources.nodes} machines; backend `local` has 1.",
            "Run it on a cluster, or set resources.nodes=1 and a layout that fits.",
        )
    if resources.device == "gpu":
        needed, present = config.world_size, len(machine.gpus)
        if present < needed:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            note = f" (CUDA_VISIBLE_DEVICES={hidden})" if hidden is not None else ""
            yield Problem(
                "resource",
                f"{config.where('resources.gpus_per_node')}: the run needs {needed} GPUs; "
                f"{machine.host} has {present}{note}.",
                "Use a machine that has them, a smaller layout, or resources.device=cpu for a trial.",
            )
        return
    if config.precision.dtype in CPU_FLAGS and machine.cpu_flags:
        wanted = CPU_FLAGS[config.precision.dtype]
        if not machine.cpu_flags.intersection(wanted):
            yield Problem(
                "resource",
                f"{config.where('precision.dtype')}: precision.dtype = {config.precision.dtype} on a CPU needs one of "
                f"{', '.join(wanted)}; {machine.cpu} has none of them.",
                "Set precision.dtype=bf16 or fp32.",
            )
    ranks = config.world_size
    if ranks > 4 * machine.cores:
        yield Problem(
            "resource",
            f"the run starts {ranks} ranks; {machine.host} has {machine.cores} cores, and more than 4 ranks on a core "
            "wait for each other.",
            "Use a machine with more cores, or a smaller parallel.data_parallel_size.",
        )


def memory_suffices(config: RunConfig, machine: Machine) -> Problems:
    """The planner's peak of every rank, against the GPU it gets or the host memory they share."""
    estimate = estimate_memory(config)
    needed = estimate.total_bytes
    parts = ", ".join(f"{name} {_gib(size)}" for name, size in estimate.parts.items() if size >= GIB // 20)
    if config.resources.device == "cpu":
        ranks = config.world_size
        needed, present, where = needed * ranks, machine.memory_bytes, f"{ranks} rank(s) on {machine.host}"
    else:
        sizes = [gpu.memory_bytes for gpu in machine.gpus[: config.world_size] if gpu.memory_bytes]
        if not sizes:
            return
        present, where = min(sizes), f"a rank on {machine.gpus[0].name}"
    if needed > ESTIMATE_SLACK * present:
        yield Problem(
            "resource",
            f"{where} will need about {_gib(needed)} of memory and there is {_gib(present)}"
            + (f" (per rank: {parts})." if parts else "."),
            "Lower batch.micro_batch_size or model.seq_length, set parallel.activation_checkpointing.granularity=full "
            "or a higher parallel.zero_stage with more ranks, or use a larger machine.",
        )


# --- folders and disk ----------------------------------------------------------------------------------------


def output_is_writable(config: RunConfig, machine: Machine) -> Problems:
    """The run directory can be made, or written to."""
    run = RunDir.named(config.name)
    folder = _existing(run.path)
    if not folder.is_dir():
        yield Problem(
            "error", f"{display(folder)} is a file, not a folder.", "Set NBTRAIN_OUTPUT to a folder."
        )
    elif not os.access(folder, os.W_OK | os.X_OK) or _read_only(folder):
        yield Problem(
            "error",
            f"{display(run.path)} cannot be written: {display(folder)} gives no right to.",
            "Set NBTRAIN_OUTPUT to a folder that can be written, or mend the rights.",
        )


def disk_holds_checkpoints(config: RunConfig, machine: Machine) -> Problems:
    """Room for every checkpoint that stays and the one being written."""
    run = RunDir.named(config.name)
    folder = _existing(run.path)
    if not folder.is_dir():
        return
    estimate = estimate_disk(config)
    present = (
        sum(path.stat().st_size for path in run.model.rglob("*") if path.is_file())
        if run.model.is_dir()
        else 0
    )
    needed = max(0, estimate.checkpoints_bytes - present) + SPARE_DISK_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        there = f", {_size(present)} of them there already" if present else ""
        yield Problem(
            "resource",
            f"{display(output_root())}: the disk has {_size(free)} free, but {estimate.num_checkpoints} checkpoints of "
            f"{_size(estimate.checkpoint_bytes)} (keep_last and the one being written{there}) and logs need "
            f"{_size(needed)}.",
            "Free space, lower checkpoint.keep_last, or set NBTRAIN_OUTPUT to a larger disk.",
        )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _read_only(folder: Path) -> bool:
    # access() says yes to root whatever the mount says.
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def compiler_is_there(config: RunConfig, machine: Machine) -> Problems:
    """torch.compile on CPU calls a C++ compiler; ranks inherit this environment."""
    if not config.model.compile or config.resources.device != "cpu":
        return
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else ["g++", "clang++"])):
        yield Problem(
            "error",
            f"{config.where('model.compile')}: model.compile = true needs a C++ compiler on CPU, and neither $CXX nor "
            "g++ nor clang++ was found.",
            "Install one (Debian: apt-get install g++), or set model.compile=false.",
        )


# --- data ----------------------------------------------------------------------------------------------------


def data_is_whole(config: RunConfig, machine: Machine) -> Problems:
    """The .bin/.idx are there, of the size their index counts, and hold this vocabulary; hashes fit."""
    tokenizer = manifest = None
    prepare = f"`nbtrain prepare {shlex.join(config.as_arguments)}` makes what is missing."
    try:
        tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    except DataError as error:
        # Data that was brought along needs no tokenizer to train.
        if config.data.sources:
            yield Problem("data", str(error), prepare)
    try:
        manifest = DatasetFiles.of(config).require(config.tokenizer.vocab_size)
    except DataError as error:
        # Damaged data is not missing: its message says how it is made again, with --force.
        yield Problem("data", str(error), "" if "--force" in str(error) else prepare)
    if tokenizer and tokenizer.vocab_size > config.tokenizer.vocab_size:
        yield Problem(
            "error",
            f"{config.where('tokenizer.vocab_size')}: tokenizer.vocab_size = {config.tokenizer.vocab_size:,}, but "
            f"{display(tokenizer.directory)} has {tokenizer.vocab_size:,} entries.",
            f"Set tokenizer.vocab_size={tokenizer.vocab_size} or more, or name another tokenizer.",
        )
    if tokenizer and manifest and manifest.tokenizer_sha256 not in (None, tokenizer.sha256):
        yield Problem(
            "error",
            f"dataset {config.data.name} was encoded with the tokenizer {manifest.tokenizer_sha256[:12]}..., but "
            f"{display(tokenizer.directory)} is {tokenizer.sha256[:12]}...: ids would mean other text.",
            f"Name the tokenizer it was made with, or make the data again: `nbtrain prepare {shlex.join(config.as_arguments)} --force`.",
        )


# --- wording -------------------------------------------------------------------------------------------------


def _gib(number: int) -> str:
    return f"{number / GIB:,.1f} GiB"


def _size(number: int) -> str:
    return f"{number / 1e9:,.2f} GB" if number >= 1e7 else f"{number / 1e6:,.2f} MB"


Check = Callable[[RunConfig, Machine], Problems]
CHECKS: tuple[Check, ...] = (
    features_are_there,
    devices_suffice,
    memory_suffices,
    output_is_writable,
    disk_holds_checkpoints,
    compiler_is_there,
    data_is_whole,
)
