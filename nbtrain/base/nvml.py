"""What the NVIDIA driver says about this machine's GPUs, through nvidia-ml-py (its module is `pynvml`).

The package is a thin layer over libnvidia-ml.so.1, which comes with the NVIDIA driver. It is imported on use,
and a machine without the driver needs neither.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class GpuUse:
    """How busy one GPU is now. None: the driver does not report it."""

    index: int
    name: str
    utilization_fraction: float | None
    """Share of the last sample period in which a kernel ran."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_mhz: int | None


def gpus() -> list[GpuUse]:
    """Every GPU that the driver shows; an empty list without a driver."""
    library = _library()
    if library is None:
        return []
    count = _ask(library, library.nvmlDeviceGetCount) or 0
    return [gpu for index in range(count) if (gpu := _gpu(library, index)) is not None]


def utilization_fraction(uuid: str) -> float | None:
    """Share of the last sample period in which a kernel ran on a GPU; None if it is not reported.

    `uuid` is CUDA's, as torch.cuda.get_device_properties(device).uuid prints it: the same GPU, however
    CUDA_VISIBLE_DEVICES numbers it.
    """
    library = _library()
    handle = library and _ask(library, library.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return _utilization(library, handle) if library and handle is not None else None


def _utilization(library: ModuleType, handle: Any) -> float | None:
    use = _ask(library, library.nvmlDeviceGetUtilizationRates, handle)
    return use.gpu / 100 if use is not None else None


@functools.cache
def _library() -> ModuleType | None:
    """The package with its library loaded; None without a driver, or if it does not answer."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _ask(library: ModuleType, function: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer; None if it has none, as an old driver for a figure that it does not know."""
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def _gpu(library: ModuleType, index: int) -> GpuUse | None:
    handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    name = _name(library, handle)
    memory = _ask(library, library.nvmlDeviceGetMemoryInfo, handle)
    power = _ask(library, library.nvmlDeviceGetPowerUsage, handle)
    return GpuUse(
        index=index,
        name=name or f"GPU {index}",
        utilization_fraction=_utilization(library, handle),
        memory_used_bytes=memory.used if memory is not None else None,
        memory_total_bytes=memory.total if memory is not None else None,
        temperature_celsius=_ask(
            library, library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU
        ),
        power_watts=power / 1000 if power is not None else None,
        sm_clock_mhz=_ask(library, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
    )


def _name(library: ModuleType, handle: Any) -> str:
    """Its name; empty if the driver does not report one."""
    try:
        name = _ask(library, library.nvmlDeviceGetName, handle)
    except UnicodeDecodeError:  # the package decodes by itself, strictly
        return ""
    return str(name or "")
