"""DeepSpeedJob (batch.tensorstack.dev/v1beta1): DeepSpeed's launcher in worker 0 starts an agent in each pod.

Each pod gets one slot: the agent starts the pod's ranks itself, and its RANK is the number of its pod. By
default, the launcher would limit CUDA_VISIBLE_DEVICES to one device and would insert --local_rank between
`env` and the command. `env -u` undoes the former, and localRank: false prevents the latter.
"""

from typing import Any

from nbtrain.jobs.backends.kubernetes.manifests import pods
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

CLEAN_UP = {"none": "None", "unfinished": "Unfinished", "all": "All"}


def deepspeed_job(work: PodWork, namespace: str | None) -> dict[str, Any]:
    """Return the DeepSpeedJob's manifest."""
    section = work.section
    config: dict[str, Any] = {
        "slotsPerWorker": 1,
        "localRank": False,
        "run": {"exec": ["env", "-u", "CUDA_VISIBLE_DEVICES", *work.command]},
    }
    if section.autotune != "none":
        # The tuner starts one rank in each slot. It can start only scripts, not modules or other programs.
        config = {
            "slotsPerWorker": work.ranks_per_node,
            "localRank": False,
            "run": {"python": work.tuning},
            "autotune": section.autotune,
        }
    policy: dict[str, Any] = {"cleanUpPolicy": CLEAN_UP[section.clean_up_policy or "none"]}
    if section.back_off_limit is not None:
        policy["backoffLimit"] = section.back_off_limit
    if section.active_deadline_seconds is not None:
        policy["activeDeadlineSeconds"] = section.active_deadline_seconds
    spec: dict[str, Any] = {
        "config": config,
        "runPolicy": policy,
        "worker": {
            "replicas": work.nodes,
            "restartPolicy": section.pod_restart_policy,
            "template": pods.template(work, pods.container(work, "worker", None)),
        },
    }
    if section.queue is not None:
        scheduler: dict[str, Any] = {"queue": section.queue}
        if section.priority is not None:
            scheduler["priority"] = section.priority
        spec["scheduler"] = {"t9kScheduler": scheduler}
    if section.min_nodes is not None:
        spec["elastic"] = {
            "enabled": True,
            "minReplicas": section.min_nodes,
            "maxReplicas": section.max_nodes or work.nodes,
            "expectedReplicas": work.nodes,
        }
    if section.debug_mode:
        # In debug mode, the pods run the operator's own command, sshd.
        spec["runMode"] = {"debug": {"enabled": True, "replicaSpecs": [{"type": "worker"}]}}
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "DeepSpeedJob",
        "metadata": work.metadata(namespace),
        "spec": spec,
    }
