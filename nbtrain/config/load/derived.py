"""Settings of the user's run that are reset in a run derived from it for a check or a measurement."""

from typing import Any

from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig

NOT_INHERITED: dict[str, Any] = {
    # The derived run sends no notification and does not belong to a group of the user's runs.
    "labels": {},
    "notify.command": [],
    "notify.url_variable": None,
    "profile.enabled": False,
    "profile.memory_snapshot": False,
    # Checkpoints of the derived run, if any, are read from its run directory.
    "checkpoint.local_dir": None,
    "checkpoint.local_save_interval_steps": None,
    "checkpoint.local_copy_bytes_per_second": None,
}
"""{dotted key: value that it is reset to} in a twin, a reproduced run and a run that measures the network."""


def without_inherited(config: RunConfig) -> RunConfig:
    """Return a copy of the user's run in which the settings of NOT_INHERITED are reset.

    An override could not reset `labels`: it would only add labels to them.
    """
    return with_values(config, NOT_INHERITED)
