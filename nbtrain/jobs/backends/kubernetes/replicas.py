"""The pods of a job as replicas: host, phase, restarts, and why a pod waits or how it ended."""

import contextlib
import re
import signal
from dataclasses import dataclass
from typing import Any

from nbtrain.base.printing.report import Record
from nbtrain.jobs.backends.kubernetes.tolerant import items, mapping, number

# {Kubernetes' reason for a waiting container: explanation}.
WAITING = {
    "ErrImagePull": "the image cannot be pulled",
    "ImagePullBackOff": "the image cannot be pulled",
    "InvalidImageName": "the image's name is not valid",
    "CreateContainerConfigError": "a Secret or ConfigMap that the pod names does not exist",
    "CrashLoopBackOff": "its container keeps exiting",
    "ContainerCreating": "its volumes and network are being prepared",
    "PodInitializing": "its init containers are running",
}
# Reasons in the status of a pod that the kubelet ends for other pods, or because its machine shuts down.
EVICTED = ("Evicted", "Preempting", "NodeShutdown")
# Reason in the condition DisruptionTarget of a pod whose machine is gone; that is a failure, not an eviction.
MACHINE_GONE = "DeletionByPodGC"
SIGNALLED = 128
# Labels with a pod's number, most reliable first. Without such a label, the number is in the pod's name.
INDEX_LABELS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "replica-index",
)
ROLE_LABEL = "training.kubeflow.org/replica-type"
NUMBERED_NAME = re.compile(r"-(worker|master|node-\d+)-(\d+)(-[a-z0-9]+)?$")


@dataclass(frozen=True)
class Replica(Record):
    """A pod of a job, in the form in which the job page shows it."""

    pod: str
    host: str
    phase: str
    restarts: int
    exit_code: int | None
    """Largest exit code of the pod's containers; None if no container has ended."""
    reason: str
    """Why the pod waits or why it ended; "" while it runs."""
    node: int | None = None
    """Number of the node whose agent runs in the pod; None for an MPIJob's launcher, or if unknown."""
    created: str = ""
    disruption: str = ""
    """Why the cluster is evicting the pod; "" if the cluster reports no eviction.

    The reason comes from the condition DisruptionTarget, or from a status such as Evicted. The failure of a
    machine does not count.
    """


def node_of(pod: dict[str, Any], has_master: bool) -> int | None:
    """Return the node number of a pod; None for a launcher pod, or if the number is unknown.

    A PyTorchJob's master is node 0, and its workers follow.
    """
    metadata = mapping(pod.get("metadata"))
    labels, name = mapping(metadata.get("labels")), str(metadata.get("name") or "")
    named = NUMBERED_NAME.search(name)
    role = str(labels.get(ROLE_LABEL) or (named[1] if named else "")).lower()
    if role == "launcher":
        return None
    texts = [str(labels.get(label, "")) for label in INDEX_LABELS]
    text = next((candidate for candidate in texts if candidate.isdigit()), named[2] if named else "")
    if not text.isdigit():
        return None
    return int(text) + (has_master and role == "worker")


def replica(pod: dict[str, Any], has_master: bool = False) -> Replica:
    """Return the replica for a pod; fields of an unexpected type count as absent."""
    status, spec = mapping(pod.get("status")), mapping(pod.get("spec"))
    containers = [mapping(container) for container in items(status.get("containerStatuses"))]
    code, ended = _end(containers)
    phase = str(status.get("phase") or "Unknown")
    why = ended or _waits(containers) or _unscheduled(status)
    evicted = " ".join(str(status.get(key) or "") for key in ("reason", "message")).strip()
    # A pod that exceeded its own memory limit was not taken away, whatever happened afterwards.
    disruption = "" if _killed_for_memory(containers) else _disruption(status)
    return Replica(
        pod=str(mapping(pod.get("metadata")).get("name") or ""),
        host=str(spec.get("nodeName") or ""),
        phase=phase,
        restarts=sum(number(container.get("restartCount")) for container in containers),
        exit_code=code,
        reason=disruption or why or evicted,
        node=node_of(pod, has_master),
        created=str(mapping(pod.get("metadata")).get("creationTimestamp") or ""),
        disruption=disruption,
    )


def failure_words(pods: list[Replica]) -> str:
    """Return the name of the first pod that failed, and why it failed; "" if no pod failed."""
    for failed in sorted(pods, key=lambda pod: pod.pod):
        if failed.exit_code:
            return f"{failed.pod}{f' on {failed.host}' if failed.host else ''}: {failed.reason}"
    return next((f"{pod.pod}: {pod.reason}" for pod in pods if pod.phase == "Failed" and pod.reason), "")


def waiting_words(pods: list[Replica]) -> str:
    """Return why a pod does not start, for the first pending pod with a reason; "" without such a pod."""
    return next((f"{pod.pod}: {pod.reason}" for pod in pods if pod.phase == "Pending" and pod.reason), "")


def preemption_words(pods: list[Replica], nodes: list[int] | None = None) -> str:
    """Return text about the eviction of a pod on one of these nodes; "" if the cluster reports none.

    By default, all nodes are checked. On each node, the newest pod and every running pod are checked, because
    a Job creates the successor of an evicted pod while the evicted pod is still saving.
    """
    newest = {pod.node: pod for pod in sorted(pods, key=lambda pod: pod.created)}
    wanted = [
        pod
        for pod in pods
        if (nodes is None or pod.node in nodes) and (pod.phase == "Running" or pod is newest[pod.node])
    ]
    taken = next((pod for pod in wanted if pod.disruption), None)
    return f"Kubernetes is evicting pod {taken.pod} ({taken.disruption})" if taken else ""


def exit_words(code: int, reason: str = "") -> str:
    """Return an exit code as text, with its signal: 137 = 128 + 9 becomes "exit code 137 (SIGKILL)".

    `reason` is Kubernetes' reason for the end of the container, such as OOMKilled, or "".
    """
    words = f"exit code {code}"
    if code > SIGNALLED:
        with contextlib.suppress(ValueError):
            words += f" ({signal.Signals(code - SIGNALLED).name})"
    if reason == "OOMKilled":
        words += (
            ": the kernel killed it because it exceeded its memory limit (resources.memory_per_node_bytes)"
        )
    elif reason and reason not in ("Error", "Completed"):
        words += f": {reason}"
    return words


def _end(containers: list[dict[str, Any]]) -> tuple[int | None, str]:
    """Return the largest exit code of the containers and its description; (None, "") if none has ended.

    For a container that was restarted, the end of its previous run is used.
    """
    ends: list[tuple[int, str]] = []
    for container in containers:
        for key in ("state", "lastState"):
            ended = mapping(mapping(container.get(key)).get("terminated"))
            if "exitCode" in ended:
                code = number(ended["exitCode"])
                ends.append((code, exit_words(code, str(ended.get("reason") or ""))))
                break
    if not ends:
        return None, ""
    return max(ends)


def _killed_for_memory(containers: list[dict[str, Any]]) -> bool:
    ends = (mapping(mapping(container.get("state")).get("terminated")) for container in containers)
    return any(end.get("reason") == "OOMKilled" for end in ends)


def _waits(containers: list[dict[str, Any]]) -> str:
    for container in containers:
        waiting = mapping(mapping(container.get("state")).get("waiting"))
        if word := str(waiting.get("reason") or ""):
            message = str(waiting.get("message") or "")
            return f"{WAITING.get(word, word)}{f' ({word})' if word in WAITING else ''}" + (
                f": {message}" if message else ""
            )
    return ""


def _disruption(status: dict[str, Any]) -> str:
    for condition in map(mapping, items(status.get("conditions"))):
        reason = str(condition.get("reason") or "DisruptionTarget")
        told = condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        if told and reason != MACHINE_GONE:
            message = str(condition.get("message") or "").rstrip(".")
            return f"{reason}: {message}" if message else reason
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "").rstrip(".")
    if reason not in EVICTED:
        return ""
    return f"{reason}: {message}" if message else reason


def _unscheduled(status: dict[str, Any]) -> str:
    for condition in map(mapping, items(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            why = condition.get("message") or condition.get("reason") or "no reason given"
            return f"it cannot be scheduled on any node: {why}"
    return ""
