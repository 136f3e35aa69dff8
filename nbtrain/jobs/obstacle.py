"""A reason not to launch, and the wording that checks of the machine share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from nbtrain.base.errors import SubmitError
from nbtrain.base.workspace import data_home, the_workspace
from nbtrain.config.schema import RunConfig


@dataclass(frozen=True)
class Obstacle:
    """One reason not to launch."""

    kind: str
    """error: a mistake to fix; data: prepare or repair the data; resource: this machine is too small."""
    message: str
    """The problem, with the rule's numbers."""
    fix: str
    """The change to make."""

    def __str__(self) -> str:
        return f"{self.message} {self.fix}".rstrip()


Obstacles = Iterator[Obstacle]
mistake, data_problem, shortage = (partial(Obstacle, kind) for kind in ("error", "data", "resource"))


def refuse_obstacles(config: RunConfig, problems: Sequence[Obstacle], started: bool = False) -> None:
    """Raise SubmitError if there are any; `started`: inside an allocation that has started."""
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        end = "Nothing was started and nothing written."
        if any(problem.kind == "data" for problem in problems):
            whose = "pods" if config.backend.kind == "kubernetes" else "nodes"
            end = (
                f"Data must be in {data_home()} of the {whose}: prepare it where that is mounted. {end}"
                if started
                else f"Data is looked for in {data_home()}. {the_workspace()}\n{end}"
            )
        raise SubmitError(f"{config.name} cannot start here:\n{lines}\n{end}")
