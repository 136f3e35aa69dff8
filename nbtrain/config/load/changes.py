"""Fields that differ between two configurations of one run.

config/rules/resume.py says which of them may change when a run is resumed.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbtrain.config.load import flatten
from nbtrain.config.rules.resume import is_bound
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show, spelled


@dataclass(frozen=True)
class Change:
    """A field that differs between two configurations."""

    key: str
    before: Any
    now: Any
    where: str
    """Place that set the new value."""

    @property
    def bound(self) -> bool:
        """Whether the field must stay the same when a run is resumed.

        Changing the field then requires a new run.
        """
        return is_bound(self.key)

    def __str__(self) -> str:
        return f"{self.key}: {show(self.before)} -> {show(self.now)}"


def changes_between(before: RunConfig, now: RunConfig) -> list[Change]:
    """Return every field that differs between two configurations, in the schema's order.

    If both configurations use packing: best_fit, changed weights of sources come last.
    """
    old, new = dict(flatten(before.model_dump())), dict(flatten(now.model_dump()))
    # data.packing: null stands for one of the two methods.
    old["data.packing"], new["data.packing"] = before.data.resolved_packing, now.data.resolved_packing
    if old["data.packing"] == new["data.packing"] == "best_fit":
        old |= _weights(before)
        new |= _weights(now)
    keys = [*new, *(key for key in old if key not in new)]
    return [
        Change(key, old.get(key), new.get(key), now.where(key) if _says(now, key) else "default")
        for key in keys
        if old.get(key) != new.get(key)
    ]


def typed_changes(before: RunConfig, now: RunConfig) -> list[Change]:
    """Return the changed fields whose new value is set in a file or by an override, not by a default."""
    return [change for change in changes_between(before, now) if now.sets(change.key)]


def as_overrides(before: RunConfig, now: RunConfig, but: Callable[[str], bool] = lambda key: False) -> str:
    """Return the changes from `before` to `now` as shell text: " key=value" for each change.

    "" if there are none. Keys for which `but` returns true are omitted.
    """
    # Keys inside a removed section are omitted, because the section itself becomes null. Weights are
    # omitted, because they are part of data.sources.
    own = dict(flatten(now.model_dump()))
    changes = [change for change in changes_between(before, now) if change.key in own and not but(change.key)]
    return "".join(f" {shlex.quote(f'{change.key}={spelled(change.now)}')}" for change in changes)


def _says(config: RunConfig, key: str) -> bool:
    """Return whether the key itself was set, and not only its section. Keys in data.sources count as set."""
    return config.sets(key) or key.startswith("data.sources.")


def _weights(config: RunConfig) -> dict[str, Any]:
    return {
        f"data.sources.{number}.weight": getattr(source, "weight", 1.0)
        for number, source in enumerate(config.data.sources)
    }
