"""Alerts: thresholds that a run crossed, each reported once."""

import logging

import torch

from nbtrain.base import nvml
from nbtrain.base.events import EventWriter
from nbtrain.config.schema import RunConfig

logger = logging.getLogger(__name__)


# Figures of single steps flutter around their threshold: an alert is repeated only after so many checks below
# it.
CLEAR_INTERVALS = 10


class Alerts:
    """An event and a log line when a threshold is crossed; repeated only after the figure was good for a
    while."""

    def __init__(self, config: RunConfig, events: EventWriter):
        self._limits = config.logging.alerts
        self._events = events
        # {name: checks in a row that were clear}
        self._raised: dict[str, int] = {}

    def is_raised(self, name: str) -> bool:
        """Whether the alert was reported and has not been clear for CLEAR_INTERVALS checks since."""
        return name in self._raised

    def check(self, name: str, crossed: bool, message: str, step: int) -> None:
        """Report `message` if it is news. Called at every check of the figure."""
        if crossed:
            if name not in self._raised:
                logger.warning("alert: %s", message)
                self._events.write("alert", message, alert=name, step=step)
            self._raised[name] = 0
        elif name in self._raised:
            self._raised[name] += 1
            if self._raised[name] >= CLEAR_INTERVALS:
                del self._raised[name]

    def check_all(
        self,
        step: int,
        mfu: float | None,
        communication_fraction: float | None,
        host_fraction: float,
        device_fraction: float | None,
        device: torch.device,
    ) -> None:
        """Every threshold that is on and whose figure is known."""
        limits = self._limits
        figures: list[tuple[str, str, float | None, float | None, bool]] = [
            ("min_mfu", "MFU", mfu, limits.min_mfu, False),
            (
                "max_communication_fraction",
                "communication",
                communication_fraction,
                limits.max_communication_fraction,
                True,
            ),
            ("max_host_memory_fraction", "host memory", host_fraction, limits.max_host_memory_fraction, True),
            (
                "max_device_memory_fraction",
                "device memory",
                device_fraction,
                limits.max_device_memory_fraction,
                True,
            ),
            (
                "min_device_utilization",
                "device utilization",
                device_utilization(device),
                limits.min_device_utilization,
                False,
            ),
        ]
        for name, title, value, limit, is_upper in figures:
            if value is None or limit is None:
                continue
            crossed = value > limit if is_upper else value < limit
            relation = "above" if is_upper else "below"
            message = f"step {step}: {title} {value:.1%} is {relation} {limit:.0%} (logging.alerts.{name})"
            self.check(name, crossed, message, step)


def device_utilization(device: torch.device) -> float | None:
    """Share of time that the GPU was busy, by NVML; None without a GPU, or if the driver does not report
    it."""
    if device.type != "cuda":
        return None
    use = nvml.utilization_fraction(str(torch.cuda.get_device_properties(device).uuid))
    if use is None:
        logger.warning("the GPU's utilization is not known: NVML does not report it")
    return use
