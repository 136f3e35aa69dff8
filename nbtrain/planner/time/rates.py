"""Rates that a device and its links reach in practice; every second of a plan comes from them.

    rates_of_setup    the table: a datasheet's numbers times the fractions that published runs reached
    rates_of_cores    a machine without GPUs: a fraction of the rate of its cores in matrix products
    calibrated_rates  either, with what `nbtrain calibrate` measured on this machine
    with_network      any of them, with the network between the run's machines
    read_speed        all of these for a run, and the measurements of its last job: everything that decides
                      its time; duration.py, the plan's other parts and its rules read the same Speed

The fractions of the table depend on the generation of devices, never on a run. Matrix products: the reachable
peaks of stas00/ml-engineering (A100 87 %, H100 80 %, B200 78 % for the best sizes) are upper bounds; what
training sustains is fitted to the training half of the published runs (docs/evidence/plan-accuracy.md), FP4
and Blackwell Ultra to all rows of Megatron-Bridge. Links: A100's NVLink 78 % and PCIe 88 % of one way,
several machines 73 % of the wire (the same, chapter on networks). Ramp: 43 % of the plateau at 4 MiB, 73 % at
8 MiB.
"""

import functools
from dataclasses import dataclass, replace

from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.run_directory.checkpoint_files import measured_save_seconds
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.arithmetic.devices import BY_NAME, Device, find_device
from nbtrain.config.arithmetic.networks import gigabits
from nbtrain.config.schema import RunConfig
from nbtrain.planner.calibration.calibrated_step import calibrated_step
from nbtrain.planner.calibration.calibration import (
    Calibration,
    Figure,
    calibration_path,
    machine_gpus,
    matmul_flops_per_core,
    read_calibration,
)
from nbtrain.planner.calibration.measured_network import measured_network, source_of
from nbtrain.planner.setup.last_job import Measured, measured_rate
from nbtrain.planner.setup.setup import Setup, network_of, setup_of

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Link:
    """Bandwidth between the ranks of a group: bus bandwidth as nccl-tests defines it."""

    bytes_per_second: float
    """Bandwidth of one device in one direction, for large messages."""
    ramp_bytes: float = 0.0
    """Bytes of a message that reaches half of the bandwidth."""
    latency_seconds: float = 0.0
    """Seconds for each hop of a ring."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that a device reaches, alone and together with others."""

    matmul_flops: dict[str, float]
    """FLOP/s of large matrix products by number format."""
    attention_flops: dict[int, float]
    """FLOP/s of a flash attention kernel by its generation."""
    memory_bytes_per_second: float
    """Bandwidth of the device's own memory."""
    inside: Link
    """Link between the devices of a machine."""
    across: Link
    """Link between machines; bytes_per_second is for all devices of a machine together."""
    network_reached: float = 1.0
    """Fraction of the network's nominal bandwidth that `across` has."""
    network: str = ""
    """Description of the network between machines, with its source: named, measured or assumed."""
    inside_devices: int = 8
    """Number of devices connected by `inside`."""
    host_bytes_per_second: float = 25e9
    """Bandwidth between a device and host memory, one way."""
    nvme_bytes_per_second: float = 3e9
    """Bandwidth of one machine's NVMe drive, for offloading: PCIe 3.0 drives reach 3 GB/s, 4.0 ones 6."""
    disk_bytes_per_second: float = 0.18e9
    """Bytes per second of writing a checkpoint, per machine; a network volume as in the upstream example's
    log: 1.8 GB in 10 of the 29 seconds that validation and saving took (planner/time/duration.py).
    """
    host_adam_parameters_per_second: float = 1.6e9
    """Adam's step on the cores of one machine: 10.1e9 parameters in 6.3 s, DeepSpeed's tutorial on offloading
    (docs/_tutorials/zero-offload.md)."""
    scores_flops: float | None = None
    """FLOP/s of attention that keeps its scores; None means compute.py's share of the rate of other
    products.
    """
    host_times: float = 1.0
    """Factor of a program's host time (setup/engines.py); 0 on a CPU, whose rates include the host time."""
    source: str = ""
    """Source of the rates, as one sentence."""
    calibration: Calibration | None = None
    """Measurements of this machine, for the steps of a CPU run (planner/calibration/calibrated_step.py)."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of the datasheet's rates that a generation of devices reaches."""

    matmul: float
    """Fraction for 16-bit products of large matrices."""
    low: float = 0.6
    """Fraction for FP8 products, including their scaling."""
    fp4: float = 0.46
    """Fraction for FP4 products, including their scaling."""
    memory: float = 0.85
    inside: float = 0.78
    across: float = 0.73


SHARES = {
    "V100": Shares(matmul=0.58),
    "A100": Shares(matmul=0.72),
    "Ampere": Shares(matmul=0.68),
    "Hopper": Shares(matmul=0.58, low=0.52),
    "Blackwell": Shares(matmul=0.56, low=0.52),
    "Blackwell Ultra": Shares(matmul=0.56, low=0.6),
    "AMD": Shares(matmul=0.45),
    "Huawei": Shares(matmul=0.45),
}
# Shares of the datasheet that flash attention reaches over forward and backward, by generation of the kernel:
# 1 (and Triton's) 124 TFLOP/s on an A100, 2: 190 on an A100 and 335 on an H100 (arXiv:2307.08691, section 4),
# 3 (and cuDNN's): 600 on an H100 (arXiv:2407.08608, section 4); causal, heads of 128. On a B200, generation 2
# uses none of the new instructions and reaches 333 to 346 (Dao-AILab/flash-attention, issue 1589). Cards of
# compute capability 12 compute with Ampere's instructions and have its shares: forward, generation 2 reaches
# 91 % of the peak of an RTX 5090 (gau-nernst, "Writing Speed-of-Light Flash Attention for 5090 in CUDA C++").
_BLACKWELL_ATTENTION = {1: 0.13, 2: 0.15, 3: 0.55}
_ATTENTION = {
    "Hopper": {1: 0.18, 2: 0.33, 3: 0.62},
    "Blackwell": _BLACKWELL_ATTENTION,
    "Blackwell Ultra": _BLACKWELL_ATTENTION,
}
_ATTENTION_BEFORE = {1: 0.42, 2: 0.52, 3: 0.52}
# Sustained products are slower below this many watts: with the square root of the power.
_FULL_POWER = {"Hopper": 700.0, "A100": 400.0, "V100": 300.0}
# An attention kernel that reaches less than this share leaves most of the tensor cores idle, and stays below
# the limit: torchtitan's rings on H100 with 500 W attend at FlashAttention 2's published rate.
_SHARE_AT_FULL_POWER = 0.4

_PCIE_BELOW = 130e9
_PCIE_SHARE = 0.88
_RAMP_BYTES = 5 << 20
# Per hop, Simple protocol: NVIDIA/nccl src/graph/tuning.cc.
_LATENCY_INSIDE, _LATENCY_ACROSS = 3.4e-6, 14e-6


def rates_of_setup(setup: Setup) -> Rates | None:
    """Return the rates of a setup's device and network; None if the device is not known."""
    if setup.device is None:
        return None
    larger = setup.devices_per_node / setup.device.devices_per_node
    if setup.fabric_bytes_per_second is None and larger > 1:
        # A machine with more devices has more network cards (DGX-2: 16 V100, 8 cards).
        fabric = larger * setup.device.network_bytes_per_second
        rates = rates_of_device(setup.device, fabric, setup.fabric_reached)
        machine = f"a machine with {setup.devices_per_node} {setup.device.name}"
        return replace(rates, network=f"assumed for {machine}: {rates.network}")
    return rates_of_device(setup.device, setup.fabric_bytes_per_second, setup.fabric_reached)


def generation(device: Device) -> str:
    """Return the generation that decides a device's fractions."""
    if device.vendor != "NVIDIA":
        return device.vendor
    major, minor = device.compute_capability
    if major == 8:
        return "A100" if minor == 0 else "Ampere"
    if (major, minor) == (10, 3):
        return "Blackwell Ultra"
    return {7: "V100", 9: "Hopper"}.get(major, "Blackwell")


def rates_of_device(
    device: Device, fabric_bytes_per_second: float | None = None, fabric_reached: float | None = None
) -> Rates:
    """Return the rates of a device of the table.

    `fabric_bytes_per_second` replaces the usual bandwidth between machines, and `fabric_reached` the fraction
    of it that is reached.
    """
    if BY_NAME.get(device.name) is device:
        return _rates_of_row(device.name, fabric_bytes_per_second, fabric_reached)
    return _rates(device, fabric_bytes_per_second, fabric_reached)


@functools.lru_cache(maxsize=256)
def _rates_of_row(name: str, fabric: float | None, reached: float | None) -> Rates:
    return _rates(BY_NAME[name], fabric, reached)


def _rates(device: Device, fabric: float | None, reached: float | None) -> Rates:
    kind = generation(device)
    shares = SHARES[kind]
    capped = min(device.tdp_watts / _FULL_POWER.get(kind, device.tdp_watts), 1.0) ** 0.5
    narrow = {"fp8": shares.low, "fp4": shares.fp4}
    matmul = {
        dtype: peak * narrow.get(dtype, shares.matmul) * capped for dtype, peak in device.peak_flops.items()
    }
    is_card = device.compute_capability[0] == 12
    kernels = _ATTENTION_BEFORE if is_card else _ATTENTION.get(kind, _ATTENTION_BEFORE)
    peak = device.peak("fp16") or max(device.peak_flops.values())
    pcie = device.link_bytes_per_second < _PCIE_BELOW
    link = device.link_bytes_per_second / 2 * (_PCIE_SHARE if pcie else shares.inside)
    network_reached = reached or shares.across
    network = fabric or device.network_bytes_per_second
    across = network * network_reached
    basis = "" if fabric else f"assumed for a usual machine with {device.name}: "
    return Rates(
        matmul_flops=matmul,
        attention_flops={
            number: peak * share * (capped if share > _SHARE_AT_FULL_POWER else 1.0)
            for number, share in kernels.items()
        },
        memory_bytes_per_second=device.memory_bytes_per_second * shares.memory,
        inside=Link(link, _RAMP_BYTES, _LATENCY_INSIDE),
        across=Link(across, _RAMP_BYTES, _LATENCY_ACROSS),
        network_reached=network_reached,
        network=f"{basis}{gigabits(network)}, one way, of which {network_reached:.0%} are reached",
        inside_devices=device.link_devices,
        source=f"{device.name}'s datasheet, and the shares of it that published runs reached",
    )


# A core with AVX-512 at 2.6 GHz: 166 GFLOP/s in fp32 matrix products. The trainer's share of it (model FLOPs)
# is taken from docs/evidence/benchmarks.md, on 2 cores without AMX: gpt3-tiny in fp32, 6,000 tokens/s; 14M
# parameters in bf16, 2,600. Their matrix rate was not recorded: the shares refer to a similar core.
# AMX makes bf16 up to twice as fast.
ASSUMED_MATMUL_FLOPS_PER_CORE = 166e9
SHARE_OF_MATMUL = {"fp32": 0.43, "bf16": 0.76, "fp16": 0.43}
# gloo through shared memory, a rank of one core: two tensor ranks need 1.18 times the time of two threads, 24
# sums of 3.1 MB in 0.12 s of a step (docs/evidence/benchmarks.md).
GLOO_BYTES_PER_SECOND = 0.6e9
# Model FLOPs count all scores; compute.py counts half of them, at 0.5 + 1.25 instead of 3 forward passes.
_COUNTED_SCORES = (0.5 + 1.25) / 3


def cores_of(config: RunConfig) -> int:
    """Return the cores of all machines of a CPU run."""
    return (config.resources.cpus_per_node or usable_cores()) * config.resources.nodes


def rates_of_cores(config: RunConfig, matmul_flops_per_core: float | None) -> Rates:
    """Return the rates of one rank of a CPU run on its share of the cores; None assumes a core's rate.

    The fractions were measured with complete training steps (docs/evidence/benchmarks.md), so they include
    norms, data and the optimizer: memory and host times add nothing here. A calibration replaces these rates.
    """
    dtype = config.precision.dtype
    matmul = matmul_flops_per_core or ASSUMED_MATMUL_FLOPS_PER_CORE
    per_core, cores = matmul * SHARE_OF_MATMUL[dtype], cores_of(config)
    rate = per_core * cores / config.world_size
    reached = "this machine reaches" if matmul_flops_per_core else "are assumed"
    link = Link(GLOO_BYTES_PER_SECOND)
    return Rates(
        matmul_flops={dtype: rate},
        attention_flops=dict.fromkeys((1, 2, 3), rate * _COUNTED_SCORES),
        memory_bytes_per_second=INFINITE,
        inside=link,
        across=link,
        scores_flops=rate,
        host_times=0.0,
        source=(
            f"assumed {per_core / 1e9:.0f} GFLOP/s on each of {cores} cores: {SHARE_OF_MATMUL[dtype]:.0%} of "
            f"the {matmul / 1e9:.0f} that {reached} in fp32 matrix products, as training in {dtype} did in "
            "the benchmarks"
        ),
    )


# Bus bandwidth over algorithm bandwidth is (n - 1) / n for a gather (NVIDIA/nccl-tests doc/PERFORMANCE.md).
_GATHER = "all_gather"


def calibrated_rates(rates: Rates, setup: Setup) -> Rates:
    """Return `rates` of the setup's device, with this machine's measurements if they apply to the device.

    A CPU run on this machine uses the whole calibration: calibration/calibrated_step.py computes its seconds.
    A run on the kind of GPU that this machine has uses the measured rates of matrix products, memory, links
    and disk. A calibration of GPUs does not apply to a CPU run, nor one of the CPU to GPUs. A calibration
    that exists but is not used is named in `source`, with the reason.
    """
    calibration, why = read_calibration()
    if calibration is None:
        named = calibration_path().exists() and not setup.on_gpu
        return replace(rates, source=f"{rates.source}; {why.rstrip('.')}") if named else rates
    if calibration.device != ("gpu" if setup.on_gpu else "cpu"):
        return rates
    source = f"{calibration.source} ({calibration.machine})"
    disk = calibration.disk.get("write_bytes_per_second", rates.disk_bytes_per_second)
    if not setup.on_gpu:
        if calibrated_step(setup, calibration) is None:
            return rates
        return replace(rates, calibration=calibration, disk_bytes_per_second=disk, source=source)
    if setup.device is None or setup.device not in [find_device(name) for name in machine_gpus()]:
        return rates
    matmul = {**rates.matmul_flops, **_known(calibration.matmul_flops(), rates.matmul_flops)}
    return replace(
        rates,
        matmul_flops=matmul,
        memory_bytes_per_second=calibration.memory_bytes_per_second() or rates.memory_bytes_per_second,
        inside=_link(calibration, rates.inside),
        disk_bytes_per_second=disk,
        source=source,
    )


def _known(measured: dict[str, float], planned: dict[str, float]) -> dict[str, float]:
    """Return the measured rates of the number formats that the device's row has."""
    return {dtype: flops for dtype, flops in measured.items() if dtype in planned}


def _link(calibration: Calibration, link: Link) -> Link:
    """Return a link with the bus bandwidth of the largest gather and the latency of the smallest; `link` if
    none was measured.
    """
    gathers: list[Figure] = calibration.of("collective", collective=_GATHER)
    if not gathers:
        return link
    ranks = max(figure["ranks"] for figure in gathers)
    sizes = sorted(
        (figure for figure in gathers if figure["ranks"] == ranks), key=lambda figure: figure["bytes"]
    )
    smallest, largest = sizes[0], sizes[-1]
    bus = largest["bytes"] / largest["seconds"] * (ranks - 1) / ranks
    return Link(bus, link.ramp_bytes, smallest["seconds"] / (ranks - 1))


def with_network(rates: Rates, config: RunConfig, use_measured: bool) -> Rates:
    """Return `rates` with the network between the run's machines; unchanged on one machine.

    The network is the first of these that exists:

        named      resources.network or network_bytes_per_second: bandwidth times the fraction that is
                   reached; network_reached_fraction alone: that fraction of the assumed bandwidth
        measured   by `nbtrain calibrate --network` where the run's ranks would be (measured_network.py)
        assumed    the network of a usual machine with this type of GPU; CPUs: gloo's own rate
    """
    if config.resources.nodes == 1:
        return rates
    fabric, reached = network_of(config.resources)
    if fabric is not None:
        assert reached is not None
        name = f"{config.resources.network}: " if config.resources.network else ""
        words = f"{name}{gigabits(fabric)}, one way, of which {reached:.0%} are reached"
        across = rates.across
        if config.resources.device == "cpu":
            # A rank sends no faster than gloo does inside a machine.
            most = rates.inside.bytes_per_second * config.ranks_per_node
            across = replace(across, bytes_per_second=min(fabric * reached, most))
        return replace(rates, across=across, network=words, network_reached=reached)
    # A fraction that the run names is of the bandwidth that is assumed.
    measured = measured_network(config) if use_measured and reached is None else None
    if measured is None:
        return rates
    across = Link(measured.bytes_per_second, rates.across.ramp_bytes, measured.latency_seconds)
    words = f"{gigabits(measured.bytes_per_second)} reached, one way, {source_of(measured)}"
    return replace(rates, across=across, network=words, network_reached=1.0)


@dataclass(frozen=True)
class Speed:
    """Everything that decides how fast a run trains."""

    setup: Setup
    rates: Rates | None
    """Rates of its devices and links, with this machine's measurements where they apply; None if the device
    is not known.
    """
    table_rates: Rates | None
    """The rates without anything measured on this machine, and so equal on every machine."""
    last_job: Measured | None = None
    """Measurements of the run's last job; None if there are none for its devices."""
    save_seconds: float = 0.0
    """Seconds of the longest save that the run has measured; 0 if there was none."""


def read_speed(
    config: RunConfig,
    use_measured: bool = True,
    engine: str = "nbtrain",
    last_job: bool = True,
    setup: Setup | None = None,
) -> Speed:
    """Read what decides the speed of a run.

    Without `use_measured` nothing is read, and the answer is the same on every machine; `last_job=False`
    ignores only the run's last job. `engine` is the program that trains, a key of setup/engines.py. `setup`
    is the run's, if it has been made already.
    """
    setup = setup or setup_of(config)
    trained = replace(setup, engine=engine)
    on_cpu = config.resources.device == "cpu"
    is_known = setup.device is not None and setup.device.peak(config.precision.dtype) is not None
    rates = rates_of_cores(config, None) if on_cpu else rates_of_setup(setup) if is_known else None
    table_rates = rates and with_network(rates, config, use_measured=False)
    if not use_measured:
        return Speed(trained, table_rates, table_rates)
    measured = measured_rate(config, setup) if last_job else None
    if on_cpu and measured is None:
        rates = rates_of_cores(config, matmul_flops_per_core())
    rates = rates and with_network(calibrated_rates(rates, setup), config, use_measured=True)
    saved = measured_save_seconds(RunDir.named(config.name))
    return Speed(trained, rates, table_rates, measured, saved)
