"""Peak memory of one rank in the fullest pipeline stage, by part: on its device, in host memory, on NVMe.

    estimate(setup) -> MemoryEstimate     numbers only, because a search makes thousands of estimates
    estimate_memory(config)               the same for a run

A device must have at least the sum of its parts. torch's own count (max_memory_allocated) excludes `runtime`
and `reserve`; nvidia-smi shows more while memory is free (buffers.free_block_bytes). The parts are explained
in states.py, activations.py and buffers.py.

Host memory holds offloaded state, its buffers, and the model while it is built. At the start, every rank
builds its shard of the model on the host, in fp32, one whole matrix at a time, unless ZeRO 3 partitions each
parameter as it is created (model/initialization.py, train/build.py). Asynchronous saving also keeps a copy of
the states in host memory. If a run leaves checkpoint.async_save unset, the copy is made if it fits
(`decided`).
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Literal

from nbtrain.base.hardware.cgroup import usable_memory_bytes
from nbtrain.base.text import amounts
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory import activations, buffers
from nbtrain.planner.memory.stage import Stage, stage_of, window_layers_by_stage
from nbtrain.planner.memory.states import States, states, weight_element
from nbtrain.planner.setup.setup import Setup, setup_of

STATES = ("weights", "gradients", "master_copy", "optimizer")
PARTS = (
    *STATES,
    "activations",
    "logits",
    "communication",
    "pipeline",
    "workspace",
    "runtime",
    "reserve",
)
HOST_PARTS = ("weights", "gradients", "master_copy", "optimizer", "activations", "buffers", "snapshot")

# DeepSpeed's default (offload_param.max_in_cpu): parameters kept in host memory while the rest is on NVMe.
NVME_PARAMETERS_IN_CPU = 1_000_000_000
# Number of tensors that the optimizer's step holds in memory for a sub-group (a part of the parameters) on
# NVMe: master copy, gradients, two moments.
NVME_OPTIMIZER_TENSORS = 4
# With async_save: null, the copy of the states is made only if host memory is used up to this fraction,
# because a fuller machine raises an alert (logging.alerts.max_host_memory_fraction).
COPY_ROOM_FRACTION = 0.9
# torch rounds a page-locked buffer up to a power of two, at most twice the tensor (CachingHostAllocator).
PAGE_LOCKED_FACTOR = 2
# Memory of one data-loader process, including its part of the memory that it shares with the rank that forked
# it. Measured with a tiny run: Pss in smaps_rollup 78 MiB, of which 8 MiB were private.
LOADER_BYTES = 80 * 2**20


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes that the fullest rank needs, by part, and the memory that its device and its host have."""

    parts: dict[str, int]
    """Bytes on the device, for each of PARTS."""
    stage: int
    """Index of the pipeline stage that needs the most memory."""
    device_bytes: int | None
    """Device memory that one rank may use; None if the device is not known."""
    device: str
    """Name of the device that device_bytes belongs to, such as "A100-40GB"."""
    host_parts: dict[str, int] = field(default_factory=dict)
    """Bytes of the fullest rank in host memory, for each of HOST_PARTS; all 0 on device cpu (see `parts`)."""
    nvme_bytes: int = 0
    """Bytes of the fullest rank in files on NVMe."""
    host_bytes: int | None = None
    """Host memory that one rank may use; None if it is not known."""
    initial_host_bytes: int = 0
    """Host memory of one rank's process while the model is built."""
    ranks_per_node: int = 1
    copy_bytes: int = 0
    """Bytes of the copy of a rank's weights and optimizer state that asynchronous saving would keep."""
    saves_in_background: bool = False
    """Whether asynchronous saving keeps a copy of weights and optimizer state. The parts then include it."""

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def states_bytes(self) -> int:
        """Bytes of model states on the device: weights, gradients, master copy and optimizer."""
        return sum(self.parts[part] for part in STATES)

    @property
    def allocated_bytes(self) -> int:
        """Bytes that torch counts as allocated: all parts except `runtime` and `reserve`."""
        return self.total_bytes - self.parts["runtime"] - self.parts["reserve"]

    @property
    def total_host_bytes(self) -> int:
        return sum(self.host_parts.values())

    @property
    def node_host_bytes(self) -> int:
        """Bytes of host memory that all ranks of a node need, in training or at the start if that is more."""
        running = self.total_host_bytes + buffers.CPU_RUNTIME_BYTES if self.host_parts else 0
        return self.ranks_per_node * max(running, self.initial_host_bytes)

    @property
    def fits_host(self) -> bool | None:
        """Whether a GPU rank's share of host memory suffices; None if the host memory is not known."""
        return None if self.host_bytes is None else self.total_host_bytes <= self.host_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the parts fit the device; None if the device is not known."""
        return None if self.device_bytes is None else self.total_bytes <= self.device_bytes


def estimate_memory(config: RunConfig) -> MemoryEstimate:
    """Estimate the memory of a run's fullest rank."""
    return estimate(setup_of(config))


def least_memory(config: RunConfig) -> MemoryEstimate:
    """Estimate a run's memory; only async_save: true includes the copy for asynchronous saving."""
    setup = setup_of(config)
    return estimate(replace(setup, saves_in_background=bool(setup.saves_in_background)))


def estimate(setup: Setup) -> MemoryEstimate:
    """Estimate the memory of a setup's fullest rank."""
    setup = decided(setup)
    return _estimate_of(setup, *fullest_stage(setup))


def estimate_if_fits(setup: Setup) -> MemoryEstimate | None:
    """Estimate the memory of a setup's fullest rank; return None if a stage does not fit the device.

    Stages after the first one that does not fit are not computed. The estimate may exceed the host memory. If
    the device's memory is not known, an estimate is always returned.
    """
    if not setup.on_gpu:
        setup = decided(setup)
    found = _fullest_stage(setup, _device(setup)[0])
    return _estimate_of(decided(setup), *found) if found is not None else None


def decided(setup: Setup) -> Setup:
    """Return the setup with saves_in_background decided: True or False if it was None.

    It becomes True for an nbtrain run if host memory can hold the copy of the states in addition to
    everything else that the run keeps there.
    """
    if setup.saves_in_background is not None:
        return setup
    # By default, other programs pause training while they save.
    return replace(setup, saves_in_background=setup.engine == "nbtrain" and lack_for_copy(setup) is None)


def lack_for_copy(setup: Setup) -> Literal["nvme", "unknown memory", "room"] | None:
    """Return why host memory cannot hold the copy of the states; None if it can.

    "nvme": the states are on NVMe and never complete in host memory. "unknown memory": the size of host
    memory is not known. "room": host memory is too small.
    """
    if "nvme" in (setup.offload_optimizer, setup.offload_param):
        return "nvme"
    if setup.host_memory_bytes is None and (setup.on_gpu or not setup.on_this_machine):
        return "unknown memory"
    return None if _has_room_for_copy(setup) else "room"


def _has_room_for_copy(setup: Setup) -> bool:
    copying = replace(setup, saves_in_background=True)
    loaders = setup.loader_workers * LOADER_BYTES
    if not setup.on_gpu:
        share = _device(setup)[0] or 0
        return _fullest_stage(copying, int(COPY_ROOM_FRACTION * share) - loaders) is not None
    room = COPY_ROOM_FRACTION * (setup.host_memory_bytes or 0) / setup.devices_per_node
    room -= loaders + buffers.CPU_RUNTIME_BYTES
    for index in _different_stages(setup):
        stage = stage_of(setup, index)
        found = states(setup, stage)
        needed = sum(host_parts(copying, stage, found).values())
        if needed + (PAGE_LOCKED_FACTOR - 1) * copy_bytes(found) > room:
            return False
    return True


def _estimate_of(setup: Setup, stage: Stage, parts: dict[str, int], found: States) -> MemoryEstimate:
    device_bytes, device = _device(setup)
    on_host = host_parts(setup, stage, found)
    ranks = min(setup.devices_per_node, setup.world_size)
    of_node = setup.host_memory_bytes if setup.on_gpu else None
    return MemoryEstimate(
        parts,
        stage.number,
        device_bytes,
        device,
        on_host,
        sum(found.at("nvme")),
        of_node // setup.devices_per_node if of_node else None,
        initial_bytes(setup, stage),
        ranks,
        copy_bytes(found),
        bool(setup.saves_in_background),
    )


def states_exceed_gpu(setup: Setup) -> bool:
    """Return whether the model states of the first or the last stage alone exceed the GPU's memory.

    Such a setup cannot fit. For a large model, this check rejects most layouts in a fifth of the time that
    `estimate` takes.
    """
    usable = buffers.usable_bytes(setup) if setup.on_gpu else None
    if usable is None:
        return False
    ends = {0, len(setup.layers_by_stage) - 1}
    return any(sum(states(setup, stage_of(setup, index)).at("device")) > usable for index in ends)


def fullest_stage(setup: Setup) -> tuple[Stage, dict[str, int], States]:
    """Return the stage that needs the most device memory, its bytes by part, and its model states."""
    found = _fullest_stage(decided(setup), None)
    assert found is not None
    return found


def _fullest_stage(setup: Setup, most: int | None) -> tuple[Stage, dict[str, int], States] | None:
    """Return the result of fullest_stage(), or None if a stage needs over `most` bytes of device memory."""
    layers = activations.Layers(setup)
    best: tuple[Stage, dict[str, int], States] | None = None
    largest = -1
    for index in _different_stages(setup):
        stage = stage_of(setup, index)
        found = states(setup, stage)
        parts = _parts(setup, stage, found, layers)
        total = sum(parts.values())
        if most is not None and total > most:
            return None
        if total > largest:
            best, largest = (stage, parts, found), total
    return best


def _different_stages(setup: Setup) -> list[int]:
    """Return the indexes of the stages among which the fullest one must be.

    Middle stages with the same number of layers and of sliding-window layers differ only in the number of
    micro batches that they hold. The first of them holds the most, so only its index is returned.
    """
    kinds = [*zip(setup.layers_by_stage, window_layers_by_stage(setup))]
    last = len(kinds) - 1
    return sorted({0, last, *(kinds.index(kind, 1) for kind in {*kinds[1:last]})})


def stage_parts(setup: Setup, index: int) -> dict[str, int]:
    """Return the bytes by part on the device of one rank of a pipeline stage."""
    setup = decided(setup)
    stage = stage_of(setup, index)
    return _parts(setup, stage, states(setup, stage), activations.Layers(setup))


def _parts(setup: Setup, stage: Stage, found: States, layers: activations.Layers) -> dict[str, int]:
    sizes = found.at("device")
    workspace_more = 0
    if not setup.on_gpu:
        # On a CPU, host memory is the device memory.
        sizes = tuple(map(sum, zip(sizes, found.at("cpu"))))  # type: ignore[assignment]
        workspace_more = nvme_buffers(setup, stage) + snapshot(setup, found)
    live = activations.live(setup, stage, layers)
    kept = int(activations.kept_bytes(setup, stage, layers) + live)
    # The logits are freed before the first layer is recomputed, so only the larger of the two counts.
    passing = buffers.passing_logits_bytes(setup, stage)
    logits = passing + buffers.loss_gradients(setup, stage) - int(min(live, passing))
    communication = buffers.communication_bytes(setup, stage)
    pipeline = buffers.pipeline_bytes(setup, stage, activations.in_flight(setup, stage.number))
    workspace = buffers.workspace_bytes(setup, stage, kept + logits, max(passing - live, 0)) + workspace_more
    allocated = sum(sizes) + kept + logits + communication + pipeline + workspace
    reserve = buffers.reserve_bytes(setup, allocated)
    rest = (kept, logits, communication, pipeline, workspace, buffers.runtime_bytes(setup), reserve)
    return dict(zip(PARTS, (*sizes, *rest)))


def host_parts(setup: Setup, stage: Stage, found: States) -> dict[str, int]:
    """Return the bytes by part in the host memory of one GPU rank.

    All are 0 for a CPU rank, whose host memory counts as device memory.
    """
    if not setup.on_gpu:
        return dict.fromkeys(HOST_PARTS, 0)
    sizes = found.at("cpu")
    rest = activations.fpdt_host_bytes(setup, stage), nvme_buffers(setup, stage), snapshot(setup, found)
    return dict(zip(HOST_PARTS, (*sizes, *rest)))


def nvme_buffers(setup: Setup, stage: Stage) -> int:
    """Return the bytes of host memory that offloading to NVMe needs; 0 without NVMe.

    They are buffers, and the parameters that DeepSpeed keeps in host memory.
    """
    if setup.offload_optimizer != "nvme" and setup.offload_param != "nvme":
        return 0
    found, element = 0, weight_element(setup)
    share = stage.elements // setup.zero_size
    if setup.offload_optimizer == "nvme":
        found += NVME_OPTIMIZER_TENSORS * 4 * min(share, setup.sub_group_elements)
    if setup.offload_param == "nvme":
        found += element * setup.nvme_buffer_count * setup.nvme_buffer_elements
        found += element * min(share, NVME_PARAMETERS_IN_CPU)
    return found


def snapshot(setup: Setup, found: States) -> int:
    """Return the bytes of the host copy for asynchronous saving; 0 if the run does not make the copy.

    `found` are the model states of the rank.
    """
    return copy_bytes(found) if setup.saves_in_background else 0


def copy_bytes(found: States) -> int:
    """Return the bytes of a copy of a rank's weights and optimizer state."""
    return found.weights + found.master_copy + found.optimizer


def initial_bytes(setup: Setup, stage: Stage) -> int:
    """Return the bytes of a rank's host memory while its model is built.

    It holds the rank's fp32 weights (except with ZeRO 3), one whole matrix, and the process.
    """
    shape = setup.shape
    largest = max(
        shape.output_weights,
        shape.hidden_size * (shape.query_width + 2 * shape.kv_width),
        shape.hidden_size * shape.ffn_hidden_size,
    )
    made = 0 if setup.zero_stage == 3 else 4 * stage.elements
    return made + 4 * largest + buffers.CPU_RUNTIME_BYTES


def _device(setup: Setup) -> tuple[int | None, str]:
    if setup.on_gpu:
        device = setup.device
        return buffers.usable_bytes(setup), device.name if device else "GPU of unknown type"
    ranks = max(1, setup.world_size // setup.nodes)
    label = "host memory" if ranks == 1 else f"host memory / {ranks} ranks"
    if setup.host_memory_bytes:
        return setup.host_memory_bytes // ranks, label
    return _this_machine_bytes() // ranks, f"this machine's {label}"


@functools.cache
def _this_machine_bytes() -> int:
    """Return the bytes of memory that this process may use.

    The value is cached, because reading it takes longer than an estimate.
    """
    return usable_memory_bytes()


def fit_rating(memory: MemoryEstimate) -> list[str]:
    """Return the row ["fits", text, rating] that says whether the memory fits, and by how much.

    The rating is "good", "tight" or "bad", or "" if the device's memory is not known.
    """
    if memory.device_bytes is None:
        return ["fits", "not known", ""]
    spare = memory.device_bytes - memory.total_bytes
    if spare < 0:
        return ["fits", f"no, {amounts.size(-spare)} too much", "bad"]
    if memory.fits_host is False:
        lacking = memory.total_host_bytes - (memory.host_bytes or 0)
        return ["fits", f"no, {amounts.size(lacking)} of host memory too much", "bad"]
    share = spare / memory.device_bytes
    if memory.total_host_bytes and memory.host_bytes is None:
        return ["fits", f"yes on the GPU, {share:.0%} headroom; the host memory is not known", "tight"]
    return ["fits", f"yes, {share:.0%} headroom", "good" if share >= buffers.SPARE_FRACTION else "tight"]
