"""Load a run YAML and overrides into a checked, frozen RunConfig.

    read the YAML, its `extends:` first -> merge -> overrides -> schema -> rules (check.py)

Each layer is merged with the fields of its recipe and its model.architecture (names/recipes.py). A layer
inherits the names of a dataset and a tokenizer only if it also inherits the settings from which they are made
(names/own_names.py).

All problems are reported together, each with the file and line that set the value.
"""

import re
import reprlib
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.run_directory.rundir import RunDir, run_names
from nbtrain.base.text.addresses import text_without_secrets, without_secrets
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.nearest import nearest
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display, example_folders, example_names, typed_path, valid_name, workspace
from nbtrain.config.load.other_files import (
    OTHER_ENDINGS,
    for_text,
    holds_text_files,
    refuse_other,
    refuse_script,
    refuse_text,
)
from nbtrain.config.load.schema_errors import schema_finding
from nbtrain.config.names.keys import free_form, holds_text, parts_of, unknown_keys
from nbtrain.config.names.own_names import with_default_names, with_own_names
from nbtrain.config.names.presets import PRESETS, nearest_preset, preset_run, size_of
from nbtrain.config.names.recipes import expanded
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import NO_LENGTH, given_unit
from nbtrain.config.yaml_source import (
    Located,
    MisleadingValue,
    OverridePlace,
    label_of,
    parse_value,
    read_yaml,
    to_text,
)

Overrides: TypeAlias = Mapping[str, Any] | Iterable[str] | None


def load(run: str | Path | RunConfig, overrides: Overrides = None, check: bool = True) -> RunConfig:
    """Load the configuration of a run.

    `run` is the path of a YAML, the name of an example (`gpt-tiny`) or of a run, a preset (`13B`,
    names/presets.py), or a RunConfig. `overrides` is {"batch.micro_batch_size": 4}, nested dictionaries,
    ["batch.micro_batch_size=4"], or one string of key=value pairs, which is split as a shell would split it.

    Raises ConfigError with every problem that was found.
    """
    if isinstance(run, RunConfig):
        located, label, name = Located(run.model_dump(), dict(run._origins)), run.name, run._run
    else:
        path = find(run)
        refuse_script(path)
        refuse_text(path)
        located, label, name = read_with_parents(path), label_of(path), str(run)
        refuse_other(path, located.value)
    layer = override_layer(overrides)
    if layer.value or not isinstance(run, RunConfig):
        config = validate(_over(located, layer), label)
        config._run = name
    else:
        config = run
    if check:
        from nbtrain.config.rules.check import check_config

        check_config(config)
    return config


def load_resolved(path: str | Path) -> RunConfig:
    """Return the configuration in the config.yaml of a run directory. The file must contain every field."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(
            f"{display(path)}: no such file. `nbtrain submit` writes this file, and the run cannot be "
            "read without it. Restore the file, submit the run again from its YAML, or choose another run "
            "from `nbtrain runs`."
        )
    label = display(path.absolute())
    located = read_yaml(path, label)
    config = _validated(located, label)
    # located.origins has the place of every key in the file, including sections.
    missing = sorted({key for key, _ in flatten(config.model_dump())} - located.origins.keys())
    if missing:
        raise ConfigError(
            f"{label}: lacks {counted(len(missing), 'field')}, beginning with {missing[0]}. `nbtrain submit` "
            "writes every field to this file, so do not edit it: put changes in a run YAML or an override."
        )
    return config


def to_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML: every field, in the schema's order."""
    return to_text(config.model_dump())


def to_shown_yaml(config: RunConfig) -> str:
    """Return the resolved configuration as YAML, with passwords in addresses replaced by ***.

    Copies of the file may outlive the password.
    """
    return to_text(without_secrets(config.model_dump()))


def find(run: str | Path) -> Path:
    """Return the file that `run` names.

    `run` is a path, as typed or relative to the workspace, or the name of a shipped example, a run or a
    preset. Raises ConfigError if no such file exists.
    """
    if not isinstance(run, str | Path):
        raise ConfigError(
            f"run = {reprlib.repr(run)} must be the path of a run YAML, or a name such as gpt-tiny."
        )
    if not str(run).strip():
        raise ConfigError("no run is specified. Specify the path of a run YAML, or a name such as gpt-tiny.")
    typed = typed_path(run)
    names = [typed]
    if typed.name and typed.suffix not in (".yaml", ".yml"):
        names.insert(0, typed.with_name(typed.name + ".yaml"))
    examples, *shipped = example_folders()
    for folder in (Path(), workspace(), examples, *shipped):
        for name in names:
            if _is_file(folder / name):
                return (folder / name).absolute()
    if isinstance(run, str) and valid_name(run) and _is_file(resolved := RunDir.named(run).config_yaml):
        return resolved
    if (preset := preset_run(run)) is not None:
        return find(preset)
    if _is_file(resolved := RunDir(typed).config_yaml):
        return resolved
    if _exists(typed):
        if typed.is_dir():
            create = for_text(typed.absolute())
            hint = f" The folder contains text files. {create}" if holds_text_files(typed) else ""
            raise ConfigError(
                f"{shortened(str(run))}: is a folder, not a run YAML. Specify the path of a run YAML.{hint}"
            )
        raise ConfigError(f"{shortened(str(run))}: is not a regular file. Specify the path of a run YAML.")
    if (size := size_of(str(run))) is not None:
        raise ConfigError(
            f"{run}: no preset has this size. Nearest: {nearest_preset(size)}. Presets: {', '.join(PRESETS)}."
        )
    if typed.suffix in OTHER_ENDINGS:
        raise ConfigError(f"{shortened(str(run))}: no such file. Correct the path.")
    if re.match(r"[a-z_.]+=", str(run)):
        raise ConfigError(
            f"{shortened(str(run))}: is an override, but a run must come before it, as in `gpt-tiny {run}`."
        )
    known, own = example_names(), run_names()
    raise ConfigError(
        f"{shortened(str(run))}: no such run YAML, here or in {examples}."
        f"{nearest(typed.stem, {*known, *own}, 3)} There are {counted(len(known), 'example')}, such as "
        f"gpt-tiny, and {counted(len(own), 'run')}, which `nbtrain runs` lists."
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for the file system
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def read_with_parents(path: Path, seen: tuple[Path, ...] = ()) -> Located:
    """Read a YAML and merge it over the files that it extends.

    Each `extends` is relative to the folder of its file.
    """
    # Resolved, because a cycle through ../a and ../b would otherwise give a new path in every round.
    place = path.parent.resolve() / path.name
    if place in seen:
        chain = " -> ".join(entry.name for entry in (*seen, place))
        raise ConfigError(f"{path.name}: `extends` forms a cycle: {chain}.")
    own = read_yaml(path)
    code = own.value.get("code")
    if isinstance(code, str) and code and _is_file(beside := path.absolute().parent / code):
        # The path is relative to this file, wherever the file that extends it is. It is resolved, because
        # ".." after a symlink is not the folder that it seems to be.
        own.value["code"] = display(beside.parent.resolve() / beside.name)
    parents = own.value.pop("extends", None) or []
    if isinstance(parents, str):
        parents = [parents]
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{own.origins['extends']}: extends must be a file name or a list of file names.")
    base = Located()
    for parent in parents:
        parent_path = path.parent / parent
        if not _is_file_name(parent_path) or preset_run(parent):
            # A name, as on the command line: the name of a file next to this one, in the workspace or among
            # the examples.
            beside = parent_path.parent / f"{parent_path.name}.yaml"
            try:
                parent_path = beside if _is_file(beside) else find(parent)
            except ConfigError as error:
                raise ConfigError(f"{own.origins['extends']}: extends {error}") from None
        if not _is_file(parent_path):
            where, name = own.origins["extends"], shortened(parent)
            raise ConfigError(f"{where}: extends {name!r}: no such file in {path.parent}.")
        further = read_with_parents(parent_path.absolute(), (*seen, place))
        base = with_own_names(base.merged_with(further), further, base)
    return _over(base, own)


def _over(base: Located, layer: Located) -> Located:
    """Merge a layer over its base.

    The recipe and the architecture that the layer names add their fields. Inherited dataset and tokenizer
    names that the layer contradicts are dropped.
    """
    return with_own_names(base.merged_with(expanded(layer, base)), layer, base)


def _is_file_name(path: Path) -> bool:
    """Return whether the value of `extends` is a file and not a name.

    The .5b of my-1.5b is not a file extension.
    """
    return path.suffix in (".yaml", ".yml") or (bool(path.suffix) and _is_file(path))


def override_layer(overrides: Overrides) -> Located:
    """Return overrides as another layer over the YAML. If a key is overridden twice, the later value wins.

    Raises ConfigError if an override is not key=value, or if a key and something inside it are both set.
    """
    layer = Located()
    whole: set[str] = set()
    for key, value in _override_items(overrides):
        *parents, last = parts_of(key)
        place = OverridePlace.of(key, without_secrets(value, last))
        target = layer.value
        for depth, parent in enumerate(parents):
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                outer = ".".join(parents[: depth + 1])
                raise ConfigError(f"{place}: {outer} is overridden too. Remove one of the two overrides.")
        if isinstance(target.get(last), dict) and key not in whole:
            raise ConfigError(
                f"{place}: keys inside {key} are overridden too. Remove this override or the others."
            )
        target[last] = value
        whole.add(key)
        layer.origins[key] = place
    return layer


def _override_items(overrides: Overrides) -> Iterable[tuple[str, Any]]:
    if not overrides:
        return
    if isinstance(overrides, Mapping):
        yield from flatten(overrides)
        return
    if isinstance(overrides, str):
        try:
            overrides = shlex.split(overrides)
        except ValueError as error:
            raise ConfigError(
                f"overrides {_typed(str(overrides))}: cannot be split into key=value pairs: {error}."
            ) from error
    if isinstance(overrides, bytes) or not isinstance(overrides, Iterable):
        raise _not_overrides("overrides", overrides)
    for text in overrides:
        if not isinstance(text, str):
            raise _not_overrides("override", text)
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(r"[^.\s]+(\.[^.\s]+)*", key):
            raise ConfigError(f"override {_typed(text)}: must be key=value, e.g. batch.micro_batch_size=4.")
        try:
            parsed = parse_value(value)
        except MisleadingValue as error:
            in_shell = " (in a shell, put the whole override in single quotes)"
            quotes = in_shell if "quotes" in str(error) else ""
            found = f"override {shortened(text_without_secrets(text))}"
            if error.text != value.strip():
                found += f": {shortened(error.text)}"
            raise ConfigError(f"{found}: {str(error).removesuffix('.')}{quotes}.") from error
        except ValueError as error:
            raise ConfigError(f"override {_typed(text)}: {error}") from error
        if isinstance(parsed, bool | int | float) and holds_text(key):
            parsed = value.strip()  # the field holds text, and the shell has removed the quotes
        yield from flatten({key: parsed})


def _typed(text: str) -> str:
    """Return the user's text in quotes for a message: without passwords, and shortened if it is long."""
    return repr(shortened(text_without_secrets(text)))


def _not_overrides(what: str, found: object) -> ConfigError:
    return ConfigError(
        f"{what} {reprlib.repr(without_secrets(found))} ({type(found).__name__}): overrides must be "
        f'{{"batch.micro_batch_size": 4}}, '
        '["batch.micro_batch_size=4"], or "batch.micro_batch_size=4", with spaces between several pairs.'
    )


_LEAVES = frozenset({str, int, float, bool, type(None), list})


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and the values of nested mappings: {"batch": {"seq": 4}} as ("batch.seq", 4).

    The mappings in free_form() are not split.
    """
    for key, value in mapping.items():
        dotted = f"{prefix}{key}"
        # Most values have one of these types, and isinstance() with an abstract class is slow.
        if type(value) in _LEAVES:
            yield dotted, value
        elif isinstance(value, Mapping) and value and dotted not in free_form():
            yield from flatten(value, f"{dotted}.")
        else:
            # Python's tuples and ranges become lists, as they would be in a YAML.
            plain = list(value) if isinstance(value, tuple | range) else value
            yield dotted, dict(value) if isinstance(value, Mapping) else plain


def validate(located: Located, label: str) -> RunConfig:
    """Validate a merged mapping against the schema, after filling in default dataset and tokenizer names.

    Raises ConfigError with every problem.
    """
    return _validated(with_default_names(located), label)


def _validated(located: Located, label: str) -> RunConfig:
    problems = unknown_keys(located)
    try:
        config = RunConfig.model_validate(located.value)
    except ValidationError as error:
        # Unknown keys outside lists have been reported above, with the nearest known key.
        problems += [
            schema_finding(entry, located, label)
            for entry in error.errors(include_url=False)
            if entry["type"] != "extra_forbidden" or any(isinstance(part, int) for part in entry["loc"])
        ]
    else:
        if given_unit(config.batch, "train") is None:
            key = "batch.train_tokens"
            place = located.where(key) or label
            problems.append(Finding("error", "schema", key, place, NO_LENGTH, cost=FATAL))
    refuse(problems, ConfigError)
    config._origins.update(located.origins)
    return config


def validate_section(located: Located, section: str) -> None:
    """Validate the given keys of one section while the rest of the run is not known yet.

    Raises ConfigError with the same messages as validate(). Missing and unknown keys are not reported,
    because only validate() can find them.
    """
    model: Any = RunConfig.model_fields[section].annotation
    try:
        if section in located.value:
            model.model_validate(located.value[section])
    except ValidationError as error:
        problems = [
            schema_finding({**entry, "loc": (section, *entry["loc"])}, located, section)
            for entry in error.errors(include_url=False)
            if entry["type"] not in ("missing", "extra_forbidden")
        ]
        refuse(problems, ConfigError)
