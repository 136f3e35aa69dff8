"""What a cluster said of a job's pods and events, for its page: kubernetes.json, written by whoever asked."""

from dataclasses import dataclass
from typing import Any

from nbtrain.base import files
from nbtrain.base.rundir import JobDir


@dataclass(frozen=True)
class Pod:
    """The newest pod of one node."""

    pod: str
    host: str
    phase: str
    restarts: int
    """Of its containers."""
    exit_code: int | None
    """Of its container that ended last; None if none has."""
    reason: str
    """Why it waits or how it ended; "" while it runs."""


def pods_of(job: JobDir) -> dict[int, Pod]:
    """{node: its pod}; empty on other backends."""
    said = (files.read_json(job.kubernetes_json) or {}).get("replicas") or []
    known = sorted((one for one in said if one.get("node") is not None), key=lambda one: one["created"])
    names = Pod.__dataclass_fields__
    return {one["node"]: Pod(**{name: one[name] for name in names}) for one in known}


def cluster_events(job: JobDir) -> list[dict[str, Any]]:
    """In the form of the job's own; empty on other backends."""
    return (files.read_json(job.kubernetes_json) or {}).get("events") or []
