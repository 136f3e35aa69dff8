"""The progress bar of long work in a notebook that somebody watches: one output, written again."""

import uuid
from typing import Any

from nbtrain.base import progress
from nbtrain.base.look import progress_line
from nbtrain.lab.widgets.watched import is_watched


class Bar:
    """Called with its name, the fraction that is done (None if nobody knows) and words."""

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
    """A bar for base/progress.py; None if lines are better: papermill keeps them, a script shows them."""
    return Bar() if is_watched() else None


def install() -> None:
    """Have all long work of this process show such bars."""
    progress.painter = bar_if_watched
