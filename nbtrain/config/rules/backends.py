"""Rules about the place where a run is to start: hosts and Slurm."""

import shlex
from collections.abc import Iterable, Iterator

from nbtrain.base.text.amounts import counted
from nbtrain.config.findings import mistake
from nbtrain.config.rules.wording import Problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.backend_section import SlurmConfig
from nbtrain.config.sections.markers import SbatchOption, marked
from nbtrain.config.sections.resources_section import ResourcesConfig

# Options that nbtrain writes into a batch script. A second value would win, or lose, without a message.
OWN_SBATCH_OPTIONS = {
    **{
        option: f"{section}.{field}"
        for section, model in (("resources", ResourcesConfig), ("backend.slurm", SlurmConfig))
        for field, marker in marked(model, SbatchOption).items()
        for option in marker.names
    },
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), ""),
    **dict.fromkeys(("--job-name", "-J", "--comment"), ""),
    **dict.fromkeys(("--output", "-o", "--error", "-e", "--open-mode"), ""),
}
"""{option of sbatch that nbtrain writes: the field that decides it, "" if none does}."""
OTHER_FOLDER = "moves the job out of its folder, where its log is. Remove it."
OTHER_CLUSTER = (
    "changes the cluster for sbatch alone, and sinfo, scontrol and scancel would ask the default one. Remove "
    "it, and `export SLURM_CLUSTERS=NAME` instead."
)
WAITS = "makes sbatch wait for the end of the job. Remove it."
REFUSED_SBATCH_OPTIONS = {
    "--chdir": OTHER_FOLDER,
    "-D": OTHER_FOLDER,
    "--clusters": OTHER_CLUSTER,
    "-M": OTHER_CLUSTER,
    "--wait": WAITS,
    "-W": WAITS,
}
"""{option: what it would do, and the fix}."""
SAME_REQUESTS = {
    **dict.fromkeys(("--gpus", "-G", "--gpus-per-node", "--gpus-per-socket", "--gpus-per-task"), "--gres"),
    **dict.fromkeys(("--mem-per-cpu", "--mem-per-gpu"), "--mem"),
    "--cpus-per-gpu": "--cpus-per-task",
}
"""{option: the option of nbtrain that requests the same in another unit}. Of such a pair, sbatch refuses both
or uses one without a message.
"""


def backend_has_its_machines(config: RunConfig) -> Problems:
    """kind: local has one machine. kind: hosts names resources.nodes machines, each once, in `hosts` or in
    `hostfile`.
    """
    nodes, kind, section = config.resources.nodes, config.backend.kind, config.backend.hosts
    if kind != "hosts":
        return
    if section.hosts and section.hostfile:
        yield mistake(
            config,
            "backend.hosts.hostfile",
            "backend.hosts names machines in `hosts` and in `hostfile`.",
            "Remove one of them.",
        )
    elif not section.hosts and not section.hostfile:
        yield mistake(
            config,
            "backend.kind",
            "backend.kind = hosts needs machines.",
            "Set backend.hosts.hosts: [name, ...], or backend.hosts.hostfile to a DeepSpeed hostfile.",
        )
    elif section.hosts and len(section.hosts) < nodes:
        yield mistake(
            config,
            "backend.hosts.hosts",
            f"backend.hosts.hosts names {counted(len(section.hosts), 'machine')}, but resources.nodes = "
            f"{nodes}.",
            "Add machines, or lower nodes.",
        )
    repeated = sorted({name for name in section.hosts if section.hosts.count(name) > 1})
    if repeated:
        yield mistake(
            config,
            "backend.hosts.hosts",
            f"backend.hosts.hosts names {', '.join(repeated)} twice. "
            "Each machine gets one agent, which starts all its ranks.",
        )


def slurm_options_agree(config: RunConfig) -> Problems:
    """No Slurm option is set twice, and the time limit leaves enough time to save."""
    section = config.backend.slurm
    if config.backend.kind != "slurm":
        return
    for index, line in enumerate(section.sbatch_options):
        key, field = f"backend.slurm.sbatch_options.{index}", "backend.slurm.sbatch_options"
        try:
            words = shlex.split(line)
        except ValueError as error:
            yield mistake(config, key, f"{field}: {line!r} cannot be read: {error}.")
            continue
        if not words or not words[0].startswith("-"):
            yield mistake(
                config,
                key,
                f"{field}: {line!r} is not an option of sbatch, such as --mail-type=END. Lines of shell go "
                "into backend.slurm.setup.",
            )
            continue
        for option in options_in(words):
            if option in OWN_SBATCH_OPTIONS:
                own = OWN_SBATCH_OPTIONS[option]
                fix = f"Set {own} instead." if own else "Remove it."
                yield mistake(config, key, f"{field}: {option} is written by nbtrain. {fix}")
            elif why := REFUSED_SBATCH_OPTIONS.get(option):
                yield mistake(config, key, f"{field}: {option} {why}")
            elif (same := SAME_REQUESTS.get(option)) and (setting := _setting_behind(config, same)):
                yield mistake(
                    config,
                    key,
                    f"{field}: {option} requests again what {setting} requests with {same}.",
                    f"Remove {option}, or change {OWN_SBATCH_OPTIONS[same]} instead.",
                )
    limit, before = section.time_limit_seconds, section.signal_before_seconds
    # Slurm's clock of time limits ticks in minutes: a warning may come 60 s early.
    if limit is not None and limit < before + 60:
        yield mistake(
            config,
            "backend.slurm.time_limit_seconds",
            f"backend.slurm.time_limit_seconds = {limit:g} leaves no time to train: the ranks are asked "
            f"to save signal_before_seconds = {before} before it, and Slurm may be 60 s early.",
            f"Set at least {before + 120}.",
        )
    if section.array and section.resubmissions:
        yield mistake(
            config,
            "backend.slurm.array",
            f"backend.slurm.array = {section.array} and resubmissions = {section.resubmissions} both "
            "continue after the time limit.",
            "Keep one: an array queues all allocations at once, resubmissions one after the other.",
        )


def _setting_behind(config: RunConfig, own: str) -> str:
    """Return the setting because of which nbtrain writes this option, "" if it does not write it."""
    resources, gres = config.resources, config.backend.slurm.gres
    gpus = resources.gpus_per_node if resources.device == "gpu" else 0
    field, value = {
        "--gres": ("backend.slurm.gres", gres) if gres else ("resources.gpus_per_node", gpus),
        "--mem": ("resources.memory_per_node_bytes", resources.memory_per_node_bytes),
        "--cpus-per-task": ("resources.cpus_per_node", resources.cpus_per_node),
    }[own]
    return f"{field} = {value}" if value else ""


def options_in(words: Iterable[str]) -> Iterator[str]:
    """Return the names of the options in one line. The name of a short option is returned without its value:
    -N for -N2.
    """
    for word in words:
        if word.startswith("--"):
            yield word.partition("=")[0]
        elif word.startswith("-"):
            yield word[:2]


BACKEND_RULES = (backend_has_its_machines, slurm_options_agree)
