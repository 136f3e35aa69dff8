"""Find the cheapest change that makes a run fit its memory, by the planner's own estimate.

Changes are tried in the usual order, from the cheapest to the most expensive:

    16-bit format -> recomputation -> smaller micro batches -> a higher ZeRO stage -> more ranks per model
    (tensor inside a machine, then pipeline) -> offloading -> several changes together -> more GPUs

Recomputation is tried before ZeRO 3, which sends 50 % more data (arXiv:1910.02054, section 7). Offloading is
tried last, because it moves all state over PCIe in every step. Only changes that the rules allow are tried.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.planner.budget.disk import SPARE_BYTES_OF_LOGS, DiskEstimate, num_kept_for_ever
from nbtrain.planner.memory import MemoryEstimate, least_memory

RECOMPUTE = "parallel.activation_checkpointing.granularity"
MICRO_BATCH, ZERO = "batch.micro_batch_size", "parallel.zero_stage"
TENSOR, PIPELINE, DATA = (f"parallel.{axis}_parallel_size" for axis in ("tensor", "pipeline", "data"))
OPTIMIZER, WEIGHTS = (f"parallel.offload_{what}.device" for what in ("optimizer", "param"))
KEEP_LAST, KEEP_EVERY = "checkpoint.keep_last", "checkpoint.keep_every_steps"
# Remedies that need more GPUs than this are not proposed.
MOST_DEVICES = 4096

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Remedy:
    """A change with which the run fits its memory."""

    changes: Changes
    """Overrides: {dotted key: value}."""
    memory: MemoryEstimate
    """Memory after the change."""

    @property
    def words(self) -> str:
        """The changes as text, e.g. "parallel.zero_stage: 2 and batch.micro_batch_size: 1"."""
        return words_of(self.changes)


def words_of(changes: Changes) -> str:
    """Return changes as text, e.g. "parallel.zero_stage: 2 and batch.micro_batch_size: 1"."""
    return " and ".join(f"{key}: {show(value)}" for key, value in changes.items())


def cheapest_remedy(
    config: RunConfig, spare: float, device_bytes: int | None = None, devices: int = MOST_DEVICES
) -> Remedy | None:
    """Return the first change that leaves the fraction `spare` of memory free.

    If no change leaves that much, the first change with which the run fits is returned. The result is None if
    no change makes the run fit, or if the device's memory is unknown. `device_bytes` is the memory of an
    existing device and replaces the memory of the run's own device. The change needs at most `devices`
    devices; a number below MOST_DEVICES means that all devices are in one machine.
    """
    tight = None
    for changes in _candidates(config, devices):
        changed = with_values(config, changes)
        if find_problems(changed):
            continue
        memory = least_memory(changed)
        limit = device_bytes or memory.device_bytes
        if limit is None or memory.total_bytes > limit or memory.fits_host is False:
            continue
        if memory.total_bytes <= (1 - spare) * limit:
            return Remedy(changes, memory)
        tight = tight or Remedy(changes, memory)
    return tight


def host_remedy(config: RunConfig) -> Remedy | None:
    """Return the first change with which the run fits host memory; None if no change fits.

    The run must also fit device memory, if that is known.
    """
    parallel = config.parallel
    candidates: list[dict[str, Any]] = []
    if config.checkpoint.async_save:
        candidates.append({"checkpoint.async_save": False})
    if parallel.offload_param.device != "none":
        candidates.append(on_device("offload_param"))
    if parallel.offload_optimizer.device != "none":
        candidates.append(on_device("offload_param", "offload_optimizer"))
    candidates += [{**more, **changes} for changes in candidates[:1] for more in candidates[1:]]
    for changes in candidates:
        changes = differing(config, changes)
        changed = with_values(config, changes)
        if find_problems(changed):
            continue
        memory = least_memory(changed)
        if memory.fits_host and memory.fits is not False:
            return Remedy(changes, memory)
    return None


def disk_remedy(config: RunConfig, disk: DiskEstimate, present: int, free: int) -> Changes | None:
    """Return the changes with which the run's checkpoints fit its disk, and as many as possible are kept.

    `present` is the size of the run's existing checkpoints in bytes, and `free` the free space of the disk.
    Returns None if the disk cannot hold even the newest checkpoint, the best one and the one being written.
    """
    checkpoint = config.checkpoint
    held = (free + present - SPARE_BYTES_OF_LOGS) // disk.checkpoint_bytes - checkpoint.keep_best - 1
    kept = num_kept_for_ever(config)
    fewer = [({}, kept)] if not kept else [({}, kept), ({KEEP_EVERY: None}, 0)]
    for changes, for_ever in fewer:
        if (last := min(held - for_ever, checkpoint.keep_last)) >= 1:
            return changes if last == checkpoint.keep_last else {KEEP_LAST: last, **changes}
    return None


def stages_allowed(config: RunConfig) -> list[int]:
    """Return the ZeRO stages above the run's own stage that the rules allow, in ascending order."""
    above = range(config.parallel.zero_stage + 1, 4)
    return [stage for stage in above if not find_problems(with_values(config, {ZERO: stage}))]


def nvme_words(config: RunConfig) -> str:
    """Return, as text, the changes that move the run's offloaded state from host memory to NVMe.

    ZeRO 3, which NVMe needs, is one of the changes. Returns "" if nothing is offloaded to host memory, if the
    rules do not allow the changes, or if the run does not fit host memory with them either.
    """
    places: dict[str, Any] = {ZERO: 3}
    for section in ("offload_optimizer", "offload_param"):
        if getattr(config.parallel, section).device == "cpu":
            places |= {f"parallel.{section}.device": "nvme", f"parallel.{section}.nvme_path": "/nvme"}
    changed = with_values(config, places)
    if len(places) == 1 or find_problems(changed) or least_memory(changed).fits_host is False:
        return ""
    words = words_of(differing(config, places))
    return f"{words}, replacing /nvme with a folder on a local NVMe disk"


def on_device(*sections: str) -> dict[str, Any]:
    """Return the changes that turn the given sections (offload_param, offload_optimizer) off entirely."""
    plain = {"device": "none", "nvme_path": None, "pin_memory": False}
    return {f"parallel.{section}.{key}": value for section in sections for key, value in plain.items()}


def differing(config: RunConfig, changes: Changes) -> dict[str, Any]:
    """Return the changes whose values differ from the run's values."""
    return {key: value for key, value in changes.items() if _differs(config, key, value)}


def _candidates(config: RunConfig, devices: int) -> Iterator[Changes]:
    """Yield single changes in the usual order, then combined changes, then changes that use more GPUs."""
    formats, recomputations = list(_formats(config)), list(_recomputations(config))
    micro_batches, stages, cuts = list(_micro_batches(config)), list(_stages(config)), list(_cuts(config))
    yield from formats
    yield from recomputations
    yield from micro_batches
    yield from stages
    yield from cuts
    least: dict[str, Any] = {}
    for changes in (formats, recomputations, micro_batches):
        if changes:
            least |= changes[-1]
            yield dict(least)
    for stage in stages:
        yield {**least, **stage}
    for cut in cuts:
        yield {**least, **cut}
    offloads = list(_offloads(config))
    yield from offloads
    yield from ({**least, **offload} for offload in offloads)
    yield from _more_devices(config, {**least, **(stages[-1] if stages else {})}, least, devices)


def _formats(config: RunConfig) -> Iterator[Changes]:
    device = find_device(config.resources.gpu_type)
    if config.precision.dtype == "fp32":
        bf16 = config.resources.device == "cpu" or device is None or device.peak("bf16") is not None
        stage = {} if config.parallel.zero_stage else {ZERO: 1}  # ZeRO 0 allows fp32 only
        yield {"precision.dtype": "bf16" if bf16 else "fp16", **stage}


def _recomputations(config: RunConfig) -> Iterator[Changes]:
    kinds = ("none", "selective", "full")
    now = kinds.index(config.parallel.activation_checkpointing.granularity)
    yield from ({RECOMPUTE: kind} for kind in kinds[now + 1 :])


def _micro_batches(config: RunConfig) -> Iterator[Changes]:
    now = config.batch.micro_batch_size
    yield from ({MICRO_BATCH: size} for size in reversed(divisors(now)[:-1]))


def _stages(config: RunConfig) -> Iterator[Changes]:
    if config.parallel.data_axis_size > 1:
        yield from ({ZERO: stage} for stage in range(config.parallel.zero_stage + 1, 4))


def _cuts(config: RunConfig) -> Iterator[Changes]:
    """Yield layouts with more ranks per model and the same number of ranks in total.

    Layouts with the fewest additional ranks per model come first, and tensor parallelism before pipelines.
    """
    parallel, resources = config.parallel, config.resources
    tensor, pipeline, data = (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.data_parallel_size,
    )
    most_tensor = resources.gpus_per_node if resources.device == "gpu" else config.ranks_per_node
    found = []
    for ways in divisors(data)[1:]:
        for share in divisors(ways):
            wide, deep = tensor * (ways // share), pipeline * share
            if wide <= max(most_tensor, tensor):
                changes: dict[str, Any] = {TENSOR: wide, PIPELINE: deep, DATA: data // ways}
                if wide > 1 and not parallel.sequence_parallel:
                    changes["parallel.sequence_parallel"] = True
                if deep > 1 and parallel.zero_stage > 1:
                    changes[ZERO] = 1
                if parallel.pipeline_stage_layers is not None:
                    changes["parallel.pipeline_stage_layers"] = None
                found.append((ways, deep, changes))
    for _, _, changes in sorted(found, key=lambda entry: entry[:2]):
        yield {key: value for key, value in changes.items() if _differs(config, key, value)}


def _differs(config: RunConfig, key: str, value: Any) -> bool:
    section: Any = config
    for part in key.split("."):
        section = getattr(section, part)
    return bool(section != value)


def _offloads(config: RunConfig) -> Iterator[Changes]:
    parallel = config.parallel
    if config.resources.device == "cpu" or parallel.offload_optimizer.device != "none":
        return
    least = max(parallel.zero_stage, 1)
    for stage in range(least, 4 if parallel.pipeline_parallel_size == 1 else least + 1):
        changes: dict[str, Any] = {} if stage == parallel.zero_stage else {ZERO: stage}
        yield {**changes, OPTIMIZER: "cpu"}
        if stage == 3:
            yield {**changes, OPTIMIZER: "cpu", WEIGHTS: "cpu"}


def _more_devices(config: RunConfig, sharded: Changes, least: Changes, devices: int) -> Iterator[Changes]:
    """Yield changes that use two, four, eight ... times as many GPUs, up to `devices`.

    The additional GPUs become data-parallel ranks with ZeRO, together with the changes in `sharded`, or
    pipeline stages, together with the changes in `least`.
    """
    parallel, resources = config.parallel, config.resources
    if resources.device == "cpu" or not resources.gpus_per_node:
        return
    factor = 2
    most_of_machine = 8 if devices == MOST_DEVICES else devices
    while config.world_size * factor <= devices:
        nodes, gpus = resources.nodes * factor, resources.gpus_per_node
        if resources.nodes == 1 and gpus * factor <= most_of_machine:
            nodes, gpus = 1, gpus * factor
        machines = {"resources.nodes": nodes, "resources.gpus_per_node": gpus}
        machines = {key: value for key, value in machines.items() if _differs(config, key, value)}
        for stage in range(max(parallel.zero_stage, 1), 4):
            yield {**sharded, ZERO: stage, DATA: parallel.data_parallel_size * factor, **machines}
        yield {**least, PIPELINE: parallel.pipeline_parallel_size * factor, **machines}
        factor *= 2
