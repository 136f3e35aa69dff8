"""What the cluster says of a job: its word in engine.json, and conditions and pods in kubernetes.json."""

import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from nbtrain.base.jobstate import FAILED, QUEUED
from nbtrain.base.node_records import EngineWord
from nbtrain.base.records import Record
from nbtrain.base.rundir import JobDir
from nbtrain.jobs.backends.kubernetes.cluster import Cluster, event_time
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Manifest
from nbtrain.jobs.backends.kubernetes.names import JOB_ID
from nbtrain.jobs.backends.kubernetes.replicas import failure_words, replica, waiting_words
from nbtrain.jobs.backends.kubernetes.states import conditions_table, object_word, restarts
from nbtrain.jobs.backends.kubernetes.tolerant import mapping


@dataclass
class KubernetesDetails(Record):
    """kubernetes.json: what the object and its pods said when they were asked last."""

    known: bool = True
    """False: the object said a word that is in no table; its state is the last one that was known."""
    restarts: int = 0
    conditions: list[dict[str, str]] = field(default_factory=list)
    replicas: list[dict[str, Any]] = field(default_factory=list)


def details_path(job: JobDir) -> Path:
    return job.path / "kubernetes.json"


def ask(
    cluster: Cluster, handle: KubernetesHandle, job_id: str, last: str = QUEUED
) -> tuple[EngineWord, KubernetesDetails]:
    """The object's and its pods' state now. Raises Unanswered, Refused."""
    item, name = cluster.get(KINDS[handle.kind], handle.name), f"{handle.kind} {handle.name}"
    now = time.time()
    if item is None or item["metadata"].get("uid") != (handle.uid or own_uid(item, job_id)):
        return EngineWord(None, "", now, engine=name), KubernetesDetails()
    word = object_word(item, last)
    pods = [replica(pod) for pod in cluster.pods(job_id)]
    reason = word.reason
    if word.state == FAILED:
        reason = "; ".join(words for words in (failure_words(pods), word.reason) if words)
    elif word.state == QUEUED:
        reason = waiting_words(pods) or word.reason
    found = [pod.to_dict() for pod in pods]
    details = KubernetesDetails(word.known, restarts(item), conditions_table(item), found)
    return EngineWord(word.state, reason, now, engine=name), details


def own_uid(item: Manifest | None, job_id: str) -> str:
    """The uid of an object if it is this job's, for a submit that did not live to hear it; else ""."""
    metadata = mapping((item or {}).get("metadata"))
    return str(metadata.get("uid")) if mapping(metadata.get("labels")).get(JOB_ID) == job_id else ""


def engine_events(cluster: Cluster, handle: KubernetesHandle) -> list[dict[str, Any]]:
    """The cluster's events of the job, in the form of the job's own."""
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
    """RFC 3339 as seconds since the epoch; 0 if it is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
