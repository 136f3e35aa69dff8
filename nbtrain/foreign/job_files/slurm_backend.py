"""Reads the fields of backend.slurm from a batch script: #SBATCH lines, and commands before the launch.

An option without a corresponding field is listed with the reason.
"""

import re
import shlex
from collections.abc import Sequence

from nbtrain.config.rules.backends import OWN_SBATCH_OPTIONS, REFUSED_SBATCH_OPTIONS
from nbtrain.config.rules.environment import is_secret
from nbtrain.config.sections.backend_section import ARRAY
from nbtrain.foreign.bash.builtins import SETUP_FILES
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.job_files.slurm_options import (
    GPU_OPTIONS,
    GpuRequest,
    SbatchLine,
    count,
    gpu_request,
    last,
    memory_bytes,
    seconds,
)
from nbtrain.foreign.syntax.located import Value, Word

SECTION = "backend.slurm"
# Options whose numbers become the run's machines.
MACHINES = frozenset(
    {
        *("--nodes", "--ntasks", "--ntasks-per-node", *GPU_OPTIONS),
        *("--cpus-per-task", "--cpus-per-gpu", "--mem", "--mem-per-cpu", "--mem-per-gpu"),
    }
)
WORDS = {"--partition": "partition", "--account": "account", "--qos": "qos", "--constraint": "constraint"}
# Commands that prepare the shell. They run on the nodes before the launch.
PREPARES = frozenset({"module", "ml", "spack", "conda", "mamba", "micromamba", "ulimit", "umask"})


def read_slurm(job: Job, lines: Sequence[SbatchLine], commands: Sequence[Sequence[Word]]) -> None:
    """Read where a batch script runs. `commands` holds the commands that run before the launch."""
    if not lines:
        _without_scheduler(job, commands)
        return
    place = lines[0].place
    job.settings["backend.kind"] = Value("slurm", place)
    nodes = job.nodes.value if job.nodes else 1
    request = gpu_request(lines, nodes)
    for line in {line.name: line for line in lines}.values():
        _option(job, line, request)
    _memory(job, lines, request.per_node if request else None)
    if (name := last(lines, "--job-name")) and name.value and job.name is None:
        job.name = Word(name.value, name.place)
    if setup := [word for words in commands if (word := _setup(job, words)) is not None]:
        key = f"{SECTION}.setup"
        job.settings[key] = Value([word.text for word in setup], setup[0].place)


def _option(job: Job, line: SbatchLine, request: GpuRequest | None) -> None:
    """Read one #SBATCH option."""

    def set_field(field: str, value: object) -> None:
        job.settings[f"{SECTION}.{field}"] = Value(value, line.place)

    def set_option() -> None:
        key = f"{SECTION}.sbatch_options"
        before = job.settings.get(key)
        text = shlex.join([line.text])
        job.settings[key] = Value(
            [*(before.value if before else []), text], before.place if before else line.place
        )

    def leave(why: str) -> None:
        job.left.append((line.place, f"{line.text}: not imported; {why}"))

    if _holds_secret(line.text):
        # The value is not quoted, because the run YAML shows options and notes.
        words = "not imported; it looks like a secret. Set it in the shell that submits the job."
        job.left.append((line.place, f"{line.name}: {words}"))
    elif "$" in line.value or ("%" in line.value and line.name not in ("--array", "--output", "--error")):
        leave("sbatch does not expand variables in its options.")
    elif line.name in WORDS:
        set_field(WORDS[line.name], line.value)
    elif line.name == "--time":
        if (limit := seconds(line.value)) is None:
            leave("it is not in a format that Slurm accepts for time limits.")
        elif limit:
            set_field("time_limit_seconds", float(limit))
    elif line.name == "--exclusive":
        if line.value in ("", "user", "mcs", "topo"):
            set_field("exclusive", True)
        if line.value:
            leave("the run requests its nodes for this job alone (exclusive: true).")
    elif line.name in ("--requeue", "--no-requeue"):
        set_field("requeue", line.name == "--requeue")
    elif line.name == "--signal":
        _signal(job, line)
    elif line.name == "--array":
        if re.fullmatch(ARRAY, line.value):
            set_field("array", line.value)
        else:
            leave(
                "the tasks of an array share the run directory, so they must run one at a time: FIRST-LAST%1."
            )
    elif line.name == "--gres":
        plain = None if request is None else (f"gpu:{request.per_node.value}", "gpu")
        if plain is None or line.value not in plain[: 2 if plain[0] == "gpu:1" else 1]:
            set_field("gres", line.value)
    elif request is not None and line.name == request.option and not request.has_more:
        # Without a type in gres, nbtrain requests GPUs of any type.
        if request.kind and f"{SECTION}.gres" not in job.settings:
            set_field("gres", request.gres)
    elif line.name == "--tres-per-node":
        set_option()
    elif line.name == "--nodes" and "-" in line.value:
        leave("the run uses the smaller number of nodes.")
    elif line.name in MACHINES or line.name == "--job-name":
        return
    elif line.name in REFUSED_SBATCH_OPTIONS:
        leave(f"it {REFUSED_SBATCH_OPTIONS[line.name]}")
    elif line.name in OWN_SBATCH_OPTIONS:
        leave("nbtrain writes this option itself.")
    else:
        set_option()


def _signal(job: Job, line: SbatchLine) -> None:
    """Read --signal. The ranks always get USR1, at the script's number of seconds before the end."""
    match = re.fullmatch(r"(?:[RB]+:)?\w+(?:@(\d+))?", line.value)
    before = int(match.group(1) or 60) if match else 0
    if 10 <= before <= 65_535:
        job.settings[f"{SECTION}.signal_before_seconds"] = Value(before, line.place)
    else:
        words = "signal_before_seconds must be from 10 to 65535."
        job.left.append((line.place, f"{line.text}: not imported; {words}"))


def _memory(job: Job, lines: Sequence[SbatchLine], gpus: Value | None) -> None:
    """Read a node's memory: --mem, or --mem-per-cpu or --mem-per-gpu times the number of CPUs or GPUs."""
    if job.cpus is None and (each := count(lines, "--cpus-per-gpu")) and gpus:
        job.cpus = Value(each.value * gpus.value, each.place)
    for name, units in (
        ("--mem", 1),
        ("--mem-per-gpu", gpus.value if gpus else 0),
        ("--mem-per-cpu", job.cpus.value if job.cpus else 0),
    ):
        if (line := last(lines, name)) is None:
            continue
        if (size := memory_bytes(line.value)) is None:
            words = "not imported; it is not in a format that Slurm accepts for memory."
            job.left.append((line.place, f"{line.text}: {words}"))
        elif size == 0:
            job.left.append(
                (line.place, f"{line.text}: not imported; nbtrain has no field for all memory of a node.")
            )
        elif not units:
            devices = "GPUs" if name == "--mem-per-gpu" else "CPUs"
            words = f"not imported; the script does not say how many {devices} a node has."
            job.left.append((line.place, f"{line.text}: {words}"))
        else:
            job.memory_bytes = Value(size * units, line.place)


def _holds_secret(text: str) -> bool:
    """Return whether an option or a command contains a secret.

    A secret is a value that looks like one, or the value of a variable with a name like a secret's, as in
    --export=ALL,HF_TOKEN=...
    """
    names = re.findall(r"(?<![^\s,=])(\w+)=(?=[^\s,])", text)
    return any(is_secret(name, text) for name in ("", *names))


def _activates(file: str) -> bool:
    """Return whether a file prepares the shell and has a path that is valid in any folder."""
    return bool(SETUP_FILES.fullmatch(file)) and file.startswith(("/", "~", "$"))


def _setup(job: Job, words: Sequence[Word]) -> Word | None:
    """Return a command that prepares the shell as one line, or None for another command."""
    head = words[0].text
    sources = head in ("source", ".") and len(words) > 1
    if not (head in PREPARES or (sources and _activates(words[1].text))):
        if sources:
            text = " ".join(word.text for word in words)
            job.left.append(
                (words[0].place, f"{text}: not imported; move what it sets to backend.slurm.setup.")
            )
        return None
    text = shlex.join(word.text for word in words)
    if _holds_secret(text):
        job.left.append((words[0].place, f"{head}: not imported; it seems to contain a secret."))
        return None
    if any(word.from_outside for word in words):
        text = " ".join(word.text for word in words)
    return Word(text, words[0].place)


def _without_scheduler(job: Job, commands: Sequence[Sequence[Word]]) -> None:
    """Note that commands which prepare the shell are not imported from a script that no scheduler starts."""
    for words in commands:
        sources = words[0].text in ("source", ".") and len(words) > 1
        if words[0].text in PREPARES or sources:
            text = " ".join(word.text for word in words)
            prepared = f"{text}: not imported; run this command in the shell that submits the job."
            job.left.append((words[0].place, prepared))
