"""A mark in notebooks that were executed without a live front end and whose run was stopped early."""

import sys
from typing import Any

from nbtrain.base.printing.notebook import is_watched

# MIME type of the mark, an output that no front end shows. `nbtrain notebook` ends with a different exit code
# if the notebook has the mark.
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
