"""Section backend.kubernetes of a run YAML: what a pod is made of, and what its engine is asked."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import YEAR_SECONDS, ConfigModel, PositiveBytes, PositiveSmallCount, SmallCount

# RFC 1123 and Kubernetes' own limits: a name that breaks them is refused here, before the API server sees it.
LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"

LabelName = Annotated[str, Field(pattern=f"^{LABEL}$", max_length=63)]
ObjectName = Annotated[str, Field(pattern=f"^{SUBDOMAIN}$", max_length=253)]
# A label's key: at most 63 characters after a prefix that is a domain, e.g. nvidia.com/gpu.product.
LabelKey = Annotated[str, Field(pattern=f"^({SUBDOMAIN}/)?{QUALIFIED}$", max_length=317)]
LabelValue = Annotated[str, Field(pattern=f"^({QUALIFIED})?$")]
LABEL_WORDS = {
    f"^({SUBDOMAIN}/)?{QUALIFIED}$": "must be at most 63 letters, digits, dots, dashes and underscores, "
    "and begin and end with a letter or digit. A domain may stand before it: example.com/team",
    f"^({QUALIFIED})?$": "must be empty, or at most 63 letters, digits, dots, dashes and underscores, "
    "and begin and end with a letter or digit",
}
"""{pattern: its rule in words}."""
# A key of a Secret, which becomes a file's name.
SecretKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=253)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
# Without "..", and without blanks, colons and commas, which launchers and mounts read in their own way.
PART = r"\.?[A-Za-z0-9_@+-][A-Za-z0-9_@+.-]*"
ContainerPath = Annotated[str, Field(pattern=rf"^(/{PART})+$", max_length=1024)]
SubPath = Annotated[str, Field(pattern=rf"^{PART}(/{PART})*$", max_length=1024)]
Program = Annotated[str, Field(pattern=rf"^/?{PART}(/{PART})*$", max_length=1024)]
LABEL_WORDS |= {
    rf"^(/{PART})+$": "must be an absolute path without blanks, colons, commas and .., e.g. /data",
    rf"^{PART}(/{PART})*$": "must be a relative path without blanks, colons, commas and .., e.g. team/data",
    f"^{LABEL}$": "must be a name as Kubernetes has it: at most 63 small letters, digits and dashes, the "
    "first and last a letter or digit, e.g. team-a",
    f"^{SUBDOMAIN}$": "must be a name as Kubernetes has it: small letters, digits, dashes and dots, the "
    "first and last a letter or digit, e.g. team-data",
}
Annotation = Annotated[str, Field(max_length=100_000)]

Workload = Literal["DeepSpeedJob", "TrainJob", "MPIJob", "PyTorchJob"]


class MountConfig(ConfigModel):
    """A persistent volume claim in the container."""

    claim: ObjectName
    """Name of the PersistentVolumeClaim, in the job's namespace."""
    mount_path: ContainerPath
    """Where the container sees it."""
    sub_path: SubPath | None = None
    """Folder of the volume to mount; null mounts all of it."""
    read_only: bool = False
    """Mount it for reading alone."""


class SecretVariableConfig(ConfigModel):
    """An environment variable whose value a Secret holds; the manifest names the Secret alone."""

    name: VariableName
    """The variable."""
    secret: ObjectName
    """Name of the Secret."""
    key: SecretKey
    """Key in the Secret."""


class SecretFilesConfig(ConfigModel):
    """A Secret as a folder of files, one for each key."""

    secret: ObjectName
    """Name of the Secret."""
    mount_path: ContainerPath
    """The folder; it is read-only."""


class TolerationConfig(ConfigModel):
    """A taint of nodes that the pods accept."""

    key: LabelKey | None = None
    """Key of the taint; null with operator Exists accepts every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal compares the taint's value too; null is Equal if there is a value, else Exists."""
    value: LabelValue | None = None
    """Value of the taint, for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; null accepts all three."""

    @property
    def written_operator(self) -> str:
        """`operator`, or its default."""
        return self.operator or ("Exists" if self.value is None else "Equal")


class KubernetesConfig(ConfigModel):
    """Ranks are processes in pods that an operator of the cluster starts from one manifest."""

    workload: Workload = "TrainJob"
    """The kind of object: DeepSpeedJob (batch.tensorstack.dev/v1beta1), TrainJob (trainer.kubeflow.org/
    v1alpha1), MPIJob (kubeflow.org/v2beta1) or PyTorchJob (kubeflow.org/v1)."""
    namespace: LabelName | None = None
    """Namespace of the job; null takes that of the context or, inside a pod, the pod's own."""
    context: Annotated[str, Field(max_length=256)] | None = None
    """Context in the kubeconfig; null takes the current one or, inside a pod without a kubeconfig, the pod's
    service account."""
    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Container image with nbtrain in it; null takes resources.image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; null leaves it to Kubernetes (Always for the tag latest)."""
    image_pull_secrets: list[ObjectName] = []
    """Secrets with the registry's credentials."""
    python: Program = "python3"
    """Python interpreter in the image."""
    workspace_path: ContainerPath = "/workspace"
    """The workspace as the container sees it: its output/ holds the run directory, its data/ the data. It
    must lie on a volume of `mounts` that every pod can write."""
    mounts: list[MountConfig] = []
    """Persistent volume claims."""
    shared_memory_bytes: PositiveBytes | None = None
    """Size of /dev/shm, in memory, which counts against the container's limit; null sets no size of its
    own."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Name of the GPU resource; the pods ask for resources.gpus_per_node of it."""
    extra_resources: dict[LabelKey, PositiveSmallCount] = {}
    """Other devices of each pod, e.g. {rdma/hca: 1}."""
    capabilities: list[Annotated[str, Field(pattern="^[A-Z_]+$", max_length=64)]] = []
    """Linux capabilities of the container, e.g. [IPC_LOCK] for RDMA."""
    queue: ObjectName | None = None
    """Queue of the scheduler: t9kScheduler of a DeepSpeedJob, Kueue's label of a TrainJob, schedulingPolicy
    of the other two. null takes the cluster's default scheduler."""
    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    """Priority in a DeepSpeedJob's queue, 0 to 100."""
    priority_class: ObjectName | None = None
    """Name of a PriorityClass (of a TrainJob: Kueue's WorkloadPriorityClass)."""
    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a node must have, e.g. {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}."""
    tolerations: list[TolerationConfig] = []
    """Taints that the pods accept."""
    secret_variables: list[SecretVariableConfig] = []
    """Environment variables from Secrets."""
    secret_files: list[SecretFilesConfig] = []
    """Secrets that are mounted as files."""
    service_account: ObjectName | None = None
    """Service account of the pods."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of the object and its pods, beside nbtrain's own."""
    annotations: dict[LabelKey, Annotation] = {}
    """Annotations of the object and its pods."""
    clean_up_policy: Literal["none", "unfinished", "all"] | None = None
    """Which pods the operator removes at the end; null is none where the kind has such a policy, so that
    their logs stay."""
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] | None = None
    """When the operator starts a pod again. null is ExitCode (a killed pod, codes from 128 on, and no other)
    or, for an MPIJob, which has no ExitCode, Never; of a TrainJob the runtime decides. Ranks that fail are
    restarted by the supervisor, never by the operator."""
    back_off_limit: SmallCount | None = None
    """How often the operator restarts before the job counts as failed; null is the operator's default."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    """Time after which the operator ends the pods, by its own count: from its start of the job on, the queue
    not counted, a TrainJob's anew after each pause. backend.deadline_seconds ends a job in order, and must
    come first if both are set. null never does."""
    min_nodes: PositiveSmallCount | None = None
    """Least number of pods of an elastic job (DeepSpeedJob, PyTorchJob); null: not elastic. A restart
    goes on with the first pods that are there, which backend.elastic counts."""
    max_nodes: PositiveSmallCount | None = None
    """Greatest number of pods of an elastic job, which is resources.nodes, as null is."""
    autotune: Literal["none", "run", "tune"] = "none"
    """DeepSpeed's autotuner, which a DeepSpeedJob starts through DeepSpeed's launcher: tune looks for the
    best ZeRO stage and micro-batch size and trains nothing, run trains with what was found."""
    debug_mode: bool = False
    """DeepSpeedJob: the pods start with sshd in place of the training, to look around in them."""
    runtime: ObjectName = "torch-distributed"
    """TrainJob: name of the runtime; its replicated job and container must be called node."""
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    """TrainJob: whether the runtime is the cluster's or the namespace's."""

    @property
    def pod_restart_policy(self) -> str | None:
        """`restart_policy`, or what is its default in this kind; None: that of the TrainJob's runtime."""
        default = {"DeepSpeedJob": "ExitCode", "MPIJob": "Never", "PyTorchJob": "ExitCode"}
        return self.restart_policy or default.get(self.workload)
