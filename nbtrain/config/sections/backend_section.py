"""The section `backend:` of a run YAML: where the ranks run, and what happens when they fail.

Only `kind` selects the backend. Each kind reads its own section, so one YAML can hold the settings of several
backends, and the override `backend.kind=slurm` is enough to switch.
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

# Host names (RFC 1123) and IPv4 addresses. Colons are excluded, because pdsh takes the text before a colon as
# the connection method.
HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?$"
HOST_RULE = "letters, digits, dots and dashes, with a letter or digit at both ends, e.g. node-a"
HostName = Annotated[str, Field(pattern=HOST_NAME)]
# A Slurm partition, account or QOS, or several partitions separated by commas.
SLURM_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.,@-]{0,255}$"
SlurmWord = Annotated[str, Field(pattern=SLURM_WORD)]
ARRAY = r"^\d{1,6}-\d{1,6}%1$"
# An sbatch option or a shell command, on one line. The length is limited by max_length and not by the
# pattern, because compiling a repetition of up to 4,096 characters takes 20 ms in every command that reads a
# run.
ONE_LINE = r"^[^\n\r\x00]+$"
OneLine = Annotated[str, Field(pattern=ONE_LINE, max_length=4096)]
SRUN_OPTION = r"^--?[A-Za-z][^\n\r\x00]*$"
Port = Annotated[int, Field(ge=1, le=65_535)]
BACKEND_WORDS = {
    HOST_NAME: f"must be a host name or an IPv4 address: {HOST_RULE}",
    SLURM_WORD: "must be a Slurm name: at most 256 letters, digits, underscores, dots, commas, @ and dashes, "
    "beginning with a letter or digit, e.g. gpu-long",
    ARRAY: "must be FIRST-LAST%1, e.g. 1-4%1, so that one allocation runs after the other",
    ONE_LINE: "must be a single line, and not empty",
    SRUN_OPTION: "must be a single srun option on one line, e.g. --cpu-bind=none",
}
"""{pattern: the rule that it checks, worded to follow the value in an error message}."""
MOST_PRIORITY = 1000
Priority = Annotated[int, Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)]


def without_slurm_conf(program: str, said: str) -> str | None:
    """Return an error message if a Slurm program found no cluster. None for any other output.

    Slurm's own message is four lines about DNS.
    """
    if "Could not establish a configuration source" not in said:
        return None
    return f"{program} finds no cluster: there is no slurm.conf at $SLURM_CONF or in /etc/slurm"


class HostsConfig(ConfigModel):
    """Machines reached over SSH. All of them must see the workspace at the same path; a node agent runs on
    each.
    """

    hosts: list[HostName] = []
    """Host names or IPv4 addresses of the machines. The first resources.nodes of them are used, and rank 0
    runs on the first one. Leave it empty if `hostfile` lists the machines.
    """
    hostfile: PathText | None = None
    """DeepSpeed hostfile (`name slots=8` on each line), as an alternative to `hosts`. The first
    resources.nodes machines that it lists are used. A relative path is relative to the workspace. null uses
    `hosts`.
    """
    launcher: Literal["pdsh", "openmpi"] = "pdsh"
    """Program with which DeepSpeed's launcher starts the agents. pdsh must be installed on the machine that
    submits the run; openmpi must be installed there and on every host.
    """
    ssh_port: Port | None = None
    """Port of the SSH server on every host. null uses the port in ssh's own configuration."""
    ssh_config: PathText | None = None
    """Configuration file for ssh (`ssh -F`). null uses your default SSH configuration."""
    server_alive_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 10
    """Seconds between ssh's keep-alive checks (ServerAliveInterval)."""
    server_alive_count_max: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of unanswered keep-alive checks after which ssh closes the connection (ServerAliveCountMax)."""
    network_interface: Word | None = None
    """Network interface that gloo and NCCL use, such as eth0. null lets each of them choose."""
    python: PathText | None = None
    """Path of the Python interpreter on every host. null means the path of the interpreter that submits the
    run.
    """


class SlurmConfig(ConfigModel):
    """Slurm settings. The numbers of nodes, GPUs and CPUs and the amount of memory are set in `resources`."""

    partition: Annotated[SlurmWord | None, SbatchOption(("--partition", "-p"))] = None
    """Partition, or several partitions separated by commas. null uses the cluster's default."""
    account: Annotated[SlurmWord | None, SbatchOption(("--account", "-A"))] = None
    """Account that is charged. null uses your default account."""
    qos: Annotated[SlurmWord | None, SbatchOption(("--qos", "-q"))] = None
    """Quality of service (QOS). null uses the default."""
    gres: Annotated[OneLine | None, SbatchOption(("--gres",))] = None
    """Generic resources to request on each node, such as gpu:a100:8. null requests
    gpu:<resources.gpus_per_node>.
    """
    constraint: Annotated[OneLine | None, SbatchOption(("--constraint", "-C"))] = None
    """Features that every node must have, in the syntax of `sbatch --constraint`. null sets no constraint."""
    time_limit_seconds: Annotated[PositiveSeconds | None, SbatchOption(("--time", "-t"))] = None
    """Time limit of one allocation, in seconds. null uses the partition's time limit."""
    signal_before_seconds: Annotated[int, Field(ge=10, le=65_535), SbatchOption(("--signal",))] = 120
    """Seconds before the time limit at which Slurm signals the ranks to save and exit. Slurm may send this
    signal up to 60 s early.
    """
    resubmissions: SmallCount = 0
    """Maximum number of times that a run submits itself again after its allocation has ended, at its time
    limit or through a preemption that cancels the job (PreemptMode=CANCEL). A preemption that requeues the
    job (PreemptMode=REQUEUE) does not count.
    """
    requeue: Annotated[bool, SbatchOption(("--requeue", "--no-requeue"))] = True
    """Whether Slurm requeues the job when a node fails or when the job is preempted. The job then resumes
    from its newest checkpoint.
    """
    array: Annotated[
        Annotated[str, Field(pattern=ARRAY, max_length=15)] | None, SbatchOption(("--array", "-a"))
    ] = None
    """Job array for a chain of allocations, such as 1-4%1. Each allocation continues where the previous one
    ended. The tasks of the array share the run directory, so they must run one at a time (%1). null submits a
    single job.
    """
    exclusive: Annotated[bool, SbatchOption(("--exclusive",))] = False
    """Whether the job gets exclusive use of its nodes."""
    sbatch_options: list[OneLine] = []
    """Additional sbatch options, such as --mail-type=END. Each becomes one #SBATCH line."""
    srun_options: list[Annotated[str, Field(pattern=SRUN_OPTION, max_length=4096)]] = []
    """Additional options for the srun command that starts one agent on each node, such as --cpu-bind=none."""
    setup: list[OneLine] = []
    """Shell commands that the batch script runs first, such as `module load cuda`."""
    network_interface: Word | None = None
    """Network interface that gloo and NCCL use, such as ib0. null lets each of them choose."""
    python: PathText | None = None
    """Path of the Python interpreter on the nodes. null means the path of the interpreter that submits the
    run.
    """


class BackendConfig(ConfigModel):
    """Backend that runs the ranks, and restarts after failures."""

    kind: Literal["local", "hosts", "slurm", "kubernetes"] = "local"
    """Backend that runs the ranks. local: processes on this machine, watched by a background supervisor.
    hosts: machines reached over SSH. slurm: an allocation on a Slurm cluster. kubernetes: pods on a
    Kubernetes cluster.
    """
    max_restarts: SmallCount = 3
    """Maximum number of times that a failed job is restarted from its newest complete checkpoint."""
    restart_backoff_seconds: Seconds = 5.0
    """Seconds to wait before a restart. The wait doubles with each consecutive attempt that saved no
    checkpoint, up to 5 minutes. After an attempt that saved a checkpoint, a run on this machine restarts at
    once, unless a device failed or backend.elastic is set.
    """
    shutdown_timeout_seconds: PositiveSeconds = 60.0
    """Seconds that ranks have to save and exit after a request to stop. If twice the duration of the run's
    longest save is longer, they have that time instead. Ranks that are still running afterwards are killed.
    While ranks write a checkpoint, each sign of progress extends the time by the same amount, up to 10 times
    this value in total.
    """
    heartbeat_timeout_seconds: Annotated[float, Field(ge=2, le=YEAR_SECONDS)] = 1800.0
    """Seconds without progress (a step, micro-batch, phase or collective) after which a rank is considered
    hung.
    """
    node_timeout_seconds: Annotated[float, Field(ge=5, le=YEAR_SECONDS)] = 120.0
    """Seconds without a heartbeat from its agent after which a machine is considered lost. Not used with
    kind: local.
    """
    start_timeout_seconds: PositiveSeconds = 600.0
    """Seconds within which the agents of all machines must report after they have been started. Not used with
    kind: local.
    """
    priority: Priority = 0
    """Priority in this machine's queue. The job with the highest number runs first; jobs with the same number
    run in the order of submission. Used with kind: local, and with kind: hosts if the hosts include GPUs of
    this machine.
    """
    share_devices: bool = False
    """Whether the job starts at once, without queueing, and shares its GPUs or CPU cores with other jobs.
    Used wherever `priority` is used.
    """
    deadline_seconds: PositiveSeconds | None = None
    """Maximum run time of the job in seconds. Restarts count towards it; pauses and time spent waiting in a
    queue or after a preemption do not. At the deadline, the ranks save and exit, and the job is FAILED with
    the cause "deadline". To end a job without a failure, set batch.exit_duration_minutes instead. null sets
    no deadline.
    """
    preemption_notice: list[PathText] = []
    """Command (program and arguments) that reports whether this machine is about to be taken away. For spot
    machines in a cloud, let it query the metadata service. It runs on every machine of the run, without a
    shell. Exit code 0 means that a preemption is coming: the ranks save and exit, and the job is QUEUED until
    its scheduler starts it again or the command no longer exits with 0. Any other exit code means that no
    preemption is coming. An empty list runs no command.
    """
    preemption_notice_interval_seconds: Annotated[float, Field(ge=1, le=3600)] = 5.0
    """Seconds between two runs of the `preemption_notice` command. If the command takes longer than 10 s, it
    is killed, which is reported and counts as no preemption.
    """
    disk_wait_seconds: Seconds = 600.0
    """Seconds to wait for free space if the disk is too full for a checkpoint. After that, the job fails."""
    elastic: bool = False
    """Whether a restart counts the usable devices and uses as many data-parallel ranks as fit on them, with
    the same global batch size. With kind: hosts, the restart asks every machine and continues without those
    that do not respond. CPU cores of a single machine are not counted: with device: cpu, set the number of
    devices with nbtrain.jobs.control.control.ask_devices().
    """
    env: dict[Word, EnvironmentText] = {}
    """Environment variables for every rank. Some variables that nbtrain itself sets are refused; for the
    others, `nbtrain check` reports which value yours replaces.
    """
    debug: DebugSwitches = []
    """Debug switches: one name or a list. nccl sets NCCL_DEBUG=INFO. distributed sets
    TORCH_DISTRIBUTED_DEBUG=DETAIL. cuda_launch_blocking sets CUDA_LAUNCH_BLOCKING=1, so that an error names
    its kernel (slow). cpp_stacks sets TORCH_SHOW_CPP_STACKTRACES=1. With anomaly, an error in the backward
    pass names the line of the forward pass that caused it, and NaN in a gradient is such an error (slow).
    """
    hosts: HostsConfig = HostsConfig.model_construct()
    """Settings for machines reached over SSH. Used with kind: hosts."""
    slurm: SlurmConfig = SlurmConfig.model_construct()
    """Settings for a Slurm cluster. Used with kind: slurm."""
    kubernetes: KubernetesConfig = KubernetesConfig.model_construct()
    """Settings for a Kubernetes cluster and its pods. Used with kind: kubernetes."""
