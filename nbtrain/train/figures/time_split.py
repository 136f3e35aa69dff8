"""Where a job's time went: the parts of its steps, checkpoints and evaluations, added up."""

from nbtrain.train.figures.throughput import PARTS

NAMES = (*PARTS, "checkpoint", "evaluation", "other")


class TimeSplit:
    """Sums since the job's start, on this rank; what no part claims of a step is "other"."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums = dict.fromkeys(NAMES, 0.0)
        self._measured_seconds = self._communication_seconds = 0.0

    def add_step(
        self, wall_seconds: float, parts: dict[str, float], communication_seconds: float | None
    ) -> None:
        """One step: its seconds, their parts and, if they were measured, its collectives."""
        self.steps += 1
        self.add(**parts, other=max(wall_seconds - sum(parts.values()), 0.0))
        if communication_seconds is not None:
            self._measured_seconds += wall_seconds
            self._communication_seconds += communication_seconds

    def add(self, **seconds: float) -> None:
        """Seconds by name."""
        for name, more in seconds.items():
            self._sums[name] += more

    def seconds(self) -> dict[str, float]:
        """By name; "communication" is estimated from the steps in which it was measured, and is contained in
        the other parts."""
        share = self._communication_seconds / self._measured_seconds if self._measured_seconds else 0.0
        in_steps = sum(self._sums.values()) - self._sums["checkpoint"] - self._sums["evaluation"]
        return {**self._sums, "communication": share * in_steps}

    def __str__(self) -> str:
        seconds = self.seconds()
        communication = seconds.pop("communication")
        whole = sum(seconds.values()) or 1.0
        parts = [f"{name} {own / whole:.1%}" for name, own in seconds.items() if own]
        if communication:
            parts.append(f"in these, communication {communication / whole:.1%}")
        return ", ".join(parts)
