"""The heartbeat of a rank: its phase, its step, its collective and, on rank 0, the progress of the training.

The file is written again at every change of phase, and once a second by a thread, which also runs while the
rank hangs in a collective. A recent file therefore does not prove that the rank makes progress; a rising
progress count does. Phases nest (a save inside the training); the time of an inner phase does not count for
the outer one.
"""

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rank_phases import ACTIVITIES
from nbtrain.base.run_directory.records import (
    STACK_SIGNAL,
    Heartbeat,
    ProcessIdentity,
    Stamp,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import JobDir

if TYPE_CHECKING:
    # Importing this module loads torch, which takes seconds, but the first heartbeat must be written at once.
    from nbtrain.train.health.collectives import CollectiveWatch

BEAT_SECONDS = 1.0
# A shorter phase gets no event, because the event would report 0.00 s.
LEAST_EVENT_SECONDS = 0.005
# A disk that is full or was remounted read-only also fails at the next checkpoint.


class HeartbeatWriter:
    """Writes heartbeat/<rank>.json and, if `events` is set, an event for each phase."""

    events: EventWriter | None = None
    """Writer of phase events; only on rank 0."""
    progress: TrainingProgress | None = None
    """Progress that every heartbeat contains; only on rank 0."""
    collectives: "CollectiveWatch | None" = None
    """Recorder of this rank's current collective and of the number of collectives begun or ended; None before
    the process group exists.
    """
    compute_seconds: float | None = None
    """Seconds that this rank itself computed in the newest logged step."""
    written: Callable[[], int] | None = None
    """Function that returns how many bytes of checkpoints this rank has written."""

    def __init__(self, job: JobDir, rank: int, attempt: int):
        self.path = job.heartbeat(rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.attempt = attempt
        self.step = 0
        self._identity = ProcessIdentity.of(os.getpid())
        self._host = socket.gethostname()
        self._written = 0.0
        self._depth = 0
        self._inner_seconds = 0.0
        self._phase = "start"
        self._since, self._since_stamp = time.time(), Stamp.now()
        self._beats = 0
        self._dumps_stack = False
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread that writes the file, and make STACK_SIGNAL write all stacks to stderr."""
        faulthandler.register(STACK_SIGNAL, file=sys.stderr, all_threads=True)
        self._dumps_stack = True
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and write the file a last time, so that it shows the same step as the exit
        record.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.write()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run the body as a phase, and write an event with the seconds that the phase took without its inner
        phases.

        No event is written if the body raises or if the phase is shorter than LEAST_EVENT_SECONDS.
        """
        assert name in ACTIVITIES
        outer, outer_inner = self._phase, self._inner_seconds
        started = time.monotonic()
        self._inner_seconds = 0.0
        self._depth += 1
        self._enter(name)
        try:
            yield
            own = time.monotonic() - started - self._inner_seconds
            if self.events is not None and own >= LEAST_EVENT_SECONDS:
                words = f"{ACTIVITIES[name]} took {own:.2f} s"
                self.events.write("phase", words, phase=name, seconds=own, step=self.step)
        finally:
            self._inner_seconds = outer_inner + time.monotonic() - started
            self._depth -= 1
            # After an outermost phase, the reported phase stays unchanged: either the next phase follows, or
            # the rank exits and the last reported phase must be "end".
            if self._depth:
                self._enter(outer)

    def beat(self, step: int | None = None) -> None:
        """Record that the rank has made progress, at `step` if given. Cheap enough for every micro batch."""
        if step is not None:
            self.step = step
        self._beats += 1
        if self._thread is None and time.monotonic() - self._written >= BEAT_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the file now. A failed write does not end the rank, because all important data is in other
        files.
        """
        with self._lock:
            self._written = time.monotonic()
            # A network disk may fail once and recover: the next heartbeat tries again.
            with contextlib.suppress(OSError):
                self._beat().write(self.path)

    def _beat(self) -> Heartbeat:
        assert self._identity is not None
        return Heartbeat(
            rank=self.rank,
            attempt=self.attempt,
            process=self._identity,
            time=time.time(),
            step=self.step,
            phase=self._phase,
            phase_since=self._since,
            progress=self.progress,
            progress_count=self._beats + (self.collectives.calls if self.collectives else 0),
            collective=self.collectives.current() if self.collectives else None,
            host=self._host,
            dumps_stack=self._dumps_stack,
            compute_seconds=self.compute_seconds,
            written_bytes=self.written() if self.written else 0,
            stamps={"time": Stamp.now(), "phase_since": self._since_stamp},
        )

    def _renew(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self.write()

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._since, self._since_stamp = time.time(), Stamp.now()
        self._beats += 1
        self.write()
