"""A Slurm cluster on one machine: slurmctld and two slurmd in a private folder, on free ports, without munge.

Needs root and Debian's slurmctld, slurmd and slurm-client. SLURM_CONF selects the cluster, so several can run
at the same time, in addition to one that the machine has.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from nbtrain.base.process.ports import port_to_listen_on
from tests.waiting import wait_until

NODES = ("n0", "n1")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol")

SETTINGS = """\
ClusterName=nbtrain
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdTimeout={slurmd_timeout}
KillWait=10
ReturnToService=2
MinJobAge=300
InactiveLimit=0
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=8000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=n0,n1 Default=YES MaxTime=60 State=UP OverSubscribe=NO PreemptMode=OFF
PartitionName=urgent Nodes=n0,n1 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=n0,n1 PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=low-grace Nodes=n0,n1 PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=cancel Nodes=n0,n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=cancel-grace Nodes=n0,n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=30
PartitionName=closed Nodes=n0,n1 State=DOWN
"""


def missing() -> str:
    """Return the reason why Slurm cannot be started on this machine; "" if it can."""
    if os.getuid() != 0:
        return "Slurm's daemons need root"
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    return f"not installed: {', '.join(absent)} (Debian: slurmctld slurmd slurm-client)" if absent else ""


class SlurmCluster:
    """The daemons of a cluster, each of which can be killed."""

    def __init__(self, folder: Path, slurmd_timeout_seconds: int = 15):
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen] = {}
        ports = _free_ports(3)
        (folder / "state").mkdir(parents=True)
        self.conf.write_text(
            SETTINGS.format(
                host=socket.gethostname(), folder=folder, ports=ports, slurmd_timeout=slurmd_timeout_seconds
            )
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that select this cluster for Slurm's commands."""
        return {"SLURM_CONF": str(self.conf)}

    def start(self) -> "SlurmCluster":
        """Start all daemons and wait until both nodes are idle."""
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        self.wait_idle()
        return self

    def start_controller(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D", "-i", "-f", str(self.conf)])

    def start_node(self, node: str) -> None:
        self._start(node, ["slurmd", "-D", "-N", node, "-f", str(self.conf)])

    def kill(self, name: str) -> None:
        """Kill slurmctld or a node's slurmd with -9; the processes of jobs keep running."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def wait_idle(self) -> None:
        """Wait until both nodes are idle."""

        def states() -> list[str]:
            return self.call("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").split()

        def story() -> str:
            logs = "\n".join(path.read_text()[-1500:] for path in self.folder.glob("*.log"))
            return f"the Slurm nodes are not ready: {states()}\n{logs}"

        wait_until(lambda: states()[1::2] == ["idle", "idle"], story, pause_seconds=0.2)

    def call(self, *arguments: str) -> str:
        """Return the output of a command; "" if it fails."""
        answer = subprocess.run(
            arguments, capture_output=True, text=True, env={**os.environ, **self.environment}, timeout=600
        )
        return answer.stdout

    def stop(self) -> None:
        """End every job, then the daemons."""
        deadline = time.monotonic() + 20
        if "slurmctld" not in self._daemons:
            # Without it the processes of jobs would stay.
            self.start_controller()
            while not self.call("sinfo", "-h") and time.monotonic() < deadline:
                time.sleep(0.2)
        self.call("scancel", "--user=root")
        while self.call("squeue", "-h", "-t", "R,CG,S").strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in self._daemons.values():
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )


def _free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(port_to_listen_on())
    return [*ports]
