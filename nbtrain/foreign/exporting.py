"""Exports a run to another program: `nbtrain export RUN --to TARGET` and nb.export.

A script holds the flags of one version of Megatron-LM or Megatron-DeepSpeed, the latter with its DeepSpeed
JSON in a here-document. The target `deepspeed` is the JSON alone. Every flag is looked up in the program's
table, so that no unknown flag is written. Settings that flags cannot express are written as comments that an
import reads: the export imports the script once, and writes each difference from the run as a comment.
"""

import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.report import Code, InNotebook, Items, Report, Result
from nbtrain.base.text.nearest import nearest
from nbtrain.config.load import flatten
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_value, spelled
from nbtrain.foreign.importing import read_job, read_json_alone, said_by, write_once
from nbtrain.foreign.job_files.read import give_json
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.mapping.conversion import Writing
from nbtrain.foreign.mapping.deepspeed_keys import write_json
from nbtrain.foreign.mapping.mapping import ROWS
from nbtrain.foreign.syntax.flags import VERSIONS, Table, find_table

PROGRAM_FILE = "pretrain_gpt.py"
JSON_FILE = "ds_config.json"
# Fields that depend on files other than the script, and are therefore always written as comments.
ALWAYS = ("name", "tokenizer.vocab_size")


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Result):
    """A run exported as a script or JSON of another program. Printing it shows the text."""

    target: str
    """Program and version, e.g. megatron-lm@d98e8a64, or deepspeed."""
    text: str
    unsaid: dict[str, str]
    """{field: reason why the target cannot express it}; "" if the target has no such setting."""
    warnings: tuple[str, ...] = ()
    """Differences in what the program will do, and settings that it rejects."""
    left: str = ""
    """Sentence without a period that names the settings missing from text and comments; "" if none."""

    def as_report(self) -> Report:
        """Return the script or the JSON; in a notebook, with the notes above it."""
        notes = Items(self.notes)
        return Report("", [InNotebook(notes), Code(self.text, indent="")])

    @property
    def notes(self) -> list[str]:
        """Differences in what the program will do, and settings that it cannot express, with reasons."""
        reasons = [f"{key}: {reason}." for key, reason in self.unsaid.items() if reason]
        left = (
            [f"{self.left}. `nbtrain import FILE --onto RUN` takes these settings from RUN."]
            if self.left
            else []
        )
        return [*(f"Caution: {warning}." for warning in self.warnings), *reasons, *left]

    def write(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the script or the JSON. Raises ConfigError if the file exists, unless `overwrite` is set."""
        return write_once(path, self.text, overwrite)


def export(config: RunConfig, target: str) -> Exported:
    """Export a run to "megatron-lm", "megatron-deepspeed" (each with @VERSION) or "deepspeed".

    Raises ConfigError for another target, or for a run that flags cannot express.
    """
    if not isinstance(target, str):
        raise ConfigError(f"to = {target!r}: must be one of {', '.join([*VERSIONS, 'deepspeed'])}.")
    if target == "deepspeed":
        return _json_alone(config)
    if target.partition("@")[0] not in VERSIONS:
        known = [*VERSIONS, "deepspeed"]
        hint = nearest(target, known)
        raise ConfigError(f"{target}: there is no such target; known: {', '.join(known)}.{hint}")
    table = find_table(target)
    # The script does not come from the files of an earlier import.
    config = config.model_copy(update={"imported_from": []})
    writing = Writing(config, table)
    for row in ROWS:
        row.write(writing)
    body = _script(writing)
    hints = _hints(config, body, writing)
    head = _head(config, table, writing, hints)
    return Exported(
        table.name, head + body, {key: writing.reasons.get(key, "") for key in hints}, tuple(writing.warnings)
    )


def _json_alone(config: RunConfig) -> Exported:
    """Return only a run's DeepSpeed JSON, for a program that sets model, data, schedule and layout itself."""
    text = json.dumps(write_json(config), indent=2) + "\n"
    said = read_json_alone(text)
    ours = dict(flatten(config.model_dump()))
    unsaid = {key: "" for key, value in ours.items() if key not in said or said[key] != value}
    names = _by_section(config.model_dump(exclude={"schema_version", "imported_from"}), unsaid)
    return Exported("deepspeed", text, unsaid, left=f"Not in the JSON: {', '.join(names)}")


def _by_section(values: dict[str, Any], unsaid: Collection[str], prefix: str = "") -> list[str]:
    """Return the names of the fields in `unsaid`.

    A section whose fields are all in `unsaid` is named as a whole, e.g. model or parallel.zero_hpz.
    """
    named = []
    for name, value in values.items():
        key = prefix + name
        inner = [one for one, _ in flatten({name: value}, prefix)]
        if all(one in unsaid for one in inner):
            named.append(key)
        elif inner != [key]:
            named += _by_section(value, unsaid, f"{key}.")
    return named


def _script(writing: Writing) -> str:
    """Return the script without its header: environment, JSON, flags and launch command."""
    config = writing.config
    lines = [f"export {name}={shlex.quote(value)}" for name, value in config.backend.env.items()]
    deepspeed = writing.table.program == "megatron-deepspeed"
    if deepspeed:
        writing.flags.append(("--deepspeed", []))
        writing.flags.append(("--deepspeed_config", [JSON_FILE]))
        text = json.dumps(write_json(config), indent=2)
        lines += ["", f"cat <<'END' > {JSON_FILE}", text, "END"]
    lines += ["", "FLAGS=("]
    lines += [f"    {shlex.join([flag, *values])}" for flag, values in writing.flags]
    lines += [")", ""]
    nodes, ranks = config.resources.nodes, config.world_size // config.resources.nodes
    if deepspeed:
        launch = f"deepspeed --num_nodes {nodes} --num_gpus {ranks}"
    else:
        launch = f"torchrun --nnodes {nodes} --nproc_per_node {ranks}"
    return "\n".join([*lines, f'{launch} {PROGRAM_FILE} "${{FLAGS[@]}}"', ""])


def _hints(config: RunConfig, body: str, writing: Writing) -> dict[str, str]:
    """Return {field: comment} for each field that the flags do not set to the run's value."""
    job = jobs_of_script(body, f"{config.name}.sh")[0]
    give_json(job, {}, [])
    source = read_job(job, target=writing.table.name)
    said = said_by(source)
    ours = dict(flatten(config.model_dump()))
    hints = {}
    for key, value in ours.items():
        if key in said and said[key] == value and key not in ALWAYS:
            continue
        text = spelled(value)
        if parse_value(text) != value:
            hints[key] = f"# {key}: not written here, because it holds a password."
            continue
        instead = f" <- {spelled(said[key])}" if key in source.values and key not in ALWAYS else ""
        hints[key] = f"# nbtrain: {key}={text}{instead}"
    for key in said:
        if key in source.values and key not in ours and not any(one.startswith(f"{key}.") for one in ours):
            section = key.rpartition(".")[0]
            hints.setdefault(section, f"# nbtrain: {section}=null")
    return hints


def _head(config: RunConfig, table: Table, writing: Writing, hints: dict[str, str]) -> str:
    lines = [
        "#!/bin/bash",
        f"# nbtrain export: {table.name}",
        f"# The run {config.name}, in the flags of {table.program} {table.version} ({table.date}).",
        *(f"# Caution: {warning}." for warning in writing.warnings),
        "# The lines `# nbtrain:` hold the settings that flags cannot express; nbtrain import reads them.",
        "# The value after <- is the one that the flags set instead.",
    ]
    for key, comment in hints.items():
        if reason := writing.reasons.get(key):
            lines.append(f"# {key}: {reason}:")
        lines.append(comment)
    return "\n".join([*lines, ""])
