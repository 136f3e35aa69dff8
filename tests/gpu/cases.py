"""A step's cases: each is tried by itself, and what it found is written before the next one begins.

A case passes, fails, or is impossible on this machine, which is no failure: its reason is the finding. An
error in a case is that case's failure, and the others go on.
"""

import json
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["passed", "failed", "impossible"]
# After it every later call into CUDA fails too: the step goes on in a new process.
POISONED_EXIT = 3


class Impossible(Exception):
    """This machine cannot show the case; the reason, with its fix if there is one."""


@dataclass(frozen=True)
class Place:
    """What the cases of a step run on."""

    device: str
    """ "gpu"; "cpu": the same with tiny sizes, which shows that the step runs."""
    gpus: int = 0
    gpu_name: str = ""
    """As torch reports it."""
    folder: Path = Path("build/gpu")
    """For runs, data and logs of the step."""
    at_once: int = 1
    """Steps that share the cores and the GPU."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "gpu"


@dataclass
class Finding:
    """What a case has found."""

    outcome: Outcome
    words: str
    values: dict[str, str] = field(default_factory=dict)
    """Figures by the step's columns."""


@dataclass(frozen=True)
class Case:
    """One thing that a step tries."""

    name: str
    find: Callable[[], Finding]


def passed_if(condition: bool, words: str, values: dict[str, str] | None = None) -> Finding:
    """A finding that passed if the condition holds."""
    return Finding("passed" if condition else "failed", words, values or {})


def find_all(cases: Iterable[Case], rows: Path, done: Collection[str] = ()) -> int:
    """Try every case that is not done; exit code 0, or POISONED_EXIT if CUDA takes no more calls.

    `rows` gets two JSON lines for each case: {"begun": name}, and its name, finding and seconds.
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
    """An error in one line: kind, message, and the place in this repository or else where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((frame for frame in reversed(frames) if "site-packages" not in frame.filename), None)
    where = f" ({Path(place.filename).name}:{place.lineno})" if place else ""
    message = " ".join(str(error).split())[:600] or "without a message"
    return f"{type(error).__name__}: {message}{where}"


def add_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line, in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(value) + "\n")


def read_rows(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The rows that are whole, and the name of the case that was begun and has none."""
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
