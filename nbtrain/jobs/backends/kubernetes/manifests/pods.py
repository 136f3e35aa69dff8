"""Build the parts of a core/v1 pod: variables, resources, volumes, container and template."""

from typing import Any

from nbtrain.jobs.backends.kubernetes.manifests.names import JOB_ID
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

SHARED_MEMORY = "shared-memory"
LOCAL_CHECKPOINTS = "local-checkpoints"
MIB = 1 << 20
# Resources for mpirun and for one ssh process per worker.
LAUNCHERS_CPUS, LAUNCHERS_MEMORY = "1", "2Gi"


def variables(work: PodWork) -> list[dict[str, Any]]:
    """Return the container's environment variables. A Secret appears only by its name and key."""
    plain: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in work.variables.items()]
    return plain + [
        {"name": variable.name, "valueFrom": {"secretKeyRef": {"name": variable.secret, "key": variable.key}}}
        for variable in work.section.secret_variables
    ]


def resources(work: PodWork) -> dict[str, Any]:
    """Return a pod's resources. Request and limit are equal, so that the pod is evicted last."""
    amounts: dict[str, Any] = {}
    if work.cpus:
        amounts["cpu"] = str(work.cpus)
    if work.memory_bytes:
        amounts["memory"] = quantity(work.memory_bytes)
    if work.gpus:
        amounts[work.section.gpu_resource] = work.gpus
    amounts |= work.section.extra_resources
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def launchers_resources(work: PodWork) -> dict[str, Any]:
    """Return the resources of a launcher pod, which runs no ranks; a quota rejects pods without resources."""
    amounts = {"cpu": LAUNCHERS_CPUS} if work.cpus else {}
    amounts |= {"memory": LAUNCHERS_MEMORY} if work.memory_bytes else {}
    return {"requests": dict(amounts), "limits": dict(amounts)} if amounts else {}


def quantity(num_bytes: int) -> str:
    """Return a size as a Kubernetes quantity, such as "65536Mi" for 64 GiB.

    A size that is not a whole number of MiB is given in bytes.
    """
    return f"{num_bytes // MIB}Mi" if num_bytes % MIB == 0 else str(num_bytes)


def volumes(work: PodWork) -> list[dict[str, Any]]:
    """Return the volumes: shared memory, each persistent volume claim once, and each mounted Secret."""
    memory: dict[str, Any] = {"medium": "Memory"}
    if work.section.shared_memory_bytes:
        memory["sizeLimit"] = quantity(work.section.shared_memory_bytes)
    written: list[dict[str, Any]] = [{"name": SHARED_MEMORY, "emptyDir": memory}]
    for claim, name in _claims(work).items():
        written.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
    if work.local_dir is not None:
        # An emptyDir outlives the container, but not the pod.
        written.append({"name": LOCAL_CHECKPOINTS, "emptyDir": {}})
    for number, secret in enumerate(work.section.secret_files):
        written.append({"name": f"secret-{number}", "secret": {"secretName": secret.secret}})
    return written


def _claims(work: PodWork) -> dict[str, str]:
    """Return {claim: volume name}. All mount paths of a claim share one volume."""
    claims = dict.fromkeys(mount.claim for mount in work.section.mounts)
    return {claim: f"claim-{number}" for number, claim in enumerate(claims)}


def mounts(work: PodWork) -> list[dict[str, Any]]:
    """Return the volume mounts of the container."""
    names = _claims(work)
    written: list[dict[str, Any]] = [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]
    for mount in work.section.mounts:
        one: dict[str, Any] = {"name": names[mount.claim], "mountPath": mount.mount_path}
        if mount.sub_path is not None:
            one["subPath"] = mount.sub_path
        if mount.read_only:
            one["readOnly"] = True
        written.append(one)
    if work.local_dir is not None:
        written.append({"name": LOCAL_CHECKPOINTS, "mountPath": work.local_dir})
    for number, secret in enumerate(work.section.secret_files):
        written.append({"name": f"secret-{number}", "mountPath": secret.mount_path, "readOnly": True})
    return written


def security_context(work: PodWork) -> dict[str, Any]:
    """Return the container's security context with the requested capabilities; {} if there are none."""
    added = list(work.section.capabilities)
    return {"capabilities": {"add": added}} if added else {}


def container(work: PodWork, name: str, command: list[str] | None, whole: bool = True) -> dict[str, Any]:
    """Return the training container.

    Without `whole`, return the container of a launcher pod, which runs no ranks and requests no devices.
    """
    written: dict[str, Any] = {"name": name, "image": work.image}
    if work.section.image_pull_policy:
        written["imagePullPolicy"] = work.section.image_pull_policy
    if command is not None:
        written["command"] = list(command)
    written["workingDir"] = work.section.workspace_path
    written["env"] = variables(work)
    if asked := resources(work) if whole else launchers_resources(work):
        written["resources"] = asked
    written["volumeMounts"] = mounts(work)
    if context := security_context(work):
        written["securityContext"] = context
    return written


def template(work: PodWork, main: dict[str, Any]) -> dict[str, Any]:
    """Return a PodTemplateSpec around a container."""
    spec: dict[str, Any] = {"containers": [main], **placement(work)}
    if work.section.priority_class:
        spec["priorityClassName"] = work.section.priority_class
    return {"metadata": template_metadata(work), "spec": spec}


def placement(work: PodWork) -> dict[str, Any]:
    """Return the fields of a pod's spec other than its containers and its priority class.

    A TrainJob's patches accept only these fields.
    """
    section = work.section
    written: dict[str, Any] = {
        "volumes": volumes(work),
        "terminationGracePeriodSeconds": work.grace_seconds,
    }
    if section.node_selector:
        written["nodeSelector"] = dict(section.node_selector)
    if section.tolerations:
        written["tolerations"] = [
            {**toleration.model_dump(exclude_none=True), "operator": toleration.written_operator}
            for toleration in section.tolerations
        ]
    if rules := affinity(work):
        written["affinity"] = rules
    if context := pod_security_context(work):
        written["securityContext"] = context
    if section.host_network:
        written["hostNetwork"] = True
        # Otherwise, the pods would resolve names only with their node's DNS.
        written["dnsPolicy"] = "ClusterFirstWithHostNet"
    if section.service_account:
        written["serviceAccountName"] = section.service_account
    if section.image_pull_secrets:
        written["imagePullSecrets"] = [{"name": name} for name in section.image_pull_secrets]
    return written


def pod_security_context(work: PodWork) -> dict[str, Any]:
    """Return the pod's security context; {} if no field is set."""
    context = work.section.security_context
    written = {
        "runAsUser": context.run_as_user,
        "runAsGroup": context.run_as_group,
        "fsGroup": context.fs_group,
        "supplementalGroups": list(context.supplemental_groups) or None,
        "runAsNonRoot": context.run_as_non_root,
    }
    return {name: value for name, value in written.items() if value is not None}


def affinity(work: PodWork) -> dict[str, Any]:
    """Return the affinity rules for nodes and for other pods; {} if there are none."""
    written: dict[str, Any] = {}
    required, preferred = [], []
    for node in work.section.node_affinity:
        condition: dict[str, Any] = {"key": node.key, "operator": node.operator}
        if node.values:
            condition["values"] = list(node.values)
        if node.weight is None:
            required.append(condition)
        else:
            preferred.append({"weight": node.weight, "preference": {"matchExpressions": [condition]}})
    # All conditions are in one term: with several terms, a node would only have to match one of them.
    terms: Any = {"nodeSelectorTerms": [{"matchExpressions": required}]} if required else None
    if parts := _affinity_parts(terms, preferred):
        written["nodeAffinity"] = parts
    for name, anti in (("podAffinity", False), ("podAntiAffinity", True)):
        required, preferred = [], []
        for pod in work.section.pod_affinity:
            if pod.anti is not anti:
                continue
            labels = dict(pod.labels) or {JOB_ID: work.job_id}
            term = {"topologyKey": pod.topology_key, "labelSelector": {"matchLabels": labels}}
            if pod.weight is None:
                required.append(term)
            else:
                preferred.append({"weight": pod.weight, "podAffinityTerm": term})
        if parts := _affinity_parts(required or None, preferred):
            written[name] = parts
    return written


def _affinity_parts(required: Any, preferred: list[dict[str, Any]]) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if required is not None:
        written["requiredDuringSchedulingIgnoredDuringExecution"] = required
    if preferred:
        written["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return written


def template_metadata(work: PodWork) -> dict[str, Any]:
    """Return the pods' metadata: the labels by which the job's pods are found, and annotations."""
    written: dict[str, Any] = {"labels": work.labels}
    if work.section.annotations:
        written["annotations"] = dict(work.section.annotations)
    return written
