"""The section data.workers: where the text of a run is extracted and encoded."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    ConfigModel,
    PathText,
    PositiveBytes,
    Text,
    WorkerCount,
)

# A parameter of sbatch: it becomes a line of a job script.
SlurmWord = Annotated[str, Field(pattern="^[A-Za-z0-9_.,:@%+=/-]+$", max_length=256)]
# A year in minutes.
Minutes = Annotated[float, Field(gt=0, le=525_600)]


class SlurmWorkersConfig(ConfigModel):
    """Slurm jobs that run the workers, with cluster: slurm."""

    partition: SlurmWord | None = None
    """Partition; null uses the cluster's default."""
    account: SlurmWord | None = None
    """Account that is charged; null uses the user's default."""
    workers_per_job: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of workers in one job, each with one core."""
    time_minutes: Minutes = 60.0
    """Time limit of a job, in minutes. Workers leave 2 minutes before it, and a new job replaces them."""
    interface: SlurmWord | None = None
    """Network interface of scheduler and workers, such as ib0; null means the one with the host's address."""
    sbatch_options: list[Text] = []
    """Further options of sbatch, such as --qos=long or --constraint=avx2."""
    setup_lines: list[Text] = []
    """Shell lines that run before a worker starts, such as module load python."""


class WorkersConfig(ConfigModel):
    """Processes that extract and encode the text. The result is the same for all settings."""

    kind: Literal["local", "dask"] = "local"
    """Where parts of the text are processed. local: data.num_prepare_workers processes on this machine. dask:
    the workers of a Dask scheduler.
    """
    address: PathText | None = None
    """With kind: dask, the address of a running scheduler: tls://host:8786, or tcp://127.0.0.1:8786 on this
    machine."""
    tls_ca_file: PathText | None = None
    """Certificate of the authority that signed the certificates of scheduler and workers, in PEM format."""
    tls_cert_file: PathText | None = None
    """Certificate that this process presents."""
    tls_key_file: PathText | None = None
    """Key of that certificate."""
    cluster: Literal["local", "slurm"] | None = None
    """With kind: dask, the kind of cluster that is started for this prepare and ends with it."""
    num_workers: WorkerCount = 0
    """Number of workers of the cluster; 0 means one per core of this machine."""
    memory_bytes: PositiveBytes = 4_000_000_000
    """Bytes of memory of one worker of the cluster; a worker that exceeds them is ended, and its part is
    processed again.
    """
    wait_minutes: Minutes = 60.0
    """Minutes to wait while no worker is connected, for example while the jobs are in Slurm's queue."""
    slurm: SlurmWorkersConfig = SlurmWorkersConfig.model_construct()
    """Options of the jobs of cluster: slurm."""
