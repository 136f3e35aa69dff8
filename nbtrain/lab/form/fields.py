"""The fields of the launch form, with their pages, order, units and defaults.

Every leaf of the schema has a separate field or is part of a field's text (a list). A section that may be
null, such as `lora`, has a switch, and its keys are fields that are used while it is on.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nbtrain.base.text.order import natural
from nbtrain.base.workspace import example_names
from nbtrain.config.names import architectures, recipes
from nbtrain.config.names.keys import entry_models, field_keys
from nbtrain.config.names.own_names import OWN_NAMES
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.fields import described
from nbtrain.config.sections.schedule_section import UNITS
from nbtrain.config.sections.sources import SOURCE_TYPES
from nbtrain.config.sections.sources import kind_of as kind_of_source
from nbtrain.config.yaml_source import show, spelled
from nbtrain.lab.form.titles import title_of

# The form's pages, divided like the job form of a cluster platform. Each section of the schema has one page.
GROUPS = {
    "Distributed": ("resources", "backend", "limits", "labels"),
    "Model": ("recipe", "init_from", "init_step", "lora", "dpo", "code", "model", "tokenizer"),
    "Training": ("mode", "batch", "optimizer", "lr_schedule", "precision", "checkpoint", "stability"),
    "Parallel": ("parallel",),
    "Data": ("data",),
    "Evaluation": ("evaluation",),
    "Logging": ("logging", "profile", "notify"),
}
# `name` has its own place on the form; the others are not settings.
NOT_IN_GROUPS = ("schema_version", "extends", "name", "imported_from")

# The fields that most runs change. The training length has the unit that the YAML uses.
LENGTH = "batch.train_tokens"
ESSENTIALS = (
    LENGTH,
    "batch.max_steps",
    "batch.global_batch_size",
    "batch.micro_batch_size",
    "model.architecture",
    "model.seq_length",
    "lr_schedule.lr",
    "precision.dtype",
    "backend.kind",
    "resources.device",
    "resources.gpus_per_node",
    "parallel.data_parallel_size",
)

# {ending of a key: unit}; longer endings come before shorter ones.
FIELD_UNITS = {
    "_bytes_per_second": "bytes/s",
    "_tokens": "tokens",
    "_samples": "samples",
    "_steps": "steps",
    "_seconds": "s",
    "_minutes": "min",
    "_bytes": "bytes",
    "_fraction": "share, 0 to 1",
    "_chars": "characters",
    "_layers": "layers",
    "batch_size": "sequences",
    "batch_size_increment": "sequences",
    "seq_length": "tokens",
    "original_max_position_embeddings": "tokens",
    "_parallel_size": "ranks",
    "eval_iters": "global batches",
    "nodes": "machines",
    "gpus_per_node": "GPUs",
    "cpus_per_node": "cores",
}


@dataclass(frozen=True)
class Field:
    """A field of the launch form, which sets one key of the run YAML."""

    key: str
    """Dotted key, as in an override."""
    description: str
    kind: str
    """Input type: choice, switch, section (on or off), text (used as typed) or yaml (parsed as YAML)."""
    choices: tuple[Any, ...] = ()
    default: str | None = None
    """The schema's default, spelled as in a run YAML; None if the field has no default."""
    within: str = ""
    """Key of the section that must be on for this field to be used: lora for lora.rank; "" if there is
    none.
    """
    initial: Any = None
    """The schema's default as a Python value; None if the field has no default."""

    @property
    def section(self) -> str:
        """First part of the key: the section of the run YAML that has the field, such as optimizer."""
        return self.key.partition(".")[0]

    @property
    def label(self) -> str:
        """The key without its section."""
        return self.key.partition(".")[2] or self.key

    @property
    def title(self) -> str:
        """The field's label in words, e.g. Learning rate."""
        return title_of(self.key)

    @property
    def unit(self) -> str:
        """Unit of the field's number; "" if it has no unit or is not a number."""
        if self.kind != "yaml":
            return ""
        last = self.key.rpartition(".")[2]
        return next((unit for ending, unit in FIELD_UNITS.items() if last.endswith(ending)), "")

    def text(self, value: Any) -> str:
        """Return a value as the text that a user would type."""
        if self.kind == "section":
            return OFF if value is None else ON
        if isinstance(value, list | Mapping):
            return json.dumps(value, ensure_ascii=False)
        if self.kind == "text":
            return "" if value is None else str(value)
        return spelled(value)

    def as_held(self, value: Any) -> Any:
        """Return a value in the form in which a draft stores it.

        A section that is on becomes {}, because its keys are separate fields. Sources keep only the keys that
        a user would write.
        """
        if self.key == "data.sources" and isinstance(value, list):
            return [_short(entry) for entry in value]
        return {} if self.kind == "section" and value is not None else value

    def value_text(self, value: Any) -> str:
        """Return a value in one line, for display."""
        if self.kind == "section":
            return "off" if value is None else "on"
        return show(value)


def _short(source: Any) -> Any:
    """Return a source without keys that have their default values; the key `kind` comes first.

    A value that is not a source is returned unchanged.
    """
    kind = source.get("kind") if isinstance(source, Mapping) else None
    model = next((model for model in SOURCE_TYPES if kind_of_source(model) == kind), None)
    if model is None:
        return source
    fields = model.model_fields
    own = {key: value for key, value in source.items() if key not in fields or fields[key].default != value}
    return {"kind": kind, **own}


# Values of a section's switch, spelled as in a run YAML.
ON, OFF = "{}", "null"

NAME = Field("name", "Name of the run and of its folder in the output directory.", "text")


@functools.cache
def every_field() -> Mapping[str, Field]:
    """Return {key: field} of all fields, page by page; the name comes first."""
    sections = (section for group in GROUPS.values() for section in group)
    return {"name": NAME, **{one.key: one for section in sections for one in fields_of(section)}}


def field_at(key: str) -> Field | None:
    """Return the field of a dotted key, or the field whose text contains it: data.sources for
    data.sources.0.path."""
    known = every_field()
    while key and key not in known:
        key = key.rpartition(".")[0]
    return known.get(key)


def kind_of(key: str) -> str:
    """Return the key that selects the kind of the field's section: lora.kind for lora.rank.

    The kind decides which keys the section has. The result is "" if the section has no kind.
    """
    section = key
    while section := section.rpartition(".")[0]:
        own = f"{section}.kind"
        if own in every_field() and section != "backend":
            return "" if own == key else own
    return ""


@functools.cache
def following() -> tuple[str, ...]:
    """Return the keys of fields whose values depend on another field.

    The other field is the recipe, the architecture, the kind of their section, or a field from which the
    names of dataset and tokenizer are derived.
    """
    known = every_field()
    leads = (*OF_RECIPE, *OWN_NAMES)
    return tuple(key for key in known if key in leads or known[key].within or kind_of(key))


def group_of(section: str) -> str:
    """Return the form page that has a section; "" for the name."""
    return next((title for title, sections in GROUPS.items() if section in sections), "")


def essentials(given: Mapping[str, Any]) -> list[str]:
    """Return the keys of the fields that most runs change, with one field for the training length.

    `given` has the values of the section `batch`; the length that is not None there selects that field.
    """
    unit = next((unit for unit in UNITS if given.get(f"train_{unit}") is not None), "tokens")
    return [f"batch.train_{unit}" if key == LENGTH else key for key in ESSENTIALS]


RECIPE, ARCHITECTURE, DECAY_STYLE = "recipe", "model.architecture", "lr_schedule.lr_decay_style"
OF_ARCHITECTURE = tuple(f"model.{name}" for name in architectures.FIELDS)
"""Fields whose defaults depend on the architecture."""
OF_RECIPE = tuple(dict.fromkeys((*recipes.FIELDS, *OF_ARCHITECTURE)))
"""Fields that a recipe sets, including the fields of its architecture."""


def default_of(key: str, recipe: Any, architecture: Any) -> str | None:
    """Return the default of a field for a recipe and an architecture, as a run YAML spells it; None if the
    field has none."""
    of_recipe = recipes.fields_of(recipe) if recipe in recipes.NAMES else {}
    is_its_own = architecture == of_recipe.get(ARCHITECTURE)
    if key in of_recipe and (is_its_own or key not in OF_ARCHITECTURE):
        return show(of_recipe[key])
    if key not in OF_ARCHITECTURE or architecture not in architectures.NAMES:
        return every_field()[key].default
    return show(architectures.fields_of(architecture)[key.partition(".")[2]])


def run_yamls() -> list[str]:
    """Return the names of nbtrain's and the workspace's run YAMLs: gpt-tiny first, the others by name."""
    return sorted(example_names(), key=lambda name: (name != "gpt-tiny", natural(name)))


@functools.cache
def fields_of(section: str) -> tuple[Field, ...]:
    """Return the fields of a section of the schema, including those of nested sections. If `section` is a
    single key, the result has only its field.
    """
    found: list[Field] = []
    within = ""
    for key, inner in field_keys().items():
        if not f"{key}.".startswith(f"{section}."):
            continue
        info = _field_info(key)
        if inner is not None and NoneType not in get_args(info.annotation):
            continue
        kind, choices = ("section", ()) if inner is not None else _kind(info)
        entry = entry_models().get(key)
        words = [info.description or "", _keys_in(entry) if entry else ""]
        within = within if key.startswith(f"{within}.") else ""
        initial = None if info.is_required() else _plain(info.get_default(call_default_factory=True))
        text = " ".join(filter(None, words))
        found.append(Field(key, text, kind, choices, _default(info), within, initial))
        within = key if kind == "section" else within
    return tuple(found)


def _keys_in(model: type[BaseModel]) -> str:
    """Return a sentence about a section's keys, such as "Keys, with their defaults: rank (8)."."""
    defaults = {name: _default(info) for name, info in model.model_fields.items()}
    keys = (f"{name} ({'required' if value is None else value})" for name, value in defaults.items())
    return f"Keys, with their defaults: {', '.join(keys)}."


def _field_info(key: str) -> FieldInfo:
    parents, _, last = key.rpartition(".")
    model: Any = field_keys()[parents] if parents else RunConfig
    return described(model)[last]


def _kind(info: FieldInfo) -> tuple[str, tuple[Any, ...]]:
    annotation = info.annotation
    if annotation is bool:
        return "switch", ()
    if get_origin(annotation) is Literal:
        return "choice", get_args(annotation)
    choices = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    types = {get_args(one)[0] if get_origin(one) is Annotated else one for one in choices}
    return ("text" if types <= {str, NoneType} else "yaml"), ()


def _default(info: FieldInfo) -> str | None:
    if info.is_required():
        return None
    return show(_plain(info.get_default(call_default_factory=True)))


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else value
