"""Rules about the scheduler that starts a run: lists of hosts, and Slurm."""

import shlex
from collections.abc import Iterable, Iterator

from nbtrain.base.text.amounts import counted
from nbtrain.config.findings import mistake
from nbtrain.config.rules.wording import Problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.backend_section import SlurmConfig
from nbtrain.config.sections.markers import SbatchOption, marked
from nbtrain.config.sections.resources_section import ResourcesConfig

# Options that nbtrain writes into a batch script. If one were set twice, sbatch would silently use one of the
# values.
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
"""{sbatch option that nbtrain writes: the field that sets its value, "" if no field does}."""
OTHER_FOLDER = "moves the job out of its working directory, where its log is. Remove it."
OTHER_CLUSTER = (
    "changes the cluster for sbatch only; sinfo, scontrol and scancel would still use the default cluster. "
    "Remove it, and run `export SLURM_CLUSTERS=NAME` before you submit."
)
WAITS = "makes sbatch wait until the job ends. Remove it."
REFUSED_SBATCH_OPTIONS = {
    "--chdir": OTHER_FOLDER,
    "-D": OTHER_FOLDER,
    "--clusters": OTHER_CLUSTER,
    "-M": OTHER_CLUSTER,
    "--wait": WAITS,
    "-W": WAITS,
}
"""{refused sbatch option: what the option would do, and the fix}."""
SAME_REQUESTS = {
    **dict.fromkeys(("--gpus", "-G", "--gpus-per-node", "--gpus-per-socket", "--gpus-per-task"), "--gres"),
    **dict.fromkeys(("--mem-per-cpu", "--mem-per-gpu"), "--mem"),
    "--cpus-per-gpu": "--cpus-per-task",
}
"""{sbatch option: the option that nbtrain writes for the same resource in another unit}.

If both are given, sbatch rejects the job or silently ignores one of them.
"""


def backend_has_its_machines(config: RunConfig) -> Problems:
    """Check that backend.kind: hosts names enough machines, each once, either in `hosts` or in `hostfile`."""
    nodes, kind, section = config.resources.nodes, config.backend.kind, config.backend.hosts
    if kind != "hosts":
        return
    if section.hosts and section.hostfile:
        yield mistake(
            config,
            "backend.hosts.hostfile",
            "backend.hosts lists machines both in `hosts` and in `hostfile`.",
            "Remove one of the two.",
        )
    elif not section.hosts and not section.hostfile:
        yield mistake(
            config,
            "backend.kind",
            "backend.kind = hosts needs a list of machines.",
            "Set backend.hosts.hosts: [name, ...], or set backend.hosts.hostfile to the path of a DeepSpeed "
            "hostfile.",
        )
    elif section.hosts and len(section.hosts) < nodes:
        yield mistake(
            config,
            "backend.hosts.hosts",
            f"backend.hosts.hosts lists {counted(len(section.hosts), 'machine')}, but resources.nodes is "
            f"{nodes}.",
            "Add machines, or lower resources.nodes.",
        )
    repeated = sorted({name for name in section.hosts if section.hosts.count(name) > 1})
    if repeated:
        yield mistake(
            config,
            "backend.hosts.hosts",
            f"backend.hosts.hosts lists {', '.join(repeated)} more than once. List each machine once: one "
            "agent starts all ranks of a machine.",
        )


def slurm_options_agree(config: RunConfig) -> Problems:
    """Check that no Slurm option is set twice, and that the time limit leaves time to save."""
    section = config.backend.slurm
    if config.backend.kind != "slurm":
        return
    for index, line in enumerate(section.sbatch_options):
        key, field = f"backend.slurm.sbatch_options.{index}", "backend.slurm.sbatch_options"
        try:
            words = shlex.split(line)
        except ValueError as error:
            yield mistake(config, key, f"{field}: {line!r} is not a valid shell word: {error}.")
            continue
        if not words or not words[0].startswith("-"):
            yield mistake(
                config,
                key,
                f"{field}: {line!r} is not an sbatch option such as --mail-type=END. Put shell commands into "
                "backend.slurm.setup.",
            )
            continue
        for option in options_in(words):
            if option in OWN_SBATCH_OPTIONS:
                own = OWN_SBATCH_OPTIONS[option]
                fix = f"Set {own} instead." if own else "Remove it."
                yield mistake(config, key, f"{field}: nbtrain writes {option} itself. {fix}")
            elif why := REFUSED_SBATCH_OPTIONS.get(option):
                yield mistake(config, key, f"{field}: {option} {why}")
            elif (same := SAME_REQUESTS.get(option)) and (setting := _setting_behind(config, same)):
                yield mistake(
                    config,
                    key,
                    f"{field}: {option} requests the same resource as {same}, which nbtrain writes because "
                    f"{setting}.",
                    f"Remove {option}; to request another amount, change {OWN_SBATCH_OPTIONS[same]}.",
                )
    limit, before = section.time_limit_seconds, section.signal_before_seconds
    # Slurm checks time limits once a minute, so its signal may arrive 60 s early.
    if limit is not None and limit < before + 60:
        yield mistake(
            config,
            "backend.slurm.time_limit_seconds",
            f"backend.slurm.time_limit_seconds = {limit:g} leaves no time to train: Slurm sends the ranks "
            f"the signal to save {before} s before the limit (signal_before_seconds), or up to 60 s earlier "
            "than that.",
            f"Set time_limit_seconds to at least {before + 120}.",
        )
    if section.array and section.resubmissions:
        yield mistake(
            config,
            "backend.slurm.array",
            f"backend.slurm.array = {section.array} and backend.slurm.resubmissions = "
            f"{section.resubmissions} both continue the run after the time limit.",
            "Set only one of the two: an array queues all allocations at once, resubmissions queue one after "
            "another.",
        )


def _setting_behind(config: RunConfig, own: str) -> str:
    """Return the setting that makes nbtrain write the sbatch option `own`, e.g. "backend.slurm.gres = gpu:4".

    Return "" if nbtrain does not write the option.
    """
    resources, gres = config.resources, config.backend.slurm.gres
    gpus = resources.gpus_per_node if resources.device == "gpu" else 0
    field, value = {
        "--gres": ("backend.slurm.gres", gres) if gres else ("resources.gpus_per_node", gpus),
        "--mem": ("resources.memory_per_node_bytes", resources.memory_per_node_bytes),
        "--cpus-per-task": ("resources.cpus_per_node", resources.cpus_per_node),
    }[own]
    return f"{field} = {value}" if value else ""


def options_in(words: Iterable[str]) -> Iterator[str]:
    """Yield the names of the options among `words`, without their values: -N for -N2."""
    for word in words:
        if word.startswith("--"):
            yield word.partition("=")[0]
        elif word.startswith("-"):
            yield word[:2]


BACKEND_RULES = (backend_has_its_machines, slurm_options_agree)
