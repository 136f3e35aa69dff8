"""A rank of the trainer that notes its CPU seconds after each step and around each save.

    main(run_path, notes_path)     one JSON line per note: {"what", "step", "cpu_seconds"}

The CPU seconds of a forked rank begin at 0 when it is forked. real_interruptions.py reads the notes.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator

from nbtrain.train import __main__ as rank
from nbtrain.train.health.heartbeat import HeartbeatWriter


def main(run_path: str, notes_path: str) -> int:
    """Train the run as a rank does, and append the notes to a file."""
    notes = os.open(notes_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(what: str, step: int) -> None:
        line = {"what": what, "step": step, "cpu_seconds": time.process_time()}
        os.write(notes, (json.dumps(line) + "\n").encode())

    class Metered(HeartbeatWriter):
        """The rank's heartbeat, which is called at every step and phase."""

        def beat(self, step: int | None = None) -> None:
            super().beat(step)
            if step is not None:
                note("step", step)

        @contextlib.contextmanager
        def phase(self, name: str) -> Iterator[None]:
            with super().phase(name):
                yield
            if name == "save":
                note("saved", self.step)

    rank.HeartbeatWriter = Metered  # type: ignore[misc]
    return rank.main(run_path)
