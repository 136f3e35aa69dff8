"""PyTorchJob (kubeflow.org/v1, legacy): a master and workers, each running the agent.

The operator sets RANK to the pod's number, which is 0 for the master. An elastic job has only workers and
gets no RANK; its pods read their number from their own label.
"""

from typing import Any

from nbtrain.jobs.backends.kubernetes.manifests import pods
from nbtrain.jobs.backends.kubernetes.manifests.run_policy import run_policy
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

# Name by which the operator recognizes the training container.
CONTAINER = "pytorch"
INDEX_LABEL = "metadata.labels['training.kubeflow.org/replica-index']"


def pytorch_job(work: PodWork, namespace: str | None) -> dict[str, Any]:
    """Return the PyTorchJob's manifest."""
    section = work.section
    container = pods.container(work, CONTAINER, work.command)
    elastic = section.min_nodes is not None
    if elastic:
        number = {"name": "NBTRAIN_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX_LABEL}}}
        container["env"] = [*container["env"], number]

    def replicas(count: int) -> dict[str, Any]:
        return {
            "replicas": count,
            "restartPolicy": section.pod_restart_policy,
            "template": pods.template(work, container),
        }

    parts = {"Worker": work.nodes} if elastic else {"Master": 1, "Worker": work.nodes - 1}
    spec: dict[str, Any] = {
        "nprocPerNode": str(work.ranks_per_node),
        "runPolicy": run_policy(section),
        "pytorchReplicaSpecs": {role: replicas(count) for role, count in parts.items() if count},
    }
    if elastic:
        spec["elasticPolicy"] = {
            "minReplicas": section.min_nodes,
            "maxReplicas": section.max_nodes or work.nodes,
            "rdzvBackend": "c10d",
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": work.metadata(namespace),
        "spec": spec,
    }
