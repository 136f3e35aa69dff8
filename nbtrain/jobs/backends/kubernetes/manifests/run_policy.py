"""The runPolicy field of MPIJob and PyTorchJob: clean-up, retries, deadline, queue."""

from typing import Any

from nbtrain.config.sections.kubernetes_section import KubernetesConfig

CLEAN_UP = {"none": "None", "unfinished": "Running", "all": "All"}


def run_policy(section: KubernetesConfig) -> dict[str, Any]:
    """Return the value of spec.runPolicy."""
    policy: dict[str, Any] = {"cleanPodPolicy": CLEAN_UP[section.clean_up_policy or "none"]}
    if section.back_off_limit is not None:
        policy["backoffLimit"] = section.back_off_limit
    if section.active_deadline_seconds is not None:
        policy["activeDeadlineSeconds"] = section.active_deadline_seconds
    scheduling = {"queue": section.queue, "priorityClass": section.priority_class}
    if written := {name: value for name, value in scheduling.items() if value is not None}:
        policy["schedulingPolicy"] = written
    return policy
