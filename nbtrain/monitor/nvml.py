"""What the NVIDIA driver says about this machine's GPUs, through nvidia-ml-py (its module is `pynvml`).

The package is a thin layer over libnvidia-ml.so.1, which every machine with an NVIDIA driver has; none is needed
elsewhere. It is imported on use.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU now. None: the driver does not tell."""

    index: int
    name: str
    utilization_fraction: float | None
    """Share of the last sample period in which a kernel ran."""
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_mhz: int | None


def gpus() -> list[Gpu]:
    """Every GPU that the driver shows; an empty list where there is no driver."""
    library = _library()
    if library is None:
        return []
    count = _ask(library, library.nvmlDeviceGetCount) or 0
    return [gpu for index in range(count) if (gpu := _gpu(library, index)) is not None]


@functools.cache
def _library() -> ModuleType | None:
    """The package with its library loaded; None where there is no driver, or none that answers."""
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
    """The driver's answer; None where it gives none, as an old driver does for what it does not know."""
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def _gpu(library: ModuleType, index: int) -> Gpu | None:
    handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    name = _name(library, handle)
    use = _ask(library, library.nvmlDeviceGetUtilizationRates, handle)
    memory = _ask(library, library.nvmlDeviceGetMemoryInfo, handle)
    power = _ask(library, library.nvmlDeviceGetPowerUsage, handle)
    return Gpu(
        index=index,
        name=name or f"GPU {index}",
        utilization_fraction=use.gpu / 100 if use is not None else None,
        memory_used_bytes=memory.used if memory is not None else None,
        memory_total_bytes=memory.total if memory is not None else None,
        temperature_celsius=_ask(
            library, library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU
        ),
        power_watts=power / 1000 if power is not None else None,
        sm_clock_mhz=_ask(library, library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
    )


def _name(library: ModuleType, handle: Any) -> str:
    """Its name, empty where the driver tells none."""
    try:
        name = _ask(library, library.nvmlDeviceGetName, handle)
    except UnicodeDecodeError:  # the package decodes by itself, strictly
        return ""
    return str(name or "")
