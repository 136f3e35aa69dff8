"""The cluster's reports on a job: the state in engine.json; conditions, pods and events in kubernetes.json.

The job page reads these files, so the reports stay readable after the objects are deleted.
"""

import contextlib
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.jobstate import FAILED, QUEUED
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.run_directory.records import Record
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.jobs.backends.kubernetes.cluster import Cluster, event_time
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Kind, Manifest
from nbtrain.jobs.backends.kubernetes.manifests.names import JOB_ID
from nbtrain.jobs.backends.kubernetes.refusals import Refused
from nbtrain.jobs.backends.kubernetes.replicas import (
    failure_words,
    preemption_words,
    replica,
    waiting_words,
)
from nbtrain.jobs.backends.kubernetes.states import conditions_table, object_word, restarts
from nbtrain.jobs.backends.kubernetes.tolerant import mapping

# Seconds between two requests for events while nothing changes: a request returns all the namespace's events.
EVENTS_SECONDS = 60.0
MOST_EVENTS = 200
# Number of lines to keep from the end of a pod's log.
MOST_LINES = 1000


@dataclass
class KubernetesDetails(Record):
    """Contents of kubernetes.json: the last reports on the object and its pods."""

    known: bool = True
    """Whether states.py knows the object's state. If not, the last known state is kept."""
    restarts: int = 0
    conditions: list[dict[str, str]] = field(default_factory=list)
    replicas: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    events_at: float = 0.0
    """Time of the last request for events, in seconds since the epoch."""


def ask(
    cluster: Cluster, handle: KubernetesHandle, job_id: str, last: str, before: KubernetesDetails | None
) -> tuple[EngineWord, KubernetesDetails]:
    """Return the current state of the object and the details about its pods.

    `last` is the last known state of the object, and `before` contains the last known details, or is None.
    Raises Unanswered and Refused.
    """
    before = before or KubernetesDetails()
    item, name = cluster.get(KINDS[handle.kind], handle.name), f"{handle.kind} {handle.name}"
    now = time.time()
    if item is None or item["metadata"].get("uid") != (handle.uid or own_uid(item, job_id)):
        return EngineWord(None, "", now, engine=name), before
    word = object_word(item, last)
    has_master = "Master" in mapping(mapping(item.get("spec")).get("pytorchReplicaSpecs"))
    pods = [replica(pod, has_master) for pod in cluster.pods(job_id)]
    reason = word.reason
    if word.state == FAILED:
        reason = "; ".join(words for words in (failure_words(pods), word.reason) if words)
    elif mapping(mapping(mapping(item.get("spec")).get("runMode")).get("debug")).get("enabled") is True:
        reason = "debug mode: the pods run without training, so that they can be inspected"
    elif word.state == QUEUED:
        reason = waiting_words(pods) or preemption_words(pods) or word.reason
    found = [pod.to_dict() for pod in pods]
    details = KubernetesDetails(word.known, restarts(item), conditions_table(item), found)
    same = (before.conditions, before.replicas) == (details.conditions, details.replicas)
    details.events, details.events_at = before.events, before.events_at
    if not same or not 0 <= now - before.events_at < EVENTS_SECONDS:
        # The job page works without the permission to read events.
        with contextlib.suppress(Refused):
            details.events = engine_events(cluster, handle)[-MOST_EVENTS:]
        details.events_at = now
    return EngineWord(word.state, reason, now, engine=name), details


def own_uid(item: Manifest | None, job_id: str) -> str:
    """Return the uid of this job's object; "" if the object belongs to another job.

    The uid is looked up here if `nbtrain submit` was killed before it received the server's response.
    """
    metadata = mapping((item or {}).get("metadata"))
    return str(metadata.get("uid")) if mapping(metadata.get("labels")).get(JOB_ID) == job_id else ""


def speaker(kind: Kind, replicas: list[dict[str, Any]], node: int) -> str:
    """Return the newest pod whose log contains the output of a node's agent; "" if there is no such pod."""
    if kind.launcher == "launcher":
        pods = [replica for replica in replicas if replica["node"] is None]
    else:
        pods = [replica for replica in replicas if replica["node"] == (0 if kind.launcher else node)]
    return max(pods, key=lambda pod: pod["created"])["pod"] if pods else ""


def keep_last_logs(job: JobDir, cluster: Cluster, kind: Kind, replicas: list[dict[str, Any]]) -> None:
    """Save the log of a pod that ended before its agent could write to the run directory."""
    for pod in replicas:
        path = job.node_log(pod["node"] or 0)
        if pod["exit_code"] and not path.exists():
            with contextlib.suppress(JobError):
                lines = cluster.log(pod["pod"], kind.container, tail_lines=MOST_LINES)
                files.write_text(path, "".join(f"{line}\n" for line in lines))


def engine_events(cluster: Cluster, handle: KubernetesHandle) -> list[dict[str, Any]]:
    """Return the cluster's events about the job, in the format of the job's own events."""
    return [
        {
            "sequence": number,
            "time": _epoch(event_time(event)),
            "writer": "kubernetes",
            "kind": "engine",
            "message": f"{event.get('reason') or 'Event'}: {event.get('message') or ''}".rstrip(": "),
            "type": event.get("type") or "Normal",
            "reason": event.get("reason") or "",
            "object": "/".join(
                str((event.get("involvedObject") or {}).get(key) or "") for key in ("kind", "name")
            ),
        }
        for number, event in enumerate(cluster.events({handle.name}))
    ]


def _epoch(stamp: str) -> float:
    """Return an RFC 3339 time in seconds since the epoch; 0 if it is not a valid time."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
