"""Named recipes: `recipe: modern` stands for an architecture, an optimizer and a schedule.

A recipe sets all of FIELDS, and the fields of its architecture (architectures.py). Like an architecture, it
replaces settings of the files that are extended; settings next to its name or in later layers take
precedence.

    extends: gpt-125m
    recipe: modern
    optimizer: {muon_lr: 0.01}      the recipe's fields, with a separate learning rate for the matrices

A recipe sets no sizes, learning rates or training lengths. Setting the name that an extended file already
sets changes nothing.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from nbtrain.config.names import architectures
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import UNITS, LrScheduleConfig, OptimizerConfig
from nbtrain.config.yaml_source import Located

# Fields that set the same amount in different units; a file sets one of them.
WSD_DECAY = tuple(f"lr_schedule.lr_wsd_decay_{unit}" for unit in (*UNITS, "fraction"))
_OWN = ("lr_schedule.lr_decay_style", "lr_schedule.lr_wsd_decay_style", *WSD_DECAY)
FIELDS = (
    *("model.architecture", "model.untie_embeddings_and_output_weights"),
    *("optimizer.type", *(f"optimizer.{key}" for key in OptimizerConfig.model_fields if "muon_" in key)),
    *_OWN,
)
# {name: fields that differ from the schema's defaults}
_DIFFERENCES: dict[str, dict[str, Any]] = {
    # arXiv:2005.14165, appendix B.
    "gpt3": {},
    # Llama's layers with norms of queries and keys, tied as small models are; Muon (arXiv:2502.16982); a
    # learning rate that falls as 1 - sqrt in the last fifth (arXiv:2405.18392, section 4).
    "modern": {
        "model.architecture": "qwen3",
        "optimizer.type": "Muon",
        "lr_schedule.lr_decay_style": "WSD",
        "lr_schedule.lr_wsd_decay_fraction": 0.2,
        "lr_schedule.lr_wsd_decay_style": "minus_sqrt",
    },
}
NAMES: tuple[str, ...] = get_args(RunConfig.model_fields["recipe"].annotation)
_SECTIONS: dict[str, Any] = {
    "model": RunConfig.model_fields["model"].annotation,
    "optimizer": OptimizerConfig,
}
_SECTIONS["lr_schedule"] = LrScheduleConfig


@cache
def fields_of(name: str) -> Mapping[str, Any]:
    """Return {dotted key: value} of a recipe, for all of FIELDS. Raises KeyError for an unknown name."""
    different = _DIFFERENCES[name]
    return {key: different.get(key, _default(key)) for key in FIELDS}


def _default(key: str) -> Any:
    section, _, name = key.partition(".")
    return _SECTIONS[section].model_fields[name].default  # type: ignore[union-attr]


def expanded(layer: Located, base: Located) -> Located:
    """Return a layer (a file or overrides) with the fields that its recipe and architecture set.

    `base` is the configuration over which the layer will be merged. The layer is changed in place. A name
    that is not a recipe is left to the schema's check. The schema's default does not count as a name.
    """
    own, below = (one.value.get("recipe") if "recipe" in one.origins else None for one in (layer, base))
    if isinstance(own, str) and own in NAMES and own != below:
        for key, value in _missing(layer, fields_of(own)):
            section, _, name = key.partition(".")
            layer.value.setdefault(section, {})[name] = value
            layer.origins[key] = layer.origins["recipe"]
    return architectures.expanded(layer, base)


def _missing(layer: Located, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the recipe that the layer does not set itself."""
    written = {
        f"{section}.{name}"
        for section, values in layer.value.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }
    # The recipe's length of the final decay is dropped if the layer sets this length itself, in any unit, or
    # sets a decay style that has no final decay.
    schedule = layer.value.get("lr_schedule")
    style = schedule.get("lr_decay_style", "WSD") if isinstance(schedule, dict) else "WSD"
    amount_is_given = style != "WSD" or any(key in written for key in WSD_DECAY)
    for key, value in fields.items():
        section = key.partition(".")[0]
        if key in written or not isinstance(layer.value.get(section, {}), dict):
            continue
        if section == "model" and "model.architecture" in written:
            # The architecture that the layer names sets all fields of the architecture.
            continue
        yield key, None if key in WSD_DECAY and amount_is_given else value
