"""Step `memory`: measured GPU memory of training compared with nbtrain.planner, for 125M and 1.3B.

Each case runs the trainer as a user would, for four steps of two micro batches, in a separate process. What
torch has allocated between two steps, its peak of allocated memory, and the driver's count for the process
must each be within 10 % of the plan. A run that does not fit according to the plan must run out of memory.

Between two steps torch counts the model states, without the gradients that DeepSpeed has released, and the
workspaces of cuBLAS. The driver also counts CUDA's context, and the free blocks that torch keeps while there
is room (planner/memory/buffers.py).
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load import load, load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory import estimate_memory
from nbtrain.planner.memory.buffers import free_block_bytes
from nbtrain.planner.memory.stage import stage_of
from nbtrain.planner.memory.states import is_bf16_optimizer
from nbtrain.planner.setup.setup import setup_of
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if
from tests.gpu.trained import OUT_OF_MEMORY, TrainingFailed, Trainings

ALLOWED = 0.10
STEPS, ACCUMULATION = 4, 2
GIB = 2**30
# torch allocates a workspace for each handle of cuBLAS, of which the forward and the backward thread have one
# each: 32 MiB from compute capability 9.0 on, 8.125 MiB before (ATen/cuda/CublasHandlePool.cpp,
# parseChosenWorkspaceSize).
CUBLAS_HANDLES = 2
CUBLAS_WORKSPACE_BYTES, OLD_CUBLAS_WORKSPACE_BYTES = 8 * 4096 * 1024, (2 * 4096 + 8 * 16) * 1024
SOURCES = {"125m": "gpt-125m", "1.3b": "gpt-1-3b-4xdp"}
RECOMPUTED: dict[str, dict[str, Any]] = {
    "none": {"parallel.activation_checkpointing.granularity": "none"},
    "selective": {"parallel.activation_checkpointing.granularity": "selective"},
    "full": {"parallel.activation_checkpointing.granularity": "full"},
    "full, by 4": {
        "parallel.activation_checkpointing.granularity": "full",
        "parallel.activation_checkpointing.interval_layers": 4,
    },
}
BF16: dict[str, Any] = {
    "precision.dtype": "bf16",
    "parallel.zero_stage": 1,
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
}
# Variants of 125M at a micro batch of 16, each with bf16, ZeRO 1 and no dropout.
VARIANTS: dict[str, dict[str, Any]] = {
    "dropout 0.1": {"model.hidden_dropout": 0.1, "model.attention_dropout": 0.1},
    "ZeRO 2": {"parallel.zero_stage": 2},
    "ZeRO 3": {"parallel.zero_stage": 3},
    "autocast": {"precision.autocast": True},
    "fp16, ZeRO 2": {"precision.dtype": "fp16", "parallel.zero_stage": 2},
    "fp32, ZeRO 0": {"precision.dtype": "fp32", "parallel.zero_stage": 0},
    "FP8": {"precision.fp8": True},
    "math attention": {"model.attention_backend": "math", "batch.micro_batch_size": 4},
    "optimizer in host memory, ZeRO 2": {
        "parallel.zero_stage": 2,
        "parallel.offload_optimizer.device": "cpu",
    },
    "compiled": {"model.compile": True},
}


@dataclass(frozen=True)
class Planned:
    """The planned bytes of one rank."""

    states: int
    """Bytes that stay allocated between two steps."""
    allocated: int
    """Bytes that torch counts as allocated."""
    device: int
    """Bytes that the driver counts for the process while there is room."""
    fits: bool | None


def planned(config: RunConfig) -> Planned:
    """Return the planned bytes of the fullest rank."""
    found, setup = estimate_memory(config), setup_of(config)
    workspaces = cublas_bytes(config)
    allocated = found.allocated_bytes + workspaces
    free = free_block_bytes(setup, stage_of(setup, found.stage), allocated)
    return Planned(
        between_steps(config, found.parts) + workspaces,
        allocated,
        allocated + free + found.parts["runtime"],
        found.fits,
    )


def cublas_bytes(config: RunConfig) -> int:
    """Return the bytes of cuBLAS's workspaces, which torch allocates at the first product and keeps."""
    if config.resources.device == "cpu":
        return 0
    device = setup_of(config).device
    is_new = device is None or device.compute_capability >= (9, 0)
    return CUBLAS_HANDLES * (CUBLAS_WORKSPACE_BYTES if is_new else OLD_CUBLAS_WORKSPACE_BYTES)


def between_steps(config: RunConfig, parts: Mapping[str, int]) -> int:
    """Return the planned bytes of a rank's model states between two steps, when gradients are released.

    DeepSpeed's BF16_Optimizer keeps its fp32 gradient sums, and ZeRO 3 its shard of them; autocast's copies
    are freed.
    """
    precision, zero_stage = config.precision, config.parallel.zero_stage
    weights = parts["master_copy"] if precision.autocast else parts["weights"]
    kept = weights + parts["master_copy"] + parts["optimizer"]
    if zero_stage == 3:
        kept += parts["gradients"]
    elif is_bf16_optimizer(setup_of(config)):
        # 4 bytes for a parameter, in addition to 2 of the last micro batch.
        kept += parts["gradients"] * 4 // 6
    return kept


def cases(place: Place) -> Iterator[Case]:
    """Yield the upstream runs as in their YAMLs, every kind of recomputation, and variants."""
    trainings = Trainings(place)
    for name, overrides in wanted(place.on_gpu):
        yield Case(name, functools.partial(find, trainings, name, overrides))


def wanted(on_gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return (name, overrides) of each case; a name begins with the model's size."""
    if not on_gpu:
        for recomputed in ("none", "full"):
            yield f"125m, micro 2, {recomputed}", _tiny() | RECOMPUTED[recomputed]
        return
    for size in SOURCES:
        yield f"{size} as its YAML says", {"parallel.zero_stage": 2}
    for micro, small in ((16, 8), (8, 2), (32, 16)):
        for recomputed, overrides in RECOMPUTED.items():
            for size, number in (("125m", micro), ("1.3b", small)):
                batch = {"batch.micro_batch_size": number}
                yield f"{size}, micro {number}, {recomputed}", BF16 | batch | overrides
    plain = BF16 | RECOMPUTED["none"] | {"batch.micro_batch_size": 16}
    for words, overrides in VARIANTS.items():
        yield f"125m, {words}", plain | overrides


def _tiny() -> dict[str, Any]:
    return {
        "model.num_layers": 4,
        "model.hidden_size": 64,
        "model.num_attention_heads": 4,
        "model.seq_length": 64,
        "tokenizer.vocab_size": 500,
        "precision.dtype": "fp32",
        "parallel.zero_stage": 1,
        "batch.micro_batch_size": 2,
        "data.num_workers": 0,
    }


def find(trainings: Trainings, name: str, overrides: dict[str, Any]) -> Finding:
    """Plan and train one run."""
    settings = settings_of(overrides, trainings.place.gpu_name)
    seq_length = overrides.get("model.seq_length", 2048)
    settings["data.name"] = trainings.dataset("walks", 400, (seq_length // 2, 2 * seq_length), 500)
    try:
        run = trainings.make(name, settings, SOURCES[_size(name)])
    except ConfigError as error:
        # The tests load every case for a GPU that supports all formats.
        raise Impossible(f"not on this GPU: {error}") from error
    plan = planned(load_resolved(run.config_yaml))
    try:
        found = trainings.train(run, "memory").found
    except TrainingFailed as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        verdict = "does not fit" if plan.fits is False else "fits"
        words = f"out of memory; the plan says that {plan.device / GIB:.1f} GiB {verdict}"
        return passed_if(plan.fits is False, words)
    return compare(plan, found, trainings.place.on_gpu)


def plan_of(name: str, gpu_name: str) -> Planned | None:
    """Return today's plan of a case on a GPU; None if the case no longer exists."""
    overrides = dict(wanted(on_gpu=True)).get(name)
    if overrides is None:
        return None
    machine = {"resources.device": "gpu", "resources.nodes": 1, "resources.gpus_per_node": 1}
    return planned(load(SOURCES[_size(name)], {**machine, **settings_of(overrides, gpu_name)}))


def settings_of(overrides: dict[str, Any], gpu_name: str) -> dict[str, Any]:
    """Return the settings with which a case changes its run's YAML."""
    micro = overrides.get("batch.micro_batch_size", 16)
    seq_length = overrides.get("model.seq_length", 2048)
    batch = ACCUMULATION * micro
    device = find_device(gpu_name)
    return {
        "mode": "perf",
        "data.name": "walks",
        "data.index_samples": 4 * STEPS * batch,
        "data.num_workers": 1,
        "data.split": "90,5,5",
        "batch.global_batch_size": batch,
        "batch.train_tokens": 2 * STEPS * batch * seq_length,
        "batch.max_steps": STEPS,
        "lr_schedule.lr_warmup_tokens": 0,
        "lr_schedule.lr_decay_tokens": None,
        "parallel.data_parallel_size": 1,
        "resources.gpu_type": device.name if device else None,
        "resources.memory_per_node_bytes": None,
        "resources.cpus_per_node": None,
        "backend.env": {},
        **overrides,
    }


def _size(name: str) -> str:
    """Return the size of the model, with which a case's name begins."""
    return name.split(",")[0].split()[0]


def compare(plan: Planned, found: dict[str, Any], on_gpu: bool) -> Finding:
    """Compare measured and planned memory of a run that fitted."""
    if not on_gpu:
        used = found["resident"]
        words = f"{used / GIB:.2f} GiB resident, {plan.device / GIB:.2f} planned (a CPU process)"
        return passed_if(used > plan.states, words)
    # The driver's own memory and other processes' memory were in use before.
    used = found["used"] - (found["used_before"] or 0)
    pairs = {
        "states": (found["states"], plan.states),
        "allocated": (found["allocated"], plan.allocated),
        "of the device": (used, plan.device),
    }
    off = {what: theirs / measured - 1 for what, (measured, theirs) in pairs.items()}
    values = {}
    for what, (measured, theirs) in pairs.items():
        values[f"{what} GiB"] = f"{measured / GIB:.2f}"
        values[f"{what}, planned"] = f"{theirs / GIB:.2f} ({off[what]:+.1%})"
    words = f"reserved {found['reserved'] / GIB:.2f} GiB, host {found['resident'] / GIB:.2f} GiB"
    if found["used_before"] is None:
        words += "; without nvidia-ml-py what the driver counted before is unknown"
    if found["context_before"]:
        words += "; a context was made before the order, so that waiting processes may count too"
    if plan.fits is False:
        return Finding("failed", f"the plan says that it does not fit; {words}", values)
    worst = max(off, key=lambda what: abs(off[what]))
    if abs(off[worst]) > ALLOWED:
        words = f"{worst} planned {off[worst]:+.1%}, allowed is {ALLOWED:.0%}; {words}"
    return passed_if(abs(off[worst]) <= ALLOWED, words, values)
