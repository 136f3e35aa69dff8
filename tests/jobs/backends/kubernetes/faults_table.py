"""Cause each fault in a run with 2 x 2 ranks in two pods, and write docs/evidence/faults-kubernetes.md.

    python -m tests.jobs.backends.kubernetes.faults_table [NAME ...]    only these faults; keep other rows

`make soak` runs it as the part `kubernetes`. The API server is a stub, this module plays the operator, and
each pod is its real first process with agent, supervisor and ranks.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, LOST, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.jobs.control.control import cancel
from nbtrain.monitor.run.status_text import status_report
from tests.jobs.backends import fault_tables
from tests.jobs.backends.fault_tables import Fault, Row, Tables, environment, plain_times
from tests.jobs.backends.kubernetes.conftest import PLAIN
from tests.jobs.backends.kubernetes.stub_server import StubServer

JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/research/trainjobs"
PODS = "/api/v1/namespaces/research/pods"
TERM_CODE = 128 + signal.SIGTERM


class Scene(fault_tables.Scene):
    """A TrainJob on a cluster in which this class plays the operator."""

    def __init__(self, stub: StubServer):
        super().__init__(
            {
                "backend.kind": "kubernetes",
                "backend.restart_backoff_seconds": 3,
                **{f"backend.kubernetes.{key}": value for key, value in PLAIN.items()},
            }
        )
        self.stub = stub
        self.pods: dict[int, subprocess.Popen] = {}
        self.started = 0
        self.numbers: dict[int, int] = {}
        """Number of the newest pod of each node, in the order in which the pods started."""
        self.ends: list[str] = []
        """How each pod ended, in the order in which they ended."""

    @property
    def name(self) -> str:
        return next(name for path, name in self.stub.objects if path == JOBS)

    def says(self, condition: str | None, reason: str = "") -> None:
        """Set the object's status, as its operator does."""
        said = [{"type": condition, "status": "True", "reason": reason}] if condition else []
        self.stub.set_status(JOBS, self.name, {"conditions": said})

    def put_pod(self, node: int, phase: str, **status: Any) -> None:
        labels = {"nbtrain/job-id": self.job.job_id, "batch.kubernetes.io/job-completion-index": str(node)}
        name = f"{self.name}-node-0-{node}-{self.numbers.get(node, 0)}"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        metadata = {"name": name, "labels": labels, "creationTimestamp": stamp}
        spec = {"nodeName": f"machine-{node}"}
        self.stub.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}})

    def start(self, *nodes: int) -> None:
        """Start these pods, as the operator does."""
        self.stub.set_status(JOBS, self.name, {"jobsStatus": [{"name": "node", "active": 2, "ready": 0}]})
        for node in nodes or (0, 1):
            words = [str(self.job.run.path), self.job.job_id, "--nodes", "2", "--supervise"]
            own = {**os.environ, "JOB_COMPLETION_INDEX": str(node)}
            command = [sys.executable, "-m", "nbtrain.jobs.node", *words]
            self.pods[node] = subprocess.Popen(command, env=own, start_new_session=True)
            self.started += 1
            self.numbers[node] = self.started
            self.put_pod(node, "Running")

    def train(self, steps: int, **settings: Any) -> JobDir:
        """Submit a run in two pods and wait until it has trained a few steps."""
        job = self.submit(steps, **settings)
        self.start()
        self.until_step(20)
        return job

    def pod_ends(self, node: int, number: int = signal.SIGTERM) -> int:
        """Send a signal to the first process of a pod, and return the exit code of the container."""
        pod = self.pods[node]
        if number == signal.SIGKILL:
            # When the pod ends, all its processes end at once.
            for process in [*psutil.Process(pod.pid).children(recursive=True), psutil.Process(pod.pid)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        else:
            pod.send_signal(number)
        code = pod.wait(600)
        code = 128 - code if code < 0 else code
        self.ends.append(f"pod {node}: {code}")
        return code

    def evict(self, node: int) -> None:
        """Evict a pod as the API server does: it sets the condition, and the kubelet sends TERM."""
        self.put_pod(node, "Running", conditions=[EVICTED])
        assert self.pod_ends(node) == TERM_CODE

    def terminated(self, node: int, code: int, reason: str = "Error") -> None:
        end = {"state": {"terminated": {"exitCode": code, "reason": reason}}}
        self.put_pod(node, "Failed", containerStatuses=[end])

    def stop(self) -> None:
        for pod in self.pods.values():
            if pod.poll() is None:
                pod.kill()
                pod.wait()


# --- the faults -------------------------------------------------------------------------------------------


def rank_killed(scene: Scene) -> Row:
    """Kill a rank; the same agents restart it."""
    order = [{"rank": 3, "attempt": 0, "step": 12, "do": "kill", "signal": 9}]
    scene.submit(40, env={"FAKE_FAULTS": json.dumps(order)})
    scene.start()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    scene.rank_failed(3)
    assert scene.record.restarts == 1 and not scene.bad_states
    return Row(
        scene.record.attempts[0].cause, scene.seconds(), "the supervisor restarts the ranks, no pod ends"
    )


def pod_evicted(scene: Scene, node: int, after: str) -> Row:
    """Evict a pod of a run that may not restart, as when its machine is drained; a replacement pod starts."""
    scene.train(120, **{"backend.max_restarts": 0})
    scene.fault()
    scene.evict(node)
    cause = scene.until_state(QUEUED)
    scene.start(node)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    (preemption,) = scene.record.preemptions
    assert scene.record.restarts == 0 and not scene.bad_states, scene.seen
    assert "EvictionByEvictionAPI: Eviction API: evicting" in preemption.notice, preemption
    assert cause.startswith("preempted, waiting in the queue since ") and preemption.lost_steps == 0, cause
    return Row(f"QUEUED: {cause}", scene.seconds(), after)


def second_pod_evicted(scene: Scene) -> Row:
    """Evict the pod of node 1."""
    return pod_evicted(scene, 1, "no restart is used up; continues once the next pod's agent is there")


def first_pod_evicted(scene: Scene) -> Row:
    """Evict the pod with the supervisor."""
    return pod_evicted(scene, 0, "the next pod's supervisor continues the same job")


def second_pod_deleted(scene: Scene) -> Row:
    """Send TERM to the pod of node 1 without a record of an eviction, as `kubectl delete pod` does."""
    scene.train(120)
    scene.fault()
    assert scene.pod_ends(1) == TERM_CODE
    scene.start(1)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 1 and not scene.bad_states, scene.seen
    assert scene.record.preemptions == []
    return Row(
        scene.record.attempts[0].cause, scene.seconds(), "one restart, once the next pod's agent is there"
    )


def second_machine_lost(scene: Scene) -> Row:
    """Kill the pod of node 1 without warning; a replacement pod starts."""
    scene.train(300)
    scene.fault()
    scene.pod_ends(1, signal.SIGKILL)
    scene.until(lambda: scene.record.restarts, "the restart")
    scene.start(1)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert not scene.bad_states, scene.seen
    return Row(scene.record.attempts[0].cause, scene.seconds(), "one restart with the next pod")


def machine_lost_for_good(scene: Scene) -> Row:
    """Kill a pod that is not replaced; with backend.elastic, the run continues in the other pod."""
    scene.train(300, **{"backend.elastic": True})
    scene.fault()
    scene.pod_ends(1, signal.SIGKILL)
    assert scene.end()[0] == SUCCEEDED, scene.seen
    last = scene.record.attempts[-1]
    assert (scene.record.restarts, last.data_parallel_size, last.nodes) == (1, 2, 1), last
    return Row(scene.record.attempts[0].cause, scene.seconds(), "continues with 2 ranks in the remaining pod")


def first_pod_out_of_memory(scene: Scene) -> Row:
    """Make the kernel kill pod 0 with its supervisor for lack of memory; the operator marks the job as
    failed.
    """
    job = scene.train(100_000)
    scene.fault()
    code = scene.pod_ends(0, signal.SIGKILL)
    assert code == 137
    scene.terminated(0, code, "OOMKilled")
    scene.says("Failed", "BackoffLimitExceeded")
    state, cause = scene.end()
    assert state == LOST and "exit code 137 (SIGKILL)" in cause, (state, cause)
    return Row(
        f"LOST: {cause}",
        "",
        f"the other pod's ranks save and exit; `nbtrain resume {job.run.name}` continues",
    )


def server_silent(scene: Scene) -> Row:
    """Drop all responses of the API server for some time."""
    scene.train(200)
    scene.fault()
    scene.stub.fault("GET", "trainjobs", times=100_000, drop=True)
    word = scene.until(
        lambda: (said := EngineWord.read(scene.job.engine_json)) and not said.seen and said, "flag"
    )
    assert scene.status()[0] == RUNNING and word.state is not None
    flag = next(
        line for line in str(status_report(scene.job.run)).splitlines() if "not reachable now" in line
    )
    scene.stub._faults.clear()
    assert scene.end()[0] == SUCCEEDED and scene.record.restarts == 0, scene.seen
    return Row(f"RUNNING, and next to it: {flag.strip()}", "0, the job continues", "nothing was lost")


def held_by_the_queue(scene: Scene) -> Row:
    """Let Kueue suspend the job, so that its pods are deleted, and later resume it."""
    scene.train(120)
    scene.fault()
    scene.says("Suspended", "Suspended")
    scene.pod_ends(0)
    scene.pod_ends(1)
    cause = scene.until_state(SUSPENDED)
    scene.says(None)
    scene.start()
    assert scene.end()[0] == SUCCEEDED, scene.seen
    assert scene.record.restarts == 0 and not scene.bad_states, scene.seen
    return Row(f"SUSPENDED: {cause}", scene.seconds(), "continues from where it saved, without a restart")


def deleted_by_hand(scene: Scene) -> Row:
    """Delete the object with kubectl delete."""
    scene.train(100_000)
    scene.fault()
    scene.stub.remove(JOBS, scene.name)
    scene.pods[1].send_signal(signal.SIGTERM)
    scene.pod_ends(0)
    scene.pods[1].wait(600)
    state, cause = scene.end()
    assert state == LOST and "is no longer known" in cause, scene.seen
    return Row(f"LOST: {cause}", "", "the ranks have saved; `nbtrain resume` continues")


def operators_deadline(scene: Scene) -> Row:
    """Let the job exceed active_deadline_seconds."""
    scene.train(100_000)
    scene.fault()
    scene.pods[1].send_signal(signal.SIGTERM)
    scene.pod_ends(0)
    scene.pods[1].wait(600)
    scene.says("Failed", "DeadlineExceeded")
    state, cause = scene.end()
    assert (state, cause) == (FAILED, "DeadlineExceeded"), scene.seen
    return Row(f"FAILED: {cause}", "", "the ranks have saved; `nbtrain resume` continues")


def cancelled(scene: Scene) -> Row:
    """Cancel the job with `nbtrain cancel`."""
    job = scene.train(100_000)
    scene.fault()
    state, cause = cancel(job)
    assert state == CANCELLED, scene.seen
    scene.ends = [f"pod {node}: {pod.wait(600)}" for node, pod in scene.pods.items()]
    return Row(f"CANCELLED: {cause}", "", "the ranks have saved; `nbtrain resume` continues")


def waits(**status: Any) -> Any:
    """Submit a job whose pod does not start."""

    def make(scene: Scene) -> Row:
        scene.submit(40)
        scene.put_pod(0, "Pending", **status)
        scene.until(lambda: "node-0-0" in scene.status()[1], "the reason")
        state, cause = scene.status()
        assert state == QUEUED
        cancel(scene.job)
        return Row(f"QUEUED: {cause}", "", "starts once it can; else `nbtrain cancel`")

    return make


def no_claim(scene: Scene) -> Row:
    """Submit a run whose backend.kubernetes section names a volume claim that does not exist in the
    cluster.
    """
    scene.stub.present.clear()
    try:
        scene.submit(40)
    except SubmitError as error:
        problem = str(error).splitlines()[1].strip()
    assert not RunDir.named("tiny").exists()
    return Row(problem, "", "nothing is written")


IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
EVICTED = {
    **dict(type="DisruptionTarget", status="True", reason="EvictionByEvictionAPI"),
    "message": "Eviction API: evicting",
}
NOWHERE = {"type": "PodScheduled", "status": "False", "message": "0/8 nodes: insufficient nvidia.com/gpu"}
FAULTS = {
    "rank-killed": Fault("kill -9 of a rank in the second pod", rank_killed),
    "second-evicted": Fault("the second pod is evicted, its machine drained", second_pod_evicted),
    "first-evicted": Fault("the same for the first pod", first_pod_evicted),
    "second-deleted": Fault("`kubectl delete` of the second pod", second_pod_deleted),
    "machine-lost": Fault("the machine of the second pod is lost; another pod follows", second_machine_lost),
    "machine-gone": Fault("the same, no other pod follows, `elastic: true`", machine_lost_for_good),
    "out-of-memory": Fault("the first pod is over its memory limit, exit code 137", first_pod_out_of_memory),
    "server-silent": Fault("the API server does not answer for some time", server_silent),
    "queue": Fault("Kueue evicts the pods, and later admits them again", held_by_the_queue),
    "deleted": Fault("`kubectl delete` of the object", deleted_by_hand),
    "deadline": Fault("`active_deadline_seconds` have passed", operators_deadline),
    "cancelled": Fault("`nbtrain cancel`", cancelled),
    "image": Fault("the image cannot be pulled", waits(containerStatuses=[{"state": IMAGE}])),
    "nowhere": Fault("no machine has room", waits(conditions=[NOWHERE])),
    "claim": Fault("a volume claim that does not exist", no_claim),
}


# --- the tables -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def on_a_cluster() -> Iterator[Scene]:
    """Provide a separate API server for each fault."""
    folder = Path(tempfile.mkdtemp(prefix="kubernetes-"))
    with StubServer(folder) as stub, environment({"KUBECONFIG": str(stub.kubeconfig)}):
        scene = Scene(stub)
        try:
            yield scene
        finally:
            scene.stop()
    shutil.rmtree(folder)


def plain(text: str) -> str:
    """Remove ports, hashes, this machine's name and the number of attempts to reach a server."""
    text = re.sub(r"override backend\.kubernetes\.\w+=.*?: (?=backend)", "", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:6443", text)
    text = text.replace(f"node {socket.gethostname()} ", "node worker-1 ")
    return plain_times(re.sub(r"tiny-[0-9a-f]{6}", "tiny-df9910", text))


TABLES = Tables(
    "faults-kubernetes.md",
    "tests.jobs.backends.kubernetes.faults_table",
    FAULTS,
    on_a_cluster,
    lambda: "",
    engine_head="exit codes of pods, in the order of their ends",
    engine_code=lambda scene, job: ", ".join(scene.ends) or "none ended by the fault",
    plain=plain,
    at_once=2,
)

if __name__ == "__main__":
    sys.exit(TABLES.main(sys.argv[1:]))
