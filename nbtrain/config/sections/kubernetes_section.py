"""Section backend.kubernetes of a run YAML: the pods, and the options of the cluster's operator."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    YEAR_SECONDS,
    ConfigModel,
    PositiveBytes,
    PositiveSmallCount,
    SmallCount,
)

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
    "and begin and end with a letter or digit. A domain may come before it: example.com/team",
    f"^({QUALIFIED})?$": "must be empty, or at most 63 letters, digits, dots, dashes and underscores, "
    "and begin and end with a letter or digit",
}
"""{pattern: its rule in words}."""
# A key of a Secret, which becomes a file's name.
SecretKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=253)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
# Without "..", and without spaces, colons and commas, which have a meaning for launchers and mounts.
PART = r"\.?[A-Za-z0-9_@+-][A-Za-z0-9_@+.-]*"
ContainerPath = Annotated[str, Field(pattern=rf"^(/{PART})+$", max_length=1024)]
SubPath = Annotated[str, Field(pattern=rf"^{PART}(/{PART})*$", max_length=1024)]
Program = Annotated[str, Field(pattern=rf"^/?{PART}(/{PART})*$", max_length=1024)]
LABEL_WORDS |= {
    rf"^(/{PART})+$": "must be an absolute path without spaces, colons, commas and .., e.g. /data",
    rf"^{PART}(/{PART})*$": "must be a relative path without spaces, colons, commas and .., e.g. team/data",
    f"^{LABEL}$": "must be a Kubernetes name: at most 63 lower-case letters, digits and dashes, the "
    "first and last a letter or digit, e.g. team-a",
    f"^{SUBDOMAIN}$": "must be a Kubernetes name: lower-case letters, digits, dashes and dots, the "
    "first and last a letter or digit, e.g. team-data",
}
# The largest id that the API server accepts.
UnixId = Annotated[int, Field(ge=0, le=2**31 - 1)]
AffinityWeight = Annotated[int, Field(ge=1, le=100)]
Annotation = Annotated[str, Field(max_length=100_000)]

# Labels by which Kueue knows a TrainJob's queue and its priority.
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"

Workload = Literal["DeepSpeedJob", "TrainJob", "MPIJob", "PyTorchJob"]


class MountConfig(ConfigModel):
    """A persistent volume claim that is mounted in the container."""

    claim: ObjectName
    """Name of the PersistentVolumeClaim, in the job's namespace."""
    mount_path: ContainerPath
    """Absolute path in the container."""
    sub_path: SubPath | None = None
    """Folder of the volume to mount; null mounts all of it."""
    read_only: bool = False
    """Whether it is mounted read-only."""


class SecretVariableConfig(ConfigModel):
    """An environment variable whose value is in a Secret. The manifest has only the name of the Secret."""

    name: VariableName
    """Name of the variable."""
    secret: ObjectName
    """Name of the Secret."""
    key: SecretKey
    """Key in the Secret."""


class SecretFilesConfig(ConfigModel):
    """A Secret that is mounted as a folder, with one file for each key."""

    secret: ObjectName
    """Name of the Secret."""
    mount_path: ContainerPath
    """Absolute path of the folder, which is read-only."""


class TolerationConfig(ConfigModel):
    """A toleration: a taint of nodes that the pods accept."""

    key: LabelKey | None = None
    """Key of the taint; null with operator Exists accepts every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Equal also compares the taint's value; Exists does not. null means Equal if `value` is set, else
    Exists.
    """
    value: LabelValue | None = None
    """Value of the taint, for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; null accepts all three effects."""

    @property
    def written_operator(self) -> str:
        """`operator`, or its default."""
        return self.operator or ("Exists" if self.value is None else "Equal")


class SecurityContextConfig(ConfigModel):
    """Users and groups of the pods' processes. null keeps what the image or the cluster sets."""

    run_as_user: UnixId | None = None
    """User id of the processes."""
    run_as_group: UnixId | None = None
    """Group id of the processes."""
    fs_group: UnixId | None = None
    """Group id that owns the mounted volumes, and that every process is also a member of."""
    supplemental_groups: list[UnixId] = []
    """Further group ids of every process."""
    run_as_non_root: bool | None = None
    """Whether the kubelet refuses to start a container as root."""


class NodeAffinityConfig(ConfigModel):
    """A condition on the labels of the nodes that the pods run on."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    """In and NotIn compare the label with `values`, Gt and Lt with one whole number in `values`."""
    values: list[LabelValue] = []
    """Values to compare with; empty for Exists and DoesNotExist."""
    weight: AffinityWeight | None = None
    """null requires the condition; 1 to 100 prefers nodes that meet it, by this weight."""


class PodAffinityConfig(ConfigModel):
    """A condition on the pods that run in the same topology domain, such as a node, a rack or a zone."""

    topology_key: LabelKey
    """Label of the nodes whose value names the domain, e.g. kubernetes.io/hostname."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of the other pods; empty means the pods of this job."""
    anti: bool = False
    """Whether the pods must be in other domains than those pods, instead of in the same."""
    weight: AffinityWeight | None = None
    """null requires the condition; 1 to 100 prefers domains that meet it, by this weight."""


class KubernetesConfig(ConfigModel):
    """Pods that an operator of the cluster starts from one manifest. The ranks are processes in them."""

    workload: Workload = "TrainJob"
    """Kind of object: DeepSpeedJob (batch.tensorstack.dev/v1beta1), TrainJob (trainer.kubeflow.org/v1alpha1),
    MPIJob (kubeflow.org/v2beta1) or PyTorchJob (kubeflow.org/v1)."""
    namespace: LabelName | None = None
    """Namespace of the job; null uses the namespace of the context or, inside a pod, the pod's own."""
    context: Annotated[str, Field(max_length=256)] | None = None
    """Context in the kubeconfig; null uses the current one or, inside a pod without a kubeconfig, the pod's
    service account."""
    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Container image that contains nbtrain; null uses resources.image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; null uses Kubernetes' default (Always for the tag latest)."""
    image_pull_secrets: list[ObjectName] = []
    """Names of Secrets with the registry's credentials."""
    python: Program = "python3"
    """Python interpreter in the image."""
    workspace_path: ContainerPath = "/workspace"
    """Path of the workspace in the container. Its output/ holds the run directory and its data/ the data, so
    it must be on a volume of `mounts` that every pod can write to.
    """
    mounts: list[MountConfig] = []
    """Persistent volume claims."""
    shared_memory_bytes: PositiveBytes | None = None
    """Bytes of /dev/shm. They are in memory and count towards the container's limit. null sets no size."""
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Name of the GPU resource. Each pod requests resources.gpus_per_node of it."""
    extra_resources: dict[LabelKey, PositiveSmallCount] = {}
    """Other devices of each pod, e.g. {rdma/hca: 1}."""
    capabilities: list[Annotated[str, Field(pattern="^[A-Z_]+$", max_length=64)]] = []
    """Linux capabilities of the container, e.g. [IPC_LOCK] for RDMA."""
    queue: ObjectName | None = None
    """Queue of the scheduler: t9kScheduler of a DeepSpeedJob, Kueue's label of a TrainJob, schedulingPolicy
    of the other two. null uses the cluster's default scheduler."""
    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    """Priority in a DeepSpeedJob's queue, 0 to 100."""
    priority_class: ObjectName | None = None
    """Name of a PriorityClass (for a TrainJob: Kueue's WorkloadPriorityClass)."""
    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a node must have, e.g. {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}."""
    tolerations: list[TolerationConfig] = []
    """Taints that the pods accept."""
    node_affinity: list[NodeAffinityConfig] = []
    """Conditions on the nodes. Conditions without a weight are required."""
    pod_affinity: list[PodAffinityConfig] = []
    """Conditions on the pods in the same node, rack or zone. Conditions without a weight are required."""
    security_context: SecurityContextConfig = SecurityContextConfig.model_construct()
    """Users and groups of the pods' processes."""
    host_network: bool = False
    """Whether the pods use the network of their nodes instead of the cluster's, as some RDMA setups need.
    Each pod then occupies ports of its node."""
    secret_variables: list[SecretVariableConfig] = []
    """Environment variables whose values are in Secrets."""
    secret_files: list[SecretFilesConfig] = []
    """Secrets that are mounted as files."""
    service_account: ObjectName | None = None
    """Service account of the pods."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of the object and its pods, in addition to nbtrain's own."""
    annotations: dict[LabelKey, Annotation] = {}
    """Annotations of the object and its pods."""
    clean_up_policy: Literal["none", "unfinished", "all"] | None = None
    """Which pods the operator removes at the end; null means none, where the kind has such a policy, so that
    their logs are kept.
    """
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] | None = None
    """When the operator restarts a pod. null means ExitCode (only a killed pod, with codes from 128) or, for
    an MPIJob, which has no ExitCode, Never; for a TrainJob the runtime decides. Ranks that fail are restarted
    by the supervisor, never by the operator."""
    back_off_limit: SmallCount | None = None
    """Number of restarts by the operator before the job counts as failed; null uses the operator's
    default."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    """Seconds after which the operator ends the pods, counted from its own start of the job. Time in the
    queue does not count, and a TrainJob counts again after each pause. backend.deadline_seconds ends a job
    with a checkpoint, and must come first if both are set. null sets no limit.
    """
    min_nodes: PositiveSmallCount | None = None
    """Smallest number of pods of an elastic job (DeepSpeedJob, PyTorchJob); null means that it is not
    elastic. A restart continues with the first pods that are available, which backend.elastic counts.
    """
    max_nodes: PositiveSmallCount | None = None
    """Largest number of pods of an elastic job, which must equal resources.nodes; null means the same."""
    autotune: Literal["none", "run", "tune"] = "none"
    """DeepSpeed's autotuner, which a DeepSpeedJob starts with DeepSpeed's launcher: tune searches for the
    best ZeRO stage and micro-batch size and trains nothing, run trains with the best."""
    debug_mode: bool = False
    """DeepSpeedJob: whether the pods start sshd instead of the training, so that you can open a shell in
    them.
    """
    runtime: ObjectName = "torch-distributed"
    """TrainJob: name of the runtime, whose replicated job and container must be named node."""
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    """TrainJob: whether the runtime belongs to the cluster or to the namespace."""

    @property
    def pod_restart_policy(self) -> str | None:
        """`restart_policy`, or the default of this kind; None means the policy of the TrainJob's runtime."""
        default = {"DeepSpeedJob": "ExitCode", "MPIJob": "Never", "PyTorchJob": "ExitCode"}
        return self.restart_policy or default.get(self.workload)
