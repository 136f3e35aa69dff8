"""A step without torch for test_steps.py; its cases pass, raise, kill their process, or never end."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gpu.cases import Case, Finding, Impossible, Place
from tests.gpu.steps import PAGE


def cases(place: Place) -> Iterator[Case]:
    """Yield the cases that the file `cases` in the folder lists; each adds its name to the file `ran`."""
    known = {
        "good": lambda: Finding("passed", "2 | 3", {"figure": "7"}),
        "raises": lambda: 1 / 0,
        "impossible": _impossible,
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "poisoned": _poisoned,
        "slow": lambda: time.sleep(600),
    }
    for name in (place.folder / "cases").read_text().split():
        yield Case(name, lambda name=name: _noted(place.folder, name, known[name]))  # type: ignore[misc]


def _noted(folder: Path, name: str, find) -> Finding:
    with (folder / "ran").open("a") as stream:
        stream.write(f"{name} ")
    return find()


def _impossible() -> Finding:
    raise Impossible(f"no disk in {PAGE}")


def _poisoned() -> Finding:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
