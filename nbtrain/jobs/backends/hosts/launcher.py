"""Start a job's agents with DeepSpeed's launcher (pdsh or openmpi).

The launcher runs as a separate process and is never imported.

    supervisor -> deepspeed.launcher.runner -> pdsh -> ssh -> deepspeed.launcher.launch -> on_host: the agent
                                            or mpirun -> ssh ----------------------------> on_host: the agent

The launcher must never receive TERM or INT: it would run `pkill -f` on its hosts and so end every DeepSpeed
job there, including other users' jobs. Therefore the agents are found and ended by their job's marker, and
the launcher is ended afterwards with KILL.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.jobstate import ACTIVE
from nbtrain.base.run_directory.node_records import NodeRecord
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity, Record
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import FOLDER_VARIABLES, workspace
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.backend_section import HostsConfig
from nbtrain.jobs.attempt.phases import cap_seconds, stop_patience_seconds
from nbtrain.jobs.backends.hosts.checks import usable_devices
from nbtrain.jobs.backends.hosts.on_host import VISIBLE, as_word, order_path
from nbtrain.jobs.backends.hosts.ssh import RemoteOutput, last_line, python_of, run_everywhere, ssh_options
from nbtrain.jobs.backends.remote import Agents, RemoteLauncher
from nbtrain.jobs.machine import processes
from nbtrain.jobs.machine.environment import recorded_variables, supervisor_environment
from nbtrain.jobs.machine.hostfile import hostfile_text, hosts_of

END_JOB = Path(__file__).with_name("end_job.py")
AGENT_MARKER = "NBTRAIN_AGENT_JOB"
# Variables of the submitting environment that an agent needs; launchers pass on almost no variables.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", *FOLDER_VARIABLES)
# Seconds that the launcher needs to notice that its agents have ended.
RUNNER_END_SECONDS = 5.0
END_TIMEOUT_SECONDS = 60.0
# Seconds between two counts of the machines that are back after a preemption.
COUNT_SECONDS = 15.0
AGENT_END_SECONDS = 15.0
# Port that DeepSpeed's launcher requires but does not use: the agents choose another port for the rendezvous.
UNUSED_PORT = 29500


class HostsLauncher(RemoteLauncher):
    """Launcher that starts one agent on each host."""

    # Usable devices of each machine at the last count; empty if the devices were never counted.
    _usable: Mapping[str, int] = {}
    # Time of the next count of machines after a preemption, and the result of the last count.
    _counts_at = 0.0
    _missing_words = ""
    # Agents from earlier starts. An agent that ssh cannot reach may still see the disk and write to it.
    _replaced: Sequence[ProcessIdentity] = ()

    def devices(self, config: RunConfig) -> list[int] | None:
        """Return the number of usable devices on each machine, largest first; None if they cannot be counted.

        The number is 0 for a machine on which no rank could start now.
        """
        try:
            self._usable = usable_devices(config)
        except ConfigError as error:
            print(f"cannot count the usable machines: {error}", flush=True)
            return None
        return sorted(self._usable.values(), reverse=True) or None

    def start_agents(self, config: RunConfig) -> Agents:
        """Start DeepSpeed's launcher, which starts the agents.

        If a host cannot be reached, nothing is started, and the attempt fails with a cause that names the
        host.
        """
        section, known = config.backend.hosts, super()._known_agents()
        self._replaced = [record.agent for record in known]
        try:
            hosts = hosts_of(config)
        except ConfigError as error:
            return NotStarted(str(error))
        if self._usable:
            enough = [host for host, most in self._usable.items() if most >= config.ranks_per_node]
            hosts = enough[: config.resources.nodes]
        # An earlier attempt may have left agents on hosts whose connection was lost.
        answers = end_marked(section, hosts, self._job.job_id, 0.0)
        unreached = [words for answer in answers if (words := why(answer))]
        if self._agents is None:
            unreached += end_predecessor(config, self._job, hosts)
        if unreached:
            return NotStarted("; ".join(unreached))
        return start_runner(config, self._job, hosts)

    def missing(self) -> str:
        """Return text such as "only 1 of 2 machines is usable"; "" if enough machines are usable.

        Machines count even without an agent, because the next attempt starts the agents.
        """
        config = self._config
        if time.monotonic() < self._counts_at:
            return self._missing_words
        usable = self.devices(config)
        self._counts_at = time.monotonic() + COUNT_SECONDS
        enough = [most for most in usable or () if most >= config.ranks_per_node]
        few = usable is not None and len(enough) < config.resources.nodes
        num, nodes = len(enough), counted(config.resources.nodes, "machine")
        words = f"only {num} of {nodes} {'is' if num == 1 else 'are'} usable"
        self._missing_words = words if few else ""
        return self._missing_words

    def _known_agents(self) -> list[NodeRecord]:
        return [record for record in super()._known_agents() if record.agent not in self._replaced]


def end_predecessor(config: RunConfig, job: JobDir, hosts: Sequence[str]) -> list[str]:
    """Make the ranks of the run's previous job save and exit, if that job is LOST.

    Two jobs must not write to the same model/ folder. Returns a sentence for each host on which processes may
    still be running.
    """
    before = next((job_id for job_id in reversed(job.run.job_ids()) if job_id < job.job_id), None)
    lost = job.run.job(before) if before else None
    record = JobRecord.read(lost.job_json) if lost else None
    if lost is None or record is None or record.backend != "hosts" or record.state not in ACTIVE:
        return []
    backend, handle = config.backend, HostsHandle.read(lost.handle_json)
    machines, patience = handle.hosts if handle else hosts, stop_patience_seconds(job.run, config)
    answers = end_lost(backend.hosts, machines, lost.job_id, patience)
    # Agents exit by themselves once their ranks have saved. The time is measured by the shared disk's clock.
    silent = job.job_json.stat().st_mtime - lost.job_json.stat().st_mtime
    left = backend.node_timeout_seconds + patience - silent
    return [
        f"{words}; the processes that job {lost.job_id} left there end by themselves within {left:.0f} s"
        for answer in answers
        if (words := why(answer)) and left > 0
    ]


@dataclass
class HostsHandle(Record):
    """Contents of handle.json: the machines that the job was submitted to, in the order of node numbers."""

    hosts: list[str] = field(default_factory=list)
    engine: str = "hosts"


class NotStarted:
    """Placeholder for agents that could not be started; `end_message` is the reason."""

    def __init__(self, words: str):
        self.end_message = words

    def poll(self) -> int | None:
        """Return 255, the exit code with which ssh reports its own failure."""
        return 255

    def end(self) -> None:
        """Do nothing, because no agent was started."""


class Runner:
    """A running DeepSpeed launcher, and the agents that it has started."""

    end_message = ""

    def __init__(self, process: subprocess.Popen, section: HostsConfig, hosts: list[str], job_id: str):
        self._process = process
        self._section, self._hosts, self._job_id = section, hosts, job_id

    def poll(self) -> int | None:
        """Return the launcher's exit code, which is the largest of all hosts' codes; None while it runs.

        The code is 255 if a connection was lost.
        """
        return self._process.poll()

    def end(self) -> None:
        """End the agents, found by their marker; then kill the launcher and its child processes."""
        for answer in end_marked(self._section, self._hosts, self._job_id, AGENT_END_SECONDS):
            if words := why(answer):
                print(f"agents could not be ended: {words}", flush=True)
        if self._process.poll() is not None:
            return
        deadline = time.monotonic() + RUNNER_END_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def end_lost(section: HostsConfig, hosts: Sequence[str], job_id: str, patience: float) -> list[RemoteOutput]:
    """Make a LOST job's processes save and exit on each host; agents kill those that take too long."""
    return end_marked(section, hosts, job_id, patience, cap_seconds(patience) + AGENT_END_SECONDS)


def end_marked(
    section: HostsConfig,
    hosts: Sequence[str],
    job_id: str,
    grace_seconds: float,
    agents_seconds: float | None = None,
) -> list[RemoteOutput]:
    """End the processes with the job's marker on each host, and return each host's output.

    The processes have `grace_seconds` to exit; 0 kills them at once. `agents_seconds` is the time for agents,
    which end their ranks themselves; None stands for `grace_seconds`.
    """
    most = grace_seconds if agents_seconds is None else agents_seconds
    arguments = [job_id, str(grace_seconds), str(most)]
    limit = END_TIMEOUT_SECONDS + most
    return run_everywhere(section, hosts, END_JOB, arguments, timeout_seconds=limit)


def why(answer: RemoteOutput) -> str:
    """Return why a host did not carry out a request; "" if it carried the request out."""
    if words := answer.trouble[0]:
        return words
    return "" if answer.code == 0 else f"{answer.host}: {last_line(answer.errors or answer.output)}"


def start_runner(config: RunConfig, job: JobDir, hosts: list[str]) -> Runner:
    """Write the launcher's hostfile and environment file into the job's folder, and start the launcher."""
    hostfile, variables = job.path / "hostfile", job.path / "deepspeed.env"
    files.write_text(hostfile, hostfile_text(hosts))
    files.write_json(
        order_path(job),
        {
            "nodes": len(hosts),
            "folder": str(workspace()),
            "environment": agent_environment(supervisor_environment()),
        },
    )
    # Every host exports these lines before anything else runs there.
    files.write_text(variables, f"{AGENT_MARKER}={job.job_id}\n")
    process = processes.start(
        runner_command(config, job, hosts, hostfile),
        job.supervisor_log,
        # On TERM, the launcher would end other users' DeepSpeed jobs.
        signal.SIGKILL,
        env=runner_environment(config, variables),
        # The launcher copies its current folder, unquoted, into a shell command and into PYTHONPATH.
        cwd="/",
    )
    return Runner(process, config.backend.hosts, hosts, job.job_id)


def runner_command(config: RunConfig, job: JobDir, hosts: list[str], hostfile: Path) -> list[str]:
    """Return the command of DeepSpeed's launcher, which starts one agent in the single slot of each host."""
    section = config.backend.hosts
    return [
        *(python_of(section), "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile)),
        *("--launcher", section.launcher, "--force_multi", "--no_ssh_check"),
        *("--master_addr", hosts[0], "--master_port", str(UNUSED_PORT), "--no_local_rank"),
        *(
            [f"--launcher_args={shlex.join(mpirun_options(section))}"]
            if section.launcher == "openmpi"
            else []
        ),
        *("--module", "nbtrain.jobs.backends.hosts.on_host", as_word(job)),
    ]


def mpirun_options(section: HostsConfig) -> list[str]:
    """Return the options of mpirun: one agent per host, not bound to cores, and the run's ssh options.

    network_interface is not passed on. It applies only to the ranks, because the machine on which mpirun runs
    may have no such interface.
    """
    return [
        *("--map-by", "node", "--bind-to", "none"),
        *("--mca", "plm_rsh_agent", "ssh", "--mca", "plm_rsh_args", " ".join(ssh_options(section))),
    ]


def runner_environment(config: RunConfig, variables: Path) -> dict[str, str]:
    """Return the environment of the launcher process.

    It names the job's environment file and contains the ssh options for pdsh.
    """
    environment = {name: value for name, value in os.environ.items() if name not in VISIBLE}
    environment["DS_ENV_FILE"] = str(variables)
    environment["PDSH_SSH_ARGS_APPEND"] = " ".join(ssh_options(config.backend.hosts))
    # More hosts than any run has. By default, pdsh starts 32 at a time, and the others wait until these end.
    environment["FANOUT"] = "1024"
    if config.resources.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    if os.getuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


def agent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that agents inherit: folders, paths and settings that affect training.

    Secrets are never included.
    """
    named = {name: environment[name] for name in PASSED_ON if name in environment}
    kept = recorded_variables(dict(environment))
    return {**{name: value for name, value in kept.items() if name not in VISIBLE}, **named}
