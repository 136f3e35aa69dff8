"""Reading GPU values from the driver, with a stand-in for the NVML package."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import Gpu, GpuUse

NAME = "NVIDIA A100-SXM4-40GB"


class NVMLError(Exception):
    """A stand-in for the package's error, with the driver's error code."""


class Driver(ModuleType):
    """A stand-in for the package with three GPUs: the second has only a name, and the third is lost."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.num_starts = 0

    def nvmlInit(self) -> None:
        self.num_starts += 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 2:
            raise NVMLError("GPU is lost")
        return f"handle {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-0a1b-0":
            raise NVMLError("Not Found")
        return "handle 0"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return NAME

    def _of_the_first(self, handle: str, answer: Any) -> Any:
        if handle != "handle 0":
            raise NVMLError("Not Supported")
        return answer

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._of_the_first(handle, SimpleNamespace(gpu=87, memory=40))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return self._of_the_first(handle, SimpleNamespace(total=40 << 30, free=9 << 30, used=31 << 30))

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> Any:
        return self._of_the_first(handle, {0: 61}[sensor])

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
        return self._of_the_first(handle, 312_500)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> Any:
        return self._of_the_first(handle, {1: 1410}[kind])

    # GPM computes a value from two samples of the counters; a sample here is [tensor activity since boot].
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 1, 5

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return self._of_the_first(handle, "GPU-0a1b-0")

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=handle == "handle 0")

    def nvmlGpmSampleAlloc(self) -> list[float]:
        self.samples = [*getattr(self, "samples", []), [0.0]]
        return self.samples[-1]

    def nvmlGpmSampleGet(self, handle: str, sample: list[float]) -> list[float]:
        sample[0] = 30.0 * len(self.samples)
        return sample

    def nvmlGpmSampleFree(self, sample: list[float]) -> None:
        self.freed = [*getattr(self, "freed", []), sample[0]]

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=0)])

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        if asked.numMetrics != 1 or asked.metrics[0].metricId != 5:
            raise NVMLError("Invalid Argument")
        asked.metrics[0].value = asked.sample2[0] - asked.sample1[0]
        return asked


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Replace the package with the stand-in, and clear the cache afterwards."""
    driver = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(nvml, "_has_driver", lambda: True)
    nvml._library.cache_clear()
    yield driver
    nvml._library.cache_clear()


def test_figures_have_units_and_what_is_not_reported_is_none(driver: Driver) -> None:
    """Percentages become fractions and milliwatts become watts.

    A value that the driver cannot report is missing, not zero, and a lost GPU has no row.
    """
    expected = [
        GpuUse(0, NAME, 0.87, 31 << 30, 40 << 30, 61, 312.5, 1410),
        GpuUse(1, NAME, None, None, None, None, None, None),
    ]
    assert nvml.gpus() == expected
    assert nvml.gpus() == expected
    assert driver.num_starts == 1, "the library is started once"


def test_the_use_of_one_gpu_by_the_uuid_that_cuda_has_for_it(driver: Driver) -> None:
    assert nvml.utilization_fraction("0a1b-0") == 0.87
    assert nvml.utilization_fraction("0a1b-7") is None


def test_zero_is_reported_as_zero(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle GPU is reported with the value 0, not with a missing value."""
    monkeypatch.setattr(driver, "nvmlDeviceGetUtilizationRates", lambda handle: SimpleNamespace(gpu=0))
    monkeypatch.setattr(driver, "nvmlDeviceGetPowerUsage", lambda handle: 0)
    assert (nvml.gpus()[0].utilization_fraction, nvml.gpus()[0].power_watts) == (0, 0)


def test_a_name_that_is_no_text_or_not_reported_is_the_index(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is missing, or that the package cannot decode, is replaced by the GPU's index."""

    def name(handle: str) -> str:
        if handle == "handle 0":
            return b"\xff".decode()
        raise NVMLError("Unknown Error")

    monkeypatch.setattr(driver, "nvmlDeviceGetName", name)
    assert [gpu.name for gpu in nvml.gpus()] == ["GPU 0", "GPU 1"]


def test_machine_without_a_driver_has_no_gpus(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver's library, or with a driver that lists no GPUs, the list of GPUs is empty."""

    def refuse() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    monkeypatch.setattr(driver, "nvmlDeviceGetCount", refuse)
    assert nvml.gpus() == []
    nvml._library.cache_clear()
    monkeypatch.setattr(driver, "nvmlInit", refuse)
    assert nvml.gpus() == []


def test_machine_without_the_package_has_no_gpus(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package, the list of GPUs is empty, and a run can still be shown."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.gpus() == []


def test_tensor_activity_is_between_two_looks(driver: Driver) -> None:
    """Tensor activity needs two samples of a GPU's counters; GPUs without counters are skipped."""
    activity = nvml.TensorActivity([0, 1, 2])
    assert activity.supported
    assert [activity.sample() for _ in range(3)] == [{}, {0: 0.3}, {0: 0.3}]
    assert driver.freed == [30.0, 60.0]
    older = nvml.TensorActivity([1])
    assert not older.supported
    assert older.sample() == {}


def test_the_gpus_of_the_machine_have_name_memory_and_uuid(driver: Driver) -> None:
    """Name, memory and UUID come from the driver; a value that it does not report is empty."""
    assert nvml.driver_gpus() == (Gpu(NAME, 40 << 30, "GPU-0a1b-0", 0), Gpu(NAME, None, "", 1))


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("1,0", ["1", "0"]),
        ("1,9,0", ["1"]),
        ("", []),
        ("-1", []),
        ("any,0", []),
        ("GPU-0a1b,GPU-7,1", ["0"]),
        ("MIG-GPU-1/2/3,1", ["MIG-GPU-1/2/3", "1"]),
        (None, ["0", "1"]),
    ],
)
def test_gpus_that_cuda_shows(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, chosen: str | None, names: list[str]
) -> None:
    """Entries of CUDA_VISIBLE_DEVICES are indices or UUID prefixes; entries after an invalid one are ignored,
    as in CUDA.
    """
    monkeypatch.setattr(driver, "nvmlDeviceGetUUID", lambda handle: f"GPU-0a1b-{handle[-1]}")

    def shown(gpus: tuple[Gpu, ...]) -> list[str]:
        return [gpu.name if gpu.index is None else str(gpu.index) for gpu in gpus]

    assert shown(nvml.visible_gpus(chosen)) == names
