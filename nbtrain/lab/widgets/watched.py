"""A mark in an executed notebook whose run was stopped before its end, because no live front end watched
it.
"""

import sys
from typing import Any

from nbtrain.base.printing.notebook import is_watched

# Type of an output that no front end shows: what `nbtrain notebook` ends with another exit code for.
UNFINISHED = "application/vnd.nbtrain.unfinished+json"


def note_unfinished(words: str) -> None:
    """Record in an executed notebook that the run it waited for was stopped, because there was no live front
    end.
    """
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
