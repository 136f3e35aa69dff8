"""Comparison of a plan's predictions with the measurements of the run's last job.

When a job ends, it writes step time, peak memory and the idle time of pipeline stages into summary.json
(jobs/supervisor/summary.py), together with the setup that was measured (setup/measured.py). The two are
compared only if the planned setup is the measured one: otherwise two different runs would be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from nbtrain.base.text import amounts
from nbtrain.config.schema import RunConfig
from nbtrain.planner.setup.measured import Measured


@dataclass(frozen=True, slots=True)
class Comparison:
    """A predicted number of a plan with its measurement."""

    name: str
    """Name of the number: step, memory or bubble."""
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the prediction: measured / predicted - 1, so -0.02 if the run took 2 % less."""
        return self.measured / self.predicted - 1 if self.predicted else 0.0

    @property
    def text(self) -> str:
        """E.g. "predicted 1.21 s a step, measured 1.18 s: -2 %"."""
        if self.name == "step":
            head = f"predicted {amounts.step(self.predicted)} a step, measured {amounts.step(self.measured)}"
        elif self.name == "memory":
            head = (
                f"predicted {amounts.size(self.predicted)}, measured {amounts.size(self.measured)} of rank 0"
            )
        else:
            points = 100 * (self.measured - self.predicted)
            return (
                f"predicted {self.predicted:.0%} of a step, measured {self.measured:.0%} with transfers "
                f"(rank 0): {points:+.0f} points"
            )
        return f"{head}: {100 * self.error:+.0f} %"


def compare(
    config: RunConfig,
    found: Measured | None,
    step_seconds: float | None,
    memory_bytes: float | None,
    bubble_fraction: float,
) -> list[Comparison]:
    """Compare the plan of a run with `found`, the measurements of its last job. Empty if the run has not been
    measured with this setup.
    """
    if found is None or found.differences:
        return []
    measured_step = config.tokens_per_step / found.tokens_per_second
    compared = [Comparison("step", step_seconds, measured_step)] if step_seconds else []
    if memory_bytes and found.memory_bytes:
        compared.append(Comparison("memory", memory_bytes, found.memory_bytes))
    if config.parallel.pipeline_parallel_size > 1 and found.pipeline_fraction:
        compared.append(Comparison("bubble", bubble_fraction, found.pipeline_fraction))
    return compared


def rows(compared: Iterable[Comparison]) -> dict[str, str]:
    """Return the comparisons as rows of a plan: name to text."""
    return {one.name: one.text for one in compared}
