"""Fields that may change when a run is resumed, for submit, the trainer and the resume report.

A checkpoint fixes the architecture, the tokenizer, the number format, the order of the data and the batch
size of every step. All other fields may change on resume, including the layout (checkpoint/reshape.py), and
the changes are reported.

    submit          rejects a run in which a bound field has changed (jobs/checks/existing_run.py)
    trainer         rejects a checkpoint whose manifest has another value of a bound field (load.py)
    resume report   says whether the changed fields leave every number unchanged
                    (checkpoint/live/resume_report.py)
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

# A source's weight determines the order of packed data. Its other settings either change the dataset itself
# or have no effect.
WEIGHT = re.compile(r"data\.sources\.\d+\.weight")


def marked_keys(kind: type[Marker]) -> dict[str, Marker]:
    """Return {dotted key: marker} for every field and section of a run that has a marker of this kind."""
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
"""{field or section that must not change on resume: its key in a checkpoint's manifest}.

The value is None if the manifest does not record the field.
"""
WITHOUT_EFFECT = tuple(marked_keys(WithoutEffect))
SAME_MATHEMATICS = tuple(marked_keys(SameMathematics))


def is_bound(key: str) -> bool:
    """Return whether a resumed run must keep the value of this field."""
    if WEIGHT.fullmatch(key):
        return True
    return within(key, BOUND) and not within(key, SAME_MATHEMATICS)


def within(key: str, sections: Iterable[str]) -> bool:
    """Return whether a dotted key is one of `sections`, or is inside one of them."""
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
            found.append(f"{key} has different contents (the SHA-256 differs)")
        else:
            found.append(f"{key} is {before!r} in the checkpoint and {after!r} in the run")
    return found


def _look_up(mapping: Mapping[str, Any], dotted: str) -> Any:
    section, _, name = dotted.rpartition(".")
    inner = mapping[section] if section else mapping
    return inner[name]
