"""TrainJob (trainer.kubeflow.org/v1alpha1) on a torch runtime: each pod's container runs the agent.

The runtime sets PET_NODE_RANK to the pod's number. Settings for which the TrainJob has no field (volumes,
placement, capabilities) are written as a patch to the runtime's replicated job `node`.
"""

from typing import Any

from nbtrain.config.sections.kubernetes_section import PRIORITY_LABEL, QUEUE_LABEL
from nbtrain.jobs.backends.kubernetes.manifests import pods
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

GROUP = "trainer.kubeflow.org"
# Names of the replicated job and its container in the stock runtimes.
NODE = "node"
# Manager that the patch names as its owner.
MANAGER = "nbtrain"


def train_job(work: PodWork, namespace: str | None) -> dict[str, Any]:
    """Return the TrainJob's manifest."""
    section = work.section
    metadata = work.metadata(namespace)
    if section.queue is not None:
        metadata["labels"] = {**metadata["labels"], QUEUE_LABEL: section.queue}
    if section.priority_class is not None:
        metadata["labels"] = {**metadata["labels"], PRIORITY_LABEL: section.priority_class}
    trainer: dict[str, Any] = {
        "image": work.image,
        "command": work.command,
        "env": pods.variables(work),
        "numNodes": work.nodes,
        "numProcPerNode": work.ranks_per_node,
    }
    if asked := pods.resources(work):
        trainer["resourcesPerNode"] = asked
    spec: dict[str, Any] = {
        "runtimeRef": {"apiGroup": GROUP, "kind": section.runtime_kind, "name": section.runtime},
        "trainer": trainer,
        "runtimePatches": [_patch(work)],
    }
    if section.active_deadline_seconds is not None:
        spec["activeDeadlineSeconds"] = section.active_deadline_seconds
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}


def _patch(work: PodWork) -> dict[str, Any]:
    container: dict[str, Any] = {"name": NODE, "volumeMounts": pods.mounts(work)}
    if context := pods.security_context(work):
        container["securityContext"] = context
    pod = {
        "metadata": pods.template_metadata(work),
        "spec": {"containers": [container], **pods.placement(work)},
    }
    job = {"name": NODE, "template": {"spec": {"template": pod}}}
    return {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
    }
