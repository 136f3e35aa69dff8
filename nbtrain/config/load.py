"""From a run YAML and overrides to a checked, frozen RunConfig.

    read the YAML, its `extends:` first -> merge -> overrides -> schema -> rules (check.py)

Every problem of a file is told at once, each with the file and line that set the value.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Union, get_args

import yaml
from pydantic import BaseModel, ValidationError

from nbtrain.config.schema import ConfigModel, RunConfig
from nbtrain.config.yaml_source import Located, parse_value, read_yaml
from nbtrain.errors import ConfigError
from nbtrain.workspace import workspace

Overrides = Union[Mapping[str, Any], Iterable[str], None]

BUNDLED = Path(__file__).parent.parent / "_bundled" / "examples" / "megatron-gpt" / "training"


def load(run: str | Path | RunConfig, overrides: Overrides = None, check: bool = True) -> RunConfig:
    """The configuration of a run.

    `run` is a path to a YAML, or the name of one in examples/megatron-gpt/training/ (`gpt-tiny`).
    `overrides` is {"batch.micro_batch_size": 4}, the same nested, or ["batch.micro_batch_size=4"].

    Raises ConfigError with every problem found.
    """
    if isinstance(run, RunConfig):
        if not overrides:
            return run
        located = Located(run.model_dump(), dict(run._origins))
        label = run.name
    else:
        path = find(run)
        located, label = read_with_parents(path), path.name
    for problem in unknown_keys(located):
        raise ConfigError(problem)
    located = located.merged_with(override_layer(overrides))
    config = validate(located, label)
    if check:
        from nbtrain.config.check import check_config

        check_config(config)
    return config


def load_resolved(path: str | Path) -> RunConfig:
    """The config.yaml of a run directory: strict, and every field must be there."""
    path = Path(path)
    located = read_yaml(path, str(path))
    config = validate(located, str(path))
    missing = sorted(set(_leaves(config.model_dump())) - set(_leaves(located.value)))
    if missing:
        raise ConfigError(
            f"{path}: {len(missing)} fields are missing, first {missing[0]}. A resolved file holds every field: "
            "it is written by submit and not edited; put changes in a run YAML or an override."
        )
    return config


def to_yaml(config: RunConfig) -> str:
    """The resolved file: every field, in the schema's order."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True, width=110)


def find(run: str | Path) -> Path:
    """The file that `run` means: as typed, below the workspace, or a bundled example by name."""
    typed = Path(run).expanduser()
    names = [typed] if typed.suffix in (".yaml", ".yml") else [typed.with_name(typed.name + ".yaml"), typed]
    examples = workspace() / "examples" / "megatron-gpt" / "training"
    for folder in (Path(), workspace(), examples, BUNDLED):
        for name in names:
            if (folder / name).is_file():
                return (folder / name).absolute()
    known = sorted(path.stem for folder in (examples, BUNDLED) if folder.is_dir() for path in folder.glob("*.yaml"))
    near = difflib.get_close_matches(typed.stem, known, n=3)
    hint = f" Nearest: {', '.join(near)}." if near else f" Known: {', '.join(known)}." if known else ""
    raise ConfigError(f"{run}: no such run YAML, here or in {examples}.{hint}")


def read_with_parents(path: Path, seen: tuple[Path, ...] = ()) -> Located:
    """A YAML over everything it extends, relative to its own folder."""
    if path in seen:
        chain = " -> ".join(entry.name for entry in (*seen, path))
        raise ConfigError(f"{path.name}: `extends` runs in a circle: {chain}.")
    own = read_yaml(path)
    parents = own.value.pop("extends", None) or []
    if isinstance(parents, str):
        parents = [parents]
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{own.origins['extends']}: extends must be a file name or a list of them.")
    base = Located()
    for parent in parents:
        parent_path = path.parent / parent
        if not parent_path.is_file():
            raise ConfigError(f"{own.origins['extends']}: extends {parent!r}: no such file in {path.parent}.")
        base = base.merged_with(read_with_parents(parent_path.absolute(), (*seen, path)))
    return base.merged_with(own)


def override_layer(overrides: Overrides) -> Located:
    """Overrides as one more layer over the YAML."""
    layer = Located()
    for key, value in _override_items(overrides):
        place = f"override {key}={value}"
        target = layer.value
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigError(f"{place}: {parent} has been given a value already.")
        target[last] = value
        layer.origins[key] = place
    for problem in unknown_keys(layer):
        raise ConfigError(problem)
    return layer


def _override_items(overrides: Overrides) -> Iterable[tuple[str, Any]]:
    if not overrides:
        return
    if isinstance(overrides, Mapping):
        yield from _flatten(overrides)
        return
    if isinstance(overrides, str):
        overrides = overrides.split()
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"override {text!r}: must be key=value, e.g. batch.micro_batch_size=4.")
        try:
            yield key.strip(), parse_value(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"override {text!r}: the value is not YAML: {error}") from error


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in mapping.items():
        free_form = prefix + str(key) in FREE_FORM
        if isinstance(value, Mapping) and value and not free_form:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# --- the schema as dotted keys ------------------------------------------------------------------------------

FREE_FORM = {"backend.env", "parallel.deepspeed_extra"}


def field_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, type[BaseModel] | None]:
    """Every dotted key of the schema; sections map to their model, leaves to None."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, info in model.model_fields.items():
        section = _section(info.annotation)
        keys[prefix + name] = section
        if section is not None:
            keys.update(field_keys(section, f"{prefix}{name}."))
    return keys


def _section(annotation: Any) -> type[ConfigModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, ConfigModel):
            return candidate
    return None


def unknown_keys(located: Located) -> list[str]:
    """A message for each key that the schema does not have, with the nearest one that it has."""
    known = field_keys()
    problems = []

    def walk(value: Mapping[str, Any], prefix: str) -> None:
        for key, inner in value.items():
            dotted = prefix + key
            if dotted not in known:
                where = located.origins.get(dotted, "override")
                section = prefix.rstrip(".") or "a run"
                problems.append(f"{where}: {section} has no key `{key}`.{_nearest(dotted, known)}")
            elif isinstance(inner, Mapping) and dotted not in FREE_FORM and known[dotted] is not None:
                walk(inner, f"{dotted}.")

    walk(located.value, "")
    return problems


def _nearest(dotted: str, known: Iterable[str]) -> str:
    known = list(known)
    last = dotted.rpartition(".")[2]
    # The same word in another section is what people mean most often.
    same_word = [key for key in known if key.rpartition(".")[2] == last]
    by_word = {key.rpartition(".")[2]: key for key in known}
    close = difflib.get_close_matches(last, by_word, n=1, cutoff=0.6)
    if same_word:
        return f" Nearest: {same_word[0]}."
    if close:
        prefix = dotted.rpartition(".")[0]
        here = f"{prefix}.{close[0]}" if prefix else close[0]
        return f" Nearest: {here if here in known else by_word[close[0]]}."
    contained = [key for key in known if last and last in key.rpartition(".")[2]]
    return f" Nearest: {contained[0]}." if contained else ""


def validate(located: Located, label: str) -> RunConfig:
    """The schema's word on a merged mapping. Raises ConfigError with every problem."""
    problems = unknown_keys(located)
    if problems:
        raise ConfigError("\n".join(problems))
    try:
        config = RunConfig.model_validate(located.value)
    except ValidationError as error:
        raise ConfigError("\n".join(_problem(entry, located, label) for entry in error.errors())) from None
    config._origins.update(located.origins)
    return config


def _problem(entry: Any, located: Located, label: str) -> str:
    # Tags of a discriminated union stand in the location too; they are no keys.
    parts = [str(part) for part in entry["loc"]]
    dotted = ".".join(parts)
    while parts and ".".join(parts) not in located.origins:
        parts.pop()
    where = located.origins.get(".".join(parts), label)
    if entry["type"] == "missing":
        return f"{where}: {dotted} is missing; it has no default."
    if entry["type"] == "extra_forbidden":
        return f"{where}: {dotted} is no key of the schema."
    return f"{where}: {dotted} = {entry['input']!r}: {entry['msg'][:1].lower()}{entry['msg'][1:]}."


def _leaves(value: Any, prefix: str = "") -> Iterable[str]:
    if isinstance(value, Mapping) and value and prefix.rstrip(".") not in FREE_FORM:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}{key}.")
    else:
        yield prefix.rstrip(".")
