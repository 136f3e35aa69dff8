"""Settings that a run derived from the user's run, for a check or a measurement, does not inherit."""

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
    # Its checkpoints, if any, are read from its run directory.
    "checkpoint.local_dir": None,
    "checkpoint.local_save_interval_steps": None,
    "checkpoint.local_copy_bytes_per_second": None,
}
"""{dotted key: value} for a twin, for a reproduced run and for a run that measures the network."""


def without_inherited(config: RunConfig) -> RunConfig:
    """Return the user's run with the values in NOT_INHERITED.

    An override would not do, because it would add to `labels` instead of replacing them.
    """
    return with_values(config, NOT_INHERITED)
