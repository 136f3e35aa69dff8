"""Changes to propose for each observation of a run; advice.py predicts whether they help.

out of device memory    recomputation, smaller micro batches, a higher ZeRO stage, smaller chunks of the
                        logits, offloading; expandable segments if torch's memory is fragmented
out of host memory      fewer data workers, no saving in the background
hang or time-out        settings that record the reason next time
unstable                a lower learning rate, a longer warm-up, clipping, bf16, skipping bad steps
waits for data          more data workers
waits for stages        smaller micro batches, a larger global batch
free memory             larger micro batches, less recomputation, a lower ZeRO stage
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from nbtrain.config.arithmetic.warmup import usual_warmup_tokens
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import other_warmups
from nbtrain.planner.advice.observations import Observations
from nbtrain.planner.lint.allocator import with_expandable_segments
from nbtrain.planner.lint.remedies import differing, on_device
from nbtrain.planner.memory import estimate_memory

# Ranks may wait for data, and stages for other stages, for these fractions of a step before a change is
# proposed.
DATA_FRACTION, BUBBLE_FRACTION = 0.05, 0.10
# Torch reports reserved but unallocated memory. Below this fraction of the device, such memory is normal.
FRAGMENTED_FRACTION = 0.05
# If less than this fraction of the device's memory is used, changes that use more memory are proposed.
ROOMY_FRACTION = 0.90
# Proposed value of clip_grad: GPT-3's (arXiv:2005.14165, appendix B).
CLIP_GRAD = 1.0
LOADER_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that an observation suggests, before its effect is predicted."""

    title: str
    overrides: dict[str, Any]
    reason: str
    predictable: bool = True
    """Whether the plan can predict the change's memory and time."""
    uses_memory: bool = False
    """Whether the change is proposed only because memory is free."""


def proposals(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    """Yield all changes that the observations suggest.

    Some of the changes may break configuration rules.
    """
    if seen.out_of_memory is not None:
        yield from _less_device_memory(config, seen)
    if seen.out_of_host_memory:
        yield from _less_host_memory(config)
    if seen.hang:
        yield from _hang(config)
    if seen.unstable or seen.loss_spikes or seen.smallest_loss_scale:
        yield from _calmer(config, seen)
    if (seen.data_fraction or 0.0) > DATA_FRACTION:
        yield from _faster_loader(config, seen)
    if (seen.bubble_fraction or 0.0) > BUBBLE_FRACTION:
        yield from _smaller_bubble(config, seen)
    if not seen.failed:
        yield from (replace(one, uses_memory=True) for one in _use_of_memory(config, seen))


def _less_device_memory(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    parallel, batch, oom = config.parallel, config.batch, seen.out_of_memory
    assert oom is not None
    total, pieces = oom.total_bytes, oom.unallocated_bytes
    joined = with_expandable_segments(config)
    if joined and total and pieces and pieces > FRAGMENTED_FRACTION * total:
        name, value = joined
        yield Proposal(
            "Let the allocator join free segments",
            {"backend.env": {**config.backend.env, name: value}},
            f"torch had reserved {pieces / total:.0%} of the device's memory in segments too small to use",
            predictable=False,
        )
    why = "the device ran out of memory"
    granularity = parallel.activation_checkpointing.granularity
    for kind in ("selective", "full"):
        if granularity == "none" or (granularity, kind) == ("selective", "full"):
            key = "parallel.activation_checkpointing.granularity"
            yield Proposal(f"Recompute activations: {kind}", {key: kind}, why)
    for size in _halves(batch.micro_batch_size):
        yield Proposal("Smaller micro batches", {"batch.micro_batch_size": size}, why)
        if granularity != "full":
            both = {
                "batch.micro_batch_size": size,
                "parallel.activation_checkpointing.granularity": "full",
            }
            yield Proposal("Smaller micro batches, and recomputation", both, why)
    for stage in range(parallel.zero_stage + 1, 4):
        if parallel.data_axis_size > 1:
            yield Proposal(f"ZeRO {stage}", {"parallel.zero_stage": stage}, why)
    if config.model.cross_entropy_chunk_tokens > 1024:
        yield Proposal("Smaller chunks of the logits", {"model.cross_entropy_chunk_tokens": 1024}, why)
    if parallel.offload_optimizer.device == "none":
        stage = max(parallel.zero_stage, 1 if parallel.pipeline_parallel_size > 1 else 2)
        offload = {"parallel.offload_optimizer.device": "cpu", "parallel.zero_stage": stage}
        yield Proposal("Keep optimizer state in host memory", offload, why)


def _less_host_memory(config: RunConfig) -> Iterator[Proposal]:
    why = "the kernel killed a rank because host memory ran out"
    if config.data.num_workers:
        fewer = {"data.num_workers": config.data.num_workers // 2}
        yield Proposal(
            "Fewer data workers", fewer, f"{why}, and each data worker holds batches", predictable=False
        )
    if estimate_memory(config).saves_in_background:
        direct = {"checkpoint.async_save": False}
        yield Proposal(
            "Save without a copy", direct, f"{why}, and background saves keep a copy in host memory"
        )
    for size in _halves(config.batch.micro_batch_size)[:1]:
        if config.resources.device == "cpu":
            yield Proposal("Smaller micro batches", {"batch.micro_batch_size": size}, why)


def _hang(config: RunConfig) -> Iterator[Proposal]:
    why = "a rank made no progress, and the others waited for it"
    debug = "nccl" if config.resources.device == "gpu" else "distributed"
    if debug not in config.backend.debug:
        changes = {"backend.debug": [*config.backend.debug, debug]}
        yield Proposal(
            "Log more about collectives", changes, f"{why}; the log will name that rank", predictable=False
        )
    if config.parallel.process_group_timeout_seconds < 1800:
        longer = {"parallel.process_group_timeout_seconds": 1800}
        slow = f"{why}; if that rank was only slow (e.g. during a save), a longer time-out helps"
        yield Proposal("Longer time-out for collectives", longer, slow, predictable=False)


def _calmer(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    schedule, why = config.lr_schedule, "the loss was NaN or Inf, or it spiked"
    if config.precision.dtype == "fp16":
        scaled = (
            "fp16 overflowed even at the smallest loss scale"
            if seen.smallest_loss_scale
            else "fp16 overflowed"
        )
        if seen.smallest_loss_scale or seen.overflow_steps:
            yield Proposal(
                "Train in bf16", {"precision.dtype": "bf16"}, f"{scaled}; bf16 has the range of fp32"
            )
    halved = {"lr_schedule.lr": schedule.lr / 2}
    if schedule.min_lr > schedule.lr / 2:
        halved["lr_schedule.min_lr"] = schedule.min_lr / 2
    if config.optimizer.muon_lr is not None:
        halved["optimizer.muon_lr"] = config.optimizer.muon_lr / 2
    yield Proposal("Halve the learning rate", halved, why, predictable=False)
    least = usual_warmup_tokens(config)
    if config.lr_warmup_tokens < least:
        share = f"{config.lr_warmup_tokens / config.train_tokens:.1%}"
        warm = f"{why}; the warm-up is only {share} of the training tokens"
        others = {f"lr_schedule.{field}": None for field in other_warmups(schedule)}
        longer = {"lr_schedule.lr_warmup_tokens": least, **others}
        yield Proposal("Longer warm-up", longer, warm, predictable=False)
    clip = config.optimizer.clip_grad
    if not 0 < clip <= CLIP_GRAD:
        at = f"{why}; gradients are clipped only at {clip:g}" if clip else f"{why}; gradients are not clipped"
        yield Proposal("Clip gradients", {"optimizer.clip_grad": CLIP_GRAD}, at, predictable=False)
    if config.stability.on_nan == "stop":
        passed = {"stability.on_nan": "rollback"}
        over = f"{why}; a rollback resumes from the newest checkpoint and skips the bad samples"
        yield Proposal("Roll back and skip samples", passed, over, predictable=False)


def _faster_loader(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    ranks = min(config.ranks_per_node, config.world_size)
    cpus = (seen.cpus or config.resources.cpus_per_node or ranks) // ranks
    workers = min(max(2 * config.data.num_workers, LOADER_WORKERS), max(cpus - 1, 1))
    if workers > config.data.num_workers:
        count = "1 CPU core" if cpus == 1 else f"{cpus} CPU cores"
        why = f"ranks wait for data for {seen.data_fraction:.0%} of a step, and each rank has {count}"
        yield Proposal("More data workers", {"data.num_workers": workers}, why, predictable=False)


def _smaller_bubble(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    stages, batches = config.parallel.pipeline_parallel_size, config.accumulation_steps
    count = "1 micro batch" if batches == 1 else f"{batches} micro batches"
    why = (
        f"stages wait for other stages for {seen.bubble_fraction:.0%} of a step, with {count} for {stages} "
        "stages"
    )
    for size in _halves(config.batch.micro_batch_size):
        yield Proposal("Smaller micro batches", {"batch.micro_batch_size": size}, why)
    yield Proposal(
        "A larger global batch", {"batch.global_batch_size": 2 * config.batch.global_batch_size}, why
    )
    if stages % 2 == 0 and config.parallel.zero_stage <= 1:
        fewer = {
            "parallel.pipeline_parallel_size": stages // 2,
            "parallel.data_parallel_size": 2 * config.parallel.data_parallel_size,
        }
        yield Proposal("Half the stages, twice the data-parallel ranks", fewer, why)


def _use_of_memory(config: RunConfig, seen: Observations) -> Iterator[Proposal]:
    used = seen.memory_fraction
    if used is None or used >= ROOMY_FRACTION:
        return
    why = f"only {used:.0%} of the device's memory is used"
    parallel, micro = config.parallel, config.batch.micro_batch_size
    granularity = parallel.activation_checkpointing.granularity
    for kind in ("none", "selective"):
        if granularity == "full" or (granularity, kind) == ("selective", "none"):
            key = "parallel.activation_checkpointing.granularity"
            yield Proposal(f"Recompute less: {kind}", {key: kind}, why)
    for times in (2, 4):
        yield Proposal("Larger micro batches", {"batch.micro_batch_size": times * micro}, why)
    if parallel.offload_optimizer.device != "none":
        kept = differing(config, on_device("offload_optimizer", "offload_param"))
        yield Proposal("Keep state on the device", kept, why)
    for stage in (1, 2):
        if parallel.zero_stage > stage:
            yield Proposal(f"ZeRO {stage}", {"parallel.zero_stage": stage}, why)


def _halves(size: int) -> list[int]:
    """Return half of `size`, a quarter, and so on down to 1."""
    found = []
    while size > 1:
        size //= 2
        found.append(size)
    return found
