"""Pairs of features that can be combined, and their settings: the table in docs/parallelism.md."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from nbtrain.config.rules.combinations import BY_NAME, CLASHES, Feature


@dataclass(frozen=True)
class Pairing:
    """Whether two features can be combined: an entry of the table in docs/parallelism.md."""

    pair: bool
    """Whether a run could have both features. False for a feature and itself, and for two features on the
    same axis, such as two ZeRO stages.
    """
    reason: str | None = None
    """Reason why the two features cannot be combined; None if they can be combined or are not a pair."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Overrides that turn on the two features, including the settings that the features need; {} if they are
    not a pair.
    """


def pairing(first: Feature, second: Feature) -> Pairing:
    """Return whether two features can be combined, with the reason if not, and the settings for both."""
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
        # Prefer a reason about the two features themselves to one about a feature that they need.
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
