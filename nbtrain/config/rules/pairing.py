"""Whether two kinds can be combined, each with the settings that it needs: the cells of the table in
docs/parallelism.md.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from nbtrain.config.rules.combinations import BY_NAME, CLASHES, Feature


@dataclass(frozen=True)
class Pairing:
    """The table's entry for a pair."""

    pair: bool
    """Whether the two are a pair: False for a kind with itself, or with another kind of the same axis."""
    reason: str | None = None
    """Reason why the two cannot be combined; None if they can be."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Overrides that turn on both kinds, including the settings that they need."""


def pairing(first: Feature, second: Feature) -> Pairing:
    """Return whether two kinds can be combined, each with its required settings."""
    if first is second or (first.axis and first.axis == second.axis):
        return Pairing(pair=False)
    refused: Pairing | None = None
    choices = [kind.needs or (None,) for kind in (first, second)]
    for names in itertools.product(*choices):
        together = [first, second, *(BY_NAME[name] for name in names if name)]
        settings: dict[str, Any] = {}
        for kind in together:
            settings |= kind.settings
        reason = _clash(together)
        if reason is None:
            return Pairing(True, None, settings)
        # The pair's own reason says more than the reason of a kind that one of the two needs.
        refused = refused or Pairing(True, _clash([first, second]) or reason, settings)
    assert refused is not None
    return refused


def _clash(kinds: list[Feature]) -> str | None:
    for first, second in itertools.permutations(kinds, 2):
        for clash in CLASHES:
            if clash.kind == first.name and second.name in clash.others:
                return clash.reason
    for first, second in itertools.permutations(kinds, 2):
        if (
            first.needs
            and second.axis == BY_NAME[first.needs[0]].axis != ""
            and second.name not in first.needs
        ):
            return f"{first.words.partition(':')[0]} needs {first.needs_words}"
    return None
