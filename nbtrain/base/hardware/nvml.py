"""GPUs of this machine as the NVIDIA driver reports them, through nvidia-ml-py (its module is `pynvml`).

The package is a thin layer over libnvidia-ml.so.1, which comes with the NVIDIA driver. It is imported on use,
so a machine without the driver does not need it.
"""

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """One GPU, or a MIG instance (a part of a GPU) that CUDA_VISIBLE_DEVICES names."""

    name: str
    memory_bytes: int | None
    uuid: str = ""
    """UUID of the GPU in the driver, such as GPU-3f...; "" if unknown."""
    index: int | None = None
    """Number of the GPU in the driver. None for a MIG instance."""


@dataclass(frozen=True)
class GpuUse:
    """Current use of one GPU. None stands for a value that the driver does not report."""

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
    """Return the current use of every GPU that the driver reports. [] without a driver."""
    library = _library()
    if library is None:
        return []
    count = _ask(library, library.nvmlDeviceGetCount) or 0
    return [gpu for index in range(count) if (gpu := _gpu(library, index)) is not None]


def driver_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of this machine, in the driver's order.

    If the driver's library does not respond, only the number of GPUs is known, from /proc or /dev.
    """
    if found := gpus():
        return tuple(Gpu(gpu.name, gpu.memory_total_bytes, _uuid(gpu.index), gpu.index) for gpu in found)
    folder = Path("/proc/driver/nvidia/gpus")
    present = len(list(folder.iterdir())) if folder.is_dir() else 0
    present = present or len(list(Path("/dev").glob("nvidia[0-9]*")))
    return tuple(Gpu("NVIDIA GPU", None, index=index) for index in range(present))


def visible_gpus(chosen: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES makes visible, in the order of its entries.

    If `chosen` is None, all GPUs are visible.
    """
    known = driver_gpus()
    if chosen is None or not known:
        return known
    visible = []
    for entry in (part.strip() for part in chosen.split(",")):
        gpu = named_gpu(entry, known)
        if gpu is None:
            break  # CUDA's own rule: all entries after an invalid one are hidden
        visible.append(gpu)
    return tuple(visible)


def named_gpu(entry: str, known: tuple[Gpu, ...]) -> Gpu | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID."""
    if not entry or entry == "-1":
        return None
    if entry.isdigit():
        return known[int(entry)] if int(entry) < len(known) else None
    if entry.startswith("GPU-") and all(gpu.uuid for gpu in known):
        return next((gpu for gpu in known if gpu.uuid.startswith(entry)), None)
    # The driver's list cannot confirm a MIG instance, nor a GPU if the driver reports no UUIDs. The entry is
    # then used without a check.
    return Gpu(entry, None, entry) if entry.startswith(("GPU-", "MIG-")) else None


def utilization_fraction(uuid: str) -> float | None:
    """Return the share of the last sample period in which a kernel ran on a GPU. None if it is not known.

    `uuid` is CUDA's, as torch.cuda.get_device_properties(device).uuid prints it. This UUID identifies the GPU
    independently of CUDA_VISIBLE_DEVICES.
    """
    library = _library()
    handle = library and _ask(library, library.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return _utilization(library, handle) if library and handle is not None else None


def memory_used_bytes(entry: str) -> int | None:
    """Return the bytes of memory in use on the GPU of a CUDA_VISIBLE_DEVICES entry. None if not known."""
    library = _library()
    if library is None:
        return None
    number = entry.isdigit()
    find = library.nvmlDeviceGetHandleByIndex if number else library.nvmlDeviceGetHandleByUUID
    handle = _ask(library, find, int(entry) if number else entry)
    memory = _ask(library, library.nvmlDeviceGetMemoryInfo, handle) if handle is not None else None
    return memory.used if memory is not None else None


class TensorActivity:
    """Fraction of the time between two calls in which the GPUs' tensor cores were active.

    It is read from GPM, which Hopper and newer GPUs support.
    """

    def __init__(self, indices: Iterable[int]):
        self._samples: dict[int, Any] = {}
        """{index: counters at the previous call}. The counters are None before the first call."""
        if (library := _library()) is None:
            return
        for index in indices:
            handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
            able = handle is not None and _ask(library, library.nvmlGpmQueryDeviceSupport, handle)
            if able and able.isSupportedDevice:
                self._samples[index] = None

    @property
    def supported(self) -> bool:
        """Whether any of these GPUs can measure tensor activity."""
        return bool(self._samples)

    def close(self) -> None:
        """Do nothing. dcgm.TensorActivity, which has a process to end, has a method with the same name."""

    def sample(self) -> dict[int, float]:
        """Return {index: fraction since the previous call} for the GPUs that answer."""
        if (library := _library()) is None:
            return {}
        found: dict[int, float] = {}
        for index, before in self._samples.items():
            sample = _ask(library, library.nvmlGpmSampleAlloc)
            handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
            if sample is None or handle is None:
                continue
            if _ask(library, library.nvmlGpmSampleGet, handle, sample) is None:
                _ask(library, library.nvmlGpmSampleFree, sample)
                continue
            if before is not None:
                if (share := _tensor_share(library, before, sample)) is not None:
                    found[index] = share
                _ask(library, library.nvmlGpmSampleFree, before)
            self._samples[index] = sample
        return found


def _tensor_share(library: ModuleType, before: Any, sample: Any) -> float | None:
    asked = library.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = library.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, sample
    asked.metrics[0].metricId = library.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    if _ask(library, library.nvmlGpmMetricsGet, asked) is None or asked.metrics[0].nvmlReturn:
        return None
    share = asked.metrics[0].value / 100
    return share if 0 <= share <= 1 else None


def _utilization(library: ModuleType, handle: Any) -> float | None:
    use = _ask(library, library.nvmlDeviceGetUtilizationRates, handle)
    return use.gpu / 100 if use is not None else None


@functools.cache
def _library() -> ModuleType | None:
    """Return pynvml with the driver's library loaded.

    None without a driver, or if the driver does not answer.
    """
    if not _has_driver():
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _has_driver() -> bool:
    """Return whether the driver's library loads.

    Without this check, pynvml would be imported in vain, which takes 6 ms.
    """
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def _ask(library: ModuleType, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an NVML function. None if the driver does not support it.

    An old driver, for example, does not support every metric.
    """
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


def _uuid(index: int) -> str:
    """Return the UUID of a GPU in the driver; "" if the driver does not report one."""
    if (library := _library()) is None:
        return ""
    handle = _ask(library, library.nvmlDeviceGetHandleByIndex, index)
    return str(_ask(library, library.nvmlDeviceGetUUID, handle) or "") if handle is not None else ""


def _name(library: ModuleType, handle: Any) -> str:
    """Return the name of a GPU; "" if the driver does not report one."""
    try:
        name = _ask(library, library.nvmlDeviceGetName, handle)
    except UnicodeDecodeError:  # the package decodes strictly and may raise
        return ""
    return str(name or "")
