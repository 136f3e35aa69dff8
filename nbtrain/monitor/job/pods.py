"""A job's pods and events as its cluster reported them, from kubernetes.json.

The process that queries the cluster writes this file.
"""

from dataclasses import dataclass
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import JobDir

# Condition types, in lower case, that mean that an object has failed (jobs/backends/kubernetes/states.py).
FAILURES = ("failed", "error")
SAYS_NOTHING = ("Failed", "Error")


@dataclass(frozen=True)
class Pod:
    """The newest pod of a node."""

    pod: str
    host: str
    phase: str
    restarts: int
    """Number of restarts of the pod's containers."""
    exit_code: int | None
    """Exit code of the container that ended last; None if no container has ended."""
    reason: str
    """Why the pod is waiting, or how it ended; "" while it is running."""


def pods_of(job: JobDir) -> dict[int, Pod]:
    """Return {node: its newest pod}; {} on other backends."""
    said = (files.read_json(job.kubernetes_json) or {}).get("replicas") or []
    known = sorted((pod for pod in said if pod.get("node") is not None), key=lambda pod: pod["created"])
    names = Pod.__dataclass_fields__
    return {pod["node"]: Pod(**{name: pod[name] for name in names}) for pod in known}


def cluster_events(job: JobDir) -> list[dict[str, Any]]:
    """Return the cluster's events in the format of a job's events; [] on other backends."""
    return (files.read_json(job.kubernetes_json) or {}).get("events") or []


def reason_of_failure(job: JobDir) -> str | None:
    """Return the cluster's reason why the job's object failed; None if it gave no reason.

    A reason that only repeats the state, such as PyTorchJobFailed, is ignored.
    """
    said = (files.read_json(job.kubernetes_json) or {}).get("conditions") or []
    words = [
        condition["reason"]
        for condition in said
        if condition["type"].lower() in FAILURES and condition["status"] == "True"
    ]
    return next((word for word in words if word[:1].isupper() and not word.endswith(SAYS_NOTHING)), None)
