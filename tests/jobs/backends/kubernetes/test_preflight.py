"""Checks of the cluster before a job is started, and their messages."""

from pathlib import Path

import pytest

from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import autotune, load
from nbtrain.jobs.backends.kubernetes import preflight
from nbtrain.jobs.backends.kubernetes.backend import KubernetesBackend
from nbtrain.jobs.backends.kubernetes.manifests.kinds import write
from tests.jobs.backends.kubernetes.conftest import PLAIN

pytestmark = pytest.mark.slow

NAMED = {
    "secret_variables": [{"name": "HF_TOKEN", "secret": "hub", "key": "token"}],
    "secret_files": [{"secret": "s3", "mount_path": "/etc/s3"}],
    "image_pull_secrets": ["registry"],
    "service_account": "trainer",
}
THERE = {("secrets", "hub"), ("secrets", "s3"), ("secrets", "registry"), ("serviceaccounts", "trainer")}
NO_CLUSTER = "To write the manifest without a cluster, run `nbtrain submit RUN --dry-run FILE`."


@pytest.fixture
def refusals(stub, workspace, monkeypatch):
    """Return the message of each finding: refusals(**fields of the section)."""
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    monkeypatch.setattr(preflight, "BACK_OFF_SECONDS", (0.01,))
    preflight._silent.clear()

    def found(**fields):
        section = {"kind": "kubernetes", "kubernetes": {**PLAIN, **fields}}
        return [
            str(finding)
            for finding in KubernetesBackend().findings(load("gpt-125m-4xdp", {"backend": section}))
        ]

    return found


def test_a_cluster_that_has_all_of_it(refusals, stub):
    """A cluster with everything that a job needs has no problems. The checks create nothing and read only the
    metadata of Secrets.
    """
    stub.present |= THERE
    assert refusals(**NAMED) == []
    assert stub.objects == {}
    assert len(stub.accepted) == 5
    assert {accept for _, accept in stub.accepted} == {
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    }


def test_what_is_not_there_is_named_with_the_command_that_makes_it(refusals, stub):
    """If a volume claim, Secret or service account is missing, the message names the command that creates
    it.
    """
    stub.present.clear()
    found = refusals(**NAMED)
    assert found[0].endswith(
        f": backend.kubernetes.mounts names the PersistentVolumeClaim workspace, but {stub.address} has no "
        "PersistentVolumeClaim with this name in namespace research: the pods would wait for it forever. "
        "Create it (examples/megatron-gpt/cluster/manifests/workspace-pvc.yaml is an example), or name one "
        "that `kubectl get persistentvolumeclaims -n research` lists."
    )
    for words, one in zip(
        ("Secret s3", "Secret hub", "Secret registry", "ServiceAccount trainer"), found[1:]
    ):
        assert f"names the {words}, but {stub.address} has no " in one
        assert "Create it (`kubectl create -n research " in one
    assert len(found) == 5
    stub.forbidden |= {("get", "secrets"), ("get", "serviceaccounts"), ("get", "persistentvolumeclaims")}
    assert refusals(**NAMED) == [], "what this user may not see, its pods may have"


def test_the_server_judges_the_manifest(refusals, stub):
    """If the server rejects the manifest (namespace, kind, permissions, fields, admission), its message is
    quoted with a fix.
    """
    host = f"{stub.address}: cannot create TrainJob gpt-125m-4xdp-"
    (found,) = refusals(namespace="elsewhere")
    assert found.startswith(host) and found.endswith(
        ': namespaces "elsewhere" not found. Set backend.kubernetes.namespace to a namespace that '
        "`kubectl get namespaces` lists."
    )
    stub.kinds = {"MPIJob"}
    assert "The cluster does not have this kind: install its operator" in refusals()[0]
    stub.kinds = None
    rbac = 'User "ann" cannot create resource "trainjobs" in API group "trainer.kubeflow.org"'
    used_up = "quota of team language is used up"
    for status, message, words in (
        (401, used_up, "The cluster does not accept the credentials of this context: renew them"),
        (403, rbac, "Ask for this permission; to see what this user may do, run `kubectl auth can-i --list`"),
        (
            403,
            used_up,
            f"{used_up}. If this message does not say what to change, ask the cluster's administr",
        ),
        (400, used_up, used_up),
    ):
        stub.fault("POST", "dryRun=All", status=status, body={"message": message})
        (found,) = refusals()
        assert found.startswith(host) and words in found
    webhook = {"message": 'admission webhook "old.example.com" does not support dry run'}
    stub.fault("POST", "dryRun=All", status=400, body=webhook)
    assert refusals() == [], "that one can be judged only by the create itself"


def test_rights_that_a_job_needs_later(refusals, stub):
    """Each missing permission is reported with the command that needs it; if the server does not answer a
    query about a permission, nothing is reported.
    """
    stub.forbidden |= {("delete", "trainjobs"), ("list", "pods")}
    found = refusals()
    assert found[0] == (
        f"{stub.address}: this user may not delete trainjobs.trainer.kubeflow.org in namespace research, "
        "which `nbtrain cancel` needs. Ask an administrator for the Role in "
        "examples/megatron-gpt/cluster/manifests/notebook.yaml; to see what this user may do, run `kubectl "
        "auth can-i --list -n research`."
    )
    assert (
        "may not list pods in namespace research, which `nbtrain status` needs" in found[1]
        and len(found) == 2
    )
    stub.fault("POST", "selfsubjectaccessreviews", times=6, status=403)
    assert refusals() == []


def test_a_server_that_does_not_answer(refusals, stub, tmp_path, monkeypatch):
    """A request that gets no response is reported once, and is not repeated for some seconds, so that the
    form stays responsive.
    """
    stub.fault("POST", "dryRun=All", times=2, status=503)
    (found,) = refusals()
    assert found.startswith(f"{stub.address}: cannot create TrainJob") and found.endswith(
        ": ordered by the test. Check the address in the kubeconfig, and any VPN or proxy in between. "
        f"{NO_CLUSTER}"
    )
    asked = len(stub.asked)
    assert refusals() == [found] and len(stub.asked) == asked
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (found,) = refusals()
    assert "no cluster is configured there" in found and found.endswith(NO_CLUSTER)


# DeepSpeed's function leaves its file to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("mode", ["tune", "run"])
def test_the_autotuner_finds_its_json_and_the_rules_take_what_it_tries(
    mode, refusals, work_with, tmp_path, monkeypatch
):
    """DeepSpeed's own function finds the JSON in the job's folder from the arguments in the manifest."""
    from deepspeed.autotuning.autotuner import Autotuner

    assert refusals(workload="DeepSpeedJob", autotune=mode) == []
    section = {"kind": "kubernetes", "kubernetes": {**PLAIN, "workload": "DeepSpeedJob", "autotune": mode}}
    config = load("gpt-125m-4xdp", {"backend": section})
    work = work_with("DeepSpeedJob", autotune=mode)
    job = RunDir(tmp_path / work.run).job(work.job_id)
    job.make_folders()
    autotune.write_files(job, config)
    words = write(work)["spec"]["config"]["run"]["python"]
    here = [word.replace("/workspace/output", str(tmp_path)) for word in words]
    read = Autotuner._get_user_config(None, here)
    assert read["autotuning"]["results_dir"] == "/workspace/output/gpt-125m-4xdp/autotuning_results"
    assert Path(here[0]).read_text() == autotune.SCRIPT


def test_submit_refuses_before_anything_is_written(fake, start, stub, workspace, monkeypatch):
    """Submit rejects the run before it creates the run directory."""
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    stub.present.clear()
    with pytest.raises(SubmitError, match="names the PersistentVolumeClaim workspace, but http"):
        start(fake(backend={"kind": "kubernetes", "kubernetes": PLAIN}))
    assert not (workspace / "output").exists() and stub.objects == {}
