"""A run's status: its state, progress and results at one moment.

    status_records.read_status(RunDir, now)  ->  RunStatus

Every view uses it: `nbtrain runs`, the list in JupyterLab, `nbtrain status` and the panel (for which
run_description.py adds curves, ranks and events), `nbtrain job`, comparisons, and summary.json. Things that
several views show are computed here once: the label and tone of the state, the time left, whether a
throughput is still valid, and the text for steps.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    FAILED,
    LOST,
    QUEUED,
    RUN_MEANING,
    SUSPENDED,
    Tone,
    tone_of,
)
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.text import amounts

UNKNOWN = "\N{EN DASH}"
"""Text for a value that is not known."""
NOT_KNOWN = "a state that this version of nbtrain does not know"
"""Meaning of a state that comes from a damaged record or another version of nbtrain."""
LISTED_KEYS = (
    *("name", "state", "cause", "num_jobs", "created_at", "run_id", "parent", "job_id", "ended_at"),
    *("world_size", "nodes", "backend", "restarts", "step", "total_steps", "loss", "validation_loss"),
    *("eta_seconds", "asked", "labels", "notes", "archived"),
)
"""Keys of to_dict(), in the order in which `nbtrain runs --json` prints them."""


@dataclass(frozen=True)
class RunStatus:
    """State, progress and results of a run, as of its newest job."""

    name: str
    state: str
    """State of the newest job. NEW if there is no job; DAMAGED if a record is unreadable (see `cause`)."""
    cause: str | None
    num_jobs: int
    created_at: float
    """Creation time of the newest job, or of the run if it has no job, in seconds since the epoch."""
    run_id: str | None = None
    parent: str | None = None
    job_id: str | None = None
    ended_at: float | None = None
    world_size: int | None = None
    nodes: int | None = None
    """Number of machines or pods in the newest attempt; None before the first attempt."""
    backend: str | None = None
    restarts: int = 0
    step: int | None = None
    """Newest step of rank 0, or the step of the checkpoint that it loads; None if neither is known."""
    progress: TrainingProgress | None = None
    """Progress in rank 0's heartbeat, otherwise in the checkpoint that the job continues from."""
    phase: str | None = None
    """Phase in rank 0's heartbeat; None if there is no heartbeat, or the job is active without rank 0."""
    ranks_run: bool = False
    """Whether rank 0 is running now, so that its throughput and time left are valid."""
    asked: str | None = None
    """Pending request to an active job: "stop" or "pause"; None if there is no request."""
    labels: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    archived: bool = False

    @property
    def active(self) -> bool:
        """Whether the newest job has not ended."""
        return self.state in ACTIVE

    @property
    def queued(self) -> bool:
        """Whether the newest job is waiting in a queue and has no ranks yet."""
        return self.state == QUEUED

    @property
    def failed(self) -> bool:
        """Whether an error ended the newest job."""
        return self.state == FAILED

    @property
    def settled(self) -> bool:
        """Whether the newest job has recorded its end, after which its files do not change."""
        return not self.active and self.job_id is not None and self.state != LOST

    @property
    def meaning(self) -> str:
        """Meaning of the state, as part of a sentence."""
        return RUN_MEANING.get(self.state, NOT_KNOWN)

    @property
    def pill(self) -> tuple[str, Tone]:
        """Label and tone of the state.

        The label is "Stopping..." from a stop request until the job has ended, and "Pausing..." from a pause
        request until the job is paused.
        """
        if self.asked == "stop":
            return "Stopping...", "wait"
        if self.asked == "pause" and self.state != SUSPENDED:
            return "Pausing...", "wait"
        return self.state, tone_of(self.state)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the end of training; None unless rank 0 is running.

        The speed of the newest attempt is used, because JobRecord.placed() drops the speed of earlier
        attempts.
        """
        seconds = self.progress.eta_seconds if self.progress and self.ranks_run else None
        return None if seconds is None or not math.isfinite(seconds) else seconds

    @property
    def time_left(self) -> str:
        """Time until the end of training as text; "" if it is not known."""
        return "" if self.eta_seconds is None else amounts.elapsed(self.eta_seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput of the newest step; None if unknown, or if an active job's ranks are not running."""
        return self.progress.tokens_per_second if self.progress and self._speed_is_valid else None

    @property
    def mean_tokens_per_second(self) -> float | None:
        """Mean throughput of the last 100 steps; None in the same cases as tokens_per_second."""
        return self.progress.mean_tokens_per_second if self.progress and self._speed_is_valid else None

    @property
    def _speed_is_valid(self) -> bool:
        return self.ranks_run or not self.active

    @property
    def total_steps(self) -> int | None:
        return self.progress.total_steps if self.progress else None

    @property
    def loss(self) -> float | None:
        return self.progress.loss if self.progress else None

    @property
    def validation_loss(self) -> float | None:
        return self.progress.validation_loss if self.progress else None

    def steps_text(self, separator: str = "/") -> str:
        """Format the step as "412/1,000", or as "412" if the total is unknown; UNKNOWN without a step."""
        if self.step is None:
            return UNKNOWN
        return f"{self.step:,}{separator}{self.total_steps:,}" if self.total_steps else f"{self.step:,}"

    def to_dict(self) -> dict[str, Any]:
        """Return the LISTED_KEYS as a JSON object, with None for NaN and Inf, which JSON does not support."""
        values = {key: getattr(self, key) for key in LISTED_KEYS}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
