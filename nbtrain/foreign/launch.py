"""A command that launches training: the launcher and its options, the program, and the program's flags.

Launchers: torchrun and `python -m torch.distributed.run` (or `.launch`), deepspeed, srun, mpirun, and python
alone, possibly nested (`srun ... torchrun ... pretrain_gpt.py`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from nbtrain.foreign.located import Word

LAUNCHERS = {"torchrun", "deepspeed", "srun", "mpirun", "mpiexec", "accelerate", "python", "python3"}
# Commands that start the command after them; containers and shells use -c.
PREFIXES = {"exec", "eval", "nohup", "time", "env", "sudo", "command", "nice", "ionice", "numactl", "taskset"}
PREFIXES |= {"stdbuf", "timeout", "setsid", "bash", "sh", "docker", "podman", "singularity", "apptainer"}
# Launchers that start ranks on one machine if no option sets the number of machines.
ONE_MACHINE = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
MANY_MACHINES = {"srun", "mpirun", "mpiexec", "deepspeed", "accelerate"}
PROGRAM = re.compile(r".*\.py$")
# Options of launchers that set the number of machines, and of processes on each.
NODES = {"--nnodes", "--num_nodes", "--nodes", "-N"}
RANKS_PER_NODE = {
    "--nproc_per_node",
    "--nproc-per-node",
    "--num_gpus",
    "--npernode",
    "--ntasks-per-node",
    "--gpus-per-node",
}
WORLD = {"-np", "-n", "--np", "--ntasks"}


@dataclass(slots=True)
class Launch:
    """One call of a training program."""

    program: Word
    flags: list[Word]
    nodes: Word | None = None
    gpus_per_node: Word | None = None
    world_size: Word | None = None
    one_machine: bool = False
    """Whether the launcher is torchrun without --nnodes, which then uses a single machine."""
    environment: dict[str, Word] = field(default_factory=dict)


def find_launch(words: Sequence[Word]) -> Launch | None:
    """Return the launch in a command; None if the command launches no Python program."""
    words, environment = _without_prefixes(words)
    head = PurePosixPath(words[0].text).name if words else ""
    if head not in LAUNCHERS and not PROGRAM.match(head):
        return None
    number = next((at for at, word in enumerate(words) if PROGRAM.match(word.text)), None)
    if number is None:
        return None
    launch = Launch(words[number], list(words[number + 1 :]), environment=environment)
    before = [_parts(word) for word in words[:number]]
    for at, (option, inline) in enumerate(before):
        value = inline or (words[at + 1] if at + 1 < number else None)
        if value is None:
            continue
        if option in NODES and launch.nodes is None:
            launch.nodes = Word(value.text.split(":")[0], value.place)  # --nnodes 1:4
        elif option in RANKS_PER_NODE:
            launch.gpus_per_node = Word(value.text.rpartition(":")[2], value.place)
        elif option == "-x" and "=" in value.text:  # mpirun -x NCCL_DEBUG=INFO
            name, _, setting = value.text.partition("=")
            launch.environment[name] = Word(setting, value.place)
        elif option in WORLD:
            launch.world_size = value
        elif option == "--include":  # localhost:0,1,2,3@other:0,1,2,3
            hosts = value.text.split("@")
            launch.nodes = Word(str(len(hosts)), value.place)
            launch.gpus_per_node = Word(str(len(hosts[0].partition(":")[2].split(","))), value.place)
    names = {PurePosixPath(word.text).name for word in words[:number]}
    launch.one_machine = launch.nodes is None and bool(names & ONE_MACHINE) and not names & MANY_MACHINES
    return launch


def _without_prefixes(words: Sequence[Word]) -> tuple[Sequence[Word], dict[str, Word]]:
    """Return a command from its launcher on, and the variables that a preceding `env NAME=VALUE` sets."""
    environment: dict[str, Word] = {}
    if not words or PurePosixPath(words[0].text).name not in PREFIXES:
        return words, environment
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if PurePosixPath(word.text).name in LAUNCHERS or PROGRAM.match(word.text):
            return words[at:], environment
        if equals and name.isidentifier():
            environment[name] = Word(value, word.place)
    return [], environment


def _parts(word: Word) -> tuple[str, Word | None]:
    option, equals, value = word.text.partition("=")
    return option, Word(value, word.place) if equals else None
