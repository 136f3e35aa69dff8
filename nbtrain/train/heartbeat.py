"""A rank's sign of life: its phase, its step and, on rank 0, the progress of the training.

The file is renewed at every change of phase and at most once a second in between. Phases nest (a save inside
the training); the time of an inner phase does not count for the outer one.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from nbtrain.rundir import PHASES, EventWriter, Heartbeat, JobDir, ProcessIdentity, Progress

BEAT_SECONDS = 1.0


class HeartbeatWriter:
    """Writes heartbeat/<rank>.json, and a phase event where `events` is set."""

    events: EventWriter | None = None
    """Where phase events go; rank 0 only."""
    progress: Progress | None = None
    """Rides in every beat; rank 0 only."""

    def __init__(self, job: JobDir, rank: int, attempt: int):
        self.path = job.heartbeat(rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.attempt = attempt
        self.step = 0
        self._identity = ProcessIdentity.of(os.getpid())
        self._written = 0.0
        self._depth = 0
        self._inner_seconds = 0.0
        self._phase = "start"
        self._since = time.time()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in a phase; its event, with its own seconds, is written when it ends without an error."""
        assert name in PHASES
        outer, outer_inner = self._phase, self._inner_seconds
        started = time.monotonic()
        self._inner_seconds = 0.0
        self._depth += 1
        self._enter(name)
        try:
            yield
            own = time.monotonic() - started - self._inner_seconds
            if self.events is not None:
                self.events.write(
                    "phase", f"{name} took {own:.2f} s", phase=name, seconds=own, step=self.step
                )
        finally:
            self._inner_seconds = outer_inner + time.monotonic() - started
            self._depth -= 1
            # Behind an outermost phase stands the next one, or nothing: the last word stays "end".
            if self._depth:
                self._enter(outer)

    def beat(self, step: int | None = None) -> None:
        """Say that this rank is alive; cheap enough for every micro batch."""
        if step is not None:
            self.step = step
        if time.monotonic() - self._written >= BEAT_SECONDS:
            self.write()

    def write(self) -> None:
        """Renew the file now."""
        self._written = time.monotonic()
        assert self._identity is not None
        Heartbeat(
            rank=self.rank,
            attempt=self.attempt,
            process=self._identity,
            time=time.time(),
            step=self.step,
            phase=self._phase,
            phase_since=self._since,
            progress=self.progress,
        ).write(self.path)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._since = time.time()
        self.write()
