"""What may change between the jobs of one run, and what makes it another run.

A checkpoint binds the architecture, the tokenizer, the number format, the order of the data and the sizes of all
steps. Everything else may change on resume, and is told: the cut over the ranks too (checkpoint/reshape.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.config.load import FREE_FORM
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show

# Bound by the checkpoint, or by what has been trained; a section's name stands for all of its fields.
BOUND = (
    "model",
    "tokenizer.name",
    "tokenizer.vocab_size",
    "data.name",
    "data.json_key",
    "data.split",
    "data.split_rule",
    "data.seed",
    "data.index_samples",
    "data.shuffle",
    "data.packing",
    "data.blend",
    "batch.global_batch_size",
    "batch.rampup",
    "batch.step_batch_size_schedule",
    "precision.dtype",
    "precision.autocast",
)
# A source's share of packed data decides the order; its other settings change the dataset itself, or nothing.
WEIGHT = re.compile(r"data\.sources\.\d+\.weight")
# How the model is computed, not what it is.
FREE = ("model.attention_backend", "model.cross_entropy_chunk_tokens", "model.compile")


@dataclass(frozen=True)
class Change:
    """One field that differs."""

    key: str
    before: Any
    now: Any
    where: str
    """The place that set the new value."""

    @property
    def bound(self) -> bool:
        """Whether it makes another run of it."""
        if WEIGHT.fullmatch(self.key):
            return True
        inside = any(self.key == bound or self.key.startswith(f"{bound}.") for bound in BOUND)
        return inside and self.key not in FREE

    def __str__(self) -> str:
        return f"{self.key}: {show(self.before)} -> {show(self.now)}"


def changes_between(before: RunConfig, now: RunConfig) -> list[Change]:
    """Every field that differs, in the schema's order, then the weights of packed sources one by one."""
    old, new = dict(_leaves(before.model_dump())), dict(_leaves(now.model_dump()))
    if before.data.packing == now.data.packing == "best_fit":
        old |= _weights(before)
        new |= _weights(now)
    keys = [*new, *(key for key in old if key not in new)]
    return [
        Change(key, old.get(key), new.get(key), now.where(key))
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _weights(config: RunConfig) -> dict[str, Any]:
    return {
        f"data.sources.{number}.weight": getattr(source, "weight", 1.0)
        for number, source in enumerate(config.data.sources)
    }


def _leaves(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted not in FREE_FORM:
            found += _leaves(value, f"{dotted}.")
        else:
            found.append((dotted, value))
    return found
