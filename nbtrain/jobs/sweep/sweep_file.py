"""A sweep file, and the runs that it describes.

    sweep: lr-study                          the name of the sweep
    run: gpt-tiny                            a run YAML, an example or a preset
    overrides: {batch.max_steps: 200}        settings of every run
    grid:                                    every combination of these values is a run
      lr_schedule.lr: [1.0e-3, 3.0e-3]
      model.seed: [1, 2, 3]
    settings:                                further runs, one mapping each
      - {lr_schedule.lr: 1.0e-2, optimizer.weight_decay: 0.0}
    at_once: 2                               number of runs that are active at the same time
    stop: {rule: median, after_tokens: 1e6}  stops runs that cannot win; optional

read_sweep(path) -> Sweep. A run is named by its settings, so that it keeps its name when values are added to
the file.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.workspace import display, suffixed_name, valid_name
from nbtrain.config.load import flatten, load, override_layer
from nbtrain.config.load.sweep_config import sweep_config
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.sweep_section import LABEL, MOST_RUNS, SweepConfig
from nbtrain.config.yaml_source import Located, read_yaml
from nbtrain.jobs.sweep.sweep_record import sweep_folder

SHAPE = (
    "a sweep file must be a mapping with the keys `sweep` and `run`, and at least one of the keys `grid` and "
    "`settings`"
)


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, with its configuration."""

    name: str
    settings: Mapping[str, Any]
    """Settings that the sweep varies, without `overrides`, which all runs have in common."""
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A sweep with its runs, in the order of the file."""

    config: SweepConfig
    path: Path
    runs: Sequence[SweepRun]

    @property
    def name(self) -> str:
        return self.config.sweep

    @property
    def varied(self) -> list[str]:
        """The dotted keys that the sweep varies, in the order of the file."""
        keys = dict.fromkeys(key for run in self.runs for key in run.settings)
        return list(keys)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file and load each of its runs.

    Raises ConfigError with all problems in the file. The settings of each run are checked by the rules for
    run YAMLs, and the error names the run.
    """
    shown = display(path)
    located = read_yaml(path, shown, SHAPE)
    config = _checked(located, shown)
    runs: list[SweepRun] = []
    for settings in _settings(config):
        name = run_name(config.sweep, settings)
        overrides = {**_common(config), **settings, "name": name, f"labels.{LABEL}": config.sweep}
        try:
            loaded = load(_base(config.run, path), overrides)
        except ConfigError as error:
            words = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise ConfigError(f"{shown}: the run {name} ({words}) cannot be loaded:\n{error}") from None
        runs.append(SweepRun(name, settings, loaded))
    return Sweep(config, path, runs)


def write_sweep(contents: Mapping[str, Any]) -> Path:
    """Write a sweep given as a mapping to sweep.yaml in its folder, and return the path.

    A string in one of the grid's lists is interpreted as on the command line: "8" is the number 8. Raises
    ConfigError for mistakes, and then writes nothing.
    """
    for key in contents:
        if not isinstance(key, str):
            raise ConfigError(f"sweep: the key {key!r} must be a string.")
    try:
        if isinstance(grid := contents.get("grid"), Mapping):
            contents = {**contents, "grid": {key: _typed(values) for key, values in grid.items()}}
        text = yaml.safe_dump(dict(contents), sort_keys=False)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"sweep: {error.args[-1]!r} cannot be written as YAML. Use numbers, strings, lists and dicts; "
            "for an array, use values.tolist()."
        ) from None
    config = _checked(Located(dict(contents)), "sweep")
    path = sweep_folder(config.sweep) / "sweep.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)
    return path


def _typed(values: Any) -> Any:
    """Return one of the grid's lists with its strings parsed as YAML."""
    if not isinstance(values, list | tuple):
        return values
    return [yaml.safe_load(value) if isinstance(value, str) else value for value in values]


def name_in(path: Path) -> str:
    """Return the name of the sweep in a sweep file, without loading its runs. Raises ConfigError."""
    shown = display(path)
    return _checked(read_yaml(path, shown, SHAPE), shown).sweep


def _base(run: str, path: Path) -> str:
    """Return the run YAML, example or preset on which a sweep is based.

    The path of a YAML is looked up relative to the sweep file first.
    """
    beside = path.parent / run
    return str(beside) if run.endswith((".yaml", ".yml")) and beside.is_file() else run


def _checked(located: Located, shown: str) -> SweepConfig:
    """Return the fields of a sweep file. Raises ConfigError with all mistakes in the file."""
    config = sweep_config(located, shown)
    refuse(_mistakes(config, located, shown), ConfigError)
    return config


def _mistakes(config: SweepConfig, located: Located, shown: str) -> Iterator[Finding]:
    """Yield the mistakes in a sweep file whose fields have the right types."""

    def mistake(key: str, message: str, fix: str) -> Finding:
        return Finding("error", "sweep", key, located.where(key) or shown, message, fix, cost=FATAL)

    common = _common(config)
    combinations = 1
    for values in config.grid.values():
        combinations *= len(values)
    number = (combinations if config.grid else 0) + len(config.settings)
    if not number:
        fix = "Add a key with values to grid, or a mapping to settings."
        yield mistake("grid", "the sweep has no runs.", fix)
    if number > MOST_RUNS:
        words = f"the sweep has {number:,} runs, but at most {MOST_RUNS} are allowed."
        yield mistake("grid", words, "Remove values from grid, or mappings from settings.")
    for own in ("name", f"labels.{LABEL}"):
        for part, keys in (
            ("overrides", common),
            ("grid", config.grid),
            ("settings", dict.fromkeys(key for entry in config.settings for key in entry)),
        ):
            if own in keys:
                yield mistake(part, f"{own} is set by the sweep itself.", f"Remove {own} from {part}.")
    for key in config.grid:
        if key in common:
            words = f"{key} is both in grid and in overrides."
            yield mistake(f"grid.{key}", words, "Remove it from one of the two.")
    stop = config.stop
    if stop is not None and (stop.rule == "bound") != (stop.bound is not None):
        yield mistake(
            "stop",
            "`rule: bound` requires `bound`, and `rule: median` does not allow it.",
            "Change the rule, or add or remove `bound`.",
        )
    if number and number <= MOST_RUNS:
        names = [run_name(config.sweep, settings) for settings in _settings(config)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield mistake(
                "settings",
                f"more than one run has the settings of {', '.join(twice)}.",
                "Remove the repeated values from grid, or the repeated mapping from settings.",
            )


def _common(config: SweepConfig) -> dict[str, Any]:
    """Return {dotted key: value} of the settings that all runs have in common.

    Raises ConfigError if they are given as text that cannot be parsed.
    """
    if isinstance(config.overrides, str):
        return dict(flatten(override_layer(config.overrides).value))
    return config.overrides


def _settings(config: SweepConfig) -> Iterator[dict[str, Any]]:
    """Yield the varied settings of each run: first the grid's combinations, then those in `settings`."""
    if config.grid:
        for values in itertools.product(*config.grid.values()):
            yield dict(zip(config.grid, values))
    yield from config.settings


def run_name(sweep: str, settings: Mapping[str, Any]) -> str:
    """Return the name of a run: the sweep's name, followed by the varied settings.

    If that name would be too long or would not show a value exactly, a hash follows instead of the settings.
    """
    lasts = [key.rpartition(".")[2] for key in settings]
    parts = []
    for key, last in zip(settings, lasts):
        word = last if lasts.count(last) == 1 else key
        parts.append(_slug(f"{word}-{_text(settings[key])}"))
    name = "-".join([sweep, *parts])
    exact = all(map(_is_exact, settings.values()))
    if exact and valid_name(name):
        return name
    text = repr((sweep, sorted((key, str(value)) for key, value in settings.items())))
    return suffixed_name(sweep, hashlib.sha256(text.encode()).hexdigest()[:8])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_exact(value: Any) -> bool:
    """Return whether a name can show a value exactly.

    A name can show a float with at most six digits, but no text that begins with "-" or contains "+".
    """
    text = _text(value)
    if text.startswith("-") or "+" in text:
        return False
    return not isinstance(value, float) or float(text) == value


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower().replace("e-0", "e-")).strip("-")
