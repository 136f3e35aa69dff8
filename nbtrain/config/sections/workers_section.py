"""The section data.workers of a run YAML: where the text is extracted and encoded."""

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
    """Slurm jobs that run the workers. Used with cluster: slurm."""

    partition: SlurmWord | None = None
    """Partition. null uses the cluster's default."""
    account: SlurmWord | None = None
    """Account that is charged. null uses your default account."""
    workers_per_job: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of workers in one job, each with one core."""
    time_minutes: Minutes = 60.0
    """Time limit of a job, in minutes. The job's workers stop 2 minutes before the limit, and a new job
    replaces them.
    """
    interface: SlurmWord | None = None
    """Network interface of the scheduler and the workers, such as ib0. null means the interface with the
    host's address.
    """
    sbatch_options: list[Text] = []
    """Additional sbatch options, such as --qos=long or --constraint=avx2."""
    setup_lines: list[Text] = []
    """Shell commands to run before a worker starts, such as `module load python`."""


class WorkersConfig(ConfigModel):
    """Processes that extract and encode the text. The result is the same for all settings."""

    kind: Literal["local", "dask"] = "local"
    """Type of workers that process parts of the text. local: data.num_prepare_workers processes on this
    machine. dask: the workers of a Dask scheduler.
    """
    address: PathText | None = None
    """With kind: dask, the address of a running Dask scheduler: tls://host:8786, or tcp://127.0.0.1:8786 on
    this machine. null if `cluster` is set.
    """
    tls_ca_file: PathText | None = None
    """PEM file with the certificate of the authority that signed the certificates of the scheduler and the
    workers. null without TLS.
    """
    tls_cert_file: PathText | None = None
    """File with the certificate that this process presents. null without TLS."""
    tls_key_file: PathText | None = None
    """File with the private key of the certificate in tls_cert_file. null without TLS."""
    cluster: Literal["local", "slurm"] | None = None
    """With kind: dask, the type of Dask cluster that is started for this `nbtrain prepare` and ends with it.
    null if `address` is set.
    """
    num_workers: WorkerCount = 0
    """Number of workers in the cluster. With cluster: local, 0 means one per core of this machine; cluster:
    slurm requires at least 1.
    """
    memory_bytes: PositiveBytes = 4_000_000_000
    """Memory of one worker in the cluster, in bytes. A worker that exceeds it is ended, and its part of the
    text is processed again.
    """
    wait_minutes: Minutes = 60.0
    """Minutes to wait while no worker is connected, for example while the jobs are in Slurm's queue."""
    slurm: SlurmWorkersConfig = SlurmWorkersConfig.model_construct()
    """Settings of the Slurm jobs. Used with cluster: slurm."""
