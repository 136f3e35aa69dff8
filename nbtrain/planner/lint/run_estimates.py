"""A run and its estimates: the input of every plan rule."""

from dataclasses import dataclass
from functools import cached_property

from nbtrain.base.findings import Cost
from nbtrain.config.schema import RunConfig
from nbtrain.planner.budget.cost import CostEstimate
from nbtrain.planner.budget.disk import DiskEstimate
from nbtrain.planner.budget.interruptions import Interruptions
from nbtrain.planner.budget.wikipedias import TextEstimate, estimate_text
from nbtrain.planner.memory import MemoryEstimate
from nbtrain.planner.time.duration import DurationEstimate
from nbtrain.planner.time.network_use import NetworkUse
from nbtrain.planner.time.rates import Speed


@dataclass(frozen=True)
class RunEstimates:
    """A checked run, and the planner's estimates of its memory, time and disk."""

    config: RunConfig
    memory: MemoryEstimate
    duration: DurationEstimate
    disk: DiskEstimate
    cost: CostEstimate
    speed: Speed
    network: NetworkUse | None = None
    """Traffic between machines in a step; None on one machine, or if the device's rates are unknown."""
    interruptions: Interruptions | None = None
    """Expected interruptions and their cost; None if estimate_interruptions() returns None."""

    @cached_property
    def hours(self) -> float:
        """Duration of the whole run in hours; 0 if the plan has no estimate of the time."""
        return (self.duration.seconds or 0.0) / 3600

    def share(self, fraction: float, words: str = "") -> Cost:
        """Return the cost of a fraction of the run's time: device hours, hours and money.

        If the plan does not estimate the time, the cost is only the description `words`.
        """
        hours = fraction * self.hours
        if not hours:
            return Cost(words=words)
        amount, price = fraction * (self.cost.money or 0.0), self.cost.price
        money = f"{amount:,.0f} {price.currency}" if price and amount >= 1 else ""
        return Cost(gpu_hours=fraction * (self.cost.device_hours or 0.0), hours=hours, money=money)

    @cached_property
    def text(self) -> TextEstimate | None:
        """Estimated training tokens of Wikipedia editions that are not prepared yet; None for other data."""
        return estimate_text(self.config) if self.disk.dataset is None else None

    @property
    def least_epochs(self) -> float | None:
        """Number of passes over the training split; the lowest estimate if the dataset is not prepared.

        None if it cannot be estimated either.
        """
        if self.epochs is None and self.text is not None:
            return self.text.epochs(self.config.train_tokens)[0]
        return self.epochs

    @property
    def epochs(self) -> float | None:
        """Number of passes over the training split; None if the dataset is not prepared."""
        dataset = self.disk.dataset
        return self.config.train_tokens / dataset.train_tokens if dataset and dataset.train_tokens else None
