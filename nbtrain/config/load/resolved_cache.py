"""A cached load_resolved(): a run's config.yaml is read once, and again only if it changes."""

import functools
from pathlib import Path

from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig


def kept_config(path: Path) -> RunConfig:
    """Return load_resolved() of a config.yaml, cached. Raises ConfigError if the file does not exist."""
    return _read(str(path), path.stat().st_mtime_ns if path.exists() else 0)


# Reading a config.yaml takes 10 ms of CPU time, which is most of the time needed to show a run.
@functools.lru_cache(32)
def _read(path: str, _changed: int) -> RunConfig:
    return load_resolved(path)
