"""A run before it is submitted: a YAML, changes to it, and what can be said about both. Knows no widget.

Draft("gpt-tiny").set("batch.micro_batch_size", "4")  ->  assess()  ->  problems, plan, difference, one line
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from nbtrain.base.addresses import text_without_secrets, without_secrets
from nbtrain.base.errors import ConfigError, NbtrainError
from nbtrain.base.workspace import bundled, workspace
from nbtrain.config.fields import described
from nbtrain.config.keys import FREE_FORM, field_keys
from nbtrain.config.load import Overrides, load
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_value, show
from nbtrain.jobs.changes import Change, changes_between

if TYPE_CHECKING:
    from nbtrain.jobs.preflight import Obstacle
    from nbtrain.planner.plan import Plan

# The form's pages, as a job form of a cluster platform is divided; each section of the schema stands on one.
GROUPS = {
    "Distributed": ("resources", "backend", "labels"),
    "Model": ("model", "tokenizer"),
    "Training": ("mode", "batch", "optimizer", "lr_schedule", "precision", "checkpoint", "stability"),
    "Parallel": ("parallel",),
    "Data": ("data",),
    "Evaluation": ("evaluation",),
    "Logging": ("logging", "profile", "notify"),
}
# `name` has its own place on the form; the other two are not settings.
NOT_IN_GROUPS = ("schema_version", "extends", "name")


@dataclass(frozen=True)
class Field:
    """One field of the form."""

    key: str
    """Dotted, as in an override."""
    description: str
    kind: str
    """choice, switch, text (taken as written) or yaml (read as in a run YAML)."""
    choices: tuple[Any, ...] = ()

    @property
    def label(self) -> str:
        """The key without its section."""
        return self.key.partition(".")[2] or self.key


@dataclass(frozen=True)
class Assessment:
    """What is known about a draft as it stands."""

    config: RunConfig | None
    """None if a value does not fit the schema."""
    problems: list[str]
    """Why it cannot be submitted, each with place, rule and fix."""
    shortages: list["Obstacle"]
    """What this machine lacks for it."""
    plan: "Plan | None"
    changes: list[Change] = field(default_factory=list)
    """Fields that differ from the YAML."""

    @property
    def ready(self) -> bool:
        return self.config is not None and not self.problems and not self.shortages


class Draft:
    """A run YAML with changes. Every change is an override, as in nb.submit's second argument."""

    def __init__(self, run: str | Path, overrides: Overrides = None):
        self.run = str(run)
        self.base = load(run, check=False)
        changed = changes_between(self.base, load(self.base, overrides, check=False))
        self.overrides: dict[str, Any] = {change.key: change.now for change in changed}

    def value(self, key: str) -> Any:
        """The value of a dotted key as it stands."""
        return self.overrides[key] if key in self.overrides else self.base_value(key)

    def base_value(self, key: str) -> Any:
        """The value that the YAML gives, defaults included."""
        value: Any = self.base.model_dump()
        for part in key.split("."):
            value = value[part]
        return value

    def set(self, key: str, value: Any) -> None:
        """Change a field; its YAML value takes the change back."""
        if value == self.base_value(key):
            self.overrides.pop(key, None)
        else:
            self.overrides[key] = value

    def set_text(self, one: Field, text: str) -> None:
        """Change a field to what a person typed. Raises ConfigError if it is not YAML."""
        text = text.strip()
        if one.kind == "text":
            self.set(one.key, None if text in ("", "null") else text)
            return
        try:
            self.set(one.key, parse_value(text))
        except (ValueError, NbtrainError) as error:
            raise ConfigError(f"{one.key} = {text_without_secrets(text)!r}: {error}") from error

    def text(self, one: Field) -> str:
        """The field's value as a person types it."""
        value = self.value(one.key)
        if isinstance(value, list | Mapping):
            return json.dumps(value, ensure_ascii=False)
        if one.kind == "text":
            return "" if value is None else str(value)
        return show(value)

    def assess(self) -> Assessment:
        """Load, check, plan and look at this machine: some 20 ms."""
        from nbtrain.jobs.preflight import preflight
        from nbtrain.planner.plan import plan

        try:
            config = load(self.run, self.overrides, check=False)
        except ConfigError as error:
            return Assessment(None, str(error).splitlines(), [], None)
        problems = find_problems(config)
        if problems:
            return Assessment(config, problems, [], None, changes_between(self.base, config))
        return Assessment(config, [], preflight(config), plan(config), changes_between(self.base, config))

    @property
    def line(self) -> str:
        """The call that does what the form's button does, without passwords of addresses."""
        if not self.overrides:
            return f"nb.submit({_python(self.run)})"
        changes = ", ".join(
            f"{_python(key)}: {_python(without_secrets(value))}" for key, value in self.overrides.items()
        )
        return f"nb.submit({_python(self.run)}, {{{changes}}})"


def _python(value: Any) -> str:
    """As a formatter writes it: text in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def run_yamls() -> list[str]:
    """Names of the run YAMLs of nbtrain and of the workspace: gpt-tiny first, the others by name."""
    examples = (workspace() / "examples" / "megatron-gpt", bundled("examples/megatron-gpt"))
    names = {path.stem for folder in examples for path in folder.glob("training/*.yaml")}
    return sorted(names, key=lambda name: (name != "gpt-tiny", name))


def fields_of(section: str) -> list[Field]:
    """The fields of one section of the schema, nested ones with dotted keys; of a single field, itself."""
    found: list[Field] = []
    known = field_keys()
    for key, inner in known.items():
        if not f"{key}.".startswith(f"{section}.") or any(key.startswith(f"{one.key}.") for one in found):
            continue
        info = _field_info(key)
        optional = NoneType in get_args(info.annotation)
        if inner is not None and not optional and key not in FREE_FORM:
            continue
        kind, choices = _kind(info)
        found.append(Field(key, info.description or "", kind, choices))
    return [one for one in found if one.label != "kind"]


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
