"""The batch script of a run, as text that a user can check and submit by hand."""

import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping

from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.workspace import workspace
from nbtrain.config.load.one_line import RUN_YAML
from nbtrain.config.rules.backends import options_in
from nbtrain.config.schema import RunConfig

# Variables to keep, which select the cluster and identify the user there.
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET")
# Variables of the allocation or srun in which this process runs. If a batch step inherited them, its srun
# would share cores or request memory twice, and it would count another job's restarts as its own.
OF_AN_ALLOCATION = re.compile(r"SLURM_|SLURMD_|SRUN_|PMI")
# Environment variables of sbatch (`man sbatch`) that override the script. Most are named SBATCH_<OPTION>;
# these are the others.
VARIABLES = {
    "--time": ("SBATCH_TIMELIMIT",),
    "--mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "--requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "--no-requeue": ("SBATCH_REQUEUE", "SBATCH_NO_REQUEUE"),
    "--output": ("SBATCH_OUTPUT", "SBATCH_ERROR"),
}
# Variables that would break a job: they cause several tasks at once in one run directory, a cluster that
# scontrol does not query, or an sbatch that waits until the job has ended.
NEVER = ("SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SBATCH_WAIT")


def sbatch_environment(environment: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """Return `environment` without variables that would override `options` or affect the batch step."""
    dropped = set(NEVER)
    for name in options_in(word for line in options for word in shlex.split(line)):
        dropped.update(VARIABLES.get(name) or [f"SBATCH_{name.removeprefix('--').replace('-', '_').upper()}"])
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT or not (name in dropped or OF_AN_ALLOCATION.match(name))
    }


def batch_script(config: RunConfig, job: JobDir, environment: Mapping[str, str], after: str = "") -> str:
    """Return a job's sbatch script.

    The script exports `environment`. `after` is the number of a Slurm job that must end first, or "".
    """
    options = "\n".join(f"#SBATCH {option}" for option in sbatch_options(config, job, after))
    return f"#!/bin/bash\n{options}\n\n{_body(config, job, environment)}"


def _body(config: RunConfig, job: JobDir, environment: Mapping[str, str]) -> str:
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items()))
    setup = "".join(f"{line}\n" for line in config.backend.slurm.setup)
    supervisor = shlex.join(
        [
            *(python_of(config), "-m", "nbtrain.jobs.supervisor", "--foreground"),
            *(str(job.run.path), job.job_id),
        ]
    )
    return (
        f"{exports}\n{setup}cd {shlex.quote(str(workspace()))}\n\n"
        "# The supervisor replaces the shell, so that it receives Slurm's signals.\n"
        f"exec {supervisor}\n"
    )


def shown_script(config: RunConfig, job: JobDir, environment: Mapping[str, str]) -> str:
    """Return the script with a heading for the user; sbatch ignores comments."""
    shell, _, rest = batch_script(config, job, environment).partition("\n")
    return (
        f"{shell}\n"
        f"# Run {config.name}, job {job.job_id}: the script that `nbtrain submit` passes to sbatch in the\n"
        "# job's folder, after it has written the run directory. With `--dry-run FILE`, it writes a script\n"
        f"# that contains the complete run and that sbatch alone can start.\n{rest}"
    )


def script_alone(config: RunConfig, job: JobDir, environment: Mapping[str, str]) -> str:
    """Return an sbatch script that can start the run before its run directory exists.

    `environment` contains the run (prepared.py).
    """
    # Slurm opens the log before the job's folder exists, so --output is omitted. The supervisor continues in
    # its own log.
    options = [option for option in sbatch_options(config, job) if not option.startswith("--output=")]
    lines = "".join(f"#SBATCH {option}\n" for option in options)
    return (
        "#!/bin/bash\n"
        f"# Run {config.name}, job {job.job_id}, written by nbtrain. To start it, in a folder that all nodes "
        "see:\n"
        "#   sbatch THIS_FILE\n"
        f"# The batch step checks the run in {RUN_YAML} as `nbtrain submit` would, and writes it to\n"
        f"# {job.run.path}\n"
        "# Its output before that is in slurm-NUMBER.out, in that folder.\n"
        "# Tokenizer and dataset must be in the data directory by then; `nbtrain prepare` makes them.\n"
        f"{lines}\n"
        ': "${SLURM_JOB_ID:?is not set: start this file with sbatch}"\n'
        f"{_body(config, job, environment)}"
    )


def name_of(job: JobDir) -> str:
    """Return the job's name in Slurm."""
    return f"nbtrain-{job.run.name}"


def comment_of(job: JobDir) -> str:
    """Return the comment by which this job is recognized in Slurm.

    Other jobs of the run, and later Slurm jobs with the same number, have different comments. In the comment
    that is sent to Slurm, the run's labels follow this text.
    """
    return f"nbtrain/{job.run.name}/{job.job_id}"


def sbatch_options(config: RunConfig, job: JobDir, after: str = "") -> list[str]:
    """Return all sbatch options, one for each #SBATCH line."""
    section, resources = config.backend.slurm, config.resources
    gpus = resources.gpus_per_node if resources.device == "gpu" else 0
    gres = section.gres or (f"gpu:{gpus}" if gpus else None)
    memory = resources.memory_per_node_bytes
    limit = section.time_limit_seconds
    # The first allocation waits for the dependencies in the run's options; each further allocation also waits
    # for its predecessor.
    conditions, further = _dependencies(section.sbatch_options) if after else ([], section.sbatch_options)
    labels = [f"{key}={value}" for key, value in config.labels.items()]
    return [
        f"--job-name={name_of(job)}",
        f"--comment={','.join([comment_of(job), *labels])}",
        f"--nodes={resources.nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={resources.cpus_per_node}"] if resources.cpus_per_node else []),
        *([f"--mem={math.ceil(memory / 2**20)}M"] if memory else []),
        *([f"--gres={gres}"] if gres else []),
        *([f"--partition={section.partition}"] if section.partition else []),
        *([f"--account={section.account}"] if section.account else []),
        *([f"--qos={section.qos}"] if section.qos else []),
        *([f"--constraint={section.constraint}"] if section.constraint else []),
        *([f"--time={duration(limit)}"] if limit else []),
        *(["--exclusive"] if section.exclusive else []),
        *([f"--array={section.array}"] if section.array else []),
        *([f"--dependency={','.join([f'afterany:{after}', *conditions])}"] if after else []),
        f"--signal=B:USR1@{section.signal_before_seconds}",
        "--requeue" if section.requeue else "--no-requeue",
        # The path is relative to the job's folder, where sbatch runs, because sbatch would interpret quotes
        # and % in an absolute path.
        "--output=logs/supervisor.log",
        # Otherwise, a requeued job would truncate its log and lose the output of its first run.
        "--open-mode=append",
        *further,
    ]


def _dependencies(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return (dependencies, other options) from the run's additional sbatch options.

    They are separated because only the last --dependency counts. Alternatives, which are joined with ?, are
    omitted: they cannot be combined with a required condition, and the first allocation has already met them.
    """
    conditions, others = [], []
    for line in lines:
        words, kept = iter(shlex.split(line)), []
        for word in words:
            name, is_there, value = word.partition("=")
            if name in ("--dependency", "-d"):
                conditions.append(value if is_there else next(words, ""))
            elif re.match("-d[^-]", word):
                conditions.append(word[2:])
            else:
                kept.append(word)
        others += [line] if kept == shlex.split(line) else [shlex.join(kept)] if kept else []
    return [condition for condition in conditions if condition and "?" not in condition], others


def python_of(config: RunConfig) -> str:
    """Return the path of the Python interpreter on the nodes."""
    return config.backend.slurm.python or sys.executable


def duration(seconds: float) -> str:
    """Return seconds as D-HH:MM:SS, or HH:MM:SS for less than a day; Slurm rounds them up to minutes."""
    whole = math.ceil(seconds)
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
