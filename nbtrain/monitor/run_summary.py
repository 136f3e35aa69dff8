"""A line of a list of runs."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunSummary:
    """A line of `nbtrain runs`."""

    name: str
    state: str
    """State of the newest job; NEW before the first, DAMAGED if `cause` names an unreadable record."""
    cause: str | None
    num_jobs: int
    created_at: float
    """Time when the newest job was created, or the run if it has no job, in seconds since the epoch."""
    run_id: str | None = None
    parent: str | None = None
    job_id: str | None = None
    ended_at: float | None = None
    world_size: int | None = None
    nodes: int | None = None
    """Number of machines or pods of the newest attempt; None before the first."""
    backend: str | None = None
    restarts: int = 0
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    eta_seconds: float | None = None
    """Seconds until the end; only for a run whose job is RUNNING."""
    asked: str | None = None
    """Request that an active job has not carried out yet: stop or pause; None if there is none."""
    labels: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    archived: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON object, with None for NaN, which JSON does not have."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in vars(self).items()
        }
