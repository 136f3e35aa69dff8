"""The form's initial values for a text: the run that `nbtrain new` would write, as a YAML and overrides."""

import itertools
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.jobs.new_run import name_for, new_run

LONGEST_STEM = 48
"""Characters kept of a run's name, so that a number fits within the 53 that are allowed."""


def form_of_text(paths: list[Path]) -> dict[str, Any]:
    """Return {yaml, overrides, found, notes}: a run on the text at `paths`, named by the first of them.

    Raises DataError for text that cannot be read or is too short.
    """
    if not paths:
        raise ConfigError("paths: name at least one file or folder.")
    stem = name_for(paths[0])[:LONGEST_STEM].rstrip("-")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    name = next(name for name in names if not RunDir.named(name).exists())
    made = new_run(name, paths)
    overrides = {"name": name, **made.settings}
    return {"yaml": made.choices.extends, "overrides": overrides, "found": made.found, "notes": [*made.notes]}
