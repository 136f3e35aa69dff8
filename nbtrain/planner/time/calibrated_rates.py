"""A device's rates, with the values that this machine's calibration measured replacing the defaults.

A CPU run on this machine uses the whole calibration: calibration/calibrated_step.py computes its seconds. A
run on the kind of GPU that this machine has uses the measured rates of matrix products, memory, links and
disk. The calibration does not apply to any other device. A calibration of GPUs does not apply to a CPU run,
nor one of the CPU to GPUs.
"""

from dataclasses import replace

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.planner.calibration.calibrated_step import calibrated_step
from nbtrain.planner.calibration.calibration import (
    Calibration,
    Figure,
    calibration_path,
    machine_gpus,
    read_calibration,
)
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Link, Rates

# Bus bandwidth over algorithm bandwidth is (n - 1) / n for a gather (NVIDIA/nccl-tests doc/PERFORMANCE.md).
_GATHER = "all_gather"


def calibrated_rates(rates: Rates, setup: Setup) -> Rates:
    """Return `rates` of the setup's device, with this machine's measurements if they apply to the device.

    A calibration that exists but is not used is named in `source`, with the reason.
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
