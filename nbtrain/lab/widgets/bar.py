"""Progress bar of long work in a notebook with a live front end: one output that is updated."""

import uuid
from typing import Any

from nbtrain.base import progress
from nbtrain.base.look import progress_line
from nbtrain.lab.widgets.watched import is_watched


class Bar:
    """A progress bar, called with its name, the completed fraction (None if unknown) and a text."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, name: str, fraction: float | None, words: str) -> None:
        from IPython.display import display

        data = {"text/html": progress_line(name, fraction, words), "text/plain": f"{name}: {words}"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=f"nbtrain-{uuid.uuid4()}")
        else:
            self._handle.update(data, raw=True)


def bar_if_watched() -> Bar | None:
    """Return a bar for base/progress.py; None if lines are better, as in papermill or a script."""
    return Bar() if is_watched() else None


def install() -> None:
    """Show such bars for all long work of this process."""
    progress.painter = bar_if_watched
