"""Finds the training jobs that scripts launch: their commands, launchers, and where they run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import Cost, Finding
from nbtrain.config.names.other_programs import GPT_SCRIPTS, program_of_command
from nbtrain.foreign.bash.bash_script import command_of_words, read_script
from nbtrain.foreign.bash.cut_commands import BACKSLASHES_END_LINES
from nbtrain.foreign.bash.script import Command, Script, Surroundings
from nbtrain.foreign.bash.variables import word_of
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.job_files.launchers import Allocation, Hidden, Launch, launches_of, share, shown_command
from nbtrain.foreign.job_files.own_files import own_directory
from nbtrain.foreign.job_files.programs import FEWEST_FLAGS, READS, knows_flags
from nbtrain.foreign.job_files.slurm_backend import read_slurm
from nbtrain.foreign.job_files.slurm_options import (
    SbatchLine,
    count,
    gpus_per_node,
    last,
    sbatch_lines,
    tasks_per_node,
)
from nbtrain.foreign.syntax.located import Unknown, Value, Word, question
from nbtrain.foreign.syntax.yaml_tree import TEMPLATE_MARK, template_problem

# Maximum number of different trainings in one script, e.g. a sweep whose loops start one for each setting.
MOST_LAUNCHES = 100
SED = re.compile(r"s(.)(.+?)\1(.*?)\1g?$")
# Variables that a scheduler, an operator or a launcher sets, so that a default such as ${X:-1} may not apply.
SCHEDULED = re.compile(
    r"SLURM_\w+|SLURMD_\w+|PBS_\w+|LSB_\w+|NSLOTS|COBALT_\w+|FLUX_\w+|OMPI_\w+|PMI_\w+|PMIX_\w+|MV2_\w+|PET_\w+|"
    r"WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|VC_\w+|MLP_\w+|ARNOLD_\w+|SM_\w+|AZ_BATCH_\w+|DLWS_\w+|"
    r"NVIDIA_VISIBLE_DEVICES"
)


@dataclass(slots=True)
class UserValues:
    """Values that the user gave for the script's variables, and whether the script used them."""

    values: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    decided: dict[str, str] = field(default_factory=dict)

    def note(self, script: Script) -> None:
        self.used |= script.used
        self.decided |= script.decided

    def raise_unused(self) -> None:
        """Raise ConfigError if a value has no effect."""
        for name in self.values:
            if name in self.used:
                continue
            if name in self.decided:
                raise ConfigError(
                    f"{name}={self.values[name]}: {self.decided[name]} sets {name} itself. Change {name} "
                    "there, or set the run's field instead."
                )
            raise ConfigError(
                f"{name}={self.values[name]}: {name} is neither a run field nor a variable in these files. "
                "Remove it from the command, or correct its name."
            )


def jobs_of_script(
    text: str,
    label: str,
    given: UserValues | None = None,
    files: Mapping[str, Word] | None = None,
    read: set[str] | None = None,
) -> list[Job]:
    """Return the jobs that a script launches. Raises ConfigError if it launches no job.

    `files` holds the texts of the other files in the import. The names of those that the script reads are
    added to `read`.
    """
    given = given or UserValues()
    lines = sbatch_lines(text, label)
    environment, unset = _slurm_variables(lines)
    open_names = re.compile(r"SLURM_\w+") if lines else SCHEDULED
    around = Surroundings(given.values, environment, unset, open_names, files or {})
    script = read_script(text, label, around)
    for command in script.commands:
        if directory := own_directory(command.words):
            return [Job("shell script", label, own_run=directory, environment=script.exported)]
    nodes = _nodes(lines)
    total = nodes.value if nodes else 0
    place = Allocation(
        nodes,
        gpus_per_node(lines, total),
        tasks_per_node(lines, total),
        {**(files or {}), **script.documents},
    )
    launches, hidden = _launches(script.commands, place)
    if len(launches) > MOST_LAUNCHES:
        raise ConfigError(
            f"{launches[0].program.place}: the script launches {len(launches):,} different trainings, more "
            f"than the limit of {MOST_LAUNCHES}. Give a script with the values of a single training."
        )
    given.note(script)
    if read is not None:
        read |= script.read
    if not launches:
        raise _no_launch(script, hidden)
    others = [command for command in script.commands if not launches_of(command, place)[0]]
    return [_job_of(script, launch, lines, place, launches, others) for launch in launches]


def _nodes(lines: Sequence[SbatchLine]) -> Value | None:
    """Return the number of nodes in an allocation: --nodes, or --ntasks divided by --ntasks-per-node."""
    every, each = count(lines, "--ntasks"), count(lines, "--ntasks-per-node")
    return count(lines, "--nodes") or share(every, each)


# Variables that Slurm sets in every job, with values that only the job knows.
IN_EVERY_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_PROCID", "SLURM_NODEID"),
    *("SLURM_LOCALID", "SLURM_SUBMIT_DIR"),
)


def _slurm_variables(lines: Sequence[SbatchLine]) -> tuple[dict[str, Word], frozenset[str]]:
    """Return the variables that Slurm sets for these options, and those that it leaves unset."""
    if not lines:
        return {}, frozenset()
    found: dict[str, Word] = {}
    unset: set[str] = set()
    for name in IN_EVERY_JOB:
        unknown = Unknown(f"${{{name}}}", name, lines[0].place, "Slurm sets it in each job", is_set=True)
        found[name] = Word(unknown.text, unknown.place, (unknown,))

    def set_number(value: Value | None, *names: str) -> None:
        if value is not None:
            found.update({name: Word(str(value.value), value.place, ()) for name in names})

    nodes = _nodes(lines)
    line = last(lines, "--nodes")
    if line is not None and "-" in line.value:
        nodes = None
    total = nodes.value if nodes else 0
    set_number(nodes, "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    set_number(gpus_per_node(lines, total), "SLURM_GPUS_ON_NODE")
    tasks, every = tasks_per_node(lines, total), count(lines, "--ntasks")
    if every is None and tasks is not None and total:
        every = Value(tasks.value * total, tasks.place)
    set_number(every, "SLURM_NTASKS", "SLURM_NPROCS")
    if tasks is not None and total:
        text = f"{tasks.value}(x{total})" if total > 1 else str(tasks.value)
        found["SLURM_TASKS_PER_NODE"] = Word(text, tasks.place, ())
    for option, name in (
        ("--gpus-per-node", "SLURM_GPUS_PER_NODE"),
        ("--gpus", "SLURM_GPUS"),
        ("--gpus-per-task", "SLURM_GPUS_PER_TASK"),
        ("--ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("--cpus-per-task", "SLURM_CPUS_PER_TASK"),
        ("--job-name", "SLURM_JOB_NAME"),
        ("--partition", "SLURM_JOB_PARTITION"),
        ("--mem", "SLURM_MEM_PER_NODE"),
    ):
        option_line = last(lines, option)
        if option_line is not None:
            found[name] = Word(option_line.value, option_line.place, ())
        elif option != "--job-name" and option != "--partition":
            unset.add(name)
    return found, frozenset(unset)


def _launches(commands: Sequence[Command], place: Allocation) -> tuple[list[Launch], list[Hidden]]:
    """Return the distinct calls of training programs, and the commands that may hide further calls.

    If no call trains for certain, the calls that may train are returned; without any such call, the last call
    of any program.
    """
    found: list[Launch] = []
    hidden: list[Hidden] = []
    for command in commands:
        launches, more = launches_of(command, place)
        found += launches
        hidden += more
    training = [launch for launch in found if _trains(launch)]
    if not training:
        likely = [launch for launch in found if _may_train(launch)]
        training = likely or found[-1:]
    elif any(_is_gpt(launch) for launch in training):
        training = [launch for launch in training if _is_gpt(launch)]
    return list({launch.key: launch for launch in training}.values()), hidden


def _trains(launch: Launch) -> bool:
    """Return whether a program gets enough of Megatron's flags to be the training.

    A script may call other programs first.
    """
    return knows_flags(launch.flags) >= FEWEST_FLAGS


def _is_gpt(launch: Launch) -> bool:
    return bool(GPT_SCRIPTS.fullmatch(PurePosixPath(launch.program.text).name))


def _may_train(launch: Launch) -> bool:
    """Return whether a program may train although nbtrain does not know its flags."""
    if PurePosixPath(launch.program.text).name.startswith("pretrain"):
        return True
    return any(word.from_outside and word.is_outside for word in launch.flags)


def _no_launch(script: Script, hidden: Sequence[Hidden]) -> ConfigError:
    """Return the error for a script that launches no training. It lists commands that may hide a launch."""
    for command in script.commands:
        if program := program_of_command([word.text for word in command.words]):
            return ConfigError(
                f"{command.place}: the command runs {shown_command(command)}, which belongs to {program}: "
                f"{READS}."
            )
    lines = []
    if script.failed[0]:
        place, text = script.failed
        lines.append(f"{place}: {text} fails, and set -e ends the script there, so the rest does not run.")
    for cover in {(cover.place, cover.text): cover for cover in hidden}.values():
        if cover.unknown is not None:
            place, text = question(cover.unknown)
            lines.append(
                f"{place}: {text} The command {cover.text} at {cover.place} may launch the training."
            )
        elif cover.file:
            lines.append(
                f"{cover.place}: the command runs {cover.text}, which may launch the training but was not "
                f"given. Pass that script as well: nbtrain import FILE {cover.file}"
            )
    lines += [
        f"{place}: the script reads {name}, which was not given. Pass that file as well."
        for place, name in dict.fromkeys(script.missing)
    ]
    if lines:
        return ConfigError(
            "\n".join(
                [f"{script.label}: nbtrain found no command in this script that launches a training.", *lines]
            )
        )
    return ConfigError(
        f"{script.label}: the script launches no training: it has no torchrun, deepspeed, srun, mpirun or "
        "python command with a .py program. Give the script that starts the training."
    )


def _job_of(
    script: Script,
    launch: Launch,
    lines: Sequence[SbatchLine],
    place: Allocation,
    launches: Sequence[Launch],
    others: Sequence[Command],
) -> Job:
    """Return the job that one call of a training program (`launch`) describes.

    `others` holds the commands that launch nothing.
    """
    job = Job("shell script", script.label, program=launch.program, flags=launch.flags)
    nodes = launch.ranks.nodes if launch.ranks.nodes is not None else place.nodes
    if nodes is None and launch.launcher == "python" and launch.ranks == type(launch.ranks)():
        nodes = Value(1, launch.program.place)
    job.nodes = nodes if isinstance(nodes, Value) else None
    number = job.nodes.value if job.nodes else 0
    ranks = launch.ranks.per_node
    if ranks is None:
        ranks = share(launch.ranks.total, job.nodes)
    if (
        ranks is None
        and launch.launcher == "python"
        and isinstance(nodes, Value)
        and launch.ranks.total is None
    ):
        ranks = Value(1, launch.program.place)
    if ranks is None and launch.ranks.total is None:
        ranks = gpus_per_node(lines, number)
    job.gpus_per_node = ranks if isinstance(ranks, Value) else None
    job.gpus_asked = gpus_per_node(lines, number) if isinstance(ranks, Value) else None
    for key, value in (("resources.nodes", nodes), ("resources.gpus_per_node", ranks)):
        if isinstance(value, Unknown):
            job.unknown.append((key, value))
    _compare_with_place(job, launch, place)
    tasks = tasks_per_node(lines, number)
    if cpus := count(lines, "--cpus-per-task"):
        job.cpus = Value(cpus.value * (tasks.value if tasks else 1), cpus.place)
    before = [command for command in others if _line(command.place) < _line(launch.program.place)]
    read_slurm(job, lines, [command.words for command in before])
    take_launch(job, script, launch, launches)
    job.environment = script.exported | launch.environment
    return job


def _compare_with_place(job: Job, launch: Launch, place: Allocation) -> None:
    """Report a launcher that starts ranks on a different number of machines than the scheduler allocates."""
    nodes, given = launch.ranks.nodes, place.nodes
    if isinstance(nodes, Value) and given is not None and launch.is_explicit and nodes.value != given.value:
        job.asked.append(
            (
                "resources.nodes",
                nodes.place,
                f"{launch.launcher} starts ranks on {nodes.value} machines, but {given.value} are requested "
                f"({given.place}). Make both equal, or add resources.nodes=... to the nbtrain command.",
            )
        )


def take_launch(job: Job, script: Script, launch: Launch, launches: Sequence[Launch]) -> None:
    """Set what a script determines about its job, except the numbers of ranks.

    Raises ConfigError if the script is a template.
    """
    words = [*launch.command.words, *launch.flags]
    if word := next((word for word in words if TEMPLATE_MARK.search(word.text)), None):
        raise ConfigError(template_problem(word.place))
    substitutions = [
        (match.group(2), match.group(3))
        for command in script.commands
        if command.words and command.words[0].text == "sed"
        for word in command.words[1:]
        if (match := SED.match(word.text))
    ]
    job.documents |= {PurePosixPath(name).name: word for name, word in script.documents.items()}
    job.substitutions, job.comments = substitutions, script.comments
    job.remarks = list(script.remarks)
    for where, text, fix in launch.remarks:
        cost = Cost(words="machines without ranks")
        job.remarks.append(Finding("warning", "launcher_starts_everywhere", "", where, text, fix, cost))
    if any(not word.text.strip(" #") for word in job.flags if word.text):
        # A backslash followed by a space gives the program an argument that its parser rejects.
        job.flags = [word for word in job.flags if not word.text or word.text.strip(" #")]
        job.refused += [
            (remark.place, remark.text) for remark in job.remarks if remark.rule == BACKSLASHES_END_LINES
        ]
    for word in launch.prefixes:
        unknown = word.unknowns[0] if word.unknowns else None
        if unknown is not None and unknown.is_absent:
            job.left.append(
                (word.place, f"{word.text}: the file does not set this variable, so it counts as empty.")
            )
        elif unknown is not None:
            job.left.append(
                (
                    word.place,
                    f"{word.text}: ignored, because its value is not known; the command after it launches "
                    "the training.",
                )
            )
    others = [other for other in launches if other is not launch]
    if others and launch.command.conditions:
        roots = [root for unknown in launch.command.conditions for root in unknown.roots() if root.name]
        if roots:
            names = ", ".join(dict.fromkeys(f"{root.name}=..." for root in roots))
            job.alternatives = (
                f"{roots[0].place}: which of these jobs runs depends on values that are not known. "
                f"Add {names} to the command."
            )


def _line(place: str) -> int:
    return int(place.rpartition(":")[2])


def launch_in_words(
    job: Job,
    words: Sequence[Word],
    place: Allocation,
    environment: Mapping[str, Word],
    files: Mapping[str, Word],
    given: UserValues,
) -> Launch | None:
    """Return the launch in a manifest's command, and set what its scripts determine about the job."""
    script = Script(job.label)
    around = Surroundings(given.values, environment, frozenset(), None, files)
    command = command_of_words(words, job.label, around, script)
    launches, hidden = _launches([command], replace(place, files={**files, **script.documents}))
    given.note(script)
    if not launches:
        for cover in hidden:
            if cover.file:
                job.script_missing = Word(cover.text, cover.place, ())
            elif cover.unknown is not None:
                job.unknown.append(("", cover.unknown))
        return None
    launch = launches[-1]
    take_launch(job, script, launch, launches)
    for name, word in _exported(launch).items():
        if name not in environment:
            job.environment.setdefault(name, word)
    job.environment |= launch.environment
    return launch


def _exported(launch: Launch) -> dict[str, Word]:
    """Return the variables that the launch's command inherits from its script."""
    found = {}
    for name, variable in launch.command.exported.items():
        if variable.kind == "text":
            found[name] = word_of(variable.elements.get("0", ()), launch.command.place)
    return found
