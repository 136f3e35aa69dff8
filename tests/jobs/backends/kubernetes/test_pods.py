"""Real processes of pods, with agent, supervisor and ranks; the test plays the operator."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load
from nbtrain.jobs.attempt.backend import status_of
from nbtrain.jobs.backends import remote_backend
from nbtrain.jobs.calibration.calibrate_network import calibrate_network
from nbtrain.jobs.control import control
from nbtrain.jobs.submission.submit import resume
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.planner.calibration.measured_network import place_of
from nbtrain.planner.plan import plan
from tests.jobs.backends.kubernetes.conftest import PLAIN
from tests.waiting import wait_until

OBJECTS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/research/trainjobs"


@pytest.fixture
def pod():
    """Return a function that starts the process of a pod: pod(job, node=0, nodes=1)."""
    started = []

    def start(job, node=0, nodes=1):
        words = [str(job.run.path), job.job_id, "--nodes", str(nodes), "--supervise"]
        environment = {**os.environ, "JOB_COMPLETION_INDEX": str(node)}
        command = [sys.executable, "-m", "nbtrain.jobs.node", *words]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.soak
def test_a_pause_takes_the_pods_and_a_lost_pod_hands_the_job_over(
    fake, start, stub, pod, operator, states_of, monkeypatch
):
    """One job runs in three successive pods: it is paused, resumed, evicted, and then finishes; its progress
    is posted.
    """
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    for variable, value in operator[0].items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 0.0)
    where = {"kind": "kubernetes", "kubernetes": PLAIN}
    job = start(fake(steps=60, step_seconds=0.1, backend=where))
    (path, name) = next(iter(stub.objects))
    assert path == OBJECTS

    def steps():
        return newest_checkpoint_step(job.run) or 0

    def says(condition):
        conditions = [{"type": condition, "status": "True", "reason": condition}] if condition else []
        stub.set_status(OBJECTS, name, {"conditions": conditions})

    first = pod(job)
    wait_until(lambda: steps() >= 5, "it trains")
    assert control.pause(job)[0] == "SUSPENDED"
    assert stub.objects[OBJECTS, name]["spec"]["suspend"] is True
    paused_at = steps()
    first.send_signal(signal.SIGTERM)
    assert first.wait(600) == 128 + signal.SIGTERM, "0 would count as complete"
    record = JobRecord.read(job.job_json)
    assert (record.state, record.supervisor, record.restarts) == ("QUEUED", None, 0)
    says("Suspended")
    assert status_of(job) == ("SUSPENDED", "Suspended")
    page = describe_job(job.run)
    assert (page.life["spans"][-1][0], page.conditions[-1].reason) == ("paused", "PausedOnRequest")

    # The operator's status changes only below.
    monkeypatch.setattr(control, "SUPERVISOR_SECONDS", 1.0)
    assert resume(job.run).job_id == job.job_id
    assert stub.objects[OBJECTS, name]["spec"]["suspend"] is False
    says(None)
    assert status_of(job)[0] == "QUEUED"
    page = describe_job(job.run)
    assert (page.life["spans"][-1][0], page.conditions[-1].type) == ("waiting", "Queued")
    second = pod(job)
    wait_until(lambda: steps() >= paused_at + 5, "it trains again")
    second.send_signal(signal.SIGTERM)
    assert second.wait(600) == 128 + signal.SIGTERM
    state, cause = status_of(job)
    assert state == "QUEUED"
    assert cause == (
        f"a signal from its scheduler (TERM, as scancel or a deleted pod sends it): saved at step {steps()}; "
        "continues when the cluster starts its pods again"
    )

    third = pod(job)
    assert control.wait(job, 600)[0] == "SUCCEEDED"
    assert third.wait(600) == 0
    assert operator[1][-1][1]["trainerStatus"]["progressPercentage"] == 100
    assert [state for state in states_of(job) if state not in ("STARTING", "RUNNING")] == [
        *("QUEUED", "SUSPENDED", "QUEUED", "QUEUED", "QUEUED", "SUCCEEDED")
    ]
    # batch.exit_duration_minutes excludes the time without pods, which the supervisor did not see.
    before, after, _ = JobRecord.read(job.job_json).attempts
    assert after.paused_seconds > 0.5 * (after.started_at - before.ended_at)
    assert [event["message"] for event in read_events(job) if event["kind"] in ("warning", "error")] == []


@pytest.mark.slow
@pytest.mark.soak
def test_the_ranks_start_again_once_if_one_pod_of_two_is_evicted(
    fake, start, stub, pod, states_of, monkeypatch
):
    """If the pod of node 1 is evicted and replaced, the ranks restart once, and the pod of node 0 keeps
    running.
    """
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    where = {"kind": "kubernetes", "kubernetes": PLAIN}
    config = load(fake(steps=40, step_seconds=0.1, ranks=2, backend=where), {"resources.nodes": 2})
    job = start(config)
    first, evicted = pod(job, 0, 2), pod(job, 1, 2)
    wait_until(lambda: (newest_checkpoint_step(job.run) or 0) >= 5, "it trains")
    evicted.send_signal(signal.SIGTERM)
    assert evicted.wait(600) == 128 + signal.SIGTERM, "0 would count as complete"
    wait_until(lambda: "RESTARTING" in states_of(job), "the restart")
    assert first.poll() is None
    pod(job, 1, 2)
    assert control.wait(job, 600)[0] == "SUCCEEDED"
    record = JobRecord.read(job.job_json)
    assert record.restarts == 1 and record.attempts[1].resumed_from_step >= 5
    assert record.attempts[0].cause.startswith(
        "node 1: its agent received SIGTERM, so its ranks stopped at step "
    )
    runs = ("STARTING", "RUNNING")
    assert states_of(job) == ["QUEUED", *runs, "RESTARTING", *runs, "SUCCEEDED"]
    assert first.wait(600) == 0


@pytest.mark.slow
@pytest.mark.soak
def test_the_network_of_two_pods_is_measured(workspace, stub, pod, monkeypatch):
    """calibrate --network sends one object for two pods, whose ranks measure; plans of this place use it."""
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    settings = {
        "backend": {"kind": "kubernetes", "kubernetes": PLAIN},
        "resources": {"device": "cpu", "nodes": 2},
        "parallel.data_parallel_size": 2,
        "batch.micro_batch_size": 4,
    }
    config = load("gpt-tiny", settings)
    results = []
    measuring = threading.Thread(target=lambda: results.append(calibrate_network(config, 10.0)))
    measuring.start()
    run = RunDir.named("gpt-tiny-network")
    wait_until(lambda: stub.objects and run.newest_job() is not None, "the object on the server")
    [name] = [name for path, name in stub.objects if path == OBJECTS]
    job = run.newest_job()
    pods = [pod(job, node, 2) for node in (0, 1)]
    measuring.join(600)
    assert [process.wait(600) for process in pods] == [0, 0]
    [result] = results
    assert name.startswith("gpt-tiny-network-")
    assert result.network.place == place_of(config) == "kubernetes; namespace research; 1 x CPUs a machine"
    assert (result.network.nodes, result.network.ranks) == (2, 2)
    planned = plan(config)
    assert planned.network is not None
    assert planned.network.reached_bytes_per_second == result.network.bytes_per_second


@pytest.mark.slow
def test_a_job_in_the_queue_is_paused_there(fake, start, stub, monkeypatch):
    """A waiting job without pods can be paused; it stays paused even if the server does not respond."""
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 0.0)
    job = start(fake(backend={"kind": "kubernetes", "kubernetes": PLAIN}))
    (_, name) = next(iter(stub.objects))
    stub.set_status(OBJECTS, name, {"conditions": [{"type": "Suspended", "status": "True"}]})
    control.ask_pause(job, False)
    assert control.pause(job)[0] == "SUSPENDED"
    assert stub.objects[OBJECTS, name]["spec"]["suspend"] is True
    stub.fault("PATCH", "trainjobs", status=422, body={"message": "not now"})
    with pytest.raises(control.JobError, match="not now"):
        control.unpause(job)
    assert control.asked_pause(job)
    assert control.cancel(job)[0] == "CANCELLED"
    assert stub.objects == {}
