"""Reads the options of a batch script from its #SBATCH lines, as sbatch does.

sbatch reads the lines up to the first command, accepts several options in one line, and uses the last value
of an option that is set twice (https://slurm.schedmd.com/sbatch.html).
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nbtrain.foreign.syntax.located import Value

SHORT = {
    "-A": "--account",
    "-a": "--array",
    "-b": "--begin",
    "-C": "--constraint",
    "-c": "--cpus-per-task",
    "-d": "--dependency",
    "-D": "--chdir",
    "-e": "--error",
    "-F": "--nodefile",
    "-G": "--gpus",
    "-H": "--hold",
    "-i": "--input",
    "-J": "--job-name",
    "-k": "--no-kill",
    "-L": "--licenses",
    "-M": "--clusters",
    "-m": "--distribution",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-O": "--overcommit",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-S": "--core-spec",
    "-s": "--oversubscribe",
    "-t": "--time",
    "-W": "--wait",
    "-w": "--nodelist",
    "-x": "--exclude",
}
# Options without a value, or with a value only after "=".
SWITCHES = frozenset(
    {
        *(
            "--contiguous",
            "--exclusive",
            "--get-user-env",
            "--hold",
            "--ignore-pbs",
            "--no-kill",
            "--no-requeue",
        ),
        *("--overcommit", "--oversubscribe", "--parsable", "--propagate", "--quiet", "--reboot", "--requeue"),
        *(
            "--spread-job",
            "--use-min-nodes",
            "--verbose",
            "--wait",
            "--nice",
            "--test-only",
            "--disable-stdout-job-summary",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class SbatchLine:
    """One option of a batch script."""

    name: str
    """Long name, e.g. --nodes."""
    value: str
    """Value; "" for a switch."""
    place: str

    @property
    def text(self) -> str:
        """The option as one word, e.g. --nodes=2."""
        return f"{self.name}={self.value}" if self.value else self.name


def sbatch_lines(text: str, label: str) -> list[SbatchLine]:
    """Return the options in a batch script, in order; [] for another script."""
    found: list[SbatchLine] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            found += _options(line.removeprefix("#SBATCH"), f"{label}:{number}")
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def _options(line: str, place: str) -> Iterator[SbatchLine]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    at = 0
    while at < len(words):
        word, value = words[at], ""
        at += 1
        if word.startswith("--"):
            name, equals, value = word.partition("=")
        elif word[:2] in SHORT:
            name, value = SHORT[word[:2]], word[2:].removeprefix("=")
            equals = value
        else:
            continue
        if not equals and name not in SWITCHES and at < len(words) and not words[at].startswith("-"):
            value = words[at]
            at += 1
        yield SbatchLine(name, value, place)


def last(lines: Sequence[SbatchLine], name: str) -> SbatchLine | None:
    """Return the option that takes effect: the last one with this name."""
    return next((line for line in reversed(lines) if line.name == name), None)


def count(lines: Sequence[SbatchLine], name: str) -> Value | None:
    """Return the number given to an option, or the first number of a range (2-4); None if it is not set."""
    line = last(lines, name)
    text = line.value.partition("-")[0].rpartition(":")[2] if line else ""
    return Value(int(text), line.place) if line and text.isdigit() else None


def tasks_per_node(lines: Sequence[SbatchLine], nodes: int) -> Value | None:
    """Return the number of tasks on each node: --ntasks-per-node, or --ntasks divided by the nodes."""
    if tasks := count(lines, "--ntasks-per-node"):
        return tasks
    every = count(lines, "--ntasks")
    return Value(every.value // nodes, every.place) if every and nodes and every.value % nodes == 0 else None


# Options that request GPUs. The first one that is set takes effect.
GPU_OPTIONS = ("--gpus-per-node", "--gres", "--tres-per-node", "--gpus", "--gpus-per-task")


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs that a batch script requests on each node."""

    option: str
    """Option that requests the GPUs, one of GPU_OPTIONS."""
    per_node: Value
    """Number of GPUs on each node."""
    kind: str = ""
    """GPU type as named by the cluster, e.g. a100; "" for any type."""
    has_more: bool = False
    """Whether the option also requests other resources, as --gres=gpu:4,nvme:1 does."""

    @property
    def gres(self) -> str:
        """The GPU request in the format of --gres, e.g. gpu:a100:4."""
        return ":".join(part for part in ("gpu", self.kind, str(self.per_node.value)) if part)


def gpu_request(lines: Sequence[SbatchLine], nodes: int) -> GpuRequest | None:
    """Return the GPU request, or None if there is none or its number differs between nodes."""
    for option in GPU_OPTIONS:
        if (line := last(lines, option)) is None:
            continue
        entries = [entry.strip() for entry in line.value.split(",")]
        if option in ("--gres", "--tres-per-node"):
            plain = (re.sub(r"^gres[/:]", "", entry).replace("=", ":") for entry in entries)
            found = [entry.partition(":")[2] for entry in plain if re.match(r"gpu(:|$)", entry)]
        else:
            found = entries
        if not found:
            continue
        kind, _, number = found[0].rpartition(":")
        if not number.isdigit():
            kind, number = found[0], "1" if option in ("--gres", "--tres-per-node") else ""
        total = _on_each_node(option, int(number), lines, nodes) if number else None
        if total is not None:
            return GpuRequest(option, Value(total, line.place), kind, len(entries) > 1)
    return None


def _on_each_node(option: str, number: int, lines: Sequence[SbatchLine], nodes: int) -> int | None:
    if option == "--gpus":
        return number // nodes if nodes and number % nodes == 0 else None
    if option == "--gpus-per-task":
        tasks = tasks_per_node(lines, nodes)
        return number * (tasks.value if tasks else 1)
    return number


def gpus_per_node(lines: Sequence[SbatchLine], nodes: int) -> Value | None:
    """Return the number of GPUs on each node; None if gpu_request() returns None."""
    found = gpu_request(lines, nodes)
    return found.per_node if found else None


def memory_bytes(text: str) -> int | None:
    """Return the bytes in an amount of memory such as 480G or 4000 (MiB); None for another text."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    return int(number) * units[unit] if number.isdigit() and unit in units else None


def seconds(text: str) -> int | None:
    """Return the seconds in a time limit: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for another text."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, rest = [*numbers, 0, 0][:3]
    elif len(numbers) == 1:
        hours, minutes, rest = 0, numbers[0], 0
    elif len(numbers) == 2:
        hours, minutes, rest = 0, *numbers
    else:
        hours, minutes, rest = numbers
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest
