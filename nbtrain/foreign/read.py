"""Reads the files that the user passes: detects the kind of each, and reads the training jobs that they
describe.

A DeepSpeed JSON belongs to the job that names it (--deepspeed_config), if a job does, else to all jobs.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nbtrain.base.errors import ConfigError
from nbtrain.base.git_lfs import pointer_problem
from nbtrain.base.workspace import typed_path, workspace
from nbtrain.config.other_files import JOB_KINDS, begins_array
from nbtrain.foreign.flags import VERSIONS, tables
from nbtrain.foreign.job import Job
from nbtrain.foreign.json_comments import Document, read_json
from nbtrain.foreign.launch import Launch, find_launch, sbatch
from nbtrain.foreign.located import Value, Word
from nbtrain.foreign.manifests import read_documents, read_manifest
from nbtrain.foreign.shell import Script, read_script


def _path(file: str | Path) -> Path:
    """Return the path of a file as typed, if it exists there, else below the workspace."""
    if not isinstance(file, str | Path):
        raise ConfigError(f"{file!r}: must be the path of {FILES}.")
    typed = typed_path(file)
    return typed if typed.is_absolute() or typed.exists() else workspace() / typed


FILES = "a manifest, a shell script or a DeepSpeed JSON"
MOST_BYTES = 10_000_000
# Least number of known flags: another program may share a flag or two of Megatron's.
FEWEST_FLAGS = 5
# A key of GPT-NeoX's configuration files, which separate words by _ or -.
NEOX = r"(?m)^\W*(pipe|model)[_-]parallel[_-]size\b"
# Sections of our own run YAMLs.
OURS = r"(?m)^(extends|model|batch|lr_schedule|parallel):"
# kubectl writes manifests as JSON too, with this key first.
JSON_MANIFEST = re.compile(r'\s*\{\s*"apiVersion"\s*:')
SED = re.compile(r"s(.)(.+?)\1(.*?)\1g?$")
CONFIG_FLAGS = ("--deepspeed_config", "--deepspeed-config", "--deepscale_config")


def is_foreign(path: str | Path) -> bool:
    """Return whether a file belongs to another program: a script, a JSON, or a manifest of Kubernetes."""
    file = _path(path)
    if not file.is_file():
        return False
    if file.suffix == ".json" and begins_array(file):
        return False  # records of text
    if file.suffix in (".sh", ".bash", ".slurm", ".sbatch", ".json", ".jsonc"):
        return True
    if file.suffix not in (".yaml", ".yml"):
        return False
    text = _text(file)
    job = re.search(r"^kind:\s*(ConfigMap|\w*Job)\b", text, re.MULTILINE | re.IGNORECASE)
    return bool(job or (re.search(r"(?m)^apiVersion:", text) and re.search(r"(?m)^kind:", text)))


def read_files(files: Sequence[str | Path]) -> list[Job]:
    """Return the jobs of the files. Raises ConfigError for a file of an unknown kind."""
    if not files:
        raise ConfigError(f"no file is named; give {FILES}.")
    jobs: list[Job] = []
    texts: dict[str, Word] = {}
    for file in files:
        path = _path(file)
        text, label = _text(path), path.name
        if path.suffix in (".json", ".jsonc") and not JSON_MANIFEST.match(text):
            texts[label] = Word(text, f"{label}:1")
        elif path.suffix in (".yaml", ".yml", ".json", ".jsonc"):
            found, maps = read_manifest(text, label)
            if not found and not maps:
                known = ", ".join(JOB_KINDS)
                words = [tree.word("kind") for tree in read_documents(text, label)]
                kinds = list(dict.fromkeys(word.text for word in words if word))
                if re.search(NEOX, text):
                    raise ConfigError(
                        f"{label}: is a configuration of GPT-NeoX, which nbtrain does not read. It reads "
                        f"{known}, shell scripts of Megatron-LM and Megatron-DeepSpeed, and a DeepSpeed JSON."
                    )
                if re.search(OURS, text):
                    raise ConfigError(f"{label}: is a run YAML already: `nbtrain check {label}` checks it.")
                what = f"is a manifest of Kubernetes ({', '.join(kinds)}) and " if kinds else ""
                raise ConfigError(f"{label}: {what}contains no job; supported kinds: {known}, and ConfigMap.")
            jobs += found
            texts |= maps
        else:
            jobs += jobs_of_script(read_script(text, label))
    if not jobs:
        return [Job("DeepSpeed JSON", label, deepspeed=_json(word, [])) for label, word in texts.items()]
    for job in jobs:
        give_json(job, texts, files)
    return jobs


def _text(path: Path) -> str:
    try:
        if not path.is_file() and path.exists():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise ConfigError(f"{path}: is {kind}; give {FILES}.")
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size:,} bytes; no file of a job is that large.")
        text = path.read_text(encoding="utf-8")
        if problem := pointer_problem(text.encode()):
            raise ConfigError(f"{path}: {problem}.")
        # Values that DeepSpeed rejects stay in the JSON, so that they are named.
        return text if path.suffix in (".json", ".jsonc") else text.removeprefix("\ufeff")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give {FILES}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start + 1} is not UTF-8. Save the file as UTF-8 text: "
            f"iconv -f utf-16 -t utf-8 {path.name} if Windows wrote it."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None


def give_json(job: Job, texts: dict[str, Word], files: Sequence[str | Path]) -> None:
    """Set the DeepSpeed JSON of a job: a file that was passed, one that its script or ConfigMap writes, or a
    file in the same folder.
    """
    named = job.flag(*CONFIG_FLAGS)
    known = job.documents | texts
    name = PurePosixPath(named.text).name if named else ""
    word = known.get(name) or (known.get(named.text) if named else None)
    if word is None and texts:
        word = next(iter(texts.values())) if len(texts) == 1 else None
    if word is None and len(job.documents) == 1:
        word = next(iter(job.documents.values()))
    if word is None and name:
        beside = [_path(file).parent / name for file in files if _path(file).name == job.label]
        word = next((Word(_text(path), f"{name}:1") for path in beside if path.is_file()), None)
    if word is not None:
        job.deepspeed = _json(word, job.substitutions)


def _json(word: Word, substitutions: list[tuple[str, str]]) -> Document:
    label, _, line = word.place.rpartition(":")
    text = word.text
    for old, new in substitutions:
        text = text.replace(old, new)
    return read_json(text, label, int(line))


def jobs_of_script(script: Script) -> list[Job]:
    """Return the jobs that a script launches. Raises ConfigError if it launches none."""
    launches: list[Launch] = []
    substitutions = []
    for command in script.commands:
        if launch := find_launch(command.words):
            launch.environment |= command.environment
            launches.append(launch)
        elif command.words[0].text == "sed":
            for word in command.words[1:]:
                if match := SED.match(word.text):
                    substitutions.append((match.group(2), match.group(3)))
    training = [launch for launch in launches if _trains(launch)]
    launches = training or launches
    if not launches:
        raise ConfigError(
            f"{script.label}: launches no training: no command of torchrun, deepspeed, srun, mpirun or "
            "python with a .py program was found. Give the script that starts the training."
        )
    asked = sbatch(script.comments)
    return [_job_of(script, launch, asked, substitutions) for launch in launches]


def _trains(launch: Launch) -> bool:
    """Return whether a program receives flags of Megatron. A script may call other programs before the
    training.
    """
    flags = {word.text.partition("=")[0] for word in launch.flags}
    known = {flag for program in VERSIONS for table in tables(program) for flag in table.by_flag}
    return len(flags & known) >= FEWEST_FLAGS


def _job_of(
    script: Script, launch: Launch, asked: dict[str, Word], substitutions: list[tuple[str, str]]
) -> Job:
    job = Job("shell script", script.label, program=launch.program, flags=launch.flags)
    job.nodes = _value(launch.nodes) or _value(asked.get("nodes"))
    if launch.one_machine and "nodes" not in asked:
        job.nodes = Value(1, launch.program.place)  # torchrun's own default
    ranks = (launch.gpus_per_node, asked.get("gpus-per-node"), asked.get("ntasks-per-node"))
    job.gpus_per_node = next((value for word in ranks if (value := _value(word))), None)
    world = _value(launch.world_size)
    nodes = job.nodes.value if job.nodes else 0
    if world and nodes and not job.gpus_per_node and world.value % nodes == 0:
        job.gpus_per_node = Value(world.value // nodes, world.place)
    if cpus := _value(asked.get("cpus-per-task")):
        tasks, every = _value(asked.get("ntasks-per-node")), _value(asked.get("ntasks"))
        if tasks is None and every and nodes and every.value % nodes == 0:
            tasks = Value(every.value // nodes, every.place)
        job.cpus = Value(cpus.value * (tasks.value if tasks else 1), cpus.place)
    job.environment = script.exported | launch.environment
    job.documents = {PurePosixPath(name).name: word for name, word in script.documents.items()}
    job.substitutions, job.comments, job.undecided = substitutions, script.comments, script.undecided
    return job


def _value(word: Word | None) -> Value | None:
    """Return an integer from the script; None if only the running shell knows it."""
    if word is None or not word.text.isdigit():
        return None
    return Value(int(word.text), word.place)
