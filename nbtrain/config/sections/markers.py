"""Markers on the fields of the schema, from which all tables of fields are derived.

    num_layers: Annotated[Layers, Architecture()]
    split: Annotated[Word, Binds("data_state.split")] = "949,50,1"
    compile: Annotated[bool, SameMathematics()] = False

A field without a marker may change when a run is resumed, and the resume report names it.
config/rules/resume.py reads Binds, SameMathematics and WithoutEffect; checkpoint/live/describe.py,
pretrained/start.py, dataset/samples/reference.py and the model's GPTConfig read Architecture;
pretrained/written.py and exchange/import_model.py read OfRun; config/rules/backends.py reads SbatchOption.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

Marker = TypeVar("Marker")


@dataclass(frozen=True)
class Binds:
    """A field, or a section with all its fields, that must stay the same when a run is resumed."""

    recorded: str | None = None
    """Key in a checkpoint's manifest that records the value. None if only the run's configuration records
    it.
    """


@dataclass(frozen=True)
class Architecture:
    """A field of `model` that determines the shapes or the meaning of the parameters.

    A checkpoint's manifest records it, and a resume may not change it.
    """

    differs: str = "refused"
    """Effect if the weights in `init_from` have another value: "refused", "ignored", or the text of a
    note.
    """
    compared: str = ""
    """Property that is compared with the weights in `init_from`. "" compares the field itself, or
    resolved_<field>.
    """
    counts: Callable[[Any], bool] = lambda section: True
    """Function that receives the `model` section of the weights and returns whether the field is compared at
    all.
    """


@dataclass(frozen=True)
class OfRun:
    """A field of `model` that belongs to the run: it decides how the run computes or initializes its model.

    An export omits the field. An imported model gets the value of the run onto which it is imported.
    """


@dataclass(frozen=True)
class SameMathematics:
    """A field or section that decides how the same mathematics is computed. A resume may change it."""


@dataclass(frozen=True)
class WithoutEffect:
    """A field or section that does not affect any number of the training. A resume may change it."""


@dataclass(frozen=True)
class SbatchOption:
    """A field that is written as an option of sbatch."""

    names: tuple[str, ...]
    """All spellings of the option, and the options that contradict it."""


def marked(section: type[BaseModel], kind: type[Marker]) -> dict[str, Marker]:
    """Return {field: marker} for the fields of a section that have a marker of this kind."""
    return {
        name: marker
        for name, info in section.model_fields.items()
        for marker in info.metadata
        if isinstance(marker, kind)
    }
