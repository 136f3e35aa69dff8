"""What the NVIDIA driver says about this machine's GPUs: libnvidia-ml.so.1, called without a package.

Signatures: nvml.h of the driver (NVML API reference). Every machine with an NVIDIA driver has the library;
none is needed elsewhere.
"""

import ctypes
import functools
from dataclasses import dataclass

_SM_CLOCK = 1
_TEMPERATURE_GPU = 0
_NAME_BYTES = 96


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


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
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    return [gpu for index in range(count.value) if (gpu := _gpu(library, index)) is not None]


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _gpu(library: ctypes.CDLL, index: int) -> Gpu | None:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    utilization, memory = _Utilization(), _Memory()
    temperature, power, clock = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_NAME_BYTES))
    knows_use = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilization)) == 0
    knows_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    knows_heat = library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU, ctypes.byref(temperature)) == 0
    knows_power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(power)) == 0
    knows_clock = library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(clock)) == 0
    return Gpu(
        index=index,
        name=name.value.decode(errors="replace") or f"GPU {index}",
        utilization_fraction=utilization.gpu / 100 if knows_use else None,
        memory_used_bytes=memory.used if knows_memory else None,
        memory_total_bytes=memory.total if knows_memory else None,
        temperature_celsius=temperature.value if knows_heat else None,
        power_watts=power.value / 1000 if knows_power else None,
        sm_clock_mhz=clock.value if knows_clock else None,
    )
