"""Completions for the shell: runs, examples, datasets, checkpoints, jobs, notebooks, keys and values.

argcomplete calls these functions at each TAB with the typed `prefix` and the arguments parsed before. They
have to return at once, so nothing here imports the schema: keys and values come from the included JSON
Schema.
"""

import argparse
import functools
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nbtrain.base.workspace import bundled, data_home, example_names, output_root, resolve

if TYPE_CHECKING:
    from nbtrain.base.run_directory.rundir import RunDir


def no_words(**_: Any) -> Iterable[str]:
    """Return no completions, so that the shell completes file names."""
    return ()


def runs(**_: Any) -> list[str]:
    """Return the names of the runs in the output directory."""
    from nbtrain.base.run_directory.rundir import run_names

    return run_names()


def configs(prefix: str, **_: Any) -> list[str]:
    """Return names for a run YAML: runs, examples, presets, YAML files and folders below the typed path."""
    from nbtrain.config.names.presets import PRESETS

    return [*runs(), *example_names(), *PRESETS, *_files(prefix, (".yaml", ".yml"))]


def datasets(prefix: str, **_: Any) -> list[str]:
    """Return the names of prepared datasets, and prefixes of .bin/.idx pairs below the typed path."""
    folder = data_home() / "dataset"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [*names, *_files(prefix, (".idx",))]


def steps(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the checkpoint steps of the run that was typed earlier on the line."""
    folder = run_folder(getattr(parsed_args, "run", None))
    return [str(step) for step in folder.checkpoint_steps()] if folder else []


def jobs(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the job ids of the run that was typed earlier on the line."""
    folder = run_folder(getattr(parsed_args, "run", None))
    return folder.job_ids() if folder else []


def run_folder(run: str | None) -> "RunDir | None":
    """Return the directory of a run, given its name or folder; None if there is no such run."""
    from nbtrain.base.run_directory.rundir import RunDir

    if not run:
        return None
    folders = (RunDir(output_root() / run), RunDir(resolve(run)))
    return next((folder for folder in folders if folder.exists()), None)


def gpu_types(**_: Any) -> list[str]:
    """Return the GPU names in the device table."""
    from nbtrain.config.arithmetic.devices import BY_NAME

    return list(BY_NAME)


def notebooks(**_: Any) -> list[str]:
    """Return the names of the included notebooks."""
    return sorted(path.stem for path in bundled("notebooks").glob("[0-9]*.ipynb"))


def overrides(prefix: str, **_: Any) -> list[str]:
    """Return the keys of a run YAML, each with `=`; after a key's `=`, its values if they can be listed."""
    key, equals, _value = prefix.partition("=")
    found = settings()
    if not equals:
        return [f"{key}=" for key in found]
    return [f"{key}={value}" for value in found.get(key, ())]


@functools.cache
def settings() -> dict[str, tuple[str, ...]]:
    """Return {dotted key: its values, if they can be listed}, from the included JSON Schema."""
    import json

    schema = json.loads((bundled("docs") / "run.schema.json").read_text(encoding="utf-8"))
    return dict(_settings(schema, schema["$defs"], ""))


def _settings(
    model: dict[str, Any], models: dict[str, Any], prefix: str
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, field in model["properties"].items():
        choices = [choice for choice in field.get("anyOf", [field]) if choice.get("type") != "null"]
        sections = [models[choice["$ref"].rpartition("/")[2]] for choice in choices if "$ref" in choice]
        if sections:
            for section in sections:
                yield from _settings(section, models, f"{prefix}{name}.")
        elif prefix or name not in ("extends", "schema_version"):
            yield f"{prefix}{name}", tuple(value for choice in choices for value in _values(choice))


def _values(choice: dict[str, Any]) -> list[str]:
    if choice.get("type") == "boolean":
        return ["true", "false"]
    return [str(value) for value in choice.get("enum", [choice["const"]] if "const" in choice else [])]


def _files(prefix: str, endings: tuple[str, ...]) -> list[str]:
    """Return folders, and files with one of `endings`, whose paths begin with `prefix`."""
    folder = os.path.dirname(prefix)  # noqa: PTH120 (a Path would drop the "./" that was typed)
    try:
        found = list(os.scandir(os.path.expanduser(folder) or "."))  # noqa: PTH111
    except OSError:
        return []
    paths = []
    for entry in found:
        path = os.path.join(folder, entry.name)  # noqa: PTH118
        if entry.name.startswith(".") or not path.startswith(prefix):
            continue
        if entry.is_dir():
            paths.append(f"{path}/")
        elif entry.name.endswith(endings):
            paths.append(path.removesuffix(".idx") if endings == (".idx",) else path)
    return sorted(paths)
