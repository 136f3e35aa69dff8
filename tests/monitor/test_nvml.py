"""What is made of the driver's answers, with a stand-in for libnvidia-ml."""

from typing import Any

import pytest

from nbtrain.monitor import nvml
from nbtrain.monitor.nvml import Gpu


class Driver:
    """Two GPUs; the second one tells only its name. Fills the C structures as the library does."""

    NOT_SUPPORTED = 3

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, length: Any) -> int:
        name.value = b"NVIDIA A100-SXM4-40GB"
        return 0

    def _only_first(self, handle: Any) -> int:
        return 0 if handle.value == 1 else self.NOT_SUPPORTED

    def nvmlDeviceGetUtilizationRates(self, handle: Any, answer: Any) -> int:
        answer._obj.gpu, answer._obj.memory = 87, 40
        return self._only_first(handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, answer: Any) -> int:
        answer._obj.total, answer._obj.used = 40 << 30, 31 << 30
        return self._only_first(handle)

    def nvmlDeviceGetTemperature(self, handle: Any, kind: int, answer: Any) -> int:
        answer._obj.value = 61
        return self._only_first(handle)

    def nvmlDeviceGetPowerUsage(self, handle: Any, answer: Any) -> int:
        answer._obj.value = 312_500
        return self._only_first(handle)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int, answer: Any) -> int:
        answer._obj.value = 1410
        return self._only_first(handle)


def test_figures_have_units_and_what_is_not_told_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per cent becomes a fraction and milliwatts watts; an error code leaves a gap and not a zero."""
    monkeypatch.setattr(nvml, "_library", Driver)
    name = "NVIDIA A100-SXM4-40GB"
    assert nvml.gpus() == [
        Gpu(0, name, 0.87, 31 << 30, 40 << 30, 61, 312.5, 1410),
        Gpu(1, name, None, None, None, None, None, None),
    ]


def test_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is an empty list."""
    monkeypatch.setattr(nvml, "_library", lambda: None)
    assert nvml.gpus() == []
