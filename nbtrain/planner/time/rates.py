"""Rates that a device and its links reach in practice, from which every second of a plan is computed.

    rates_of_setup    from the device table: datasheet numbers times the fractions that published runs reached
    rates_of_cores    for a machine without GPUs: a fraction of its cores' rate in matrix products
    calibrated_rates  replaces either by what `nbtrain calibrate` measured on this machine
    with_network      adds the network between the run's machines
    read_speed        combines all of these for a run with the measurements of its last job. duration.py, the
                      plan's other parts and the rules read the same Speed

The fractions depend on the generation of the device, never on a run. For matrix products, the reachable peaks
in stas00/ml-engineering (A100 87 %, H100 80 %, B200 78 % for the best sizes) are upper bounds. What training
sustains is fitted to the training half of the published runs (docs/evidence/plan-accuracy.md); FP4 and
Blackwell Ultra are fitted to all rows of Megatron-Bridge. Links reach 78 % (A100's NVLink) and 88 % (PCIe) of
their one-way bandwidth, and networks 73 % of the nominal bandwidth (same source, chapter on networks).
Messages of 4 MiB reach 43 % of a link's plateau, and messages of 8 MiB 73 %.
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
    """A connection between the ranks of a group; its bandwidth is the bus bandwidth as in nccl-tests."""

    bytes_per_second: float
    """Bandwidth of one device in one direction, for large messages."""
    ramp_bytes: float = 0.0
    """Size of the message that reaches half of the bandwidth."""
    latency_seconds: float = 0.0
    """Seconds per hop of a ring."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates that a device, its links and its machine reach."""

    matmul_flops: dict[str, float]
    """FLOP/s of large matrix products, by number format."""
    attention_flops: dict[int, float]
    """FLOP/s of flash attention, by the kernel's generation."""
    memory_bytes_per_second: float
    """Bandwidth of the device's own memory."""
    inside: Link
    """Link between the devices of a machine."""
    across: Link
    """Link between machines. Its bytes_per_second is for all devices of a machine together."""
    network_reached: float = 1.0
    """Fraction of the network's nominal bandwidth that is reached; it is included in `across`."""
    network: str = ""
    """Description of the network between machines, with its source: named, measured or assumed."""
    inside_devices: int = 8
    """Number of devices connected by `inside`."""
    host_bytes_per_second: float = 25e9
    """Bandwidth between a device and host memory, one way."""
    nvme_bytes_per_second: float = 3e9
    """Bandwidth of a machine's NVMe drive, for offloading.

    PCIe 3.0 drives reach 3 GB/s, PCIe 4.0 drives 6 GB/s.
    """
    disk_bytes_per_second: float = 0.18e9
    """Bytes per second at which each machine writes a checkpoint.

    The default is the network volume in the upstream example's log: 1.8 GB in 10 of the 29 seconds that
    validation and saving took (planner/time/duration.py).
    """
    host_adam_parameters_per_second: float = 1.6e9
    """Parameters per second that Adam updates on the cores of one machine.

    The default is 10.1e9 parameters in 6.3 s (DeepSpeed's tutorial on offloading,
    docs/_tutorials/zero-offload.md).
    """
    scores_flops: float | None = None
    """FLOP/s of attention that keeps its scores.

    None means SCORE_PRODUCTS_SHARE (compute.py) of the rate of other matrix products.
    """
    host_times: float = 1.0
    """Factor for Engine.launch_seconds and step_seconds; 0 on a CPU, whose other rates include host time."""
    source: str = ""
    """Source of the rates, as a sentence without its full stop."""
    calibration: Calibration | None = None
    """Measurements on this machine for the steps of a CPU run (planner/calibration/calibrated_step.py).

    None on GPUs and without a calibration.
    """


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of the datasheet's rates that a generation of devices reaches."""

    matmul: float
    """Fraction for large 16-bit matrix products."""
    low: float = 0.6
    """Fraction for FP8 matrix products, including their scaling."""
    fp4: float = 0.46
    """Fraction for FP4 matrix products, including their scaling."""
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
# Fractions of the datasheet's peak that flash attention reaches over forward and backward, by generation of
# the kernel, for causal attention with heads of 128. Generation 1 (and Triton's kernel): 124 TFLOP/s on an
# A100. Generation 2: 190 on an A100 and 335 on an H100 (arXiv:2307.08691, section 4). Generation 3 (and
# cuDNN's kernel): 600 on an H100 (arXiv:2407.08608, section 4). On a B200, generation 2 does not use the new
# instructions and reaches 333 to 346 (Dao-AILab/flash-attention, issue 1589). Cards of compute capability 12
# use Ampere's instructions and have Ampere's fractions: in the forward pass, generation 2 reaches 91 % of an
# RTX 5090's peak (gau-nernst, "Writing Speed-of-Light Flash Attention for 5090 in CUDA C++").
_BLACKWELL_ATTENTION = {1: 0.13, 2: 0.15, 3: 0.55}
_ATTENTION = {
    "Hopper": {1: 0.18, 2: 0.33, 3: 0.62},
    "Blackwell": _BLACKWELL_ATTENTION,
    "Blackwell Ultra": _BLACKWELL_ATTENTION,
}
_ATTENTION_BEFORE = {1: 0.42, 2: 0.52, 3: 0.52}
# Below this power limit (watts), sustained matrix products are slower, by the square root of the power.
_FULL_POWER = {"Hopper": 700.0, "A100": 400.0, "V100": 300.0}
# An attention kernel that reaches a smaller fraction than this leaves most tensor cores idle, so the power
# limit does not slow it down: torchtitan's ring attention on 500 W H100s runs at FlashAttention 2's published
# rate.
_SHARE_AT_FULL_POWER = 0.4

_PCIE_BELOW = 130e9
_PCIE_SHARE = 0.88
_RAMP_BYTES = 5 << 20
# Latency per hop with NCCL's Simple protocol (NVIDIA/nccl src/graph/tuning.cc).
_LATENCY_INSIDE, _LATENCY_ACROSS = 3.4e-6, 14e-6


def rates_of_setup(setup: Setup) -> Rates | None:
    """Return the rates of a setup's device and network; None if the device is not known."""
    if setup.device is None:
        return None
    larger = setup.devices_per_node / setup.device.devices_per_node
    if setup.fabric_bytes_per_second is None and larger > 1:
        # A machine with more devices than usual is assumed to have as many more network cards (DGX-2: 16
        # V100, 8 cards).
        fabric = larger * setup.device.network_bytes_per_second
        rates = rates_of_device(setup.device, fabric, setup.fabric_reached)
        machine = f"a machine with {setup.devices_per_node} {setup.device.name}"
        return replace(rates, network=f"{rates.network}; assumed for {machine}")
    return rates_of_device(setup.device, setup.fabric_bytes_per_second, setup.fabric_reached)


def generation(device: Device) -> str:
    """Return the generation of a device (for other vendors than NVIDIA, the vendor): its key in SHARES."""
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
    """Return the rates of a device in the device table.

    `fabric_bytes_per_second` replaces the usual bandwidth between machines, and `fabric_reached` the fraction
    of it that collectives reach.
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
    basis = "" if fabric else f"; assumed for a typical machine with {device.name}"
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
        network=f"{gigabits(network)}, one way, of which {network_reached:.0%} is reached{basis}",
        inside_devices=device.link_devices,
        source=f"{device.name}'s datasheet, and the fractions of it that published runs reached",
    )


# FLOP/s of a core with AVX-512 at 2.6 GHz in fp32 matrix products. The trainer's share of this rate (model
# FLOPs) is from docs/evidence/benchmarks.md, on 2 cores without AMX: 6,000 tokens/s for gpt3-tiny in fp32,
# and 2,600 for a 14M model in bf16. The matrix rate of those cores was not recorded, so the shares refer to a
# similar core. With AMX, bf16 is up to twice as fast.
ASSUMED_MATMUL_FLOPS_PER_CORE = 166e9
SHARE_OF_MATMUL = {"fp32": 0.43, "bf16": 0.76, "fp16": 0.43}
# gloo's bandwidth through shared memory, for ranks of one core. A step with two tensor-parallel ranks takes
# 1.18 times as long as with one rank of two threads, because 24 sums of 3.1 MB take 0.12 s
# (docs/evidence/benchmarks.md).
GLOO_BYTES_PER_SECOND = 0.6e9
# The measured rate is in model FLOPs, which count all attention scores in 3 forward passes (1 forward, 2
# backward). compute.py counts only the causal half, so 0.5 forward and 1.25 backward.
_COUNTED_SCORES = (0.5 + 1.25) / 3


def cores_of(config: RunConfig) -> int:
    """Return the number of cores on all machines of a CPU run."""
    return (config.resources.cpus_per_node or usable_cores()) * config.resources.nodes


def rates_of_cores(config: RunConfig, matmul_flops_per_core: float | None) -> Rates:
    """Return the rates of one rank of a CPU run, on its share of the cores.

    If `matmul_flops_per_core` is None, ASSUMED_MATMUL_FLOPS_PER_CORE is used. The fractions were measured
    with complete training steps (docs/evidence/benchmarks.md), so they include norms, data and the optimizer,
    and the memory bandwidth is infinite. A calibration replaces these rates.
    """
    dtype = config.precision.dtype
    matmul = matmul_flops_per_core or ASSUMED_MATMUL_FLOPS_PER_CORE
    per_core, cores = matmul * SHARE_OF_MATMUL[dtype], cores_of(config)
    rate = per_core * cores / config.world_size
    reached = "measured on this machine" if matmul_flops_per_core else "assumed"
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
            f"the {matmul / 1e9:.0f} GFLOP/s {reached} for fp32 matrix products, which is the fraction that "
            f"training in {dtype} reached in the benchmarks"
        ),
    )


# The collective from which links are measured. Its bus bandwidth is (n - 1) / n of its algorithm bandwidth
# (NVIDIA/nccl-tests doc/PERFORMANCE.md).
_GATHER = "all_gather"


def calibrated_rates(rates: Rates, setup: Setup) -> Rates:
    """Return `rates` with this machine's measurements, if they apply to the setup's device.

    A CPU run on this machine uses the whole calibration: calibration/calibrated_step.py computes its times. A
    run on the type of GPU that this machine has uses the measured rates of matrix products, memory, links and
    disk. A GPU calibration does not apply to CPU runs, and a CPU calibration does not apply to GPU runs. If a
    CPU run cannot use an existing calibration file, `source` says why.
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
    """Return the measured rates, {number format: FLOP/s}, of the formats that also have a planned rate."""
    return {dtype: flops for dtype, flops in measured.items() if dtype in planned}


def _link(calibration: Calibration, link: Link) -> Link:
    """Return a link with the bus bandwidth of the largest measured gather and the latency of the smallest.

    The result is `link` if no gather was measured.
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
    """Return `rates` with the network between the run's machines; unchanged if the run has one machine.

    The network is the first of these that is available:

        specified  resources.network or network_bytes_per_second: its bandwidth times the reached fraction. If
                   only network_reached_fraction is set, that fraction of the assumed bandwidth
        measured   by `nbtrain calibrate --network` on the machines that the run would use
                   (measured_network.py)
        assumed    the network of a typical machine with this type of GPU; for CPUs, gloo's own rate
    """
    if config.resources.nodes == 1:
        return rates
    fabric, reached = network_of(config.resources)
    if fabric is not None:
        assert reached is not None
        name = f"{config.resources.network}: " if config.resources.network else ""
        words = f"{name}{gigabits(fabric)}, one way, of which {reached:.0%} is reached"
        across = rates.across
        if config.resources.device == "cpu":
            # A rank cannot send faster than gloo does inside a machine.
            most = rates.inside.bytes_per_second * config.ranks_per_node
            across = replace(across, bytes_per_second=min(fabric * reached, most))
        return replace(rates, across=across, network=words, network_reached=reached)
    # A fraction that the run specifies without a bandwidth applies to the assumed bandwidth.
    measured = measured_network(config) if use_measured and reached is None else None
    if measured is None:
        return rates
    across = Link(measured.bytes_per_second, rates.across.ramp_bytes, measured.latency_seconds)
    words = f"{gigabits(measured.bytes_per_second)} reached, one way, {source_of(measured)}"
    return replace(rates, across=across, network=words, network_reached=1.0)


@dataclass(frozen=True)
class Speed:
    """Everything that decides how fast a run trains: its setup, rates and earlier measurements."""

    setup: Setup
    rates: Rates | None
    """Rates of the run's devices and links; None if the device is not known.

    This machine's measurements are used where they apply.
    """
    table_rates: Rates | None
    """Rates of the run's devices and links without measurements; None if the device is not known.

    They are the same on every machine.
    """
    last_job: Measured | None = None
    """Measurements of the run's last job; None if there are no measurements for the run's devices."""
    save_seconds: float = 0.0
    """Seconds of the longest save that the run has measured; 0 if it has not saved yet."""


def read_speed(
    config: RunConfig,
    use_measured: bool = True,
    engine: str = "nbtrain",
    last_job: bool = True,
    setup: Setup | None = None,
) -> Speed:
    """Return everything that decides how fast a run trains.

    Args:
        use_measured: Whether to use measurements. Without them, the result is the same on every machine.
        engine: Program that trains the run, a key of setup/engines.py.
        last_job: Whether to use the measurements of the run's last job.
        setup: The run's setup, if the caller has it already.
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
