"""Status of a run: its state, progress and results at one moment.

    status_records.read_status(RunDir, now)  ->  RunStatus

Every view draws from it: `nbtrain runs`, the list in JupyterLab, `nbtrain status` and the panel
(run_description.py adds curves, ranks and events), `nbtrain job`, comparisons, and summary.json. What a view
shows in several places is decided here once: the label and tone of the state, the time left, whether a
throughput is still valid, and the texts of steps and losses.
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
"""Text of a value that is not known."""
NOT_KNOWN = "a state that this nbtrain does not know"
"""Meaning of a state of a damaged record or of another version."""
LISTED_KEYS = (
    *("name", "state", "cause", "num_jobs", "created_at", "run_id", "parent", "job_id", "ended_at"),
    *("world_size", "nodes", "backend", "restarts", "step", "total_steps", "loss", "validation_loss"),
    *("eta_seconds", "asked", "labels", "notes", "archived"),
)
"""Keys of to_dict(), which `nbtrain runs --json` prints."""


@dataclass(frozen=True)
class RunStatus:
    """State, progress and results of a run, as of its newest job."""

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
    """Newest step of rank 0, or the step of the checkpoint that it loads; None without either."""
    progress: TrainingProgress | None = None
    """Progress in rank 0's heartbeat, or else in the checkpoint from which the job continues."""
    phase: str | None = None
    """Phase of rank 0's heartbeat; None if the job is active and rank 0 does not run."""
    ranks_run: bool = False
    """Whether rank 0 runs now, so that its throughput and its time left are valid."""
    asked: str | None = None
    """Request that an active job has not carried out yet: stop or pause; None if there is none."""
    labels: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    archived: bool = False

    @property
    def active(self) -> bool:
        """Whether the newest job has not ended."""
        return self.state in ACTIVE

    @property
    def queued(self) -> bool:
        """Whether the newest job waits and has no ranks yet."""
        return self.state == QUEUED

    @property
    def failed(self) -> bool:
        """Whether an error ended the newest job."""
        return self.state == FAILED

    @property
    def settled(self) -> bool:
        """Whether the newest job has recorded its end, so that its files no longer change."""
        return not self.active and self.job_id is not None and self.state != LOST

    @property
    def meaning(self) -> str:
        """Meaning of the state, as a part of a sentence."""
        return RUN_MEANING.get(self.state, NOT_KNOWN)

    @property
    def pill(self) -> tuple[str, Tone]:
        """Label and tone of the state: "Stopping..." from a stop request until the job has ended."""
        if self.asked == "stop":
            return "Stopping...", "wait"
        if self.asked == "pause" and self.state != SUSPENDED:
            return "Pausing...", "wait"
        return self.state, tone_of(self.state)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the end of the training; None unless rank 0 runs.

        The heartbeat belongs to the newest attempt: JobRecord.placed() drops the speed of an earlier one.
        """
        seconds = self.progress.eta_seconds if self.progress and self.ranks_run else None
        return None if seconds is None or not math.isfinite(seconds) else seconds

    @property
    def time_left(self) -> str:
        """Time until the end of the training, as text; "" if it is not known."""
        return "" if self.eta_seconds is None else amounts.elapsed(self.eta_seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput of the newest step; None if the job is active and its ranks do not run."""
        return self.progress.tokens_per_second if self.progress and self._speed_is_valid else None

    @property
    def mean_tokens_per_second(self) -> float | None:
        """Mean throughput of the last 100 steps; None if the job is active and its ranks do not run."""
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
        """Return "412/1,000"; without a total, only the step; UNKNOWN without a step."""
        if self.step is None:
            return UNKNOWN
        return f"{self.step:,}{separator}{self.total_steps:,}" if self.total_steps else f"{self.step:,}"

    def to_dict(self) -> dict[str, Any]:
        """Return LISTED_KEYS as a JSON object, with None for NaN, which JSON does not have."""
        values = {key: getattr(self, key) for key in LISTED_KEYS}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
