"""A reason not to launch, and the wording that checks of the machine share."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

GIB = 1 << 30


@dataclass(frozen=True)
class Obstacle:
    """One reason not to launch."""

    kind: str
    """error: a mistake to fix; data: prepare or repair the data; resource: this machine does not suffice."""
    message: str
    """What was found, with the rule's numbers."""
    fix: str
    """What to do."""

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".rstrip()


Obstacles = Iterator[Obstacle]
mistake, data_problem, shortage = (partial(Obstacle, kind) for kind in ("error", "data", "resource"))


def gib(number: int) -> str:
    """ "16.0 GiB": of memory."""
    return f"{number / GIB:,.1f} GiB"


def size(number: int) -> str:
    """ "0.61 MB", "1.20 GB": of disks."""
    return f"{number / 1e9:,.2f} GB" if number >= 1e7 else f"{number / 1e6:,.2f} MB"
