"""Tables of device use by purpose, and of the cost of faults by kind.

purpose_rows(Spending)      rows of PURPOSE_HEADS: training without repeated steps, starts, restarts, ...
fault_sums([Fault, ...])    {"preemption": FaultSum, "lost": FaultSum, "failure": FaultSum}
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.monitor.status.life import KINDS
from nbtrain.monitor.status.spending import (
    DOWN,
    FIRST_START,
    REPEATED,
    RESTART,
    SUPERVISOR_GONE,
    UNPAID,
    Fault,
    Spending,
)

PURPOSE_HEADS = ("WHAT", "TIME", "DEVICE HOURS", "SHARE", "MONEY")
FAULT_KIND_HEADS = (
    "FAULTS",
    "COUNT",
    "STEPS REPEATED",
    "TIME WITH DEVICES",
    "TIME WITHOUT DEVICES",
    "DEVICE HOURS",
    "MONEY",
)
PURPOSES = {
    "training": "training, without repeated steps",
    "validating": KINDS["validating"],
    "saving": KINDS["saving"],
    "tuning": KINDS["tuning"],
    FIRST_START: "first starts",
    REPEATED: "repeated steps",
    RESTART: "restarts",
}
"""{purpose of device use: its name}, in the order of the table."""
WITHOUT_DEVICES = {"waiting": "waiting in the queue", "paused": "paused"}
FAULT_KINDS = {
    "preemption": "preemptions",
    "lost": "lost supervisor or machine",
    "failure": "failed attempts",
}
"""{kind of fault: its name}, in the order of the table."""


@dataclass
class FaultSum:
    """The total cost of all faults of one kind."""

    times: int = 0
    lost_steps: int = 0
    repeated_seconds: float = 0.0
    down_seconds: float = 0.0
    waited_seconds: float = 0.0
    device_hours: float = 0.0
    money: float | None = 0.0
    """Price of all faults of this kind; None if one price is not known."""

    def add(self, fault: Fault) -> None:
        self.times += 1
        self.lost_steps += fault.lost_steps
        self.repeated_seconds += fault.repeated_seconds
        self.down_seconds += fault.down_seconds
        self.waited_seconds += fault.waited_seconds
        self.device_hours += fault.device_hours
        self.money = None if self.money is None or fault.money is None else self.money + fault.money

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fault_sums(faults: Sequence[Fault]) -> dict[str, FaultSum]:
    """Return {kind: total cost} for each kind of fault that occurred, in the order of FAULT_KINDS."""
    found = {kind: FaultSum() for kind in FAULT_KINDS}
    for fault in faults:
        kind = "lost" if fault.cause == SUPERVISOR_GONE else "failure"
        found["preemption" if fault.preempted else kind].add(fault)
    return {kind: value for kind, value in found.items() if value.times}


def fault_kind_rows(spending: Spending) -> list[tuple[str, ...]]:
    """Return the table rows under FAULT_KIND_HEADS, one for each kind of fault that occurred."""
    return [
        (
            FAULT_KINDS[kind],
            f"{value.times:,}",
            f"{value.lost_steps:,}",
            amounts.elapsed(value.repeated_seconds + value.down_seconds),
            amounts.elapsed(value.waited_seconds) if value.waited_seconds else "",
            amounts.amount(value.device_hours, digits=3),
            ""
            if value.money is None
            else f"{amounts.amount(value.money, digits=3)} {spending.currency}".strip(),
        )
        for kind, value in fault_sums(spending.faults).items()
    ]


def purpose_rows(spending: Spending) -> list[tuple[str, ...]]:
    """Return the table rows under PURPOSE_HEADS: device use by purpose, then the time without devices."""
    restarting = sum(fault.down_seconds for fault in spending.faults)
    starting = sum(spending.seconds.get(kind, 0.0) for kind in DOWN)
    seconds = {**spending.seconds, RESTART: restarting, FIRST_START: max(0.0, starting - restarting)}
    price = spending.money / spending.device_hours if spending.money and spending.device_hours else None
    rows = [
        (
            name,
            amounts.elapsed(seconds.get(purpose, 0.0)),
            amounts.amount(hours, digits=3),
            f"{hours / spending.device_hours:.1%}",
            "" if price is None else f"{amounts.amount(hours * price, digits=3)} {spending.currency}",
        )
        for purpose, name in PURPOSES.items()
        if (hours := spending.hours.get(purpose, 0.0))
    ]
    unpaid = [
        (WITHOUT_DEVICES[kind], amounts.elapsed(spending.seconds[kind]), "", "", "")
        for kind in sorted(UNPAID, reverse=True)
        if spending.seconds.get(kind)
    ]
    return [*rows, *unpaid]
