"""Settings of the user's run that a run derived from it for a check or a measurement does not inherit."""

from typing import Any

from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig

NOT_INHERITED: dict[str, Any] = {
    # It announces nothing, and belongs to no group of the user's runs.
    "labels": {},
    "notify.command": [],
    "notify.url_variable": None,
    "profile.enabled": False,
    "profile.memory_snapshot": False,
    # Its checkpoints, if any, are read from its run directory.
    "checkpoint.local_dir": None,
    "checkpoint.local_save_interval_steps": None,
    "checkpoint.local_copy_bytes_per_second": None,
}
"""{dotted key: value}: of a twin, of a reproduced run, and of one that measures the network."""


def without_inherited(config: RunConfig) -> RunConfig:
    """Return the user's run with NOT_INHERITED. An override would add to labels, not replace them."""
    return with_values(config, NOT_INHERITED)
