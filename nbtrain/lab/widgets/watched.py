"""Detection of a live front end at this kernel, in contrast to papermill, nbclient or nbconvert.

By it, api/arguments.py decides whether a call waits for the end of its run.
"""

import sys
from typing import Any

# Type of an output that no front end shows: what `nbtrain notebook` ends with another exit code for.
UNFINISHED = "application/vnd.nbtrain.unfinished+json"


def is_watched() -> bool:
    """Whether a live front end shows this kernel, by the message that is being answered.

    A front end with a person behind it allows input() in the cells it runs; papermill, nbclient and
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


def note_unfinished(words: str) -> None:
    """Record in an executed notebook without a live front end that the run it waited for was stopped."""
    if "ipykernel" not in sys.modules or is_watched():
        return
    from IPython import get_ipython
    from IPython.display import publish_display_data

    if get_ipython() is not None:
        publish_display_data({UNFINISHED: {"words": words}})


def noted_unfinished(notebook: Any) -> str | None:
    """Return the note that note_unfinished() left in a notebook (nbformat), or None."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    noted = (output.get("data", {}).get(UNFINISHED) for output in outputs)
    return next((found["words"] for found in noted if found), None)
