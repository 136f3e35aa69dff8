"""The cases of a step; each is tried separately and recorded before the next one begins.

A case passes, fails, or is impossible on this machine. An impossible case does not count as failed, and its
reason is recorded. An error in one case fails only that case, and the other cases continue.
"""

import json
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["passed", "failed", "impossible"]
# After it every later call into CUDA fails too: the step continues in a new process.
POISONED_EXIT = 3


class Impossible(Exception):
    """Raised if this machine cannot run a case; the message gives the reason, and a fix if there is one."""


@dataclass(frozen=True)
class Place:
    """The device, folder and share of the machine for the cases of a step."""

    device: str
    """Device, "gpu" or "cpu". On a CPU the sizes are tiny and only show that the step runs."""
    gpus: int = 0
    gpu_name: str = ""
    """Name of the GPU as torch reports it."""
    folder: Path = Path("build/gpu")
    """Folder for the step's runs, data and logs."""
    at_once: int = 1
    """Number of steps that share the cores and the GPU."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "gpu"


@dataclass
class Finding:
    """The result of a case."""

    outcome: Outcome
    words: str
    values: dict[str, str] = field(default_factory=dict)
    """Values for the columns of the step's table."""


@dataclass(frozen=True)
class Case:
    """One test of a step."""

    name: str
    find: Callable[[], Finding]


def passed_if(condition: bool, words: str, values: dict[str, str] | None = None) -> Finding:
    """Return a finding that has passed if the condition holds, and failed otherwise."""
    return Finding("passed" if condition else "failed", words, values or {})


def find_all(cases: Iterable[Case], rows: Path, done: Collection[str] = ()) -> int:
    """Try every case that is not done. Return 0, or POISONED_EXIT if CUDA refuses further calls.

    Writes two JSON lines to `rows` for each case: {"begun": name}, then its name, finding and seconds.
    """
    for case in cases:
        if case.name in done:
            continue
        add_line(rows, {"begun": case.name})
        started, poisoned = time.monotonic(), False
        try:
            found = case.find()
        except Impossible as reason:
            found = Finding("impossible", str(reason))
        except Exception as error:
            traceback.print_exc()
            found = Finding("failed", words_of(error))
            poisoned = "CUDA error" in str(error) or "device-side assert" in str(error)
        add_line(rows, {"name": case.name, "seconds": time.monotonic() - started, **asdict(found)})
        print(f"{case.name}: {found.outcome}: {found.words}", flush=True)
        if poisoned:
            return POISONED_EXIT
    return 0


def words_of(error: BaseException) -> str:
    """Describe an error in one line: its type, message and place, in this repository if possible."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), None)
    where = f" ({Path(place.filename).name}:{place.lineno})" if place else ""
    message = " ".join(str(error).split())[:600] or "without a message"
    return f"{type(error).__name__}: {message}{where}"


def add_line(path: Path, value: dict[str, Any]) -> None:
    """Append a JSON line in a single write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(value) + "\n")


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """Return the complete rows, and the name of a case that was begun but has no row."""
    rows, begun = [], None
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "begun" in entry:
            begun = entry["begun"]
        else:
            rows.append(entry)
            begun = None
    return rows, begun
