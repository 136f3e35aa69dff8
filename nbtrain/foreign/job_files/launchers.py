"""Interprets commands that launch training: how many processes each launcher starts, on how many machines.

LAUNCHERS describes each launcher. A command may nest launchers (srun ... torchrun ... pretrain_gpt.py), put
other commands before them (nsys profile, uv run, singularity exec), or hide them in a shell (bash -c).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from nbtrain.config.load.other_files import SCRIPTS
from nbtrain.foreign.bash.script import SHELLS, Command
from nbtrain.foreign.bash.variables import Run, Variable, text_variable, word_of
from nbtrain.foreign.syntax.located import Unknown, Value, Word

PROGRAM = re.compile(r".*\.py\Z")
PYTHON = re.compile(r"(python|pypy)[\d.]*\Z")
# Commands that start the command given after their own options.
PREFIXES = frozenset(
    {
        *("exec", "nohup", "time", "env", "sudo", "command", "nice", "ionice", "numactl", "taskset", "chrt"),
        *("stdbuf", "unbuffer", "timeout", "setsid", "script", "xvfb-run", "catchsegv", "strace", "gdb"),
        *(
            "nsys",
            "ncu",
            "nvprof",
            "dlprof",
            "msprof",
            "rocprof",
            "rocprofv3",
            "py-spy",
            "viztracer",
            "memray",
        ),
        *("uv", "uvx", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye", "conda", "mamba", "micromamba"),
        *("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "shifter", "pyxis", "udocker"),
        *("ssh", "pdsh", "kubectl", "ray", "numactl", "hwloc-bind", "proxychains", "proxychains4", "flock"),
        *(
            "coverage",
            "kernprof",
            "sbatch",
            "salloc",
            "su",
            "runuser",
            "chroot",
            "systemd-run",
            "tmux",
            "screen",
        ),
    }
)
# Commands that read or change files and start nothing, whatever their arguments.
STARTS_NOTHING = frozenset(
    {
        *(
            "cat",
            "tee",
            "grep",
            "egrep",
            "sed",
            "awk",
            "rm",
            "cp",
            "mv",
            "ln",
            "mkdir",
            "touch",
            "chmod",
            "ls",
        ),
        *(
            "find",
            "git",
            "pip",
            "pip3",
            "tar",
            "wget",
            "curl",
            "rsync",
            "scp",
            "pkill",
            "kill",
            "killall",
            "ps",
        ),
        *(
            "vim",
            "nano",
            "less",
            "head",
            "tail",
            "diff",
            "wc",
            "logger",
            "module",
            "ml",
            "sleep",
            "date",
            "du",
        ),
        *("black", "ruff", "pytest", "mypy", "flake8", "chown", "which", "sort", "uniq", "tr", "cut", "df"),
        *("source", ".", "cd", "ulimit", "umask", "unzip", "apt-get", "apt", "yum", "nvidia-smi", "ds_ssh"),
    }
)
MOST_NESTING = 12


@dataclass(frozen=True, slots=True)
class Ranks:
    """Numbers of machines and processes that a launcher starts; None for those that it does not set."""

    nodes: Value | Unknown | None = None
    """Number of machines; None if the launcher leaves the choice to the scheduler."""
    per_node: Value | Unknown | None = None
    """Number of processes on each machine."""
    total: Value | Unknown | None = None
    """Number of processes on all machines together."""


@dataclass(slots=True)
class Allocation:
    """The machines and GPUs that the scheduler or the manifest allocates to a job."""

    nodes: Value | None = None
    gpus_per_node: Value | None = None
    tasks_per_node: Value | None = None
    """Number of tasks that srun starts on each node by default."""
    files: dict[str, Word] = field(default_factory=dict)
    """Contents of hostfiles and other files, by name."""
    is_pod: bool = False
    """Whether each machine runs the command once, as the pods of a manifest do."""


@dataclass(slots=True)
class Launch:
    """A call of a training program that was found in a command, with the ranks that it starts."""

    program: Word
    flags: list[Word]
    command: Command
    ranks: Ranks = Ranks()
    launcher: str = ""
    """Name of the innermost launcher, e.g. torchrun, srun or python."""
    environment: dict[str, Word] = field(default_factory=dict)
    prefixes: list[Word] = field(default_factory=list)
    """Words before the launcher with unknown values, such as $PREFIX."""
    remarks: list[tuple[str, str, str]] = field(default_factory=list)
    """(place, text, fix) of remarks for the script's author."""
    is_explicit: bool = False
    """Whether the launcher itself sets the number of machines."""

    @property
    def key(self) -> tuple[str, ...]:
        """Flags, program and ranks of the call. Two calls with equal keys are the same training."""
        ranks = (self.ranks.nodes, self.ranks.per_node, self.ranks.total)
        shown = tuple(str(count.value) if isinstance(count, Value) else str(count) for count in ranks)
        return (*(word.text for word in self.flags), self.program.text, *shown)


class Options:
    """The options of one launcher, and the position at which its command begins."""

    def __init__(self, words: Sequence[Word], start: int, launcher: "Launcher"):
        self.found: dict[str, Word] = {}
        self.pairs: list[tuple[str, Word]] = []
        """(option, value) in their original order, because options may be repeated."""
        self.unknown: list[Word] = []
        self.module = False
        at = start
        while at < len(words):
            word = words[at]
            text = word.text
            if word.is_outside:
                # A list whose words only the shell knows; it may contain options.
                if at + 1 < len(words) and not _starts_command(words, at):
                    self.unknown.append(word)
                    at += 1
                    continue
                break
            if text == "--":
                at += 1
                break
            if not text.startswith("-") or text == "-":
                break
            at += 1
            name, equals, _ = text.partition("=")
            key = _key(name)
            rest = r"(.+)" if word.unknowns else r"(\d\S*)"
            joined = re.match(rf"-([A-Za-z]){rest}\Z", text) if launcher.joins else None
            if joined:
                self._add(_key(f"-{joined.group(1)}"), Word(joined.group(2), word.place, word.unknowns))
                continue
            if equals:
                self._add(key, word.after("="))
                continue
            if key in launcher.switches or text in launcher.switches:
                self.module = self.module or key in ("m", "module")
                self._add(key, Word("", word.place))
                continue
            count = launcher.values.get(key, 1)
            if key not in launcher.values and (at >= len(words) or _is_command(words[at])):
                self._add(key, Word("", word.place))
                continue
            values = words[at : at + count]
            for value in values[:1]:
                self._add(key, Word(" ".join(v.text for v in values), value.place, value.unknowns))
            at += count
        self.end = at

    def _add(self, key: str, value: Word) -> None:
        self.found[key] = value
        self.pairs.append((key, value))

    def get(self, *names: str) -> Word | None:
        """Return the value of the first option in `names` that is set."""
        return next((self.found[name] for name in names if name in self.found), None)

    def number(self, *names: str) -> Value | Unknown | None:
        """Return the value of an option as a number; Unknown if only the running shell knows it."""
        return number(self.get(*names))


def number(word: Word | None) -> Value | Unknown | None:
    """Return a word as a number; Unknown if only the running shell knows it; None if it is not a number."""
    if word is None or not word.text:
        return None
    if word.unknowns:
        return word.unknowns[0]
    if word.from_outside:
        return Unknown(word.from_outside, "", word.place, "")
    return Value(int(word.text), word.place) if re.fullmatch(r"\d{1,9}", word.text) else None


def _key(name: str) -> str:
    return name.lstrip("-").replace("_", "-") if name.startswith("--") or len(name) > 2 else name.lstrip("-")


def _name(word: Word) -> str:
    return PurePosixPath(word.text).name


def _is_command(word: Word) -> bool:
    """Return whether a word begins a command that may launch training.

    Such a word is a launcher, a prefix, a shell, Python or a script.
    """
    name = _name(word)
    return (
        name in LAUNCHERS
        or name in PREFIXES
        or name in SHELLS
        or bool(PYTHON.match(name) or PROGRAM.match(word.text))
        or _is_script(word)
    )


def _is_script(word: Word) -> bool:
    return word.text.endswith(SCRIPTS) and not word.text.startswith("-")


def _starts_command(words: Sequence[Word], at: int) -> bool:
    """Return whether an unknown word stands for a program, because only flags follow."""
    following = words[at + 1] if at + 1 < len(words) else None
    rest = words[at + 1 :]
    return (
        following is not None
        and following.text.startswith("--")
        and not any(_is_command(word) for word in rest)
    )


# --- how many processes each launcher starts ------------------------------------------------------------


def _torchrun(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return --nproc_per_node ranks on each of --nnodes machines, which run one agent each."""
    nodes: Value | Unknown | None = None
    if (word := options.get("nnodes")) is not None:
        nodes = number(Word(word.text.partition(":")[0], word.place, word.unknowns))  # --nnodes 1:4
    each = options.get("nproc-per-node")
    return Ranks(nodes, _devices(each, place) if each is not None else None)


def _devices(word: Word, place: Allocation) -> Value | Unknown | None:
    """Return the value of torchrun's --nproc_per_node: a number, or gpu and auto for the machine's GPUs."""
    if word.text in ("gpu", "auto"):
        gpus = place.gpus_per_node
        reason = "it is the number of GPUs on a machine"
        return Value(gpus.value, word.place) if gpus else Unknown(word.text, "", word.place, reason)
    return number(word)


def _deepspeed(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return a rank per slot that --include, --exclude, --num_nodes and --num_gpus leave in the hostfile."""
    hosts = _hostfile(options.get("hostfile", "H"), place)
    include, exclude = options.get("include", "i"), options.get("exclude", "e")
    nodes, each = options.number("num-nodes"), options.number("num-gpus", "num-accelerators")
    for word in (include, exclude):
        if word is not None and word.unknowns:
            return Ranks(word.unknowns[0], word.unknowns[0])
    if include is not None:
        return _slots(_filters(include.text), hosts, include, "--include")
    if exclude is not None and hosts is not None:
        left = {name: set(range(count)) for name, count in hosts.items()}
        for name, slots in _filters(exclude.text).items():
            if slots is None:
                left.pop(name, None)
            elif name in left:
                left[name] -= slots
        return _slots({name: slots for name, slots in left.items() if slots}, hosts, exclude, "--exclude")
    if exclude is not None:
        reason = "--exclude removes GPUs from those in the hostfile"
        unknown = Unknown(exclude.text, "", exclude.place, reason)
        return Ranks(nodes or unknown, each or unknown)
    if hosts:
        word = options.get("hostfile", "H")
        where = word.place if word else ""
        counts = list(hosts.values())
        if isinstance(nodes, Value):
            counts = counts[: nodes.value]
        if each is None and len(set(counts)) > 1:
            each = Unknown(_sizes(hosts), "", where, "the machines have different numbers of GPUs")
        return Ranks(nodes or Value(len(counts), where), each or Value(counts[0], where))
    if nodes is None and each is not None and options.get("hostfile", "H") is None and not place.nodes:
        # Without a hostfile, DeepSpeed uses the machine that it is started on.
        nodes = Value(1, each.place)
    return Ranks(nodes, each)


def _filters(text: str) -> dict[str, set[int] | None]:
    """Return {host: indices of its GPUs} for a filter such as worker-0@worker-1:0,2.

    None instead of indices means all of the host's GPUs.
    """
    found: dict[str, set[int] | None] = {}
    for part in text.split("@"):
        name, colon, slots = part.strip().partition(":")
        numbers: set[int] = set()
        for slot in slots.split(","):
            first, _, last = slot.strip().partition("-")
            if first.isdigit():
                numbers |= (
                    set(range(int(first), min(int(last), 4096) + 1)) if last.isdigit() else {int(first)}
                )
        found[name] = numbers if colon else None
    return found


def _slots(
    filters: dict[str, set[int] | None], hosts: dict[str, int] | None, word: Word, option: str
) -> Ranks:
    nodes = Value(len(filters), word.place)
    counts = {
        name: len(slots) if slots is not None else (hosts or {}).get(name) for name, slots in filters.items()
    }
    known = {count for count in counts.values() if count is not None}
    if None in counts.values():
        name = next(name for name, count in counts.items() if count is None)
        reason = f"{option} selects all GPUs of {name}, and their number is in the hostfile"
        return Ranks(nodes, Unknown(word.text, "", word.place, reason))
    if len(known) != 1:
        sizes = _sizes({name: count or 0 for name, count in counts.items()})
        reason = f"{option} selects different numbers of GPUs on the machines ({sizes})"
        return Ranks(nodes, Unknown(word.text, "", word.place, reason))
    return Ranks(nodes, Value(known.pop(), word.place))


def _sizes(hosts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in list(hosts.items())[:4])


def _hostfile(word: Word | None, place: Allocation) -> dict[str, int] | None:
    """Return {host: number of slots} from a hostfile that the script writes or that was given.

    Returns None without such a hostfile.
    """
    if word is None:
        return None
    file = place.files.get(word.text) or place.files.get(PurePosixPath(word.text).name)
    if file is None or file.unknowns:
        return None
    hosts: dict[str, int] = {}
    for line in file.text.splitlines():
        parts = line.partition("#")[0].replace("=", " ").replace(":", " ").split()
        if not parts:
            continue
        slots = [int(part) for part in parts[1:] if part.isdigit()]
        hosts[parts[0]] = hosts.get(parts[0], 0) + (slots[0] if slots else 1)
    return hosts or None


def _srun(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return --ntasks-per-node tasks on each of --nodes nodes; the defaults come from the allocation."""
    word = options.get("N", "nodes")
    nodes = number(Word(word.text.partition("-")[0], word.place, word.unknowns)) if word else place.nodes
    tasks, total = options.number("ntasks-per-node"), options.number("n", "ntasks")
    if tasks is None and isinstance(total, Value) and isinstance(nodes, Value) and nodes.value:
        if total.value % nodes.value == 0:
            tasks = Value(total.value // nodes.value, total.place)
        elif total.value < nodes.value:
            nodes, tasks = Value(total.value, total.place), Value(1, total.place)
    if tasks is None and total is None:
        tasks = place.tasks_per_node
        if tasks is None and isinstance(nodes, Value):
            tasks = Value(1, nodes.place)
    return Ranks(nodes, tasks, total)


def _mpirun(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return -np processes, with -N, -npernode, --map-by ppr:K:node or -ppn of them on each machine."""
    total = options.number("np", "n", "c", "nprocs")
    each = options.number("N", "npernode", "ppn", "perhost", "ntasks-per-node", "grr")
    mapped = options.get("map-by")
    if each is None and mapped and (match := re.match(r"ppr:(\d+):node", mapped.text)):
        each = Value(int(match.group(1)), mapped.place)
    if isinstance(total, Unknown):
        return Ranks(total, each or total)
    hosts = _mpi_hosts(options, place)
    nodes = place.nodes
    where = next((word.place for word in options.found.values()), "")
    if isinstance(each, Value) and isinstance(total, Value) and each.value:
        if total.value % each.value == 0:
            return Ranks(Value(total.value // each.value, total.place), each, total)
        reason = f"{total.value} processes are not a multiple of {each.value} on each machine"
        return Ranks(Unknown(str(total.value), "", total.place, reason), each, total)
    if hosts is not None:
        sizes = set(hosts.values())
        count = Value(len(hosts), where)
        if isinstance(total, Value):
            slots = next(iter(sizes)) if len(sizes) == 1 else 0
            if slots and total.value % slots == 0 and total.value // slots <= len(hosts):
                return Ranks(Value(total.value // slots, total.place), Value(slots, where), total)
            return Ranks(count, None, total)
        return Ranks(count, each or (Value(sizes.pop(), where) if len(sizes) == 1 else None), total)
    if nodes is None and each is None and "H" not in options.found and outer.nodes is not None:
        nodes = outer.nodes if isinstance(outer.nodes, Value) else None
    return Ranks(nodes, each, total)


def _mpi_hosts(options: Options, place: Allocation) -> dict[str, int] | None:
    """Return {host: number of slots} from -H a:8,b:8, -hosts a,b or a hostfile; None without any of them."""
    word = options.get("H", "host", "hosts")
    if word is not None and not word.unknowns:
        hosts: dict[str, int] = {}
        for part in word.text.split(","):
            name, _, slots = part.partition(":")
            hosts[name] = hosts.get(name, 0) + (int(slots) if slots.isdigit() else 1)
        return hosts
    return _hostfile(options.get("hostfile", "machinefile", "f", "default-hostfile"), place)


def _jsrun(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return -n resource sets of -a tasks each, with -r sets on each machine."""
    sets, tasks = options.number("n", "nrs"), options.number("a", "tasks-per-rs")
    per_host = options.number("r", "rs-per-host")
    each = tasks.value if isinstance(tasks, Value) else 1
    nodes: Value | Unknown | None = place.nodes
    if isinstance(sets, Value) and isinstance(per_host, Value) and per_host.value:
        nodes = Value(sets.value // per_host.value, sets.place)
        return Ranks(nodes, Value(per_host.value * each, per_host.place))
    total = Value(sets.value * each, sets.place) if isinstance(sets, Value) else sets
    return Ranks(nodes, None, total)


def _accelerate(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return --num_processes processes on --num_machines machines, by default one machine."""
    nodes, total = options.number("num-machines"), options.number("num-processes")
    if nodes is None and "config-file" not in options.found and total is not None:
        nodes = Value(1, total.place)
    return Ranks(nodes, share(total, nodes), total)


def share(total: Value | Unknown | None, nodes: Value | Unknown | None) -> Value | None:
    """Return the number of processes on each machine; None if it is not the same whole number on all."""
    if not isinstance(nodes, Value) or not isinstance(total, Value) or not nodes.value:
        return None
    return Value(total.value // nodes.value, total.place) if total.value % nodes.value == 0 else None


def _python(options: Options, place: Allocation, outer: Ranks) -> Ranks:
    """Return no counts: Python starts one process, and a launcher around it may start more."""
    return Ranks()


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher: how it reads its options, and how many ranks it starts."""

    ranks: Callable[[Options, Allocation, Ranks], Ranks]
    switches: frozenset[str]
    """Options without a value, written without their dashes."""
    values: dict[str, int] = field(default_factory=dict)
    """Options with a value that could be mistaken for a command, and options with several values.

    {option: number of values}.
    """
    starts_program: bool = True
    """Whether the launcher's first argument must be a Python program; otherwise, it may be any command."""
    joins: bool = False
    """Whether a short option may be joined with its value, as in -N4."""


_TORCHRUN = Launcher(
    _torchrun,
    frozenset({"standalone", "use-env", "no-python", "run-path", "m", "module", "help"}),
    {"nnodes": 1, "nproc-per-node": 1, "r": 1, "t": 1},
)
_MPIRUN = Launcher(
    _mpirun,
    frozenset(
        {
            *("allow-run-as-root", "oversubscribe", "nooversubscribe", "tag-output", "v", "q", "verbose"),
            *("report-bindings", "display-map", "display-allocation", "bynode", "byslot", "bycore", "novm"),
            *(
                "use-hwthread-cpus",
                "merge-stderr-to-stdout",
                "timestamp-output",
                "bind-to-core",
                "l",
                "nolocal",
            ),
            *("prepend-rank", "print-rank-map", "s", "genvall", "envall", "cpu-bind-none"),
        }
    ),
    {"x": 1, "mca": 2, "gmca": 2, "pmca": 2, "prtemca": 2, "genv": 2, "env": 2, "np": 1, "n": 1, "N": 1},
    starts_program=False,
)
LAUNCHERS: dict[str, Launcher] = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "deepspeed": Launcher(
        _deepspeed,
        frozenset(
            {
                *("module", "m", "no-python", "no-local-rank", "force-multi", "save-pid", "no-ssh", "help"),
                *("no-ssh-check", "bind-cores-to-rank", "elastic-training", "disable-auto-ports"),
            }
        ),
        {"include": 1, "exclude": 1, "hostfile": 1, "num-nodes": 1, "num-gpus": 1},
    ),
    "srun": Launcher(
        _srun,
        frozenset(
            {
                *("l", "label", "u", "unbuffered", "O", "overcommit", "exclusive", "overlap", "exact", "pty"),
                *(
                    "K",
                    "kill-on-bad-exit",
                    "k",
                    "no-kill",
                    "Q",
                    "quiet",
                    "v",
                    "verbose",
                    "s",
                    "W",
                    "export-all",
                ),
                *(
                    "contiguous",
                    "mpi-none",
                    "no-container-mount-home",
                    "container-writable",
                    "Z",
                    "no-allocate",
                ),
                *(
                    "container-mount-home",
                    "container-remap-root",
                    "no-container-entrypoint",
                    "spread-job",
                    "m",
                ),
                *("use-min-nodes", "preserve-env", "disable-status", "multi-prog", "no-container-remap-root"),
            }
        ),
        {"N": 1, "n": 1, "c": 1, "G": 1, "p": 1, "A": 1, "t": 1, "w": 1, "J": 1, "o": 1, "e": 1},
        starts_program=False,
        joins=True,
    ),
    "mpirun": _MPIRUN,
    "mpiexec": _MPIRUN,
    "mpiexec.hydra": _MPIRUN,
    "mpirun_rsh": _MPIRUN,
    "aprun": _MPIRUN,
    "prun": _MPIRUN,
    "jsrun": Launcher(
        _jsrun,
        frozenset({"smpiargs-none"}),
        {"n": 1, "a": 1, "g": 1, "c": 1, "r": 1, "d": 1, "b": 1, "l": 1},
        starts_program=False,
        joins=True,
    ),
    "accelerate": Launcher(
        _accelerate,
        frozenset(
            {
                *("multi-gpu", "cpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "debug", "m"),
                *("module", "no-python", "quiet", "same-network", "use-xpu", "dynamo-use-dynamic", "q"),
            }
        ),
        {"num-processes": 1, "num-machines": 1, "config-file": 1},
    ),
}
_PYTHON = Launcher(
    _python,
    frozenset({"u", "O", "OO", "B", "E", "s", "S", "I", "b", "v", "d", "i", "q", "P", "x", "uB", "Bu"}),
    {"W": 1, "X": 1},
)


@dataclass(slots=True)
class _Scope:
    """The launchers, prefixes and environment variables that apply to a part of a command."""

    ranks: Ranks = Ranks()
    has_launcher: bool = False
    environment: dict[str, Word] = field(default_factory=dict)
    prefixes: list[Word] = field(default_factory=list)
    remarks: list[tuple[str, str, str]] = field(default_factory=list)
    depth: int = 0

    def inside(self, **changes: object) -> "_Scope":
        return replace(self, depth=self.depth + 1, **changes)  # type: ignore[arg-type]


@dataclass(slots=True)
class Hidden:
    """A command that may launch training, but whose words are not known."""

    place: str
    text: str
    unknown: Unknown | None = None
    file: str = ""
    """Name of the script that was not given; "" if an unknown value hides the command."""


def launches_of(command: Command, place: Allocation) -> tuple[list[Launch], list[Hidden]]:
    """Return the calls of training programs (launches) in a command, and parts that may hide others."""
    hidden: list[Hidden] = []
    found = list(_follow(command, 0, place, _Scope(), hidden))
    return found, hidden


def _follow(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches in a command line, starting at the word `start`."""
    words = command.words
    while start < len(words) and re.match(r"[A-Za-z_]\w*=", words[start].text) and start + 1 < len(words):
        name = words[start].text.partition("=")[0]
        scope.environment[name] = words[start].after("=")
        start += 1
    if start >= len(words) or scope.depth > MOST_NESTING:
        return
    word = words[start]
    name = _name(word)
    if word.unknowns and word.is_outside:
        yield from _unknown_head(command, start, place, scope, hidden)
    elif name in LAUNCHERS:
        yield from _launcher(command, start, name, LAUNCHERS[name], place, scope, hidden)
    elif PYTHON.match(name):
        yield from _python_program(command, start, place, scope, hidden)
    elif PROGRAM.match(word.text):
        yield _launch(command, start, scope, "python")
    elif name in SHELLS:
        yield from _shell(command, start, place, scope, hidden)
    elif _is_script(word):
        yield from _script_file(command, start, start + 1, place, scope, hidden)
    elif name not in STARTS_NOTHING:
        yield from _after_prefix(command, start, place, scope, hidden)


def _unknown_head(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches in a command whose first word is unknown: $PREFIX torchrun or $LAUNCHER train.py."""
    words = command.words
    unknown = (words[start].unknowns or (None,))[0]
    following = next((at for at in range(start + 1, len(words)) if not words[at].is_outside), len(words))
    inner = next((at for at in range(following, len(words)) if _is_command(words[at])), None)
    if inner is None:
        if len(words) - start > 1 or (unknown is not None and unknown.name):
            hidden.append(Hidden(command.place, words[start].text, unknown))
        return
    skipped = words[start:inner]
    if PROGRAM.match(words[inner].text) and not scope.has_launcher:
        # The launcher itself is not known.
        reason = "it contains the launcher"
        lost = Unknown(
            words[start].text,
            unknown.name if unknown else "",
            unknown.place if unknown else "",
            reason,
            unknown.causes if unknown else (),
        )
        changed = scope.inside(ranks=Ranks(lost, lost), has_launcher=True)
        yield from _follow(command, inner, place, changed, hidden)
        return
    changed = scope.inside(prefixes=[*scope.prefixes, *(word for word in skipped if word.is_outside)])
    yield from _follow(command, inner, place, changed, hidden)


def _launcher(
    command: Command,
    start: int,
    name: str,
    launcher: Launcher,
    place: Allocation,
    scope: _Scope,
    hidden: list[Hidden],
    first: int | None = None,
) -> Iterator[Launch]:
    words = command.words
    begin = start + 1 if first is None else first
    if name == "accelerate":
        if begin < len(words) and words[begin].text == "launch":
            begin += 1
        elif first is None:
            return
    options = Options(words, begin, launcher)
    for key, value in options.pairs:
        variable, equals, _ = value.text.partition("=")
        if key in ("x", "genv", "env") and equals and variable.isidentifier():  # mpirun -x NCCL_DEBUG=INFO
            scope.environment[variable] = value.after("=")
        elif key in ("genv", "env") and " " in value.text:
            variable, _, text = value.text.partition(" ")
            scope.environment[variable] = Word(text, value.place, value.unknowns)
    ranks = launcher.ranks(options, place, scope.ranks)
    if lost := next((word.unknowns[0] for word in options.unknown if word.unknowns), None):
        # The list may contain the launcher's options.
        ranks = Ranks(ranks.nodes or place.nodes or lost, ranks.per_node or lost, ranks.total)
    remarks = list(scope.remarks)
    explicit = ranks.nodes is not None
    if not explicit and name in TORCHRUNS and not scope.has_launcher:
        remarks += _alone(place, words[start])
    ranks = _combined(name, ranks, scope, place, words[start], remarks, options)
    changed = scope.inside(
        ranks=ranks,
        has_launcher=True,
        remarks=remarks,
        prefixes=[*scope.prefixes, *options.unknown],
    )
    at = options.end
    if at >= len(words):
        return
    if not launcher.starts_program or "no-python" in options.found:
        yield from _follow(command, at, place, changed, hidden)
        return
    if words[at].is_outside or PROGRAM.match(words[at].text) or options.module or at + 1 <= len(words):
        launch = _launch(command, at, changed, name)
        launch.is_explicit = explicit
        yield launch


TORCHRUNS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


def _combined(
    name: str,
    ranks: Ranks,
    scope: _Scope,
    place: Allocation,
    word: Word,
    remarks: list[tuple[str, str, str]],
    options: Options,
) -> Ranks:
    """Return the ranks of a launcher together with the launchers around it, e.g. torchrun inside srun."""
    outer = scope.ranks
    if name not in TORCHRUNS:
        return Ranks(
            ranks.nodes if ranks.nodes is not None else outer.nodes,
            ranks.per_node if ranks.per_node is not None else outer.per_node,
            ranks.total if ranks.total is not None else outer.total if ranks.per_node is None else None,
        )
    around = outer.nodes if scope.has_launcher else place.nodes
    agents = outer.per_node if scope.has_launcher else None
    if isinstance(agents, Value) and agents.value > 1:
        remarks.append(
            (
                agents.place,
                f"the launcher starts {agents.value} torchruns on each machine ({word.place}), each with "
                "its own ranks.",
                "Set --ntasks-per-node=1 to start one torchrun on each machine.",
            )
        )
    nodes = ranks.nodes
    if nodes is None:
        # A torchrun without --nnodes trains on its machine alone. If one is started on each of several
        # machines, the script most likely means a single training on all of them.
        nodes = around if around is not None else (None if scope.has_launcher else Value(1, word.place))
        standalone = "standalone" in options.found and around is None
        if standalone or not (scope.has_launcher or place.is_pod):
            nodes = Value(1, word.place)
    return Ranks(nodes, ranks.per_node)


def _alone(place: Allocation, word: Word) -> Iterator[tuple[str, str, str]]:
    """Yield a remark about a torchrun that is started on only one of several machines."""
    nodes = place.nodes
    if nodes is not None and nodes.value > 1 and not place.is_pod:
        yield (
            word.place,
            f"torchrun has no --nnodes and no srun before it, so the script trains on 1 of the {nodes.value} "
            f"machines that it requests ({nodes.place}). The run is imported with 1 machine.",
            f"To train on all {nodes.value} machines, give resources.nodes={nodes.value}.",
        )


def _launch(command: Command, at: int, scope: _Scope, launcher: str) -> Launch:
    words = command.words
    environment = command.environment | scope.environment
    return Launch(
        words[at],
        list(words[at + 1 :]),
        command,
        scope.ranks,
        launcher,
        environment,
        scope.prefixes,
        scope.remarks,
    )


def _python_program(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches in python PROGRAM.py, python -m MODULE, or a program that is itself a launcher."""
    words = command.words
    at = start + 1
    while at < len(words):
        text = words[at].text
        if text == "-m" and at + 1 < len(words):
            module = words[at + 1].text
            name = module.partition(".")[0] if module.startswith(("deepspeed", "accelerate")) else module
            if name in LAUNCHERS:
                first = at + 2
                yield from _launcher(command, start, name, LAUNCHERS[name], place, scope, hidden, first)
            else:
                yield _launch(command, at + 1, scope, "python")
            return
        if text == "-c":
            return
        if text in ("-W", "-X"):
            at += 2
            continue
        if text.startswith("-") and len(text) > 1:
            at += 1
            continue
        break
    if at >= len(words):
        return
    second = next((later for later in range(at + 1, len(words)) if PROGRAM.match(words[later].text)), None)
    between = words[at + 1 : second] if second is not None else []
    own = [word for word in between if word.text.startswith("-")]
    if second is not None and own and all(_key(w.text.partition("=")[0]) in _WRAPPED for w in own):
        # A program such as run.py that calls the launcher of DeepSpeed or torch.
        name = (
            "deepspeed"
            if not any("nproc" in word.text or "nnodes" in word.text for word in own)
            else "torchrun"
        )
        yield from _launcher(command, at, name, LAUNCHERS[name], place, scope, hidden)
        return
    yield _launch(command, at, scope, "python")


# Options of the DeepSpeed and torch launchers that may stand before a second program.
_WRAPPED = frozenset(
    {
        *("include", "exclude", "hostfile", "H", "i", "e", "num-nodes", "num-gpus", "num-accelerators"),
        *("master-addr", "master-port", "node-rank", "launcher", "launcher-args", "nnodes", "nproc-per-node"),
        *("force-multi", "no-local-rank", "save-pid", "bind-cores-to-rank", "standalone", "no-ssh-check"),
    }
)


def _shell(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches in bash -c TEXT, bash FILE, and bash with a here-document."""
    words, values = command.words, command.values
    at = start + 1
    while at < len(words) and words[at].text.startswith(("-", "+")):
        text = words[at].text
        if text.startswith("--"):
            at += 2 if text in ("--rcfile", "--init-file") else 1
            continue
        at += 1
        if "c" in text[1:]:
            while at < len(words) and re.fullmatch(r"[-+][a-z]+", words[at].text):
                at += 1
            if at < len(values):
                inner = command.read_inner(values[at], values[at + 2 :], _variables(scope.environment))
                yield from _all(inner, command, place, scope, hidden)
            return
        if text in ("-o", "-O"):
            at += 1
    if at < len(words):
        yield from _script_file(command, at, at + 1, place, scope, hidden)
    elif command.input is not None:
        inner = command.read_inner(command.input, (), _variables(scope.environment))
        yield from _all(inner, command, place, scope, hidden)


def _variables(environment: dict[str, Word]) -> dict[str, Variable]:
    found = {}
    for name, word in environment.items():
        unknown = word.unknowns[0] if word.unknowns else None
        found[name] = text_variable((Run(word.text, word.place, False, unknown),), True)
    return found


def _script_file(
    command: Command, at: int, rest: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    words = command.words
    name = words[at].text
    inner = None
    if not words[at].is_outside:
        inner = command.read_file(
            name, command.values[rest:], _variables(command.environment | scope.environment)
        )
    if inner is None:
        # A wrapper that starts the command after it, or a script that is not available.
        later = next((n for n in range(rest, len(words)) if _is_command(words[n])), None)
        if later is not None:
            yield from _follow(command, later, place, scope.inside(), hidden)
            return
        unknown = (words[at].unknowns or (None,))[0] if words[at].unknowns else None
        hidden.append(Hidden(words[at].place, name, unknown, PurePosixPath(name).name))
        return
    yield from _all(inner, command, place, scope, hidden)


def _all(
    inner: Sequence[Command], outer: Command, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    for command in inner:
        command.conditions = (*outer.conditions, *command.conditions)
        command.is_conditional = command.is_conditional or outer.is_conditional
        yield from _follow(command, 0, place, scope.inside(environment=dict(scope.environment)), hidden)


def _after_prefix(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches after a prefix such as nsys profile, or after an unknown command."""
    words = command.words
    name = _name(words[start])
    at = start + 1
    if name in ("sbatch", "salloc"):
        yield from _submitted(command, start, place, scope, hidden)
        return
    while at < len(words):
        word = words[at]
        variable, equals, _ = word.text.partition("=")
        if name == "env" and equals and variable.isidentifier():
            scope.environment[variable] = word.after("=")
        elif _is_command(word) and not (word.text.startswith("-") or _is_value(words, at, name)):
            yield from _follow(command, at, place, scope.inside(), hidden)
            return
        elif (
            (name in PREFIXES or name == "script")
            and " " in word.text
            and re.search(r"\b(torchrun|python3?|deepspeed|mpirun|srun|bash)\b", word.text)
        ):
            # ssh HOST "cd ...; torchrun ...", script -c "...", su -c "...".
            inner = command.read_inner(command.values[at], (), _variables(scope.environment))
            yield from _all(inner, command, place, scope, hidden)
            return
        elif name in PREFIXES and word.is_outside and word.unknowns:
            inner_at = next((n for n in range(at + 1, len(words)) if _is_command(words[n])), None)
            if inner_at is None and at + 1 == len(words):
                hidden.append(Hidden(word.place, word.text, word.unknowns[0]))
        at += 1


# Options of prefixes whose values may look like commands: conda run -n python, uv run --with deepspeed.
_PREFIX_VALUES = {
    "conda": frozenset({"-n", "-p", "--name", "--prefix", "--cwd"}),
    "uv": frozenset(
        {"-p", "-w", "--python", "--with", "--extra", "--group", "--from", "--package", "--with-editable"}
    ),
    "docker": frozenset({"--name", "--entrypoint", "-e", "-v", "-w", "-u", "--runtime", "--network"}),
}
_PREFIX_VALUES |= {name: _PREFIX_VALUES["conda"] for name in ("mamba", "micromamba")}
_PREFIX_VALUES |= {"uvx": _PREFIX_VALUES["uv"], "podman": _PREFIX_VALUES["docker"]}


def _is_value(words: Sequence[Word], at: int, name: str) -> bool:
    """Return whether a word is the value of a prefix's option."""
    return words[at - 1].text in _PREFIX_VALUES.get(name, frozenset())


def _submitted(
    command: Command, start: int, place: Allocation, scope: _Scope, hidden: list[Hidden]
) -> Iterator[Launch]:
    """Yield the launches in sbatch FILE, --wrap TEXT or a here-document of sbatch, or salloc COMMAND."""
    words = command.words
    for at in range(start + 1, len(words)):
        text = words[at].text
        if text.startswith("--wrap"):
            value_at = at if "=" in text else at + 1
            if value_at < len(words):
                runs = command.values[value_at]
                if "=" in text:
                    runs = tuple(
                        run._replace(text=run.text.partition("=")[2]) if number == 0 else run
                        for number, run in enumerate(runs)
                    )
                inner = command.read_inner(runs, (), _variables(scope.environment))
                yield from _all(inner, command, place, scope, hidden)
            return
        if _is_script(words[at]):
            yield from _script_file(command, at, at + 1, place, scope, hidden)
            return
        if words[start].text.endswith("salloc") and _is_command(words[at]):
            yield from _follow(command, at, place, scope.inside(), hidden)
            return
    if command.input is not None:
        inner = command.read_inner(command.input, (), _variables(scope.environment))
        yield from _all(inner, command, place, scope, hidden)


def shown_command(command: Command, count: int = 3) -> str:
    """Return the first `count` words of a command, for messages."""
    return " ".join(word_of(runs).text for runs in command.values[:count])
