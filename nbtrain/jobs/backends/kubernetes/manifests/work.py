"""PodWork: the data from which the manifest of any kind is built."""

from dataclasses import dataclass, field

from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.load.one_line import RUN_ID, RUN_YAML
from nbtrain.config.rules.kubernetes import POD_GRACE_SECONDS
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.kubernetes_section import KubernetesConfig
from nbtrain.jobs.backends.kubernetes.manifests.names import checked_namespace, object_name, own_labels

AGENT = "nbtrain.jobs.node"


@dataclass(frozen=True)
class PodWork:
    """A job's pods, independent of the object's kind; kinds.write() makes the manifest from it."""

    run: str
    run_id: str
    job_id: str
    nodes: int
    ranks_per_node: int
    gpus: int
    """Number of GPUs per pod; 0 with `device: cpu`."""
    cpus: int | None
    memory_bytes: int | None
    image: str
    section: KubernetesConfig
    extra_labels: dict[str, str]
    """Labels in addition to nbtrain's own."""
    grace_seconds: int
    """Seconds from TERM to KILL when a pod is ended."""
    local_dir: str | None = None
    """Path at which to mount an emptyDir for checkpoint.local_dir.

    None if local_dir is not set or a mount already provides it.
    """
    run_text: str = ""
    """The run as encoded by one_line(), if node 0 creates the run directory from it; else ""."""
    carried: dict[str, str] = field(default_factory=dict)
    """{environment variable: the encoded Python file that `code` names}; {} without run_text or `code`."""

    @property
    def name(self) -> str:
        return object_name(self.run, self.run_id, self.job_id)

    @property
    def run_path(self) -> str:
        """Path of the run directory in the container."""
        return f"{self.section.workspace_path}/output/{self.run}"

    @property
    def command(self) -> list[str]:
        """Command of the node agent, the same in every pod. Node 0's agent also starts the supervisor."""
        return [
            *(self.section.python, "-m", AGENT, self.run_path, self.job_id),
            *("--nodes", str(self.nodes), "--supervise"),
        ]

    @property
    def tuning(self) -> list[str]:
        """Command that DeepSpeed's autotuner starts on every rank: a script and its arguments.

        With `autotune: run`, which trains afterwards, the command ends with the agent's command.
        """
        job = f"{self.run_path}/jobs/{self.job_id}"
        words = [f"{job}/autotune.py", self.run_path, "--deepspeed_config", f"{job}/autotune.json"]
        return words + (["--then", *self.command] if self.section.autotune == "run" else [])

    @property
    def variables(self) -> dict[str, str]:
        """Environment of every pod, except the variables from Secrets."""
        home = self.section.workspace_path
        return {
            "NBTRAIN_WORKSPACE": home,
            "NBTRAIN_OUTPUT": f"{home}/output",
            "NBTRAIN_DATA": f"{home}/data",
            "PYTHONUNBUFFERED": "1",
            **({RUN_YAML: self.run_text, RUN_ID: self.run_id} if self.run_text else {}),
            **self.carried,
        }

    @property
    def labels(self) -> dict[str, str]:
        return {**self.extra_labels, **own_labels(self.run, self.run_id, self.job_id)}

    def metadata(self, namespace: str | None) -> dict:
        """Return the object's metadata. Without `namespace`, kubectl uses its current namespace."""
        written: dict = {"name": self.name, "labels": self.labels}
        if namespace is not None:
            written["namespace"] = checked_namespace(namespace)
        if self.section.annotations:
            written["annotations"] = dict(self.section.annotations)
        return written


def work_of(config: RunConfig, section: KubernetesConfig, run_id: str, job: JobDir) -> PodWork:
    """Return the PodWork of a job. Raises SubmitError if no image is set."""
    image = section.image or config.resources.image
    if image is None:
        raise SubmitError(
            f"{config.name}: neither backend.kubernetes.image nor resources.image is set. Set one of "
            "them to the image that the pods run."
        )
    resources = config.resources
    return PodWork(
        run=config.name,
        run_id=run_id,
        job_id=job.job_id,
        nodes=resources.nodes,
        ranks_per_node=config.ranks_per_node,
        gpus=resources.gpus_per_node if resources.device == "gpu" else 0,
        cpus=resources.cpus_per_node,
        memory_bytes=resources.memory_per_node_bytes,
        image=image,
        section=section,
        extra_labels=config.all_labels,
        grace_seconds=int(config.backend.shutdown_timeout_seconds) + POD_GRACE_SECONDS,
        local_dir=own_folder(config, section),
    )


def own_folder(config: RunConfig, section: KubernetesConfig) -> str | None:
    """Return the path at which to mount an emptyDir for checkpoint.local_dir.

    Returns None if local_dir is not set, or if a mount already provides it.
    """
    if config.checkpoint.local_dir is None:
        return None
    folder, placeholder, _ = config.checkpoint.local_dir.partition("{")
    if placeholder:
        # For /local/nbtrain-{node}, mount the folder that contains the folders of all nodes.
        folder = folder.rpartition("/")[0]
    mounted = any(f"{folder}/".startswith(f"{mount.mount_path}/") for mount in section.mounts)
    return None if mounted or not folder else folder
