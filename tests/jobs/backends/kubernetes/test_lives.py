"""The life of a job of each kind from creation to end, with the official client and a stub API server."""

import os
import re
import threading
import time
from pathlib import Path

import pytest

from nbtrain.base import files
from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.run_directory.jobstate import CANCELLED, QUEUED, RUNNING, SUCCEEDED, SUSPENDED
from nbtrain.base.run_directory.node_records import EngineWord
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.config.load.autotune import write_files
from nbtrain.jobs.backends import remote_backend
from nbtrain.jobs.backends.kubernetes import backend as module
from nbtrain.jobs.backends.kubernetes.backend import KubernetesBackend
from nbtrain.jobs.backends.kubernetes.cluster import Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, write
from nbtrain.jobs.control import control
from nbtrain.lab.server.logs import output_of
from nbtrain.monitor.job.job_records import describe_job
from tests.jobs.backends.kubernetes.conftest import JOB_ID, PLAIN, RUN_ID
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/research/pods"
EVENTS = "/api/v1/namespaces/research/events"
# {kind: how its operator names and labels the pod of node 0}; an MPIJob's launcher holds the agents' output.
FIRST_PODS = {
    "DeepSpeedJob": ("ab12c-worker-0", {"replica-index": "0"}),
    "TrainJob": ("node-0-0-x7k2p", {"batch.kubernetes.io/job-completion-index": "0"}),
    "MPIJob": ("worker-0", {"training.kubeflow.org/replica-type": "worker"}),
    "PyTorchJob": ("master-0", {"training.kubeflow.org/replica-type": "master"}),
}
LAUNCHER = ("launcher-q9x2v", {"training.kubeflow.org/replica-type": "launcher"})
KUBEFLOW = dict(waits="Created", runs="Running", pauses="Suspended", restarts="Restarting", fails="Failed")


def status_of(kind, moment):
    """Return the status that the operator of a kind writes at this point of a job's life."""
    if kind == "DeepSpeedJob":
        phase = {"runs": "Running", "fails": "Failed"}.get(moment, "Pending")
        pods = {"running": int(moment == "runs")}
        return {"phase": phase, "backoffCount": int(moment == "restarts"), "aggregate": pods}
    if kind == "TrainJob":
        jobs = [{"name": "node", "active": int(moment == "runs"), "ready": 0}]
        ends = {"fails": ("Failed", "FailedJobs"), "pauses": ("Suspended", "Suspended")}
        said = [dict(type=ends[moment][0], status="True", reason=ends[moment][1])] if moment in ends else []
        return {"jobsStatus": jobs, "conditions": said}
    return {"conditions": [{"type": KUBEFLOW[moment], "status": "True", "reason": "", "message": ""}]}


@pytest.fixture
def job(workspace):
    """Create a submitted job whose supervisor has not been started yet."""
    run = RunDir.named("gpt-125m-4xdp")
    job = JobDir(run, JOB_ID)
    job.make_folders()
    identity = {"schema_version": 1, "run_id": RUN_ID, "name": run.name, "parent": None, "created_at": 1}
    files.write_json(run.run_json, identity)
    backend = {"kind": "kubernetes", "kubernetes": PLAIN}
    for path in (run.config_yaml, job.config_yaml):
        files.write_text(path, to_yaml(load("gpt-125m-4xdp", {"backend": backend})))
    record = JobRecord(JOB_ID, RUN_ID, run.name, QUEUED, time.time() - 3600, 8, backend="kubernetes")
    record.write(job.job_json)
    return job


@pytest.fixture
def life(stub, cluster, job, work_with, monkeypatch):
    """Create the object and return (backend, path of the objects, name of this object)."""
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.5)
    monkeypatch.setattr(
        module, "_cluster", lambda handle, read_seconds=300: Cluster(connect(), (0.01, 0.01), read_seconds)
    )

    def begin(kind, **fields):
        manifest = write(work_with(kind, **fields), "research")
        metadata = cluster.create(manifest)["metadata"]
        KubernetesHandle(kind, "research", metadata["name"], metadata["uid"], "here").write(job.handle_json)
        path = f"/apis/{KINDS[kind].group}/{KINDS[kind].version}/namespaces/research/{KINDS[kind].plural}"
        return KubernetesBackend(), path, metadata["name"]

    return begin


def set_pod(stub, name, phase, labels=None, **status):
    labels = {"nbtrain/job-id": JOB_ID, **(labels or {})}
    item = {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": "n1"}}
    stub.put(PODS, {**item, "status": {"phase": phase, **status}})


def supervisor_writes(job, state):
    """Write the records of a supervisor that runs in the pod of node 0 on another host."""
    record = JobRecord.read(job.job_json)
    record.state, record.supervisor = state, ProcessIdentity(1, 1, "boot", "n1")
    record.write(job.job_json)


@pytest.mark.parametrize("kind", KINDS)
def test_a_life_that_ends_with_exit_code_137(kind, life, job, stub, capsys):
    """A job is pending, runs, is paused and resumed, and is finally killed for lack of memory (exit code
    137), which its page and log show.
    """
    backend, path, name = life(kind)
    pod, labels = f"{name}-{FIRST_PODS[kind][0]}", FIRST_PODS[kind][1]
    speaker = pod
    if kind == "MPIJob":
        speaker = f"{name}-{LAUNCHER[0]}"
        set_pod(stub, speaker, "Pending", LAUNCHER[1])
    nowhere = {"type": "PodScheduled", "status": "False", "message": "insufficient nvidia.com/gpu"}
    set_pod(stub, pod, "Pending", labels, conditions=[nowhere])
    event = {"involvedObject": {"kind": "Pod", "name": pod}, "reason": "FailedScheduling", "type": "Warning"}
    stamp = "2026-11-21T03:15:00Z"
    stub.put(EVENTS, {"metadata": {"name": "e"}, **event, "message": "no node", "lastTimestamp": stamp})
    stub.set_status(path, name, status_of(kind, "waits"))
    nowhere = "it cannot be scheduled on any node: insufficient nvidia.com/gpu"
    assert backend.status(job) == ("QUEUED", f"{pod}: {nowhere}")
    page = describe_job(job.run)
    assert (page.phase, page.replicas[0].phase, page.replicas[0].message) == ("Pending", "Pending", nowhere)
    seen = [(event.type, event.reason, event.object, event.writer) for event in page.events]
    assert seen == [("Warning", "FailedScheduling", f"Pod/{pod}", "kubernetes")]

    printed = []
    follower = threading.Thread(target=cli.main, args=(["logs", "-f", job.run.name],), daemon=True)
    follower.start()

    def prints(words):
        printed.append(capsys.readouterr().out)
        return words in "".join(printed)

    stub.logs[speaker] = [f"{stamp} node 0: attempt 0: starts 4 ranks"]
    set_pod(stub, pod, "Running", labels)
    stub.set_status(path, name, status_of(kind, "runs"))
    assert backend.status(job)[0] == "QUEUED", "until its supervisor has started"
    wait_until(lambda: prints("node 0: attempt 0: starts 4 ranks\n"), "the pod's log")
    stub.logs[speaker].append(f"{stamp} node 0: continues")
    wait_until(lambda: prints("node 0: continues\n"), "what the pod says later")
    supervisor_writes(job, RUNNING)
    assert backend.status(job) == ("RUNNING", None)
    job.log(0, 0).write_text("step 1 loss 9.0\n")
    wait_until(lambda: prints("step 1 loss 9.0\n"), "the rank's log")
    backend.pause(job)
    assert backend.status(job)[0] == "RUNNING", "until its pods are gone"
    stub.set_status(path, name, status_of(kind, "pauses"))
    assert backend.status(job)[0] == "SUSPENDED" and describe_job(job.run).phase == "Suspended"
    backend.unpause(job)
    stub.set_status(path, name, status_of(kind, "runs"))
    assert backend.status(job) == ("RUNNING", None)
    if kind != "TrainJob":
        stub.set_status(path, name, status_of(kind, "restarts"))
        backend.status(job)
        assert EngineWord.read(job.engine_json).state == "RESTARTING"
    end = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "restartCount": 2}
    set_pod(stub, pod, "Failed", labels, containerStatuses=[end])
    stub.set_status(path, name, status_of(kind, "fails"))
    state, cause = backend.status(job)
    assert state == "RUNNING" and cause.endswith("the job counts as LOST after 30 s")
    os.utime(job.job_json, (time.time() - 3600,) * 2)
    state, cause = backend.status(job)
    killed = (
        "exit code 137 (SIGKILL): the kernel killed it because it exceeded its memory limit "
        "(resources.memory_per_node_bytes)"
    )
    assert state == "LOST" and cause.split("; ")[1] == f"{pod} on n1: {killed}"
    follower.join(600)
    assert prints(f"{job.run.name} LOST")
    assert [line for line in "".join(printed).splitlines() if line.startswith(("node", "step"))] == [
        *("node 0: attempt 0: starts 4 ranks", "node 0: continues", "step 1 loss 9.0")
    ]
    (replica,) = describe_job(job.run).replicas
    assert (replica.host, replica.message, replica.pod.restarts) == ("n1", killed, 2)
    assert replica.pod.exit_code == 137 and "  0 (pod: 2)  " in str(describe_job(job.run))
    supervisor_writes(job, SUCCEEDED)
    assert backend.status(job) == ("SUCCEEDED", None), "the job's own record counts first"


@pytest.mark.parametrize("kind", ["TrainJob", "DeepSpeedJob"])
def test_an_operators_deadline_is_the_reason_of_the_failure(kind, life, job, stub):
    """If an operator ends the job at activeDeadlineSeconds, that is the reason for the failure, also on the
    job page.
    """
    backend, path, name = life(kind)
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "it was too long"}
    stub.set_status(path, name, {"phase": "Failed", "conditions": [failed]})
    assert backend.status(job) == ("FAILED", "DeadlineExceeded: it was too long")
    condition = describe_job(job.run).conditions[-1]
    assert (condition.type, condition.status, condition.reason) == ("Failed", True, "DeadlineExceeded")


def test_a_job_that_waits_is_deleted_when_it_is_cancelled(life, job, stub):
    """Cancelling a waiting job deletes its object, because there is no supervisor that could carry out the
    request.
    """
    backend, path, name = life("TrainJob")
    assert backend.cancel(job, now=False) is True
    assert (path, name) not in stub.objects
    assert backend.status(job) == ("CANCELLED", "cancelled on request; its object is deleted")
    assert backend.cancel(job, now=False) is False


def test_a_pause_of_a_job_that_waits_ends_with_the_operators_word(life, job, stub, monkeypatch, capsys):
    """Pausing a waiting job is complete when the operator confirms it; an operator that does not respond is
    reported.
    """
    _, path, name = life("TrainJob")
    stub.set_status(path, name, status_of("TrainJob", "runs"))
    monkeypatch.setattr(control, "ENGINE_SECONDS", 0.2)
    assert cli.main(["pause", job.run.name]) == 0
    assert stub.objects[path, name]["spec"]["suspend"] is True
    assert capsys.readouterr().out.startswith(
        f"{job.run.name}: QUEUED: the scheduler was asked to hold the job and has not confirmed"
    )
    monkeypatch.setattr(control, "ENGINE_SECONDS", 60.0)
    operator = threading.Timer(0.3, stub.set_status, (path, name, status_of("TrainJob", "pauses")))
    operator.start()
    assert control.pause(job)[0] == SUSPENDED
    operator.join()


def test_a_server_that_is_silent_is_no_traceback_and_no_lost_request(life, job, stub, capsys):
    """If the server does not respond, cancel stores its request for later, and pause reports a failure; both
    work once the server is back.
    """
    _, path, name = life("TrainJob")
    stub.set_status(path, name, status_of("TrainJob", "waits"))
    which = rf"output/{job.run.name}: job {JOB_ID} "
    stub.fault("PATCH", "trainjobs", times=3, drop=True)
    with pytest.raises(JobError, match=rf"{which}could not .* Try again when the cluster responds\.$"):
        control.pause(job)
    stub.fault("DELETE", "trainjobs", times=3, drop=True)
    assert cli.main(["cancel", job.run.name]) == JobError.exit_code
    said = capsys.readouterr().err
    assert re.search(
        rf"^JobError: output/{job.run.name}: the scheduler cannot end job {JOB_ID} now: .* in 3 attempts "
        rf".*\)\. The stop request",
        said,
    )
    assert "continues" not in said and (path, name) in stub.objects
    assert control.cancel(job)[0] == CANCELLED
    assert (path, name) not in stub.objects


def test_a_running_job_is_asked_through_its_folder(life, job, stub):
    """A running job gets its requests (save, stop, stop immediately) through its folder. If it does not end,
    its object is deleted.
    """
    backend, path, name = life("PyTorchJob")
    stub.set_status(path, name, status_of("PyTorchJob", "runs"))
    supervisor_writes(job, RUNNING)
    for act, action in (
        (lambda: backend.save(job), "save"),
        (lambda: backend.cancel(job, now=False), "stop"),
        (lambda: backend.cancel(job, now=True), "stop_now"),
    ):
        assert act() is True
        assert files.read_json(job.path / "control" / "ask.json")["action"] == action
    backend.finish(job, now=True)
    assert (path, name) not in stub.objects, "what does not end is ended"


def test_what_has_ended_keeps_its_pods(life, job, stub):
    """The pods of a job that has ended are kept, because they contain its logs."""
    backend, path, name = life("PyTorchJob")
    stub.set_status(path, name, status_of("PyTorchJob", "fails"))
    assert backend.status(job)[0] == "FAILED"
    backend.finish(job, now=False)
    assert (path, name) in stub.objects


def test_an_engine_that_is_silent_is_a_flag(life, job, stub):
    """If the server does not respond, the last known state is kept and marked as not current."""
    backend, path, name = life("MPIJob")
    stub.set_status(path, name, status_of("MPIJob", "runs"))
    supervisor_writes(job, RUNNING)
    assert backend.status(job) == ("RUNNING", None)
    stub.fault("GET", "mpijobs", times=3, drop=True)
    assert backend.status(job) == ("RUNNING", None)
    word = EngineWord.read(job.engine_json)
    assert (word.state, word.seen) == ("RUNNING", False)
    backend.status(job)
    assert EngineWord.read(job.engine_json).seen is True


def test_events_and_debug_mode(life, job, stub):
    """Events of the cluster are listed together with the job's own; in debug mode, the state says that the
    pods run without training.
    """
    backend, path, name = life("DeepSpeedJob")
    about = {"kind": "Pod", "name": f"{name}-worker-0"}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "FailedScheduling"}
    stub.put(EVENTS, {**event, "message": "no node", "lastTimestamp": "2026-11-21T03:15:00Z"})
    found = backend.events(job)
    assert [(event["message"], event["object"], event["time"]) for event in found] == [
        ("FailedScheduling: no node", f"Pod/{name}-worker-0", 1795230900.0)
    ]
    stub.objects[path, name]["spec"]["runMode"] = {"debug": {"enabled": True}}
    stub.set_status(path, name, status_of("DeepSpeedJob", "runs"))
    words = "debug mode: the pods run without training, so that they can be inspected"
    assert backend.status(job) == ("QUEUED", words)


@pytest.fixture
def submitted(stub, cluster, job, monkeypatch):
    """Return a function that submits a TrainJob run with these fields in backend.kubernetes:
    submitted(**fields).
    """

    def submit(**fields):
        backend = {"kind": "kubernetes", "kubernetes": {**PLAIN, **fields}}
        for path in (job.run.config_yaml, job.config_yaml):
            files.write_text(path, to_yaml(load("gpt-125m-4xdp", {"backend": backend})))
        monkeypatch.setattr(module, "_cluster", lambda handle, *_: cluster)
        KubernetesBackend().submit(job)
        return KubernetesHandle.read(job.handle_json)

    return submit


def test_submit_leaves_a_durable_handle(submitted, job, stub):
    """Submitting a job twice creates one object. If it is rejected, a SubmitError is raised and no handle is
    left.
    """
    stub.fault("POST", "trainjobs", status=422, body={"message": "TrainJob is invalid"})
    with pytest.raises(SubmitError, match=r"cannot create TrainJob .*: TrainJob is invalid\."):
        submitted()
    assert not job.handle_json.exists()
    handle = submitted()
    assert submitted() == handle
    assert (handle.kind, handle.namespace, handle.context) == ("TrainJob", "research", "here")
    assert [name for _, name in stub.objects] == [handle.name]


def test_a_job_whose_submission_was_killed_is_found_by_its_name(submitted, cluster, job, stub, monkeypatch):
    """If a submission was killed before it stored the object's uid, the object is found by the job's name;
    objects of other jobs are not used.
    """

    class Killed(BaseException):
        pass

    def create_and_die(cluster, manifest):
        take(cluster, manifest)
        raise Killed

    take = Cluster.create
    monkeypatch.setattr(Cluster, "create", create_and_die)
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 0.0)
    with pytest.raises(Killed):
        submitted()
    [(path, name)] = stub.objects
    handle, backend = KubernetesHandle.read(job.handle_json), KubernetesBackend()
    assert (handle.name, handle.uid) == (name, "")
    stub.set_status(path, name, status_of("TrainJob", "waits"))
    assert backend.status(job)[0] == "QUEUED"
    assert EngineWord.read(job.engine_json).state == "QUEUED"
    labels = stub.objects[path, name]["metadata"]["labels"]
    labels["nbtrain/job-id"] = "20250101-120000-abcd"
    backend.end_in_engine(job)
    assert (path, name) in stub.objects
    labels["nbtrain/job-id"] = job.job_id
    assert backend.cancel(job, now=False)
    assert stub.objects == {}


def test_a_log_comes_from_the_pod_if_the_rank_has_written_none(submitted, job, stub):
    """For a rank without a log file, the log of its node's pod is shown; node 10 comes after node 2."""
    name = submitted().name
    for node in (10, 2, 0):
        pod = f"{name}-node-0-{node}-x7k2p"
        set_pod(stub, pod, "Running", {"batch.kubernetes.io/job-completion-index": str(node)})
        stub.logs[pod] = [f"2026-11-21T03:15:00Z words of node {node}"]
    backend = KubernetesBackend()
    assert backend.logs(job, 3, 10) == ["words of node 0"] and backend.logs(job, 8, 10) == ["words of node 2"]
    assert backend.logs(job, 4, 10) == []
    # A run's page shows the same.
    assert [output_of(job, rank) for rank in (3, 4, 8)] == ["words of node 0\n", "", "words of node 2\n"]
    job.log(8, 0).write_text("its own\n")
    assert output_of(job, 8) == ""


def test_a_pause_before_the_supervisor_has_started_is_in_the_jobs_life(submitted, job):
    """A job without a supervisor is shown as paused until it is resumed, and then as waiting."""
    submitted()
    backend = KubernetesBackend()
    backend.pause(job)
    page = describe_job(job.run)
    assert (page.life["spans"][-1][0], page.conditions[-1].reason) == ("paused", "PausedOnRequest")
    backend.unpause(job)
    assert describe_job(job.run).life["spans"][-1][0] == "waiting"


def test_what_a_pod_said_is_kept_if_it_ended_before_its_agent_could_write(submitted, job, stub):
    """If a pod ended before its agent could write anything, its log is saved before the cluster deletes
    it.
    """
    name = submitted().name
    end = {"containerStatuses": [{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}
    for node in (0, 1):
        pod = f"{name}-node-0-{node}-x7k2p"
        stub.logs[pod] = ["2026-11-21T03:15:00Z No module named nbtrain"]
        set_pod(stub, pod, "Failed", {"batch.kubernetes.io/job-completion-index": str(node)}, **end)
    job.node_log(1).write_text("its own\n")
    KubernetesBackend().status(job)
    stub.objects.clear()
    assert (
        job.node_log(0).read_text() == "No module named nbtrain\n"
        and job.node_log(1).read_text() == "its own\n"
    )
    assert KubernetesBackend().logs(job, 0, 10) == ["No module named nbtrain"]
    assert describe_job(job.run).replicas[0].logs[0].path.endswith("logs/node0.log")


def test_the_engine_is_asked_while_somebody_looks(life, job, stub, monkeypatch):
    """While a page is open, a single thread watches the object; it wakes up at each change and ends with the
    job.
    """
    from nbtrain.lab.engine_watch import look_after

    def askers():
        return [thread for thread in threading.enumerate() if thread.name == "nbtrain-engine"]

    _, path, name = life("MPIJob")
    monkeypatch.setattr(remote_backend, "ASK_SECONDS", 1e6)
    look_after(job)
    look_after(job)
    assert len(askers()) == 1
    wait_until(lambda: stub.watches, "the watch")
    stub.set_status(path, name, status_of("MPIJob", "runs"))
    wait_until(lambda: EngineWord.read(job.engine_json).state == "RUNNING", "the change")
    supervisor_writes(job, SUCCEEDED)
    stub.set_status(path, name, {"conditions": [{"type": "Succeeded", "status": "True"}]})
    wait_until(lambda: not askers(), "the end of the thread")
    look_after(job)
    assert askers() == []


def test_a_job_that_only_tunes_ends_by_its_engines_word(life, job, stub, capsys):
    """A job with autotune: tune has no supervisor: its end comes from the operator, and a command applies the
    result.
    """
    section = {**PLAIN, "workload": "DeepSpeedJob", "autotune": "tune"}
    config = load("gpt-125m-4xdp", {"backend": {"kind": "kubernetes", "kubernetes": section}})
    for path in (job.run.config_yaml, job.config_yaml):
        files.write_text(path, to_yaml(config))
    write_files(job, config)
    record = JobRecord.read(job.job_json)
    record.autotune = "tune"
    record.write(job.job_json)
    backend, path, name = life("DeepSpeedJob", autotune="tune")
    sent = stub.objects[path, name]["spec"]["config"]
    words = sent["run"]["python"]
    assert sent["autotune"] == "tune" and "--then" not in words
    assert [Path(words[0]).name, words[2], Path(words[3]).name] == [
        *("autotune.py", "--deepspeed_config", "autotune.json")
    ]
    assert files.read_json(job.autotune_json)["autotuning"]["enabled"]
    stub.set_status(path, name, status_of("DeepSpeedJob", "runs"))
    assert backend.status(job) == ("RUNNING", "DeepSpeed's autotuner tries ZeRO stages and micro-batch sizes")
    assert cli.main(["job", job.run.name]) == 0
    assert (
        "the autotuner writes its trials to output/gpt-125m-4xdp/autotuning_results/"
        in capsys.readouterr().out
    )
    job.run.autotuning_results.mkdir()
    files.write_json(job.run.autotuning_optimum, {"zero_optimization": {"stage": 3}})
    stub.set_status(path, name, {"phase": "Succeeded", "backoffCount": 0, "aggregate": {}})
    assert backend.status(job) == (
        "SUCCEEDED",
        "DeepSpeed's autotuner has ended; `nbtrain job gpt-125m-4xdp` says what it found",
    )
    assert cli.main(["wait", job.run.name]) == 0
    assert cli.main(["job", job.run.name]) == 0
    taken = (
        "`nbtrain resume gpt-125m-4xdp parallel.zero_stage=3 backend.kubernetes.autotune=none` "
        "trains with them"
    )
    assert taken in " ".join(capsys.readouterr().out.split())


def test_the_supervisor_asks_whether_its_pods_are_evicted(life, job, stub, monkeypatch):
    """When a pod was told to leave, the cluster's record about this pod decides; without the right to list
    pods, the reason is reported.
    """
    life("TrainJob")
    labels = {"batch.kubernetes.io/job-completion-index": "1"}
    set_pod(stub, "gpt-node-0-1-abc", "Running", labels)
    launcher = module.PodLauncher(job, ("rank.py",))
    assert launcher.scheduler_preemption([1]) == ""
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    set_pod(stub, "gpt-node-0-1-abc", "Running", labels, conditions=[evicted])
    assert launcher.scheduler_preemption([1]) == "", "asked a moment ago"
    monkeypatch.setattr(module, "ASK_AGAIN_SECONDS", 0.0)
    said = "Kubernetes is evicting pod gpt-node-0-1-abc (PreemptionByScheduler)"
    assert launcher.scheduler_preemption([1]) == said and launcher.preemption_trouble() == ""
    stub.objects.clear()
    assert launcher.scheduler_preemption([1]) == said, "known, although the pod is gone"
    launcher.launch(load_resolved(job.run.config_yaml), 1)
    assert launcher.scheduler_preemption([1]) == "", "said of a pod of an earlier attempt"

    def refuse(*arguments):
        raise JobError("may not list pods")

    monkeypatch.setattr(module.BACKEND, "disruption", refuse)
    assert launcher.scheduler_preemption([0]) == ""
    assert launcher.preemption_trouble() == "cannot tell whether a pod was evicted: may not list pods"
