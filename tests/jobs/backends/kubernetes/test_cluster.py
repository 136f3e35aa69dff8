"""The official client with an API server on the loopback interface: responses, errors and lost responses."""

import itertools
import json
import sys

import pytest

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.extras import install_command
from nbtrain.jobs.backends.kubernetes.cluster import Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, write
from nbtrain.jobs.backends.kubernetes.refusals import Refused, Unanswered, refusal
from tests.jobs.backends.kubernetes.strict_schemas import errors, validator

KIND = KINDS["MPIJob"]
JOBS = "/apis/kubeflow.org/v2beta1/namespaces/research/mpijobs"
PODS = "/api/v1/namespaces/research/pods"
NAME = "gpt-125m-4xdp-32ecd1"


@pytest.fixture
def manifest(work_with):
    return write(work_with("MPIJob"), "research")


@pytest.mark.slow
def test_the_same_job_is_never_there_twice(stub, cluster, manifest):
    """The object of a job is created only once, even if a response is lost; an object with this name from
    another job is an error.
    """
    stub.fault("POST", "mpijobs", lose_answer=True)
    first = cluster.create(manifest)
    assert cluster.create(manifest)["metadata"]["uid"] == first["metadata"]["uid"]
    assert [name for _, name in stub.objects] == [NAME]
    other = {
        **manifest,
        "metadata": {**manifest["metadata"], "labels": {"nbtrain/run-id": "x", "nbtrain/job-id": "y"}},
    }
    with pytest.raises(SubmitError) as caught:
        cluster.create(other)
    assert str(caught.value) == (
        f"{stub.address}: MPIJob research/{NAME} already exists and belongs to another job. Delete it "
        f"(`kubectl delete -n research mpijobs.kubeflow.org {NAME}`), or rename the run."
    )


def test_a_refusal_says_the_servers_words_and_the_fix(stub, cluster, manifest):
    """Requests that fail with 422, 404, 403 or 401 are not retried; the error quotes the server and names a
    fix.
    """
    validator("MPIJob")  # skips without the CRD, which the server needs to refuse
    manifest["spec"]["slotPerWorker"] = 4
    manifest["spec"]["runPolicy"]["backoffLimit"] = "three"
    with pytest.raises(Refused) as caught:
        cluster.create(manifest)
    assert str(caught.value) == (
        f'{stub.address}: cannot create MPIJob {NAME}: MPIJob "{NAME}" is invalid.\n'
        "  spec.runPolicy.backoffLimit: 'three' is not of type 'integer'\n"
        "  spec: Additional properties are not allowed ('slotPerWorker' was unexpected)"
    )
    stub.kinds = {"PyTorchJob"}
    for status, words in (
        (
            404,
            "The cluster does not have this kind: install its operator, or set backend.kubernetes.workload",
        ),
        (403, "may not say .*If this message does not say what to change, ask the cluster's administrators"),
        (401, "The cluster does not accept the credentials of this context"),
    ):
        if status != 404:
            stub.fault("POST", "mpijobs", status=status, body={"message": "may not say more"})
        before = len(stub.asked)
        with pytest.raises(Refused, match=words) as caught:
            cluster.create(manifest)
        assert (caught.value.status, len(stub.asked)) == (status, before + 1)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (
            'mpijobs.kubeflow.org is forbidden: User "ann" cannot create resource "mpijobs" in API group '
            '"kubeflow.org" in the namespace "research"',
            "Ask for this permission; to see what this user may do, run `kubectl auth can-i --list`.",
        ),
        (
            'admission webhook "validator.trainer.kubeflow.org" denied the request: spec.runtimeRef: no such '
            "runtime",
            "If this message does not say what to change, ask the cluster's administrators.",
        ),
        (
            'pods "gpt" is forbidden: exceeded quota: team, requested: requests.nvidia.com/gpu=8, used: 8, '
            "limited: 8",
            "Request less, wait until other pods have ended, or ask the cluster's administrators for a "
            "larger quota.",
        ),
    ],
)
def test_who_has_refused_decides_the_fix(message, fix):
    """RBAC, admission controllers and quotas all respond with 403, and each gets a different fix."""
    body = json.dumps({"reason": "Forbidden", "message": message, "code": 403})
    assert str(refusal(403, body, "create MPIJob gpt", "here")) == (
        f"here: cannot create MPIJob gpt: {message}. {fix}"
    )


def test_what_may_pass_is_asked_again(stub, cluster, manifest):
    """Requests are retried after temporary failures (500, 503, lost or slow responses), and then reported as
    Unanswered.
    """
    cluster.create(manifest)
    stub.fault("GET", "mpijobs", status=500)
    stub.fault("GET", "mpijobs", drop=True)
    assert cluster.get(KIND, NAME)["metadata"]["name"] == NAME
    stub.fault("GET", "mpijobs", status=200, body=b'{"half')
    assert cluster.get(KIND, NAME)["metadata"]["name"] == NAME
    stub.fault("GET", "mpijobs", slow=1.0)
    before = len(stub.asked)
    # On a busy machine each answer may be too slow, so allow many tries.
    hasty = Cluster(connect(), back_off_seconds=(0.01,) * 1000, read_seconds=0.3)
    assert hasty.get(KIND, NAME)["metadata"]["name"] == NAME and len(stub.asked) >= before + 2
    stub.fault("GET", "mpijobs", times=3, status=503)
    with pytest.raises(Unanswered) as caught:
        cluster.get(KIND, NAME)
    assert str(caught.value) == (
        f"{stub.address}: cannot read MPIJob {NAME}: ordered by the test. The job itself continues; try "
        "again later."
    )
    stub.fault("GET", "mpijobs", times=3, drop=True)
    with pytest.raises(Unanswered, match="no complete response in 3 attempts"):
        cluster.get(KIND, NAME)


def test_patch_delete_and_what_is_gone(stub, cluster, manifest):
    """A merge patch pauses the object. Delete removes exactly this object, and never a later one with the
    same name.
    """
    uid = cluster.create(manifest)["metadata"]["uid"]
    assert cluster.patch(KIND, NAME, KIND.pause(True))["spec"]["runPolicy"]["suspend"] is True
    assert stub.asked[-1][2] == "application/merge-patch+json"
    assert cluster.delete(KIND, NAME, "uid-of-another") is False
    assert cluster.delete(KIND, NAME, uid) is True
    assert cluster.delete(KIND, NAME, uid) is False
    assert cluster.get(KIND, NAME) is None


def test_a_watch_survives_what_cuts_it(stub, cluster, manifest):
    """A watch is resumed after a broken connection or an expired resource version, and ends when the object
    is deleted.
    """
    cluster.create(manifest)
    stub.fault("GET", "watch=true", times=2, break_after=1)
    seen = cluster.watch(KIND, NAME)
    assert next(seen)["metadata"]["name"] == NAME
    for phase in ("one", "two"):
        stub.set_status(JOBS, NAME, {"phase": phase})
    assert [item["status"]["phase"] for item in itertools.islice(seen, 2)] == ["one", "two"]
    stub.set_status(JOBS, NAME, {"phase": "three"})
    stub.forget()
    assert next(seen)["status"]["phase"] == "three"
    stub.fault("GET", "watch=true", status=410, body={"code": 410, "reason": "Expired"})
    assert next(seen)["status"]["phase"] == "three", "listed anew"
    stub.remove(JOBS, NAME)
    assert list(seen) == [None]


def test_a_log_goes_on_after_its_last_line(stub, cluster):
    """Following a pod's log resumes after the last line received, also if several lines have the same
    timestamp.
    """
    stub.put(PODS, {"metadata": {"name": "p"}})
    stub.logs["p"] = [f"2026-11-21T03:15:0{number // 2}Z line {number}" for number in range(6)]
    assert list(cluster.log("p", "worker", tail_lines=2)) == ["line 4", "line 5"]
    stub.fault("GET", "/log", break_after=3)
    lines = cluster.log("p", "worker", follow=lambda: stub.following)
    assert list(itertools.islice(lines, 6)) == [f"line {number}" for number in range(6)]


def test_pods_and_events_are_those_of_the_job(stub, cluster):
    """Pods are selected by label. Events are about the object and everything it created, oldest first."""
    for name, job in (("a", "mine"), ("b", "other")):
        stub.put(PODS, {"metadata": {"name": name, "labels": {"nbtrain/job-id": job}}})
    for number, (about, stamp) in enumerate([("gpt-worker-0", "03"), ("gpt", "02"), ("gpt2", "01")]):
        event = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": {"name": about},
            "lastTimestamp": stamp,
        }
        stub.put("/api/v1/namespaces/research/events", event)
    assert [pod["metadata"]["name"] for pod in cluster.pods("mine")] == ["a"]
    assert [event["involvedObject"]["name"] for event in cluster.events({"gpt"})] == ["gpt", "gpt-worker-0"]


def test_where_the_cluster_is(stub, tmp_path, monkeypatch):
    """Context and namespace are read from the kubeconfig; if the file or the client package is missing, the
    error names the fix.
    """
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    assert (connect().namespace, connect().context) == ("research", "here")
    assert connect(namespace="other").namespace == "other"
    with pytest.raises(JobError, match=r"context nowhere of .*: no cluster is configured there: "):
        connect("nowhere")
    several = stub.kubeconfig.read_text().replace("current-context: here\n", "")
    assert several != stub.kubeconfig.read_text()
    (tmp_path / "several").write_text(several)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "several"))
    assert (connect("here").namespace, connect("here").context) == ("research", "here")
    with pytest.raises(JobError, match=r"current-context.*Set KUBECONFIG or backend\.kubernetes\.context"):
        connect()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(JobError, match="Set KUBECONFIG or"):
        connect()

    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(JobError) as caught:
        connect()
    assert str(caught.value) == (
        "backend.kind = kubernetes needs the official Kubernetes client for Python, which is not installed "
        "here "
        f"(import of kubernetes halted; None in sys.modules). Install it with `{install_command('k8s')}`, "
        "or write the manifest with `nbtrain submit RUN.yaml --dry-run FILE` and start it with kubectl."
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            b"apiVersion: v1\n\tkind: Config\n",
            "while scanning for the next token found character '\\t' that cannot start any token in "
            '"{file}", line 2, column 1',
        ),
        (b"<html>502 Bad Gateway</html>\n", "it does not have the structure of a kubeconfig"),
        (b"clusters: [\xff]\n", "'utf-8' codec can't decode byte 0xff in position 11: invalid start byte"),
    ],
)
def test_a_file_that_is_no_kubeconfig(text, words, tmp_path, monkeypatch):
    """A file that is not a valid kubeconfig (with tabs, an HTML page, in another encoding) is reported in one
    sentence.
    """
    file = tmp_path / "config"
    file.write_bytes(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(JobError) as caught:
        connect()
    assert str(caught.value) == (
        f"{file}: cannot be read as a kubeconfig: {words.format(file=file)}. Correct the file, or set "
        "KUBECONFIG to another file."
    )


def test_a_server_that_is_not_there_is_unseen(tmp_path, monkeypatch, stub):
    """If the server cannot be reached, Unanswered is raised, and the job's state does not change."""
    text = stub.kubeconfig.read_text().replace(stub.address, "http://127.0.0.1:9")
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(
        Unanswered, match=r"127\.0\.0\.1:9: cannot read MPIJob gpt: no complete response in 2"
    ):
        Cluster(connect(), (0.01,)).get(KIND, "gpt")


def test_the_schema_of_the_stub_is_the_kinds_own(manifest):
    """The stub server validates objects with the real schemas of the kinds."""
    assert errors("MPIJob", manifest) == []
