"""The form's initial values for a text: the run that `nbtrain new` would write, as a YAML and overrides."""

from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import free_name
from nbtrain.jobs.new_run import name_for, new_run


def form_of_text(paths: list[Path]) -> dict[str, Any]:
    """Return {yaml, overrides, found, notes}: a run on the text at `paths`, named after the first path.

    Raises DataError for text that cannot be read or is too short.
    """
    if not paths:
        raise ConfigError("paths is empty: name at least one file or folder.")
    name = free_name(name_for(paths[0]))
    made = new_run(name, paths)
    overrides = {"name": name, **made.settings}
    return {"yaml": made.choices.extends, "overrides": overrides, "found": made.found, "notes": [*made.notes]}
