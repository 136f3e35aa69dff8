"""Fields that may change when a run is resumed, for submit, trainer and resume report.

A checkpoint binds the architecture, the tokenizer, the number format, the order of the data and the sizes of
all steps. Everything else may change on resume and is reported, also the layout
(checkpoint/reshape.py).

    submit        refuses a changed field that is bound (jobs/checks/existing_run.py)
    trainer       refuses a checkpoint whose manifest shows another value of a bound field (load.py)
    certificate   says whether changed fields leave every number as it was (checkpoint/live/resume_report.py)
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nbtrain.config.names.keys import field_keys
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import (
    Architecture,
    Binds,
    Marker,
    SameMathematics,
    WithoutEffect,
    marked,
)

# A source's share of packed data decides the order; its other settings change the dataset itself, or nothing.
WEIGHT = re.compile(r"data\.sources\.\d+\.weight")


def marked_keys(kind: type[Marker]) -> dict[str, Marker]:
    """Return {dotted key: its marker} of every field and section of a run with a marker of this kind."""
    return {
        f"{section}.{name}".lstrip("."): marker
        for section, model in {"": RunConfig, **field_keys()}.items()
        if model is not None
        for name, marker in marked(model, kind).items()
    }


ARCHITECTURE = {f"model.{name}": f"architecture.{name}" for name in marked(ModelConfig, Architecture)}
BOUND: dict[str, str | None] = {
    **{key: binds.recorded for key, binds in marked_keys(Binds).items()},
    **ARCHITECTURE,
}
"""{field or section that a resume may not change: its place in a checkpoint's manifest, or None}."""
WITHOUT_EFFECT = tuple(marked_keys(WithoutEffect))
SAME_MATHEMATICS = tuple(marked_keys(SameMathematics))


def is_bound(key: str) -> bool:
    """Return whether a change of this field makes it a different run."""
    if WEIGHT.fullmatch(key):
        return True
    return within(key, BOUND) and not within(key, SAME_MATHEMATICS)


def within(key: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of `sections` or inside one."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def misfits(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each bound field that differs between a checkpoint's manifest and `now`."""
    found = []
    for key, recorded in BOUND.items():
        if recorded is None:
            continue
        before, after = _look_up(saved, recorded), _look_up(now, recorded)
        if before == after:
            continue
        if recorded.endswith("sha256"):
            found.append(f"{key} has other contents (the SHA-256 differs)")
        else:
            found.append(f"{key} is {before!r} in the checkpoint and {after!r} in the run")
    return found


def _look_up(mapping: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.rpartition(".")
    inner = mapping[section] if section else mapping
    return inner[name]
