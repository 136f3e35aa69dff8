"""A run before it is submitted: a YAML, changes to it, and the check of both. Uses no widgets.

Draft("gpt-tiny").set("batch.micro_batch_size", "4")  ->  assess()  ->  problems, plan, difference, one line
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.errors import ConfigError, NbtrainError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.addresses import text_without_secrets, without_secrets
from nbtrain.base.text.nearest import nearest
from nbtrain.config.findings import findings_of
from nbtrain.config.load import Overrides, load
from nbtrain.config.names import architectures, recipes
from nbtrain.config.names.own_names import OWN_NAMES, leads_names
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_value
from nbtrain.lab.form.fields import (
    ARCHITECTURE,
    DECAY_STYLE,
    OF_RECIPE,
    OFF,
    ON,
    RECIPE,
    Field,
    default_of,
    every_field,
    following,
    kind_of,
)

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan

WIDTH = 88
"""Maximum number of characters per line in a cell that is inserted into the notebook."""


@dataclass(frozen=True)
class Assessment:
    """The result of checking a draft with its current values."""

    config: RunConfig | None
    """Checked configuration; None if a value does not fit the schema."""
    problems: list[Finding]
    """Reasons why the run cannot be submitted."""
    shortages: list[Finding]
    """Resources and data that the run needs and this machine lacks."""
    plan: "Plan | None"
    """Plan of the run; None if there are problems."""

    @property
    def ready(self) -> bool:
        return self.config is not None and not self.problems and not self.shortages


class Draft:
    """A run YAML with changes. Every change is an override, as in nb.submit's second argument.

    `given` are the changes that the draft begins with, from the notebook or from the cloned run.
    """

    def __init__(self, run: str | Path, overrides: Overrides = None, clone_of: str = ""):
        self.run = str(run)
        self.clone_of = clone_of
        """Name of the run to clone, whose configuration is `run`; "" for other drafts."""
        self.base = load(run, check=False)
        self._base_values = self.base.model_dump()
        self._of_leading: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, Any] = {}
        given = load(self.base, overrides, check=False)
        if given is not self.base:
            now = given.model_dump()
            for key, one in every_field().items():
                if one.within and _at(now, one.within) is None:
                    continue
                self.set(key, one.as_held(_at(now, key)))
        self.given = self.changes
        self.unreadable: dict[str, Finding] = {}
        """{key: why the typed text is not a valid value}."""

    @property
    def changes(self) -> dict[str, Any]:
        """The changed fields as {key: value}. For a section that is off, only its switch is included."""
        return {key: value for key, value in self._changed.items() if self._counts(every_field()[key])}

    @property
    def overrides(self) -> dict[str, Any]:
        """The changes as a user would write them, {key: value}.

        The switch of a section is omitted if a key inside the section is set, because that key also switches
        the section on.
        """
        changes = self.changes
        inside = {every_field()[key].within for key in changes}
        return {key: value for key, value in changes.items() if not (value == {} and key in inside)}

    def _counts(self, one: Field) -> bool:
        return not one.within or self.value(one.within) is not None

    def value(self, key: str) -> Any:
        """Return the current value of a field. For a section it is {} if the section is on, None if it is
        off.
        """
        return self._changed[key] if key in self._changed else self.base_value(key)

    def base_value(self, key: str) -> Any:
        """Return the value that a field has if the user does not change it.

        This is the YAML's value, or the default for the chosen recipe, architecture and kind. In a section
        that the YAML does not switch on, it is the schema's default.
        """
        one = every_field()[key]
        if (one.within and self.base_value(one.within) is None) or self._of_another_kind(key):
            return one.initial
        return one.as_held(_at(self._values_beside_names(one.within or key), key))

    def _of_another_kind(self, key: str) -> bool:
        """Return whether the user changed the kind of the field's section, and so the section's keys."""
        return bool(kind := kind_of(key)) and kind in self._changed

    def _values_beside_names(self, key: str) -> dict[str, Any]:
        """Return the YAML's values after the changes on which the field of `key` depends."""
        if key in OWN_NAMES:
            leading = {
                name: value for name, value in self._changed.items() if leads_names(name) and name != key
            }
        else:
            leading = self._names(key) if key in OF_RECIPE else {}
        if not leading:
            return self._base_values
        known = repr(leading)
        if known not in self._of_leading:
            try:
                self._of_leading[known] = load(self.base, leading, check=False).model_dump()
            except ConfigError:  # an invalid source, which the assessment reports
                self._of_leading[known] = self._base_values
        return self._of_leading[known]

    def _names(self, key: str) -> dict[str, Any]:
        """Return {key: value} of the changes on which the field of `key` depends.

        These are a valid recipe, with a chosen decay style or length, and a valid architecture.
        """
        changed, names = self._changed, dict[str, Any]()
        if changed.get(RECIPE) in recipes.NAMES:
            names[RECIPE] = changed[RECIPE]
            # A decay style or a decay length that the user has chosen replaces the recipe's decay length.
            if changed.get(DECAY_STYLE) in every_field()[DECAY_STYLE].choices:
                names[DECAY_STYLE] = changed[DECAY_STYLE]
            names |= {one: None for one in recipes.WSD_DECAY if one in changed}
        if changed.get(ARCHITECTURE) in architectures.NAMES:
            names[ARCHITECTURE] = changed[ARCHITECTURE]
        names.pop(key, None)
        return names

    @property
    def architecture(self) -> Any:
        """Name of the architecture as it is set now, valid or not."""
        return self.value(ARCHITECTURE)

    def default(self, key: str) -> str | None:
        """Return the default of a field for the current recipe and architecture."""
        return default_of(key, self.value(RECIPE), self.architecture)

    def set(self, key: str, value: Any) -> None:
        """Change a field. Setting it to its YAML value undoes the change."""
        if value == self.base_value(key):
            self._changed.pop(key, None)
        else:
            self._changed[key] = value
        if _leads(key):
            # Drop changes that equal the new base value.
            for one in [one for one in following() if one in self._changed and one != key]:
                if self._changed[one] == self.base_value(one):
                    del self._changed[one]

    def set_text(self, one: Field, text: str) -> None:
        """Set a field to typed text. Raises ConfigError if it is not YAML."""
        text = text.strip()
        if one.kind == "text":
            self.set(one.key, None if text in ("", "null") else text)
            return
        if one.kind == "section" and text not in (ON, OFF):
            raise ConfigError(
                f"{one.key}: must be {ON} (on) or {OFF} (off) here. Its keys are separate fields, such as "
                f"{_first_within(one.key)}: set those."
            )
        try:
            value = parse_value(text)
        except (ValueError, NbtrainError) as error:
            raise ConfigError(f"{one.key} = {text_without_secrets(text)!r}: {error}") from error
        # No field accepts NaN or infinity, and Python has no literal for them, so the shown call would fail.
        if not _is_finite(value):
            raise ConfigError(f"{one.key} = {text!r}: must be a finite number.")
        self.set(one.key, value)

    def type(self, typed: Mapping[str, Any]) -> None:
        """Set fields to typed texts, {key: text}. Invalid texts are added to `unreadable` instead.

        Raises ConfigError for an unknown key.
        """
        known = every_field()
        # Typed values override a recipe, an architecture or a kind, in whatever order they were typed.
        for key in sorted(
            typed, key=lambda key: (key != RECIPE, key != ARCHITECTURE, not _stands_for_fields(key))
        ):
            text = typed[key]
            if (one := known.get(key)) is None:
                raise ConfigError(f"the form has no field {key!r}.{nearest(key, known)}")
            # Switch the section on, as lora.rank=8 does on the command line.
            if one.within and one.within not in typed and self.value(one.within) is None:
                self.set(one.within, {})
            try:
                self.set_text(one, str(text))
            except ConfigError as error:
                self.unreadable[key] = Finding("error", "typed_text", key, "", str(error), cost=FATAL)
        self.unreadable = {key: why for key, why in self.unreadable.items() if self._counts(known[key])}

    def text(self, one: Field) -> str:
        """Return the field's value as text to type."""
        return one.text(self.value(one.key))

    @property
    def config(self) -> RunConfig:
        """The checked run. Raises ConfigError with every problem, invalid texts included."""
        problems = [*self.unreadable.values()]
        try:
            config = load(self.run, self.overrides)
        except ConfigError as error:
            problems += findings_of(error)
        refuse(problems, ConfigError)
        return config

    @property
    def unchecked(self) -> RunConfig | None:
        """The run without checks of the rules between fields; None if a typed text or a value is invalid."""
        if self.unreadable:
            return None
        try:
            return load(self.run, self.overrides, check=False)
        except ConfigError:
            return None

    def assess(self) -> Assessment:
        """Load, check and plan the run, and check this machine for it, in about 20 ms."""
        from nbtrain.jobs.checks.preflight import preflight
        from nbtrain.jobs.request.launch import read_launch
        from nbtrain.planner.plan import plan

        unreadable = [*self.unreadable.values()]
        try:
            config = load(self.run, self.overrides, check=False)
        except ConfigError as error:
            misfits = findings_of(error)
            return Assessment(None, [*unreadable, *misfits, *self._other_problems(misfits)], [], None)
        problems = [*unreadable, *find_problems(config)]
        if problems:
            return Assessment(config, problems, [], None)
        launch = read_launch(config)
        return Assessment(config, [], preflight(launch), plan(launch.config, needs=launch.needs))

    def _other_problems(self, misfits: list[Finding]) -> list[Finding]:
        """Return the problems that remain if the overrides in `misfits` are dropped.

        The rules between fields can be checked only without values that do not fit the schema. Both kinds of
        problems are then reported at the same time.
        """
        fitting = {
            key: value
            for key, value in self.overrides.items()
            if not any(f"override {key}" in str(misfit) for misfit in misfits)
        }
        try:
            problems = find_problems(load(self.run, fitting, check=False))
        except ConfigError:
            return []
        dropped = self.overrides.keys() - fitting.keys()
        # Rules about a dropped field were checked with another value than the user's.
        return [problem for problem in problems if not any(_names(problem.text, key) for key in dropped)]

    @property
    def line(self) -> str:
        """Python call that does the same as the form's button, with passwords removed from addresses."""
        return self.call("nb.submit")

    def call(self, function: str) -> str:
        """Return the call of a function with the run and the overrides, in one line."""
        head, tail, changes = self._around(function)
        return f"{head}, {{{', '.join(changes)}}}{tail}" if changes else f"{head}{tail}"

    def cell(self, function: str, name: str, more: str = "") -> str:
        """Return a formatted notebook cell that calls the function and shows its result."""
        call = self.call(function)
        call = f"{call[:-1]}, {more})" if more else call
        if len(f"{name} = {call}") > WIDTH:
            head, tail, changes = self._around(function)
            lines = "".join(f"    {change},\n" for change in changes)
            call = f"{head}, {{\n{lines}}}{tail[:-1]}{f', {more}' if more else ''})"
        return f"import nbtrain as nb\n\n{name} = {call}\n{name}"

    def texts_for(self, configs: Iterable[RunConfig]) -> list[dict[str, str]]:
        """Return, for each of `configs`, {key: text} of the changes that turn this draft into it."""
        values = {key: self.value(key) for key in every_field()}
        return [_texts_for(config.model_dump(), values) for config in configs]

    def _around(self, function: str) -> tuple[str, str, list[str]]:
        """Return a call in three parts: the text before the overrides, the text after them, the overrides."""
        overrides = dict(self.overrides)
        head, tail = f"{function}({_python(self.run)}", ")"
        if self.clone_of:
            name = overrides.pop("name", self.base.name)
            head, tail = f"{function}(nb.open_run({_python(self.clone_of)}).clone({_python(name)}", "))"
        texts = (f"{_python(key)}: {_python(without_secrets(value))}" for key, value in overrides.items())
        return head, tail, [*texts]


def _texts_for(wanted: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key, one in every_field().items():
        if key == "name" or (one.within and _at(wanted, one.within) is None):
            continue
        value, own = one.as_held(_at(wanted, key)), values[key]
        # Most fields have the same value; spelling all of them takes longer than a search for layouts.
        if type(value) is type(own) and value == own:
            continue
        if (text := one.text(value)) != one.text(own):
            found[key] = text
    return found


def _leads(key: str) -> bool:
    """Return whether the values of other fields depend on the field of `key`."""
    return _stands_for_fields(key) or leads_names(key)


def _stands_for_fields(key: str) -> bool:
    """Return whether a field is a name (recipe, architecture) or a kind, whose value sets other fields."""
    return key in (RECIPE, ARCHITECTURE, DECAY_STYLE, *recipes.WSD_DECAY) or key.endswith(".kind")


def _at(values: Mapping[str, Any], key: str) -> Any:
    value: Any = values
    for part in key.split("."):
        value = value[part]
    return value


def _first_within(section: str) -> str:
    return next(key for key, one in every_field().items() if one.within == section)


def _is_finite(value: Any) -> bool:
    """Return whether a value contains neither NaN nor Inf."""
    if isinstance(value, Mapping):
        return all(_is_finite(one) for one in value.values())
    if isinstance(value, list):
        return all(_is_finite(one) for one in value)
    return not isinstance(value, float) or math.isfinite(value)


def _names(problem: str, key: str) -> bool:
    """Return whether a message names a field, by its dotted key or as in "eval_interval_steps(100)"."""
    section, _, last = key.rpartition(".")
    return bool(section and re.search(rf"\b({re.escape(key)}|{last}(?=\())\b", problem))


def _python(value: Any) -> str:
    """Return a value as Python code, formatted as ruff would: text is in double quotes."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_python(key)}: {_python(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
