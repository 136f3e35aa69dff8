"""Detection of a live front end that shows this notebook kernel, and notebook output that can be updated.

api/arguments.py uses is_watched() to decide whether a call waits for the end of its run.
"""

import sys
import uuid
from typing import Any


def is_kernel() -> bool:
    """Return whether this process is a Jupyter kernel. An imported ipykernel alone does not prove it."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and kernel.IPKernelApp.initialized()


def is_watched() -> bool:
    """Return whether a live front end shows this kernel, judged by the message that is being handled.

    A front end with a person behind it allows input() in the cells that it runs; papermill, nbclient and
    nbconvert do not. A widget's message comes only from a live front end.
    """
    if "ipykernel" not in sys.modules:
        return False
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    message = kernel.get_parent()
    if message.get("header", {}).get("msg_type", "").startswith("comm_"):
        return True
    return bool(message.get("content", {}).get("allow_stdin"))


class Bar:
    """A progress bar, called with its name, the completed fraction (None if unknown) and a text."""

    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, name: str, fraction: float | None, words: str) -> None:
        from IPython.display import display

        # Imported here, because most verbs show no output that is updated.
        from nbtrain.base.printing.theme import progress_line

        data = {"text/html": progress_line(name, fraction, words), "text/plain": f"{name}: {words}"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=f"nbtrain-{uuid.uuid4()}")
        else:
            self._handle.update(data, raw=True)
