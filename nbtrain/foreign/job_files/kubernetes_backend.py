"""Reads the fields of backend.kubernetes from a manifest: queue, claims, devices, labels, operator options.

Every value in the manifest becomes a field or is listed with its name, so that nothing is dropped silently.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from nbtrain.config.rules.environment import is_secret, why_reserved
from nbtrain.config.rules.kubernetes import NO_PLACE, RESERVED_PATHS
from nbtrain.config.sections.fields import YEAR_SECONDS
from nbtrain.config.sections.kubernetes_section import PRIORITY_LABEL, QUEUE_LABEL
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.syntax.located import Value, quantity
from nbtrain.foreign.syntax.yaml_tree import Tree

SECTION = "backend.kubernetes"
# Resource names under which device plugins offer GPUs and other accelerators. Each device gets one rank.
GPU_RESOURCES = frozenset(
    {
        *("nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"),
        *("huawei.com/Ascend910", "huawei.com/Ascend910B", "huawei.com/npu", "huawei.com/ascend-1980"),
        *("habana.ai/gaudi", "cambricon.com/mlu", "metax-tech.com/gpu", "hygon.com/dcu", "mthreads.com/gpu"),
        *("aliyun.com/gpu", "baidu.com/gpu", "volcano.sh/gpu-number", "aws.amazon.com/neuron"),
    }
)
# NVIDIA's plugin names a resource for each MIG profile, e.g. nvidia.com/mig-1g.10gb.
MIG_PREFIX = "nvidia.com/mig-"
# Values that the cluster or the operator writes.
WRITTEN_BY_CLUSTER = frozenset(
    f"metadata.{name}"
    for name in (
        *("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"),
        *("ownerReferences", "finalizers", "generateName"),
    )
) | {"status", "apiVersion", "kind", "metadata.name"}


def is_gpu(resource: str) -> bool:
    """Return whether a container's resource is a GPU, judging by its name."""
    return resource in GPU_RESOURCES or resource.startswith(MIG_PREFIX)


class PlaceReader:
    """Reader of one manifest: each value becomes a field or is listed as not imported."""

    def __init__(self, tree: Tree, job: Job, read: Iterator[str] | tuple[str, ...] = ()):
        self.tree, self.job = tree, job
        self.taken: set[str] = {*WRITTEN_BY_CLUSTER, *read}
        self.reasons: dict[str, str] = {}
        self.mounts: list[dict[str, Any]] = []
        self.secrets: list[dict[str, str]] = []

    def take(self, *dotted: str) -> Value | None:
        """Return the first of several keys that exists, and mark all of them as read."""
        self.taken.update(dotted)
        return self.tree.first(*dotted)

    def set(
        self, field: str, value: Value | None, convert: Callable[[Any], Any] = lambda found: found
    ) -> None:
        """Set a field of backend.kubernetes, or list the value as not imported.

        A value is not imported if this kind of job lacks the field, or if the field already has another
        value.
        """
        if value is None or value.value is None:
            return
        if why := NO_PLACE.get(self.job.kind, {}).get(field):
            self.job.left.append((value.place, f"{field}: not imported from a {self.job.kind}; {why}."))
            return
        key, found = f"{SECTION}.{field}", Value(convert(value.value), value.place)
        before = self.job.settings.setdefault(key, found)
        if before.value != found.value:
            words = (
                f"{field} {found.value}: not imported; {before.place} sets {before.value}, and a run can "
                "have only one value."
            )
            self.job.left.append((value.place, words))

    def leave(self, dotted: str, why: str) -> None:
        """List a key as not imported, with a reason."""
        if (value := self.tree.find(dotted)) is not None:
            self.taken.add(dotted)
            self.job.left.append((value.place, f"{dotted.rpartition('spec.')[2]}: not imported; {why}."))

    def children(self, dotted: str) -> dict[str, Any]:
        value = self.tree.find(dotted)
        return value.value if value is not None and isinstance(value.value, dict) else {}

    def items(self, dotted: str) -> list[Any]:
        value = self.tree.find(dotted)
        return value.value if value is not None and isinstance(value.value, list) else []


def read_place(tree: Tree, job: Job, pods: tuple[str, ...], main: str) -> None:
    """Read where a job runs and what its pods need.

    `pods` holds the dotted keys of its pod specs, training pods first. `main` is the name of the training
    container.
    """
    reader = PlaceReader(tree, job)
    job.settings[f"{SECTION}.workload"] = Value(job.kind, tree.places.get("kind", tree.label))
    reader.set("namespace", reader.take("metadata.namespace"))
    _labels(reader, "metadata")
    OPERATORS[job.kind](reader)
    for pod in pods:
        _pod(reader, pod, main)
    if reader.mounts:
        place = next(value.place for value in job.volumes) if job.volumes else tree.label
        job.settings[f"{SECTION}.mounts"] = Value(reader.mounts, place)
    if reader.secrets:
        job.settings[f"{SECTION}.secret_files"] = Value(reader.secrets, tree.label)
    _kind(reader)
    job.left += list(_left(reader))


# --- the operators' own fields ----------------------------------------------------------------------


def _policy(reader: PlaceReader, clean_up: str, words: dict[str, str]) -> None:
    """Read spec.runPolicy. `words` translates the values of its clean-up policy."""
    policy = "spec.runPolicy"
    reader.set("back_off_limit", reader.take(f"{policy}.backoffLimit"))
    deadline = reader.take(f"{policy}.activeDeadlineSeconds")
    if deadline is not None and isinstance(deadline.value, int) and deadline.value > YEAR_SECONDS:
        reader.job.left.append(
            (deadline.place, "activeDeadlineSeconds: not imported, because it is over a year.")
        )
    else:
        reader.set("active_deadline_seconds", deadline)
    reader.set(
        "clean_up_policy", reader.take(f"{policy}.{clean_up}"), lambda word: words.get(str(word), word)
    )
    reader.set("queue", reader.take(f"{policy}.schedulingPolicy.queue"))
    reader.set("priority_class", reader.take(f"{policy}.schedulingPolicy.priorityClass"))


def _elastic(reader: PlaceReader, section: str) -> None:
    least, most = reader.take(f"{section}.minReplicas"), reader.take(f"{section}.maxReplicas")
    if least is None:
        return
    reader.job.settings["backend.elastic"] = Value(True, least.place)
    reader.set("min_nodes", least)
    nodes = reader.job.nodes
    if most is not None and nodes is not None and most.value != nodes.value:
        words = (
            f"maxReplicas {most.value}: not imported; a job never has more pods than "
            f"resources.nodes({nodes.value})"
        )
        reader.job.left.append((most.place, f"{words}. Raise resources.nodes to use more machines."))
    else:
        reader.set("max_nodes", most)


def _deepspeed_job(reader: PlaceReader) -> None:
    reader.take("spec.worker.replicas")
    for name in ("slotsPerWorker", "localRank", "run.python", "run.module", "run.exec", "customCommand"):
        reader.take(f"spec.config.{name}")
    autotune = reader.take("spec.config.autotune")
    if autotune is not None and autotune.value != "none":
        reader.set("autotune", autotune)
    reader.set("queue", reader.take("spec.scheduler.t9kScheduler.queue"))
    reader.set("priority", reader.take("spec.scheduler.t9kScheduler.priority"))
    enabled = reader.take("spec.elastic.enabled")
    if enabled is not None and enabled.value is True:
        reader.take("spec.elastic.expectedReplicas")
        _elastic(reader, "spec.elastic")
    elif enabled is not None:
        reader.take("spec.elastic")
    _policy(reader, "cleanUpPolicy", {"None": "none", "Unfinished": "unfinished", "All": "all"})
    debug = reader.take("spec.runMode.debug.enabled")
    if debug is not None and debug.value is True:
        reader.set("debug_mode", debug)
    reader.set("restart_policy", reader.take("spec.worker.restartPolicy"))


KUBEFLOW_CLEAN_UP = {"None": "none", "Running": "unfinished", "All": "all"}


def _pytorch_job(reader: PlaceReader) -> None:
    reader.take("spec.nprocPerNode")
    if reader.tree.find("spec.elasticPolicy") is not None:
        _elastic(reader, "spec.elasticPolicy")
        reader.take("spec.elasticPolicy.nProcPerNode")
        for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf"):
            reader.leave(f"spec.elasticPolicy.{name}", "nbtrain's agents find each other without it")
        if restarts := reader.take("spec.elasticPolicy.maxRestarts"):
            reader.job.settings["backend.max_restarts"] = restarts
    _policy(reader, "cleanPodPolicy", KUBEFLOW_CLEAN_UP)
    for role in ("Master", "Worker"):
        reader.take(f"spec.pytorchReplicaSpecs.{role}.replicas")
        reader.set("restart_policy", reader.take(f"spec.pytorchReplicaSpecs.{role}.restartPolicy"))


def _mpi_job(reader: PlaceReader) -> None:
    reader.take("spec.slotsPerWorker")
    reader.take("spec.mpiImplementation", "spec.launcherCreationPolicy", "spec.runLauncherAsWorker")
    _policy(reader, "cleanPodPolicy", KUBEFLOW_CLEAN_UP)
    for role in ("Launcher", "Worker"):
        reader.take(f"spec.mpiReplicaSpecs.{role}.replicas")
        policy = reader.take(f"spec.mpiReplicaSpecs.{role}.restartPolicy")
        if policy is not None and policy.value in ("Never", "OnFailure"):
            reader.set("restart_policy", policy)


def _train_job(reader: PlaceReader) -> None:
    for key in ("numNodes", "numProcPerNode", "image", "command", "args", "env"):
        reader.take(f"spec.trainer.{key}")
    _resources(reader, "spec.trainer.resourcesPerNode")
    _variables(reader, "spec.trainer.env")
    labels = reader.job.settings.get(f"{SECTION}.labels")
    kept = dict(labels.value) if labels else {}
    for label, field in ((QUEUE_LABEL, "queue"), (PRIORITY_LABEL, "priority_class")):
        if label in kept:
            place = reader.tree.places[f"metadata.labels.{label}"]
            reader.set(field, Value(kept.pop(label), place))
    if labels:
        reader.job.settings[f"{SECTION}.labels"] = Value(kept, labels.place)
        if not kept:
            del reader.job.settings[f"{SECTION}.labels"]
    name, form = reader.take("spec.runtimeRef.name"), reader.take("spec.runtimeRef.kind")
    reader.take("spec.runtimeRef.apiGroup")
    if name is not None and ("deepspeed" in str(name.value) or "mpi" in str(name.value)):
        words = (
            "starts ranks with mpirun, but nbtrain's agents need a torch runtime such as the default, "
            "torch-distributed"
        )
        reader.job.left.append((name.place, f"runtimeRef {name.value}: not imported; it {words}."))
    else:
        reader.set("runtime", name)
        reader.set("runtime_kind", form)
    reader.set("active_deadline_seconds", reader.take("spec.activeDeadlineSeconds"))


OPERATORS: dict[str, Callable[[PlaceReader], None]] = {
    "DeepSpeedJob": _deepspeed_job,
    "PyTorchJob": _pytorch_job,
    "MPIJob": _mpi_job,
    "TrainJob": _train_job,
}


# --- pods -------------------------------------------------------------------------------------------


def _labels(reader: PlaceReader, metadata: str) -> None:
    for name in ("labels", "annotations"):
        found = {
            str(key): str(reader.tree.texts.get(f"{metadata}.{name}.{key}", value))
            for key, value in reader.children(f"{metadata}.{name}").items()
            if not str(key).startswith(("nbtrain/", "app.kubernetes.io/managed-by", "kubectl.kubernetes.io/"))
        }
        value = reader.take(f"{metadata}.{name}")
        for key in [key for key, text in found.items() if _label_is_secret(key, text)]:
            del found[key]
            words = f"{name}.{key}: not imported; it looks like a secret, which the run YAML would show."
            reader.job.left.append((reader.tree.places[f"{metadata}.{name}.{key}"], words))
        if found and value is not None:
            key = f"{SECTION}.{name}"
            before = reader.job.settings.get(key)
            reader.job.settings[key] = Value({**found, **(before.value if before else {})}, value.place)


def _label_is_secret(key: str, text: str) -> bool:
    """Return whether a label or an annotation has a name like a secret's, or its value contains a secret."""
    return is_secret(re.sub(r"[-.]", "_", key.rpartition("/")[2]), text)


def _pod(reader: PlaceReader, pod: str, main: str) -> None:
    """Read a pod's spec: placement, volumes, and its training container."""
    if pod.endswith(".spec"):
        _labels(reader, f"{pod.removesuffix('.spec')}.metadata")
    selector = reader.take(f"{pod}.nodeSelector")
    if selector is not None and isinstance(selector.value, dict):
        texts = {
            str(key): reader.tree.texts.get(f"{pod}.nodeSelector.{key}", value)
            for key, value in selector.value.items()
        }
        reader.set("node_selector", Value(texts, selector.place))
    tolerations = reader.take(f"{pod}.tolerations")
    if tolerations is not None and isinstance(tolerations.value, list):
        known = ("key", "operator", "value", "effect")
        kept = []
        for at, entry in enumerate(tolerations.value):
            if isinstance(entry, dict):
                kept.append(
                    {
                        name: reader.tree.texts.get(f"{pod}.tolerations.{at}.{name}", value)
                        for name, value in entry.items()
                        if name in known
                    }
                )
                for name in entry.keys() - set(known):
                    where = f"{pod}.tolerations.{at}.{name}"
                    reader.job.left.append(
                        (reader.tree.places[where], f"tolerations.{at}.{name}: nbtrain has no field for it.")
                    )
        reader.set("tolerations", Value(kept, tolerations.place))
    reader.set("service_account", reader.take(f"{pod}.serviceAccountName", f"{pod}.serviceAccount"))
    reader.set("priority_class", reader.take(f"{pod}.priorityClassName"))
    secrets = reader.take(f"{pod}.imagePullSecrets")
    if secrets is not None and isinstance(secrets.value, list):
        names = [entry.get("name") for entry in secrets.value if isinstance(entry, dict)]
        reader.set("image_pull_secrets", Value(names, secrets.place))
    reader.leave(f"{pod}.restartPolicy", "the operator uses the replica's restartPolicy instead")
    reader.leave(
        f"{pod}.terminationGracePeriodSeconds", "nbtrain computes it from backend.shutdown_timeout_seconds"
    )
    containers = reader.items(f"{pod}.containers")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in containers]
    at = names.index(main) if main in names else 0
    if containers:
        _container(reader, pod, f"{pod}.containers.{at}")
    for volume in range(len(reader.items(f"{pod}.volumes"))):
        # Mounted volumes are read with their mounts; claims that are not mounted are ignored.
        reader.take(f"{pod}.volumes.{volume}.name")


def _container(reader: PlaceReader, pod: str, container: str) -> None:
    for name in ("name", "image", "command", "args"):
        reader.take(f"{container}.{name}")
    reader.set("image_pull_policy", reader.take(f"{container}.imagePullPolicy"))
    folder = reader.take(f"{container}.workingDir")
    if folder is not None:
        reader.job.settings[f"{SECTION}.workspace_path"] = Value(str(folder.value).rstrip("/"), folder.place)
    added = reader.take(f"{container}.securityContext.capabilities.add")
    if added is not None and isinstance(added.value, list):
        reader.set("capabilities", added)
    _variables(reader, f"{container}.env")
    reader.take(f"{container}.env")
    _resources(reader, f"{container}.resources")
    _volume_mounts(reader, pod, container)


def _variables(reader: PlaceReader, dotted: str) -> None:
    """Read the variables whose values are in Secrets. The others are read with the command."""
    for at, entry in enumerate(reader.items(f"{dotted}From")):
        if isinstance(entry, dict) and "configMapRef" in entry:
            reader.take(f"{dotted}From.{at}")
    key = f"{SECTION}.secret_variables"
    before = reader.job.settings.get(key)
    found: list[dict[str, Any]] = list(before.value) if before else []
    names = {variable["name"] for variable in found}
    for at, entry in enumerate(reader.items(dotted)):
        if not isinstance(entry, dict) or "valueFrom" not in entry:
            continue
        source, place = entry["valueFrom"], reader.tree.places[f"{dotted}.{at}"]
        secret = source.get("secretKeyRef") if isinstance(source, dict) else None
        if isinstance(secret, dict) and "name" in secret and "key" in secret:
            name = str(entry.get("name"))
            if why_reserved(name):
                continue  # importing.py reports the reason, as for every variable that is not imported
            variable = {"name": name, "secret": secret["name"], "key": secret["key"]}
            secret_place = place
            if name not in names:
                found.append(variable)
            elif variable not in found:
                words = f"env {name}: not imported; another container takes its value from another Secret."
                reader.job.left.append((place, words))
    if found:
        reader.job.settings[key] = Value(found, before.place if before else secret_place)


def _resources(reader: PlaceReader, dotted: str) -> None:
    """Read the container's devices: the GPUs that ranks use, and other devices."""
    extra: dict[str, int] = {}
    place = ""
    for kind in ("requests", "limits"):
        for resource, amount in reader.children(f"{dotted}.{kind}").items():
            key = f"{dotted}.{kind}.{resource}"
            if resource in ("cpu", "memory"):
                reader.take(key)
            elif is_gpu(resource):
                reader.take(key)
                if resource != "nvidia.com/gpu":
                    reader.set("gpu_resource", Value(resource, reader.tree.places[key]))
            elif str(amount).isdigit() and int(amount) > 0:
                reader.take(key)
                extra[resource], place = int(amount), reader.tree.places[key]
    if extra:
        reader.set("extra_resources", Value(extra, place))


def _volume_mounts(reader: PlaceReader, pod: str, container: str) -> None:
    """Read a container's mounts, each with its volume: claims, Secrets and shared memory."""
    volumes = {
        str(entry.get("name")): f"{pod}.volumes.{at}"
        for at, entry in enumerate(reader.items(f"{pod}.volumes"))
        if isinstance(entry, dict)
    }
    reserved = [folder for folder in RESERVED_PATHS[reader.job.kind] if folder != "/dev/shm"]
    for at, mount in enumerate(reader.items(f"{container}.volumeMounts")):
        volume = volumes.get(str(mount.get("name"))) if isinstance(mount, dict) else None
        path = str(mount.get("mountPath", "")).rstrip("/") if isinstance(mount, dict) else ""
        if volume is not None and not any(_inside(path, folder) for folder in reserved):
            _volume_mount(reader, f"{container}.volumeMounts.{at}", mount, path, volume)


def _volume_mount(reader: PlaceReader, where: str, mount: dict[str, Any], path: str, volume: str) -> None:
    """Read one mount, if nbtrain has a field for its kind of volume."""

    def take(*volumes_keys: str) -> None:
        reader.taken |= {f"{where}.{key}" for key in ("name", "mountPath", "subPath", "readOnly")}
        reader.taken |= {f"{volume}.{key}" for key in ("name", *volumes_keys)}

    claim = reader.tree.find(f"{volume}.persistentVolumeClaim.claimName")
    secret = reader.tree.find(f"{volume}.secret.secretName")
    if path == "/dev/shm" and reader.tree.find(f"{volume}.emptyDir") is not None:
        take("emptyDir.medium", "emptyDir.sizeLimit")
        if (size := reader.tree.find(f"{volume}.emptyDir.sizeLimit")) is not None:
            reader.set("shared_memory_bytes", Value(int(quantity(size, "sizeLimit")), size.place))
    elif claim is not None and "subPathExpr" not in mount:
        take("persistentVolumeClaim.claimName", "persistentVolumeClaim.readOnly")
        found = {"claim": claim.value, "mount_path": path}
        if mount.get("subPath"):
            found["sub_path"] = str(mount["subPath"]).strip("/")
        if True in (
            mount.get("readOnly"),
            reader.children(f"{volume}.persistentVolumeClaim").get("readOnly"),
        ):
            found["read_only"] = True
        if found not in reader.mounts:
            reader.mounts.append(found)
    elif (
        secret is not None and not mount.get("subPath") and "items" not in reader.children(f"{volume}.secret")
    ):
        take("secret.secretName", "secret.defaultMode")
        found = {"secret": secret.value, "mount_path": path}
        if found not in reader.secrets:
            reader.secrets.append(found)


def _inside(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


# --- the end ----------------------------------------------------------------------------------------


def _kind(reader: PlaceReader) -> None:
    """Set backend.kind if the manifest has an image and a volume for the workspace.

    Otherwise, add a note that says what is missing. The field workspace_path is set to a folder on the
    volume, and removed if there is no volume.
    """
    job, tree = reader.job, reader.tree
    key = f"{SECTION}.workspace_path"
    writable = [mount for mount in reader.mounts if not mount.get("read_only")]
    asked = job.settings.get(key)
    place = tree.places.get("kind", tree.label)
    if writable:
        if asked is None or not any(_inside(str(asked.value), mount["mount_path"]) for mount in writable):
            if asked is not None:
                words = (
                    f"workingDir {asked.value}: not imported, because it is not on a volume claim. The "
                    f"workspace is {writable[0]['mount_path']}"
                )
                job.left.append((asked.place, f"{words}, where the run directory outlives its pod."))
            job.settings[key] = Value(writable[0]["mount_path"], place)
        if job.image is not None:
            job.settings["backend.kind"] = Value("kubernetes", place)
            return
    lacks = [] if writable else ["persistentVolumeClaim for the workspace (backend.kubernetes.mounts)"]
    lacks += [] if job.image is not None else ["image (resources.image)"]
    words = f"backend.kind stays local: the manifest has no {' and no '.join(lacks)}"
    job.left.append(
        (
            place,
            f"{words}. To use Kubernetes, add both to the command, with backend.kind=kubernetes."
            if len(lacks) > 1
            else f"{words}. To use Kubernetes, add it to the command, with backend.kind=kubernetes.",
        )
    )
    if asked is not None and not writable:
        del job.settings[key]


def _left(reader: PlaceReader) -> Iterator[tuple[str, str]]:
    """Yield (place, text) for the keys that were not read, each at the outermost unread level."""

    def unread(value: Any, dotted: str) -> Iterator[str]:
        if any(_below(dotted, taken) for taken in reader.taken):
            return
        inside = not dotted or any(_below(taken, dotted) for taken in reader.taken)
        if isinstance(value, dict | list) and value and inside:
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            for key, entry in inner:
                yield from unread(entry, f"{dotted}.{key}".lstrip("."))
        elif dotted and value not in (None, {}, [], ""):
            yield dotted

    for dotted in unread(reader.tree.value, ""):
        shown = dotted.rpartition("template.spec.")[2].removeprefix("spec.")
        yield reader.tree.places[dotted], f"{shown}: nbtrain has no field for it."


def _below(dotted: str, above: str) -> bool:
    return dotted == above or dotted.startswith(f"{above}.")
