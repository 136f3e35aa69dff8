"""Marks a notebook that was executed without a live front end, if its run was stopped before its end."""

import sys
from typing import Any

from nbtrain.base.printing.notebook import is_watched

# MIME type of an output that no front end shows. It makes `nbtrain notebook` exit with another code.
UNFINISHED = "application/vnd.nbtrain.unfinished+json"


def note_unfinished(words: str) -> None:
    """Record in the notebook that the run it waited for was stopped, unless there is a live front end."""
    if "ipykernel" not in sys.modules or is_watched():
        return
    from IPython import get_ipython
    from IPython.display import publish_display_data

    if get_ipython() is not None:
        publish_display_data({UNFINISHED: {"words": words}})


def noted_unfinished(notebook: Any) -> str | None:
    """Return the message that note_unfinished() stored in a notebook (nbformat), or None."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    noted = (output.get("data", {}).get(UNFINISHED) for output in outputs)
    return next((found["words"] for found in noted if found), None)
