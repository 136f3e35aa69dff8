"""Reads the files that the user gives: detects the kind of each file, and reads the jobs that they describe.

A DeepSpeed JSON belongs to the job that names it (--deepspeed_config). If no job names it, it belongs to all.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.text.nearest import nearest
from nbtrain.base.text.terminal import printable, shortened
from nbtrain.config.deepspeed.ds_config import KNOWN_KEYS
from nbtrain.config.load.other_files import JOB_KINDS, OTHER_ENDINGS, SCRIPTS, is_run
from nbtrain.config.names.other_programs import (
    MODEL_CONFIG,
    has_keys,
    is_accelerate,
    program_of_file,
)
from nbtrain.config.sections.imported import ImportedFile
from nbtrain.foreign.job_files.accelerate import accelerate_job
from nbtrain.foreign.job_files.file_kinds import FILES, JSON, OF_A_CHART, YAML, path_of, text_of
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.job_files.manifests import read_manifests
from nbtrain.foreign.job_files.programs import READS
from nbtrain.foreign.job_files.provenance import imported_file
from nbtrain.foreign.job_files.script_jobs import UserValues, jobs_of_script
from nbtrain.foreign.syntax.json_comments import Document, read_json
from nbtrain.foreign.syntax.located import Word
from nbtrain.foreign.syntax.yaml_tree import HELM, Tree, read_documents, template_problem

# kubectl writes manifests as JSON too, with this key first.
JSON_MANIFEST = re.compile(r'\s*\{\s*"apiVersion"\s*:')
CONFIG_FLAGS = ("--deepspeed_config", "--deepspeed-config", "--deepscale_config")
# Shells that may start a script whose file name does not end in .sh.
SHEBANG = re.compile(r"#!.*\b(sh|bash|dash|zsh|ksh)\b")


def read_files(files: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> list[Job]:
    """Return the jobs that the files describe. `variables` holds values for the scripts' variables.

    Raises ConfigError for a file of an unknown kind, and for a variable that has no effect.
    """
    if not files:
        raise ConfigError(f"no file was given; give {FILES}.")
    jobs: list[Job] = []
    texts: dict[str, Word] = {}
    trees: list[Tree] = []
    given: list[ImportedFile] = []
    scripts: dict[str, Word] = {}
    values = UserValues(dict(variables or {}))
    for file in files:
        path = path_of(file)
        text, label = text_of(path), printable(path.name)
        if label in (file.file for file in given):
            raise ConfigError(
                f"{label}: two of the files have this name, but files refer to each other by name. Rename "
                "one of them, or import one file at a time."
            )
        given.append(imported_file(path))
        if path.suffix in JSON and not JSON_MANIFEST.match(text):
            texts[label] = Word(text, f"{label}:1")
        elif path.suffix in (*YAML, *JSON):
            found = read_documents(text, label)
            if is_accelerate(value := _mapping(found)):
                jobs.append(accelerate_job(found[0]))
            else:
                _refuse_without_job(found, value, label)
                trees += found
        else:
            _refuse_other_text(path, text)
            scripts[label] = Word(text, f"{label}:1", ())
    jobs += _jobs_of_scripts(scripts, values, bool(trees))
    found_jobs, maps = read_manifests(trees, scripts, values)
    jobs += found_jobs
    texts |= maps
    if not jobs and not texts and not trees:
        hosts = (
            "these are lists of hosts, not jobs" if len(scripts) > 1 else "this is a list of hosts, not a job"
        )
        raise ConfigError(
            f"{', '.join(scripts)}: {hosts}. Pass the script that launches the training as well."
        )
    if not jobs and not texts:
        kinds = ", ".join(JOB_KINDS)
        raise ConfigError(
            f"{trees[0].label}: the file contains no job; supported kinds: {kinds}, and ConfigMap."
        )
    if not jobs:
        for label, word in texts.items():
            job = Job("DeepSpeed JSON", label, deepspeed=_json(word, []))
            assert job.deepspeed is not None
            _refuse_other_json(job.deepspeed)
            job.files = given[:]
            jobs.append(job)
    else:
        for job in jobs:
            job.files = given[:]
            give_json(job, texts, files)
    values.raise_unused()
    return jobs


def _jobs_of_scripts(scripts: Mapping[str, Word], values: UserValues, beside_manifest: bool) -> list[Job]:
    """Return the jobs of all scripts. A script that another script reads is not a job.

    With `beside_manifest`, the jobs come from a manifest, so the result is empty; the scripts are read only
    to find out which of the user's values they use.
    """
    read: set[str] = set()
    found: dict[str, list[Job] | ConfigError] = {}
    for label, word in scripts.items():
        if HOSTFILE.fullmatch(word.text) and "slots" in word.text:
            continue
        others = {name: other for name, other in scripts.items() if name != label}
        try:
            found[label] = jobs_of_script(word.text, label, values, others, read)
        except ConfigError as error:
            found[label] = error
    jobs: list[Job] = []
    for label, result in found.items():
        if label in read:
            continue
        if isinstance(result, ConfigError):
            if beside_manifest:
                continue  # a script that a container mounts
            raise result
        jobs += [] if beside_manifest else result
    return jobs


# Hostfiles of DeepSpeed's launcher and of mpirun: hosts, each with its slots.
HOSTFILE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n|[ \t]*[\w.-]+[ \t]+slots[ \t]*=[ \t]*\d+[^\n]*(?:\n|\Z))+")


def _mapping(trees: Sequence[Tree]) -> Mapping[str, Any]:
    return trees[0].value if trees and isinstance(trees[0].value, dict) else {}


def _refuse_without_job(trees: Sequence[Tree], value: Mapping[str, Any], label: str) -> None:
    """Raise ConfigError if a YAML file contains nothing that can be imported, and say what it is."""
    kinds = list(dict.fromkeys(word.text for tree in trees if (word := tree.word("kind"))))
    if any(kind.lower() in READ_KINDS for kind in kinds):
        return
    known = ", ".join(JOB_KINDS)
    if "Kustomization" in kinds:
        raise ConfigError(
            f"{label}: this is a kustomization, not a manifest. Run `kubectl kustomize FOLDER` and import "
            "the result."
        )
    if OF_A_CHART.fullmatch(label) and not kinds and not is_run(value):
        raise ConfigError(
            f"{label}: this file belongs to a Helm chart. Run `helm template CHART` and import the result."
        )
    if kinds:
        what = f"this Kubernetes manifest ({', '.join(kinds)}) contains no job"
        raise ConfigError(f"{label}: {what}; supported kinds: {known}, and ConfigMap.")
    if is_run(value):
        raise ConfigError(f"{label}: this is already a run YAML. Run `nbtrain check {label}` to check it.")
    if program := program_of_file(value):
        raise ConfigError(
            f"{label}: this is a configuration file for {program}, which nbtrain does not read: {READS}."
        )
    keys = f" (its keys: {shortened(', '.join(map(str, value)))})" if value else ""
    raise ConfigError(f"{label}: the file contains no job; supported kinds: {known}, and ConfigMap{keys}.")


BESIDE_A_JOB = ("ConfigMap", "PersistentVolumeClaim", "TrainingRuntime", "ClusterTrainingRuntime")
READ_KINDS = {kind.lower() for kind in (*JOB_KINDS, *BESIDE_A_JOB)}


def _refuse_other_json(document: Document) -> None:
    """Raise ConfigError if a JSON file is not for DeepSpeed: it has no key that DeepSpeed reads."""
    keys = document.value
    if not keys or any(key in KNOWN_KEYS for key in keys):
        return
    label = document.label
    if has_keys(keys, MODEL_CONFIG):
        raise ConfigError(
            f"{label}: this is a model's configuration, not a DeepSpeed JSON. Run `nbtrain import-model "
            "FOLDER` to import it with its weights."
        )
    if program := program_of_file(keys):
        raise ConfigError(
            f"{label}: this is a configuration file for {program}, which nbtrain does not read: {READS}."
        )
    first = shortened(", ".join(keys))
    hint = nearest(next(iter(keys)), KNOWN_KEYS)
    raise ConfigError(
        f"{label}: DeepSpeed does not read any key in this file ({first}).{hint} Give a DeepSpeed JSON."
    )


def _refuse_other_text(path: Path, text: str) -> None:
    """Raise ConfigError for a file that is not a shell script, and say what it is."""
    if path.suffix in (".py", ".ipynb"):
        kind = "a notebook" if path.suffix == ".ipynb" else "a Python program"
        raise ConfigError(
            f"{path.name}: this is {kind}, which nbtrain does not run. Give the shell script that starts it."
        )
    if path.suffix == ".toml":
        try:
            program = program_of_file(tomllib.loads(text))
        except tomllib.TOMLDecodeError:
            program = ""
        what = f"a configuration file for {program}" if program else "a TOML file"
        raise ConfigError(f"{path.name}: this is {what}, which nbtrain does not read: {READS}.")
    if match := HELM.search(text):
        raise ConfigError(template_problem(f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}"))
    if path.suffix not in SCRIPTS and path.suffix in OTHER_ENDINGS and not SHEBANG.match(text):
        raise ConfigError(f"{path.name}: this is a text file, not a script; give {FILES}.")


def give_json(job: Job, texts: dict[str, Word], files: Sequence[str | Path]) -> None:
    """Set the DeepSpeed JSON of a job.

    It is one of the given files, one that the job's script or ConfigMap writes, or a file in the same folder.
    """
    named = job.flag(*CONFIG_FLAGS)
    written = {name: word for name, word in job.documents.items() if _is_json(name, word)}
    known = job.documents | texts
    name = PurePosixPath(named.text).name if named else ""
    word = known.get(name) or (known.get(named.text) if named else None)
    if word is None and texts:
        word = next(iter(texts.values())) if len(texts) == 1 else None
    if word is None and len(written) == 1 and (named or job.flag("--deepspeed")):
        word = next(iter(written.values()))
    if word is None and name:
        folders = [path_of(file).parent for file in files if path_of(file).name == job.label]
        beside = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if beside is not None:
            word = Word(text_of(beside), f"{name}:1")
            job.files.append(imported_file(beside))
    if word is None:
        return
    job.unknown += [("", unknown) for unknown in word.unknowns or ()]
    job.deepspeed = _json(word, job.substitutions)


def _is_json(name: str, word: Word) -> bool:
    return name.endswith(JSON) or word.text.lstrip().startswith("{")


def _json(word: Word, substitutions: list[tuple[str, str]]) -> Document:
    label, _, line = word.place.rpartition(":")
    text = word.text
    for unknown in word.unknowns or ():
        # The import requests the unknown value, so its text does not matter here.
        part = re.escape(unknown.text)
        text = re.sub(rf'"[^"\n]*{part}[^"\n]*"|{part}', '"auto"', text)
    for old, new in substitutions:
        text = text.replace(old, new)
    return read_json(text, label, int(line))
