"""The table of job states for the statuses that the four operators write, and for unknown ones."""

import pytest

from nbtrain.base.run_directory.jobstate import RUNNING
from nbtrain.jobs.backends.kubernetes.replicas import (
    exit_words,
    failure_words,
    node_of,
    preemption_words,
    replica,
    waiting_words,
)
from nbtrain.jobs.backends.kubernetes.states import conditions_table, object_word, restarts, task_pods


def conditions(*true, **reasons):
    return [
        {"type": name, "status": "True", "reason": reasons.get(name, ""), "message": ""} for name in true
    ] + [{"type": "Other", "status": "False"}]


@pytest.mark.parametrize(
    ("item", "state"),
    [
        ({}, "QUEUED"),
        ({"status": {"phase": "Pending"}}, "QUEUED"),
        ({"status": {"phase": "Pending", "backoffCount": 1}}, "RESTARTING"),
        ({"status": {"phase": "Running", "conditions": conditions("Initialized", "Running")}}, "RUNNING"),
        ({"status": {"phase": "Running", "conditions": conditions("Completed", "Failed")}}, "FAILED"),
        ({"status": {"phase": "Error"}}, "FAILED"),
        ({"status": {"phase": "Succeeded"}, "spec": {"runMode": {"pause": {"enabled": True}}}}, "SUCCEEDED"),
        ({"status": {"phase": "Pending"}, "spec": {"runMode": {"pause": {"enabled": True}}}}, "SUSPENDED"),
        ({"status": {"conditions": conditions("Created")}}, "QUEUED"),
        ({"status": {"conditions": conditions("Created", "Running")}}, "RUNNING"),
        ({"status": {"conditions": conditions("Created", "Restarting")}}, "RESTARTING"),
        ({"status": {"conditions": conditions("Created", "Suspended")}}, "SUSPENDED"),
        ({"status": {"conditions": conditions("Created", "Running", "Succeeded")}}, "SUCCEEDED"),
        ({"status": {"conditions": conditions("Created", "Failed")}}, "FAILED"),
        ({"spec": {"runPolicy": {"suspend": True}}, "status": {}}, "SUSPENDED"),
        ({"spec": {"suspend": True}}, "SUSPENDED"),
        ({"status": {"jobsStatus": [{"name": "node", "active": 1, "ready": 0}]}}, "RUNNING"),
        ({"status": {"jobsStatus": [{"name": "node", "active": 0, "ready": 0}]}}, "QUEUED"),
        ({"status": {"conditions": conditions("Complete")}}, "SUCCEEDED"),
        ({"status": {"conditions": "odd", "jobsStatus": [None], "phase": 7}, "spec": []}, None),
    ],
)
def test_one_table_for_four_kinds(item, state):
    """Each status of each kind maps to a job state; with a malformed status, the last state is kept and
    marked as not known.
    """
    word = object_word(item, last="RESTARTING")
    assert (word.state, word.known) == ((state, True) if state else ("RESTARTING", False))


def test_a_word_that_nobody_knows_keeps_the_last_state():
    """With an unknown phase or condition, the last state is kept, and the unknown word becomes the reason."""
    word = object_word({"status": {"phase": "Unknown"}}, last=RUNNING)
    assert (word.state, word.known, word.reason) == (RUNNING, False, "phase Unknown")
    word = object_word({"status": {"conditions": conditions("Paralysed")}}, last=RUNNING)
    assert (word.state, word.known, word.reason) == (RUNNING, False, "condition Paralysed")


def test_what_else_a_status_holds():
    """Reasons, conditions and restarts are read from a status, and the pods of a DeepSpeedJob from either of
    two fields.
    """
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
    item = {"status": {"conditions": [failed], "backoffCount": 2, "tasks": [{"restartCount": 3}]}}
    assert object_word(item).reason == "BackoffLimitExceeded: too often"
    assert conditions_table(item) == [{**failed, "last_change": ""}] and restarts(item) == 3
    for key in ("replicas", "status"):
        tasks = [{"type": "worker", key: [{"name": "gpt-worker-0"}]}]
        assert task_pods({"status": {"tasks": tasks}}) == [{"name": "gpt-worker-0"}]


def pod(name="gpt-worker-1", phase="Running", **status):
    return {"metadata": {"name": name}, "spec": {"nodeName": "n7"}, "status": {"phase": phase, **status}}


def ended(code, reason="Error", key="state"):
    return {"restartCount": 1, key: {"terminated": {"exitCode": code, "reason": reason}}}


def test_how_a_pod_ended_in_words():
    """The end of a pod is explained: exit code 137 with and without OOMKilled, an early end, and an
    eviction.
    """
    out_of_memory = replica(pod(phase="Failed", containerStatuses=[ended(137, "OOMKilled")]))
    assert failure_words([replica(pod("gpt-worker-0")), out_of_memory]) == (
        "gpt-worker-1 on n7: exit code 137 (SIGKILL): the kernel killed it because it exceeded its memory "
        "limit (resources.memory_per_node_bytes)"
    )
    assert (out_of_memory.exit_code, out_of_memory.restarts) == (137, 1)
    assert replica(pod(containerStatuses=[ended(1, key="lastState")])).reason == "exit code 1"
    assert exit_words(137) == "exit code 137 (SIGKILL)" and exit_words(255) == "exit code 255"
    evicted = replica(pod(phase="Failed", reason="Evicted", message="node low on disk"))
    assert failure_words([evicted]) == "gpt-worker-1: Evicted: node low on disk"
    assert failure_words([replica({}), replica({"status": "odd"})]) == ""


def disrupted(reason, **more):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "evicting."}
    return {"conditions": [{**condition, **more}]}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (disrupted("EvictionByEvictionAPI"), "EvictionByEvictionAPI: evicting"),
        (disrupted("PreemptionByScheduler", message=""), "PreemptionByScheduler"),
        ({"reason": "Evicted", "message": "node low on disk"}, "Evicted: node low on disk"),
        (disrupted("EvictionByEvictionAPI", status="False"), ""),
        # A machine that is gone is a failure, and so is a pod that exceeded its memory.
        (disrupted("DeletionByPodGC"), ""),
        ({**disrupted("EvictionByEvictionAPI"), "containerStatuses": [ended(137, "OOMKilled")]}, ""),
        ({"containerStatuses": [ended(143)]}, ""),
        ({}, ""),
    ],
)
def test_only_the_clusters_own_record_is_an_eviction(status, words):
    """DisruptionTarget and Evicted count as a preemption; a signal, a lost machine and OOMKilled do not."""
    one = replica(pod(**status))
    assert one.disruption == words
    said = f"Kubernetes is evicting pod gpt-worker-1 ({words})" if words else ""
    assert preemption_words([one]) == preemption_words([one], [1]) == said
    assert preemption_words([one], [0]) == ""


def test_an_evicted_pod_with_a_successor_is_history():
    """An evicted pod may be listed for days. It counts until its ranks have saved and it has ended, although
    its successor is already there; the newest pod of a node always counts.
    """
    old = pod(phase="Failed", **disrupted("EvictionByEvictionAPI"))
    old["metadata"] = {**old["metadata"], "creationTimestamp": "2026-11-29T08:00:00Z"}
    assert preemption_words([replica(old)], [1]) != ""
    new = pod("gpt-worker-1")
    new["metadata"] = {**new["metadata"], "creationTimestamp": "2026-11-29T09:00:00Z"}
    assert preemption_words([replica(new), replica(old)], [1]) == ""
    old["status"]["phase"] = "Running"
    assert preemption_words([replica(new), replica(old)], [1]) != ""


def test_why_a_pod_waits_in_words():
    """The reason why a pod is waiting is explained: no suitable node, no image, or no Secret."""
    nowhere = {"type": "PodScheduled", "status": "False", "message": "0/8 nodes: insufficient nvidia.com/gpu"}
    assert waiting_words([replica(pod(phase="Pending", conditions=[nowhere]))]) == (
        "gpt-worker-1: it cannot be scheduled on any node: 0/8 nodes: insufficient nvidia.com/gpu"
    )
    waiting = [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]
    assert replica(pod(phase="Pending", containerStatuses=waiting)).reason == (
        "the image cannot be pulled (ImagePullBackOff): not found"
    )


def test_which_node_a_pod_is():
    """The node number of a pod is read from its operator's label or from its name; the master of a PyTorchJob
    is node 0.
    """
    kubeflow, job = "training.kubeflow.org/replica-", "batch.kubernetes.io/job-completion-index"
    for name, labels, has_master, node in (
        ("gpt-node-0-12-x7k2p", {job: "12"}, False, 12),
        ("gpt-node-0-12-x7k2p", {}, False, 12),
        ("gpt-ab12c-worker-3", {"job-role": "worker", "replica-index": "3"}, False, 3),
        ("gpt-master-0", {f"{kubeflow}type": "master", f"{kubeflow}index": "0"}, True, 0),
        ("gpt-worker-10", {f"{kubeflow}type": "worker", f"{kubeflow}index": "10"}, True, 11),
        ("gpt-worker-1", {f"{kubeflow}type": "Worker"}, True, 2),
        ("gpt-worker-1", {f"{kubeflow}index": "1"}, False, 1),
        ("gpt-launcher-q9x2v", {f"{kubeflow}type": "launcher", f"{kubeflow}index": "0"}, False, None),
        ("odd", {"replica-index": "first"}, False, None),
    ):
        assert node_of({"metadata": {"name": name, "labels": labels}}, has_master) == node, name
    assert node_of({"metadata": "odd"}, False) is None
