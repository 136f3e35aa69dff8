"""Text that shows what a submission to hosts would do; nothing is started, and no machine is contacted."""

import shlex
import sys

from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text.amounts import counted
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.hosts.launcher import (
    AGENT_MARKER,
    agent_environment,
    runner_command,
    runner_environment,
)
from nbtrain.jobs.backends.hosts.ssh import python_of
from nbtrain.jobs.machine.environment import supervisor_environment
from nbtrain.jobs.machine.hostfile import hostfile_text

# Variables of the launcher's environment that differ from the submitting shell's.
SET = ("DS_ENV_FILE", "PDSH_SSH_ARGS_APPEND", "FANOUT", "DS_ACCELERATOR", "OMPI_ALLOW_RUN_AS_ROOT")


def dry_text(config: RunConfig, job: JobDir, hosts: list[str]) -> str:
    """Return the text of a dry run: the hostfile, the launcher's environment file, and all commands in order.

    The variables that agents and ranks inherit are listed by name, without their values.
    """
    hostfile, variables = job.path / "hostfile", job.path / "deepspeed.env"
    settings = runner_environment(config, variables)
    launcher = [f"{name}={settings[name]}" for name in SET if name in settings]
    command = runner_command(config, job, hosts, hostfile)
    supervisor = [sys.executable, "-m", "nbtrain.jobs.supervisor", str(job.run.path), job.job_id]
    agents = (
        [
            *(python_of(config.backend.hosts), "-m", "nbtrain.jobs.node", str(job.run.path), job.job_id),
            *("--nodes", str(len(hosts)), "--node", str(number)),
        ]
        for number in range(len(hosts))
    )
    return (
        f"# Run {config.name}, job {job.job_id}: what `nbtrain submit` starts on "
        f"{counted(len(hosts), 'machine')}, written by nbtrain.\n"
        "# Nothing was started, and no machine was contacted. `nbtrain submit` first checks the\n"
        "# versions, folders, network, GPUs, disk and clock of every machine. All machines must see\n"
        "# the run, workspace and data directories.\n"
        "\n# 1. On this machine: the supervisor, which watches the job to its end.\n"
        f"{shlex.join(supervisor)}\n"
        f"\n# 2. It writes {hostfile}\n{hostfile_text(hosts)}"
        f"\n# and {variables}\n{AGENT_MARKER}={job.job_id}\n"
        "\n# 3. It starts DeepSpeed's launcher, which reaches every machine by ssh.\n"
        f"{shlex.join(['env', *launcher, *command])}\n"
        "\n# 4. The launcher starts an agent on each machine; the last argument names the job.\n"
        + "".join(f"# {host}\n{shlex.join(agent)}\n" for host, agent in zip(hosts, agents, strict=True))
        + "\n# Variables that agents inherit from this shell, by name:\n"
        f"# {_names(agent_environment(supervisor_environment()))}\n"
        f"# Variables of backend.env, which every rank gets, by name:\n# {_names(config.backend.env)}\n"
        f"\n# 5. Each agent starts {counted(config.ranks_per_node, 'rank')}.\n"
    )


def _names(variables: dict[str, str]) -> str:
    return " ".join(sorted(variables)) or "none"
