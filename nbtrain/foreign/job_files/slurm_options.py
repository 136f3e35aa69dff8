"""The options of a batch script: its #SBATCH lines, read as sbatch reads them.

sbatch reads the lines up to the first command, several options in one line, and the last value of an option
that is set twice (https://slurm.schedmd.com/sbatch.html).
"""

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
# Options without a value, or with one only after "=".
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
    """Long name, such as "--nodes"."""
    value: str
    """Value; "" for a switch."""
    place: str

    @property
    def text(self) -> str:
        """The option as one word."""
        return f"{self.name}={self.value}" if self.value else self.name


def sbatch_lines(text: str, label: str) -> list[SbatchLine]:
    """Return the options of a batch script, in their order; [] for another script."""
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
    """Return the option that counts: the last one of this name."""
    return next((line for line in reversed(lines) if line.name == name), None)


def count(lines: Sequence[SbatchLine], name: str) -> Value | None:
    """Return the number of an option, the first one of a range (2-4); None if it is missing."""
    line = last(lines, name)
    text = line.value.partition("-")[0].rpartition(":")[2] if line else ""
    return Value(int(text), line.place) if line and text.isdigit() else None


def tasks_per_node(lines: Sequence[SbatchLine], nodes: int) -> Value | None:
    """Return the tasks of each node: --ntasks-per-node, or --ntasks over the nodes."""
    if tasks := count(lines, "--ntasks-per-node"):
        return tasks
    every = count(lines, "--ntasks")
    return Value(every.value // nodes, every.place) if every and nodes and every.value % nodes == 0 else None


def gpus_per_node(lines: Sequence[SbatchLine], nodes: int) -> Value | None:
    """Return the GPUs of each node, from the option that requests them; None if none does."""
    if gpus := count(lines, "--gpus-per-node"):
        return gpus
    for line in reversed(lines):
        if line.name in ("--gres", "--tres-per-node"):
            for entry in line.value.split(","):
                kind, *rest = entry.strip().removeprefix("gres/").replace("=", ":").split(":")
                if kind == "gpu":
                    return Value(int(rest[-1]) if rest and rest[-1].isdigit() else 1, line.place)
    if (every := count(lines, "--gpus")) and nodes and every.value % nodes == 0:
        return Value(every.value // nodes, every.place)
    each, tasks = count(lines, "--gpus-per-task"), tasks_per_node(lines, nodes)
    return Value(each.value * (tasks.value if tasks else 1), each.place) if each else None


def memory_bytes(text: str) -> int | None:
    """Return the bytes of an amount of memory in sbatch's form, 480G or 4000 (MiB); None for another text."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    return int(number) * units[unit] if number.isdigit() and unit in units else None


def seconds(text: str) -> int | None:
    """Return the seconds of a time limit: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for another text."""
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
