"""Files events/*.jsonl of a job: one JSON object per line, and each file written by a single process."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import JobDir


class EventWriter:
    """Appends to events/<writer>.jsonl: {"sequence", "time", "writer", "kind", "message", ...data}.

    kind is a lower-case word: state, phase, checkpoint, validation, tasks, alert, restart, config, warning,
    error. A phase event is written when the phase ends and has "phase" and "seconds". Events in a file are
    ordered by their sequence number, never by the clock. A new process continues from the last number.
    """

    def __init__(self, job: JobDir, writer: str):
        self.writer = writer
        self.path = job.events / f"{writer}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        existing = list(read_events_file(self.path))
        self._sequence = existing[-1]["sequence"] + 1 if existing else 0
        self._may_be_torn = True

    def write(self, kind: str, message: str, **data: Any) -> None:
        event = {
            "sequence": self._sequence,
            "time": time.time(),
            "writer": self.writer,
            "kind": kind,
            "message": message,
            **data,
        }
        self._sequence += 1
        if self._may_be_torn:
            self._end_torn_line()
        # On a full disk, only a part of the line may be written.
        self._may_be_torn = True
        # A line is written by one write(). Readers that see half a line read it again the next time.
        with files.naming(self.path), self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._may_be_torn = False

    def _end_torn_line(self) -> None:
        """End a line that was truncated by a killed writer or a full disk.

        The next event then starts on a new line.
        """
        if self.path.exists() and (content := self.path.read_bytes()) and not content.endswith(b"\n"):
            with self.path.open("ab") as stream:
                stream.write(b"\n")


def read_events_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in the complete lines of one file, in order. A truncated line is skipped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    # Not splitlines(), because messages may contain U+2028 and other line ends. The text after the last "\n"
    # is still being written.
    for line in content.split(b"\n")[:-1]:
        # A full disk truncates a line anywhere, even inside a character.
        try:
            event = json.loads(line.decode())
        except ValueError:
            continue
        yield event


def read_events(job: JobDir) -> list[dict[str, Any]]:
    """Return all events of a job, sorted by time.

    The events of one writer keep their order even if its clock was set back.
    """
    placed = []
    for path in sorted(job.events.glob("*.jsonl")):
        latest = float("-inf")
        for event in read_events_file(path):
            latest = max(latest, event["time"])
            placed.append((latest, event))
    return [event for _, event in sorted(placed, key=lambda one: one[0])]
