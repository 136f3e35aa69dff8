"""Write a planned run as a YAML that extends the original run's YAML and contains only the differences.

A file is written only if the run breaks no rule and if the file reads back as exactly the same run. An
existing file is overwritten only on request.
"""

import errno
import reprlib
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import NAME_RULE, typed_path
from nbtrain.config.load import find, flatten, load, to_yaml
from nbtrain.config.names.architectures import FIELDS
from nbtrain.config.rules.check import check_config
from nbtrain.config.rules.resume import within
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import spelled, to_text


def write_run(config: RunConfig, path: str | Path, note: str = "", overwrite: bool = False) -> Path:
    """Write a run YAML and return its path; the run is named after the file.

    `note` is written as comments at the top of the file.

    Raises ConfigError if the run breaks a rule, if the file exists and `overwrite` is False, or if the file
    cannot be written.
    """
    path = target_of(path, overwrite)
    try:
        named = load(config, {"name": path.stem}, check=False)
    except ConfigError:
        raise ConfigError(
            f"{path}: the file name becomes the run's name, but {path.stem!r} {NAME_RULE}."
        ) from None
    check_config(named)
    return write_text(path, run_text(named, path, note), named)


def target_of(path: str | Path, overwrite: bool = False, option: str = "--force") -> Path:
    """Return the absolute path of a run YAML to write; raises ConfigError if it must not be written.

    `option` is the command-line option that corresponds to `overwrite`, for the error message.
    """
    path = typed_path(path_of(path)).absolute()
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: the name of a run YAML must end in .yaml or .yml.")
    refuse_existing(path, overwrite, option)
    return path


def refuse_existing(path: Path, overwrite: bool, option: str) -> None:
    """Raise ConfigError if `path` is a folder, or a file that must not be overwritten.

    Special files such as /dev/stdout are accepted. `option` is the command-line option that corresponds to
    `overwrite`.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Name a file in the folder.")
    if path.is_file() and not overwrite:
        raise ConfigError(
            f"{path} already exists. Name another file, or overwrite the file with {option} (in Python, "
            "overwrite=True)."
        )


def write_text(path: Path, text: str, named: RunConfig) -> Path:
    """Write the text of a run YAML that must read back as `named`, and return the path.

    Raises ConfigError if the file cannot be written.
    """
    draft = path.with_name(f".{path.stem}.draft.yaml")
    try:
        files.write_text(draft, text)
        read = load(draft)
        if read.model_dump() != named.model_dump():
            raise AssertionError(f"{path} does not read back as the run from which it was written:\n{text}")
        files.write_output(path, text)
    except OSError as error:
        raise not_written(path, error) from None
    finally:
        draft.unlink(missing_ok=True)
    return path


WIDTH = 118
"""Maximum length of a line with a comment. A comment that does not fit is written on the line above."""


def commented_text(
    name: str, extends: str, settings: dict[str, Any], reasons: dict[str, str], head: str
) -> str:
    """Return a run YAML with one line for each section, and the reason for the section as a comment.

    `settings` is {section: {key: value}} or {key: value}. `reasons` is {section or key: reason}, which may
    include the key `extends`.
    """
    lines = [f"# {line}" for line in head.splitlines()]
    lines += [f"name: {name}", *_with_reason(f"extends: {spelled(extends)}", reasons.get("extends", ""))]
    for section, values in settings.items():
        if section != "data":
            lines += _with_reason(f"{section}: {spelled(values)}", reasons.get(section, ""))
            continue
        # Write one line for each source, because sources may be long.
        lines += ["data:", *_with_reason("  sources:", reasons.get("data", ""))]
        lines += [f"    - {spelled(source)}" for source in values["sources"]]
        lines += [f"  {key}: {spelled(value)}" for key, value in values.items() if key != "sources"]
    return "\n".join(lines) + "\n"


def _with_reason(line: str, reason: str) -> list[str]:
    if not reason:
        return [line]
    commented = f"{line}  # {reason}"
    return [commented] if len(commented) <= WIDTH else [f"# {reason}", line]


def path_of(path: object) -> Path:
    """Return the path of a file to write as a Path; raises ConfigError if it is not a valid path."""
    if not isinstance(path, str | Path) or not str(path).strip():
        raise ConfigError(
            f'{reprlib.repr(path)} is not the path of a file to write; give a path such as "new.yaml".'
        )
    return Path(path)


def not_written(path: Path, error: OSError) -> ConfigError:
    """Return the error about a file that cannot be written, with a fix."""
    fix = "Name a file in an existing folder to which you can write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "Free up space, or name a file on another disk"
    return ConfigError(f"{path} cannot be written ({error.strerror}). {fix}.")


def run_text(config: RunConfig, path: Path, note: str = "") -> str:
    """Return the text of a run YAML for `path`: the differences from the YAML that the run was loaded from.

    If there is no such YAML, or if it is `path` itself, the text has all values of the run.
    """
    head = "".join(f"# {line}\n" for line in note.splitlines())
    base = _base(config)
    if base is None or base == path:
        return head + to_yaml(config)
    before = dict(flatten(load(base, check=False).model_dump()))
    now = dict(flatten(config.model_dump()))
    # If the architecture changes, it sets several fields when the file is read. Write all of them.
    renamed = before.get("model.architecture") != now["model.architecture"]
    sets = tuple(f"model.{field}" for field in FIELDS) if renamed else ()
    changed = {key: value for key, value in now.items() if before.get(key, ...) != value or within(key, sets)}
    changed.pop("name", None)
    named = {"name": config.name, "extends": parent_name(base, path)}
    return head + to_text({**named, **nested(changed)})


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Convert {"batch.micro_batch_size": 4} to {"batch": {"micro_batch_size": 4}}."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, last = key.split(".")
        target = found
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return found


def _base(config: RunConfig) -> Path | None:
    try:
        return find(config._run or config.name)
    except ConfigError:  # The run's YAML no longer exists, or the run was created in Python.
        return None


def parent_name(base: Path, path: Path) -> str:
    """Return the value of `extends` in the YAML at `path` that makes it extend the YAML `base`.

    It is the file name of `base` if both are in the same folder, the run's name if `base` can be found by
    that name (as shipped runs can), and the path of `base` otherwise.
    """
    if base.parent == path.parent:
        return base.name
    try:
        by_name = find(base.stem) == base and not path.with_name(f"{base.stem}.yaml").exists()
    except ConfigError:
        by_name = False
    return base.stem if by_name and base.stem != path.stem else str(base)
