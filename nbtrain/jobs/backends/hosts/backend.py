"""Backend for machines reached by ssh.

The supervisor runs on the machine where the job was submitted, and an agent runs on each host. The supervisor
restarts ranks and replaces agents that are gone. All machines must see the run directory under the same
path.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import Launcher
from nbtrain.jobs.backends.hosts.checks import findings
from nbtrain.jobs.backends.hosts.dry_text import dry_text
from nbtrain.jobs.backends.hosts.launcher import HostsHandle, HostsLauncher, end_lost, end_marked, why
from nbtrain.jobs.backends.supervised_here import SupervisedHere
from nbtrain.jobs.machine.hostfile import hosts_of


class HostsBackend(SupervisedHere):
    """Backend that runs jobs on machines reached by ssh."""

    # Seconds that a supervisor needs to end the agents and the launcher before it exits.
    end_seconds = 60.0

    def submit(self, job: JobDir) -> None:
        """Record the job's machines in handle.json, then start the supervisor."""
        config = load_resolved(job.run.config_yaml)
        files.write_json(job.handle_json, asdict(HostsHandle(hosts_of(config))))
        super().submit(job)

    def request_text(self, job: JobDir, config: RunConfig, alone: bool = False) -> str:
        """Return the text of a dry run (dry_text.py). Raises ConfigError for an invalid hostfile."""
        return dry_text(config, job, hosts_of(config))

    def end_ranks(self, job: JobDir, grace_seconds: float) -> None:
        """End the ranks on every host, found by the job's marker.

        Raises JobError if a host cannot be reached.
        """
        handle = HostsHandle.read(job.handle_json)
        section = load_resolved(job.run.config_yaml).backend.hosts
        hosts = handle.hosts if handle else []
        end = end_lost if grace_seconds else end_marked
        left = [words for answer in end(section, hosts, job.job_id, grace_seconds) if (words := why(answer))]
        if left:
            raise JobError(
                f"job {job.job_id} is LOST, and its remaining processes could not be ended: "
                f"{'; '.join(left)}. To try again, run `nbtrain cancel {job.run.name}`. Otherwise, its "
                "agents exit by themselves once their supervisor has been gone for "
                "backend.node_timeout_seconds."
            )

    def findings(self, config: RunConfig) -> Iterator[Finding]:
        """Yield the problems on this machine or on any host that would keep the run from starting."""
        return findings(config)

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """Return a launcher that starts one agent per host through DeepSpeed's launcher."""
        return HostsLauncher(job, command)


BACKEND = HostsBackend()
