"""The contents of `import nbtrain as nb`: functions from verbs.py, and the class Run from run.py."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    for module in ("nbtrain.api.verbs", "nbtrain.api.run"):
        if not name.startswith("_") and hasattr(found := import_module(module), name):
            return getattr(found, name)
    raise AttributeError(f"module 'nbtrain.api' has no attribute {name!r}")
