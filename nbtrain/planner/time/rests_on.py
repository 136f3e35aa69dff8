"""The measurement that a planned time rests on: the run's last job, this machine's, or nbtrain's only one.

The constants of nbtrain's engine (setup/engines.py) come from one measured step on one kind of GPU. A plan
for another kind scales it by datasheets and by the shares of them that published runs of other programs
reached (rates.py), and says so.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.speed import Speed

Kind = Literal["last job", "calibration", "one step", "scaled step", "cpu benchmarks"]


@dataclass(frozen=True, slots=True)
class OwnMeasurement:
    """A measured run of nbtrain, from which constants of its engine were set."""

    run: str
    """Model and settings."""
    device: str
    """Kind of GPU, a name of config/arithmetic/devices.py."""
    num_devices: int
    date: str
    tokens_per_second: int
    step_seconds: float
    page: str

    @property
    def words(self) -> str:
        """Description in one phrase."""
        count = "one" if self.num_devices == 1 else str(self.num_devices)
        return (
            f"{self.run} on {count} {self.device}, {self.date}: {self.tokens_per_second:,} tokens/s, "
            f"{self.step_seconds:g} s a step ({self.page})"
        )


OWN = OwnMeasurement(
    run="125M in bf16 with ZeRO 1",
    device="H200",
    num_devices=1,
    date="2026-11-26",
    tokens_per_second=380_831,
    step_seconds=0.344,
    page="docs/evidence/gpu.md",
)
CPU_BENCHMARKS = "gpt3-tiny and a 14M model on 2 cores, 2026-11-21 (docs/evidence/benchmarks.md)"


@dataclass(frozen=True, slots=True)
class RestsOn:
    """The measurement behind a planned time, and how it was carried over to the planned devices."""

    kind: Kind
    words: str
    measurement: OwnMeasurement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `rests_on` of plan.json."""
        return asdict(self)


def rests_on(speed: Speed) -> RestsOn | None:
    """Return the measurement that a plan at this speed rests on; None if the time is not known."""
    setup, rates = speed.setup, speed.rates
    if rates is None:
        return None
    if speed.last_job is not None:
        return RestsOn("last job", "the measured rate of this run's last job")
    # Rates that are not the table's are this machine's own measurements.
    measured_here = speed.table_rates is not None and rates.source != speed.table_rates.source
    if not setup.on_gpu:
        if rates.calibration is not None:
            return RestsOn("calibration", "this machine's calibration")
        return RestsOn("cpu benchmarks", f"measured steps of nbtrain: {CPU_BENCHMARKS}")
    return _on_gpu(setup, measured_here)


def _on_gpu(setup: Setup, is_calibrated: bool) -> RestsOn:
    assert setup.device is not None
    name = setup.device.name
    words = f"one measured step of nbtrain: {OWN.words}"
    several = setup.world_size > OWN.num_devices
    if is_calibrated:
        return RestsOn("calibration", f"this machine's calibration, and for nbtrain's kernels {words}", OWN)
    if name == OWN.device:
        if several:
            words += f"; nbtrain has not been measured on several {name}"
        return RestsOn("one step", words, OWN)
    words += (
        f"; nbtrain has not been measured on {name}: scaled by its datasheet and by the shares of it that "
        "published runs of other programs reached"
    )
    return RestsOn("scaled step", words, OWN)
