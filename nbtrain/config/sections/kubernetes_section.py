"""The section backend.kubernetes of a run YAML: the pods, and options of the operator that starts them."""

from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import (
    YEAR_SECONDS,
    ConfigModel,
    PositiveBytes,
    PositiveSmallCount,
    SmallCount,
)

# Limits of RFC 1123 and Kubernetes. A name that breaks them is refused here, before the API server sees it.
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
"""{pattern: the rule that it checks, worded to follow the value in an error message}."""
# A key of a Secret, which becomes a file's name.
SecretKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$", max_length=253)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
# Without "..", and without spaces, colons and commas, which have a meaning for launchers and mounts.
PART = r"\.?[A-Za-z0-9_@+-][A-Za-z0-9_@+.-]*"
ContainerPath = Annotated[str, Field(pattern=rf"^(/{PART})+$", max_length=1024)]
SubPath = Annotated[str, Field(pattern=rf"^{PART}(/{PART})*$", max_length=1024)]
Program = Annotated[str, Field(pattern=rf"^/?{PART}(/{PART})*$", max_length=1024)]
LABEL_WORDS |= {
    rf"^(/{PART})+$": "must be an absolute path without spaces, colons, commas or .., e.g. /data",
    rf"^{PART}(/{PART})*$": "must be a relative path without spaces, colons, commas or .., e.g. team/data",
    f"^{LABEL}$": "must be a Kubernetes name: at most 63 lower-case letters, digits and dashes, with a "
    "letter or digit at both ends, e.g. team-a",
    f"^{SUBDOMAIN}$": "must be a Kubernetes name: lower-case letters, digits, dashes and dots, with a "
    "letter or digit at both ends, e.g. team-data",
}
# The largest id that the API server accepts.
UnixId = Annotated[int, Field(ge=0, le=2**31 - 1)]
AffinityWeight = Annotated[int, Field(ge=1, le=100)]
Annotation = Annotated[str, Field(max_length=100_000)]

# Labels from which Kueue reads a TrainJob's queue and priority.
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"

Workload = Literal["DeepSpeedJob", "TrainJob", "MPIJob", "PyTorchJob"]


class MountConfig(ConfigModel):
    """A persistent volume claim that is mounted in the container."""

    claim: ObjectName
    """Name of the PersistentVolumeClaim. It must be in the job's namespace."""
    mount_path: ContainerPath
    """Absolute path at which the volume is mounted in the container."""
    sub_path: SubPath | None = None
    """Folder of the volume to mount. null mounts the whole volume."""
    read_only: bool = False
    """Whether the volume is mounted read-only."""


class SecretVariableConfig(ConfigModel):
    """An environment variable whose value is stored in a Secret. The manifest contains only the Secret's
    name.
    """

    name: VariableName
    """Name of the environment variable."""
    secret: ObjectName
    """Name of the Secret."""
    key: SecretKey
    """Key of the value in the Secret."""


class SecretFilesConfig(ConfigModel):
    """A Secret that is mounted as a folder, with one file for each key."""

    secret: ObjectName
    """Name of the Secret."""
    mount_path: ContainerPath
    """Absolute path of the folder, which is mounted read-only."""


class TolerationConfig(ConfigModel):
    """A toleration: it lets the pods run on nodes with a matching taint."""

    key: LabelKey | None = None
    """Key of the taint. null with operator Exists tolerates every taint."""
    operator: Literal["Exists", "Equal"] | None = None
    """Operator. Equal compares the taint's value too; Exists does not. null means Equal if `value` is set,
    and Exists otherwise.
    """
    value: LabelValue | None = None
    """Value of the taint. Used with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. null tolerates all three effects."""

    @property
    def written_operator(self) -> str:
        """Value of `operator` or, if that is null, the operator that null stands for."""
        return self.operator or ("Exists" if self.value is None else "Equal")


class SecurityContextConfig(ConfigModel):
    """Users and groups of the processes in the pods. null keeps the settings of the image or the cluster."""

    run_as_user: UnixId | None = None
    """User id of the processes."""
    run_as_group: UnixId | None = None
    """Group id of the processes."""
    fs_group: UnixId | None = None
    """Id of the group that owns the mounted volumes. Every process is a member of it."""
    supplemental_groups: list[UnixId] = []
    """Ids of additional groups of every process."""
    run_as_non_root: bool | None = None
    """Whether the kubelet refuses to start a container that runs as root."""


class NodeAffinityConfig(ConfigModel):
    """A condition on the labels of the nodes that the pods run on."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    """Comparison. In and NotIn compare the label with `values`; Gt and Lt compare it with a single whole
    number in `values`; Exists and DoesNotExist test whether the node has the label.
    """
    values: list[LabelValue] = []
    """Values to compare with. Leave the list empty for Exists and DoesNotExist."""
    weight: AffinityWeight | None = None
    """Weight with which nodes that meet the condition are preferred, from 1 to 100. null makes the condition
    a requirement.
    """


class PodAffinityConfig(ConfigModel):
    """A condition on the pods that run in the same topology domain, such as a node, a rack or a zone."""

    topology_key: LabelKey
    """Node label whose value identifies the topology domain, e.g. kubernetes.io/hostname."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of the other pods. Empty means the pods of this job."""
    anti: bool = False
    """Whether the pods must run in a different domain from the other pods (anti-affinity) instead of in the
    same domain.
    """
    weight: AffinityWeight | None = None
    """Weight with which domains that meet the condition are preferred, from 1 to 100. null makes the
    condition a requirement.
    """


class KubernetesConfig(ConfigModel):
    """Pods that an operator of the cluster starts from one manifest. The ranks are processes in them."""

    workload: Workload = "TrainJob"
    """Kind of Kubernetes object to create: DeepSpeedJob (batch.tensorstack.dev/v1beta1), TrainJob
    (trainer.kubeflow.org/v1alpha1), MPIJob (kubeflow.org/v2beta1) or PyTorchJob (kubeflow.org/v1).
    """
    namespace: LabelName | None = None
    """Namespace of the job. null uses the context's namespace or, inside a pod, the pod's own namespace."""
    context: Annotated[str, Field(max_length=256)] | None = None
    """Context in the kubeconfig. null uses the current context or, inside a pod without a kubeconfig, the
    pod's service account.
    """
    image: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    """Container image that contains nbtrain. null uses resources.image."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy of the image. null uses Kubernetes' default, which is Always for the tag latest."""
    image_pull_secrets: list[ObjectName] = []
    """Names of the Secrets that hold the credentials of the image registry."""
    python: Program = "python3"
    """Python interpreter in the image: its path, or a name on the PATH."""
    workspace_path: ContainerPath = "/workspace"
    """Path of the workspace in the container. Its output/ holds the run directory and its data/ holds the
    data, so the workspace must be on a volume in `mounts` to which every pod can write.
    """
    mounts: list[MountConfig] = []
    """Persistent volume claims to mount in the container."""
    shared_memory_bytes: PositiveBytes | None = None
    """Size of /dev/shm in bytes. It is kept in memory and counts towards the container's memory limit. null
    sets no size.
    """
    gpu_resource: LabelKey = "nvidia.com/gpu"
    """Name of the GPU resource. Each pod requests resources.gpus_per_node units of it."""
    extra_resources: dict[LabelKey, PositiveSmallCount] = {}
    """Other devices that each pod requests, e.g. {rdma/hca: 1}."""
    capabilities: list[Annotated[str, Field(pattern="^[A-Z_]+$", max_length=64)]] = []
    """Linux capabilities to add to the container, e.g. [IPC_LOCK] for RDMA."""
    queue: ObjectName | None = None
    """Queue to submit the job to. It is set in t9kScheduler of a DeepSpeedJob, in Kueue's label of a
    TrainJob, and in schedulingPolicy of an MPIJob or PyTorchJob. null uses the cluster's default scheduler.
    """
    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    """Priority in the queue of a DeepSpeedJob, from 0 to 100. null sets no priority."""
    priority_class: ObjectName | None = None
    """Name of a PriorityClass (for a TrainJob, of Kueue's WorkloadPriorityClass). null sets no class."""
    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels that a node must have, e.g. {nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB}."""
    tolerations: list[TolerationConfig] = []
    """Taints that the pods tolerate."""
    node_affinity: list[NodeAffinityConfig] = []
    """Conditions on the nodes that the pods run on. Conditions without a weight are requirements."""
    pod_affinity: list[PodAffinityConfig] = []
    """Conditions on the pods in the same node, rack or zone. Conditions without a weight are requirements."""
    security_context: SecurityContextConfig = SecurityContextConfig.model_construct()
    """Users and groups of the processes in the pods."""
    host_network: bool = False
    """Whether the pods use the network of their nodes instead of the cluster's network, as some RDMA setups
    require. Each pod then occupies ports of its node.
    """
    secret_variables: list[SecretVariableConfig] = []
    """Environment variables whose values are stored in Secrets."""
    secret_files: list[SecretFilesConfig] = []
    """Secrets that are mounted as files."""
    service_account: ObjectName | None = None
    """Service account of the pods. null uses the namespace's default."""
    labels: dict[LabelKey, LabelValue] = {}
    """Labels of the Kubernetes object and its pods, in addition to nbtrain's own labels."""
    annotations: dict[LabelKey, Annotation] = {}
    """Annotations of the Kubernetes object and its pods."""
    clean_up_policy: Literal["none", "unfinished", "all"] | None = None
    """Pods that the operator removes when the job ends. null removes no pods, so that their logs are kept. A
    TrainJob has no such policy: its pods remain until it is deleted.
    """
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] | None = None
    """Policy by which the operator restarts a pod. null means ExitCode, which restarts only a pod that was
    killed (exit codes from 128). For an MPIJob, which has no ExitCode, null means Never; for a TrainJob, its
    runtime decides. Failed ranks are restarted by the supervisor, never by the operator.
    """
    back_off_limit: SmallCount | None = None
    """Number of restarts by the operator after which the job counts as failed. null uses the operator's
    default.
    """
    active_deadline_seconds: Annotated[int, Field(ge=1, le=YEAR_SECONDS)] | None = None
    """Seconds after which the operator ends the pods, counted from the moment when the operator starts the
    job. Time in the queue does not count, and for a TrainJob the count starts again after each pause. If
    backend.deadline_seconds is set too, backend.deadline_seconds must be shorter, because the job saves a
    checkpoint at that deadline. null sets no limit.
    """
    min_nodes: PositiveSmallCount | None = None
    """Minimum number of pods of an elastic job (DeepSpeedJob or PyTorchJob). Requires backend.elastic: a
    restart counts the available pods and continues with the first ones. null means that the job is not
    elastic.
    """
    max_nodes: PositiveSmallCount | None = None
    """Maximum number of pods of an elastic job, which must equal resources.nodes. null means
    resources.nodes.
    """
    autotune: Literal["none", "run", "tune"] = "none"
    """DeepSpeed's autotuner, which a DeepSpeedJob starts with DeepSpeed's launcher. none does not run the
    autotuner. tune searches for the best ZeRO stage and micro-batch size and does not train. run searches and
    then trains with the best stage and size.
    """
    debug_mode: bool = False
    """DeepSpeedJob: whether the pods start sshd instead of the training, so that you can open a shell in
    them.
    """
    runtime: ObjectName = "torch-distributed"
    """TrainJob: name of the training runtime. Its replicated job and its container must be named node."""
    runtime_kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"
    """TrainJob: kind of the runtime, which belongs to the cluster (ClusterTrainingRuntime) or to the
    namespace (TrainingRuntime).
    """

    @property
    def pod_restart_policy(self) -> str | None:
        """Value of `restart_policy`, or the default for this kind of object.

        None leaves the policy to the runtime of the TrainJob.
        """
        default = {"DeepSpeedJob": "ExitCode", "MPIJob": "Never", "PyTorchJob": "ExitCode"}
        return self.restart_policy or default.get(self.workload)
