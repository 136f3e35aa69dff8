"""Rates that a device and its links reach in practice; every second of a plan comes from them.

Without a calibration, the rates are a datasheet's numbers times the fractions that published runs reached.
The fractions depend on the generation of devices, never on a run. A calibration of this machine returns its
own Rates: everything that it does not measure keeps the value of `rates_of_device`.

Sources of the shares. Matrix products: the reachable peaks of stas00/ml-engineering (A100 87 %, H100 80 %,
B200 78 % for the best sizes) are upper bounds; what training sustains is fitted to the training half of the
published runs (docs/evidence/plan-accuracy.md), FP4 and Blackwell Ultra to all rows of Megatron-Bridge.
Links: A100's NVLink 78 % and PCIe 88 % of one way, several machines 73 % of the wire (the same, chapter on
networks). Ramp: 43 % of the plateau at 4 MiB, 73 % at 8 MiB.
"""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbtrain.config.arithmetic.devices import BY_NAME, Device
from nbtrain.config.arithmetic.networks import gigabits
from nbtrain.planner.setup.setup import Setup

if TYPE_CHECKING:
    from nbtrain.planner.calibration.calibration import Calibration

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
    calibration: "Calibration | None" = None
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
