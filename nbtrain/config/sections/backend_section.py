"""The section `backend:` of a run YAML: where the ranks run, and what happens when they fail.

`kind` alone chooses the backend. Each kind has a separate section, which only that kind reads, so that one
YAML can hold the settings of several places, and `backend.kind=slurm` is enough to move to another.
"""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.debug import DebugSwitches
from nbtrain.config.sections.fields import (
    YEAR_SECONDS,
    ConfigModel,
    EnvironmentText,
    PathText,
    PositiveSeconds,
    Seconds,
    SmallCount,
    Word,
)
from nbtrain.config.sections.kubernetes_section import KubernetesConfig
from nbtrain.config.sections.markers import SbatchOption

# Names of hosts (RFC 1123) and IPv4 addresses; pdsh reads a colon as the way to reach a host.
HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$"
HOST_RULE = "letters, digits, dots and dashes, the first and last a letter or digit, e.g. node-a"
HostName = Annotated[str, Field(pattern=HOST_NAME)]
# What Slurm takes as the name of a partition, an account or a qos, or a list of partitions.
SLURM_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.,@-]{0,255}$"
SlurmWord = Annotated[str, Field(pattern=SLURM_WORD)]
ARRAY = r"^\d{1,6}-\d{1,6}%1$"
# An option of sbatch, or a line of shell; one line each. The pattern does not limit the length: to compile a
# repetition of up to 4,096 characters takes 20 ms, in every command that reads a run.
ONE_LINE = r"^[^\n\r\x00]+$"
OneLine = Annotated[str, Field(pattern=ONE_LINE, max_length=4096)]
SRUN_OPTION = r"^--?[A-Za-z][^\n\r\x00]*$"
Port = Annotated[int, Field(ge=1, le=65_535)]
BACKEND_WORDS = {
    HOST_NAME: f"must be the name of a host or an IPv4 address: {HOST_RULE}",
    SLURM_WORD: "must be a Slurm name: at most 256 letters, digits, _, dots, commas, @ and dashes, "
    "the first a letter or digit, e.g. gpu-long",
    ARRAY: "must be FIRST-LAST%1, e.g. 1-4%1: one allocation after the other",
    ONE_LINE: "must be one line, and not empty",
    SRUN_OPTION: "must be one option of srun on one line, e.g. --cpu-bind=none",
}
"""{pattern: its rule in words}."""
MOST_PRIORITY = 1000
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


def without_slurm_conf(program: str, said: str) -> str | None:
    """Return the error to report if a Slurm program did not find a cluster; None for any other output.

    Slurm's own message is four lines about DNS.
    """
    if "Could not establish a configuration source" not in said:
        return None
    return f"{program} finds no cluster: no slurm.conf in the places it searches ($SLURM_CONF, /etc/slurm)"


class HostsConfig(ConfigModel):
    """Machines reached by ssh, which all see the workspace at the same path. One node agent runs on each."""

    hosts: list[HostName] = []
    """Machines to use. The first resources.nodes of them are used, and rank 0 runs on the first. Empty if
    `hostfile` names them.
    """
    hostfile: PathText | None = None
    """DeepSpeed hostfile (`name slots=8` per line), whose first resources.nodes machines are used; a relative
    path starts at the workspace."""
    launcher: Literal["pdsh", "openmpi"] = "pdsh"
    """Program with which DeepSpeed's launcher starts the agents. pdsh must be installed where the run is
    submitted, Open MPI there and on every host."""
    ssh_port: Port | None = None
    """Port of sshd on every host; null uses the setting in ssh's own configuration."""
    ssh_config: PathText | None = None
    """Configuration file for ssh (`ssh -F`); null uses the user's."""
    server_alive_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """Seconds between ssh's checks that the other side still answers."""
    server_alive_count_max: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of unanswered checks after which ssh closes the connection."""
    network_interface: Word | None = None
    """Network interface for gloo and NCCL, such as eth0; null lets each of them choose."""
    python: PathText | None = None
    """Path of Python on every host; null means the path of the Python that submits the run."""


class SlurmConfig(ConfigModel):
    """A Slurm cluster; nodes, GPUs, CPUs and memory come from `resources`."""

    partition: Annotated[SlurmWord | None, SbatchOption(("--partition", "-p"))] = None
    """Partition, or several separated by commas; null uses the cluster's default."""
    account: Annotated[SlurmWord | None, SbatchOption(("--account", "-A"))] = None
    """Account that is charged."""
    qos: Annotated[SlurmWord | None, SbatchOption(("--qos", "-q"))] = None
    """Quality of service."""
    gres: Annotated[OneLine | None, SbatchOption(("--gres",))] = None
    """Generic resources of each node, such as gpu:a100:8; null requests gpu:<resources.gpus_per_node>."""
    constraint: Annotated[OneLine | None, SbatchOption(("--constraint", "-C"))] = None
    """Features that every node must have, in the form of sbatch --constraint."""
    time_limit_seconds: Annotated[PositiveSeconds | None, SbatchOption(("--time", "-t"))] = None
    """Time limit of one allocation, in seconds; null uses the partition's."""
    signal_before_seconds: Annotated[int, Field(ge=10, le=65_535), SbatchOption(("--signal",))] = 120
    """Seconds before the time limit at which the ranks are asked to save and exit. Slurm may send this signal
    up to 60 s early.
    """
    resubmissions: SmallCount = 0
    """Number of times that a run submits itself again after its allocation ended: at its time limit, or by a
    preemption that cancels jobs (PreemptMode=CANCEL). A preemption that puts the job back into Slurm's queue
    (PreemptMode=REQUEUE) does not count."""
    requeue: Annotated[bool, SbatchOption(("--requeue", "--no-requeue"))] = True
    """Whether Slurm requeues the job when a node fails or when it is preempted; it continues from its newest
    checkpoint."""
    array: Annotated[
        Annotated[str, Field(pattern=ARRAY, max_length=15)] | None, SbatchOption(("--array", "-a"))
    ] = None
    """Job array for a chain of allocations, such as 1-4%1: each continues where the previous one ended. The
    tasks of an array share the run directory, so they run one at a time (%1).
    """
    exclusive: Annotated[bool, SbatchOption(("--exclusive",))] = False
    """Whether the job gets its nodes exclusively."""
    sbatch_options: list[OneLine] = []
    """Further options of sbatch, such as --mail-type=END; each is one #SBATCH line."""
    srun_options: list[Annotated[str, Field(pattern=SRUN_OPTION, max_length=4096)]] = []
    """Further options of the srun that starts one agent on each node, such as --cpu-bind=none."""
    setup: list[OneLine] = []
    """Shell lines that the batch script runs first, such as `module load cuda`."""
    network_interface: Word | None = None
    """Network interface for gloo and NCCL, such as ib0; null lets each of them choose."""
    python: PathText | None = None
    """Path of Python on the nodes; null means the path of the Python that submits the run."""


class BackendConfig(ConfigModel):
    """Place where the ranks run, and restarts after failures."""

    kind: Literal["local", "hosts", "slurm", "kubernetes"] = "local"
    """Place where the ranks run. local: processes on this machine, watched by a detached supervisor. hosts:
    machines reached by ssh. slurm: an allocation of a Slurm cluster. kubernetes: pods of a Kubernetes
    cluster.
    """
    max_restarts: SmallCount = 3
    """Number of times that a failed job is restarted from its last good checkpoint."""
    restart_backoff_seconds: Seconds = 5.0
    """Seconds to wait before a restart; the wait doubles with each attempt in a row that saved no checkpoint,
    up to 5 minutes. After an attempt that saved one, a run on this machine restarts at once, unless a device
    failed or backend.elastic is set.
    """
    shutdown_timeout_seconds: PositiveSeconds = 60.0
    """Seconds that ranks have to save and exit when they are asked to stop; twice the duration of the run's
    longest save if that is longer. After that they are killed. While ranks write a checkpoint, each sign of
    progress extends the time by the same amount, up to 10 times this value in all.
    """
    heartbeat_timeout_seconds: Annotated[float, Field(ge=2, le=YEAR_SECONDS)] = 1800.0
    """Seconds without progress (step, micro-batch, phase or collective) after which a rank counts as
    hanging."""
    node_timeout_seconds: Annotated[float, Field(ge=5, le=YEAR_SECONDS)] = 120.0
    """Seconds without a sign of life from its agent after which a machine counts as lost. Not read on kind:
    local.
    """
    start_timeout_seconds: PositiveSeconds = 600.0
    """Seconds within which the agents of all machines must report after they are started. Not read on kind:
    local.
    """
    priority: Priority = 0
    """Priority in this machine's queue: the greatest number is first, then the earliest submission. Read on
    kind: local, and on hosts if this machine's GPUs are among them."""
    share_devices: bool = False
    """Whether the job starts at once, without queueing, and shares its GPUs or cores with other jobs. Read
    wherever `priority` is read.
    """
    deadline_seconds: PositiveSeconds | None = None
    """Seconds that the job may run, including restarts but excluding pauses and waits in a queue or after a
    preemption. After that the ranks save and exit, and the job is FAILED with the cause "deadline". null sets
    no limit. batch.exit_duration_minutes ends a job without a failure.
    """
    preemption_notice: list[PathText] = []
    """Program and arguments that announce that this machine is about to be taken away, run without a shell on
    every machine of the run. Exit code 0 is a notice: the ranks save and exit, and the job is QUEUED until
    its scheduler starts it again or the program no longer exits with 0. Any other exit code means no notice.
    On a cloud's spot machines, query the metadata service. An empty list runs no program.
    """
    preemption_notice_interval_seconds: Annotated[float, Field(ge=1, le=3600)] = 5.0
    """Seconds between two runs of `preemption_notice`. A run that takes longer than 10 s is killed, which is
    reported and counts as no notice."""
    disk_wait_seconds: Seconds = 600.0
    """Seconds to wait for free space when the disk is too full for a checkpoint. After that the job fails."""
    elastic: bool = False
    """Whether a restart counts the usable devices and uses as many data-parallel ranks as fit on them, with
    the same global batch size. On kind: hosts it asks every machine, and continues without those that do not
    answer. On device: cpu an operator sets the number of devices of one machine
    (nbtrain.jobs.control.control.ask_devices).
    """
    env: dict[Word, EnvironmentText] = {}
    """Environment variables of every rank. Some variables that nbtrain sets itself are refused; for others,
    `nbtrain check` says which value yours replaces.
    """
    debug: DebugSwitches = []
    """One debug switch or a list. nccl sets NCCL_DEBUG=INFO, distributed TORCH_DISTRIBUTED_DEBUG=DETAIL,
    cuda_launch_blocking CUDA_LAUNCH_BLOCKING=1 (an error names its kernel; slow), cpp_stacks
    TORCH_SHOW_CPP_STACKTRACES=1. With anomaly, an error in a backward pass names the forward line that caused
    it, and NaN in a gradient is such an error; slow."""
    hosts: HostsConfig = HostsConfig.model_construct()
    """Machines reached by ssh; read on kind: hosts."""
    slurm: SlurmConfig = SlurmConfig.model_construct()
    """The Slurm cluster; read on kind: slurm."""
    kubernetes: KubernetesConfig = KubernetesConfig.model_construct()
    """The Kubernetes cluster and its pods; read on kind: kubernetes."""
