"""Alerts: thresholds that a run crossed, each reported once."""

import logging

import torch

from nbtrain.base.hardware import nvml
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.config.schema import RunConfig

logger = logging.getLogger(__name__)


# Metrics of a single step fluctuate around their threshold. An alert is therefore repeated only after this
# many checks in a row within the limit.
CLEAR_INTERVALS = 10
# {field of logging.alerts that limits a fraction: name of the metric in the alert's message}
THRESHOLDS = {
    "min_mfu": "MFU",
    "max_communication_fraction": "communication",
    "max_host_memory_fraction": "host memory",
    "max_device_memory_fraction": "device memory",
    "min_device_utilization": "device utilization",
}


class Alerts:
    """Reports when a metric crosses a threshold: as an event and a log line.

    An alert is repeated only after CLEAR_INTERVALS checks in a row within the limit.
    """

    def __init__(self, config: RunConfig, events: EventWriter):
        self._limits = config.logging.alerts
        self._events = events
        # {alert name: number of checks in a row within the limit}
        self._raised: dict[str, int] = {}

    def is_raised(self, name: str) -> bool:
        """Return whether an alert was reported and has not ended since.

        It ends after CLEAR_INTERVALS checks in a row within the limit.
        """
        return name in self._raised

    def check(self, name: str, crossed: bool, message: str, step: int) -> None:
        """Report `message` if `crossed` is true and the alert is not raised already.

        `crossed` says whether the metric is beyond its limit now. Call it at every check of the metric.
        """
        if crossed:
            if name not in self._raised:
                logger.warning("alert: %s", message)
                self._events.write("alert", message, alert=name, step=step)
            self._raised[name] = 0
        elif name in self._raised:
            self._raised[name] += 1
            if self._raised[name] >= CLEAR_INTERVALS:
                del self._raised[name]
                # An alert may be named after a setting, as in "max_rank_slowdown of rank 1"; "loss" is not a
                # setting.
                key = name.partition(" ")[0]
                what = f"logging.alerts.{key}" if hasattr(self._limits, key) else key
                over = (
                    f"step {step}: the alert for {what} has ended after {CLEAR_INTERVALS} checks in a row "
                    "without a problem"
                )
                self._events.write("alert_over", over, alert=name, step=step)

    def check_all(self, step: int, **figures: float | None) -> None:
        """Check every limit in THRESHOLDS that is set. The keyword arguments are metrics, named like their
        limits without min_ or max_.
        """
        for name, title in THRESHOLDS.items():
            value, limit = figures.get(name[len("min_") :]), getattr(self._limits, name)
            if value is None or limit is None:
                continue
            crossed, relation = (
                (value > limit, "above") if name.startswith("max_") else (value < limit, "below")
            )
            message = (
                f"step {step}: {title} {value:.1%} is {relation} the limit of {limit:.0%} "
                f"(logging.alerts.{name})"
            )
            self.check(name, crossed, message, step)


def device_utilization(device: torch.device) -> float | None:
    """Return the fraction of time that the GPU was busy; None without a GPU, or if NVML does not report
    it.
    """
    if device.type != "cuda":
        return None
    use = nvml.utilization_fraction(str(torch.cuda.get_device_properties(device).uuid))
    if use is None:
        logger.warning("the GPU's utilization is unknown, because NVML does not report it")
    return use
