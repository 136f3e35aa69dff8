"""Manifests of all four kinds are valid under strict CRDs and contain the commands that the pods run."""

import dataclasses
import json

import pytest
import yaml

from nbtrain.config.load import load
from nbtrain.config.sections.kubernetes_section import KubernetesConfig
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, write
from nbtrain.jobs.backends.kubernetes.manifests.work import own_folder
from tests.jobs.backends.kubernetes.strict_schemas import errors

AGENT = (
    *("python3", "-m", "nbtrain.jobs.node", "/workspace/output/gpt-125m-4xdp", "20261121-031500-a1b2"),
    *("--nodes", "2", "--supervise"),
)
# Every field that all kinds support.
EVERYTHING = {
    "mounts": [
        {"claim": "workspace", "mount_path": "/workspace"},
        {"claim": "workspace", "mount_path": "/cache", "sub_path": "team/cache"},
        {"claim": "corpus", "mount_path": "/corpus", "read_only": True},
    ],
    "shared_memory_bytes": 16 << 30,
    "extra_resources": {"rdma/hca": 1},
    "capabilities": ["IPC_LOCK"],
    "queue": "gpu",
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
    "node_affinity": [
        {"key": "zone", "values": ["a", "b"]},
        {"key": "gpus", "operator": "Gt", "values": ["7"]},
        {"key": "spot", "operator": "DoesNotExist", "weight": 50},
    ],
    "pod_affinity": [
        {"topology_key": "rack"},
        {"topology_key": "kubernetes.io/hostname", "anti": True, "weight": 100},
        {"topology_key": "kubernetes.io/hostname", "anti": True, "labels": {"app": "loud"}},
    ],
    "security_context": {"fs_group": 1000, "supplemental_groups": [2000]},
    "secret_variables": [{"name": "HF_TOKEN", "secret": "hub", "key": "token"}],
    "secret_files": [{"secret": "s3", "mount_path": "/etc/s3"}],
    "service_account": "trainer",
    "image_pull_secrets": ["registry"],
    "labels": {"team": "language"},
    "annotations": {"example.com/why": "a first try, with spaces"},
    "active_deadline_seconds": 86_400,
}
WITH_PULL = {"image_pull_policy": "IfNotPresent", "back_off_limit": 3, "clean_up_policy": "unfinished"}
OWN = {
    "DeepSpeedJob": {
        **WITH_PULL,
        **dict(priority=50, restart_policy="OnFailure", autotune="tune", debug_mode=True),
        **dict(min_nodes=1, max_nodes=4, host_network=True),
    },
    "TrainJob": {
        **dict(priority_class="high", runtime="torch-team", runtime_kind="TrainingRuntime"),
        "security_context": {"run_as_user": 1000, "run_as_group": 1000, "run_as_non_root": True},
    },
    "MPIJob": {**WITH_PULL, "priority_class": "high", "restart_policy": "OnFailure", "host_network": True},
    "PyTorchJob": {
        **WITH_PULL,
        "priority_class": "high",
        "min_nodes": 1,
        "max_nodes": 4,
        "host_network": True,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_has_only_fields_that_its_kind_has(kind, work_with):
    """Manifests, with default and with all fields set, have no unknown fields; a misspelled field would be
    detected.
    """
    for fields in ({}, {**EVERYTHING, **OWN[kind]}):
        manifest = write(work_with(kind, **fields), "research")
        assert errors(kind, yaml.safe_load(yaml.safe_dump(manifest))) == []
        assert (manifest["metadata"]["name"], manifest["kind"]) == ("gpt-125m-4xdp-32ecd1", kind)
    manifest["spec"]["slotPerWorker"] = 1
    assert errors(kind, manifest) == [
        "spec: Additional properties are not allowed ('slotPerWorker' was unexpected)"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_patches_have_only_fields_that_their_kind_has(kind, work_with):
    """After applying the patches for pause and resume, a manifest still has only fields of its kind."""
    manifest = write(work_with(kind), "research")
    for patch in (KINDS[kind].pause(True), KINDS[kind].pause(False)):
        assert errors(kind, _merged(manifest, patch)) == []


def _merged(whole, patch):
    if not isinstance(patch, dict):
        return patch
    whole = whole if isinstance(whole, dict) else {}
    return {**whole, **{key: _merged(whole.get(key), value) for key, value in patch.items()}}


def test_the_autotuner_starts_ranks_and_the_agent_comes_after_it(work_with):
    """DeepSpeed's autotuner starts ranks in one slot each with a script that it can start again; the node
    agent starts after it.
    """
    job = f"{AGENT[3]}/jobs/{AGENT[4]}"
    words = [f"{job}/autotune.py", AGENT[3], "--deepspeed_config", f"{job}/autotune.json"]
    expected = {"slotsPerWorker": 4, "localRank": False, "autotune": "tune", "run": {"python": words}}
    assert write(work_with("DeepSpeedJob", autotune="tune"))["spec"]["config"] == expected
    expected |= {"autotune": "run", "run": {"python": [*words, "--then", *AGENT]}}
    assert write(work_with("DeepSpeedJob", autotune="run"))["spec"]["config"] == expected


def test_every_pod_runs_the_agent(work_with):
    """All pods of all kinds run the same agent, which reads its node number from the variable that the kind
    sets.
    """
    deepspeed = write(work_with("DeepSpeedJob"))["spec"]
    assert deepspeed["config"] == {
        "slotsPerWorker": 1,
        "localRank": False,
        "run": {"exec": ["env", "-u", "CUDA_VISIBLE_DEVICES", *AGENT]},
    }
    train = write(work_with("TrainJob"))["spec"]
    assert (train["trainer"]["command"], train["trainer"]["numNodes"]) == ([*AGENT], 2)
    mpi = write(work_with("MPIJob"))["spec"]["mpiReplicaSpecs"]
    command = mpi["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert (command[0], command[-len(AGENT) :]) == ("mpirun", [*AGENT])
    assert mpi["Worker"]["replicas"] == 2
    torch = write(work_with("PyTorchJob"))["spec"]["pytorchReplicaSpecs"]
    assert {role: part["replicas"] for role, part in torch.items()} == {"Master": 1, "Worker": 1}
    assert torch["Worker"]["template"]["spec"]["containers"][0]["command"] == [*AGENT]
    assert list(write(work_with("PyTorchJob", nodes=1))["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    assert list(write(work_with("PyTorchJob", min_nodes=1))["spec"]["pytorchReplicaSpecs"]) == ["Worker"]


def test_the_launcher_of_an_mpijob_asks_for_little(work_with):
    """The launcher pod of an MPIJob requests few cores and little memory, or none if the run requests
    none.
    """
    work = work_with("MPIJob")

    def asked(**fields):
        parts = write(dataclasses.replace(work, **fields))["spec"]["mpiReplicaSpecs"]
        return parts["Launcher"]["template"]["spec"]["containers"][0].get("resources")

    both = {"cpu": "1", "memory": "2Gi"}
    assert asked() == {"requests": both, "limits": both}
    assert asked(memory_bytes=None) == {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
    assert asked(cpus=None, memory_bytes=None) is None


def test_what_the_pods_ask_for(work_with):
    """With every kind, the pods request the same GPUs, cores, memory, shared memory and volumes, and refer to
    Secrets by name.
    """
    work = work_with("TrainJob", **EVERYTHING)
    spec = write(work)["spec"]
    asked = {"cpu": "32", "memory": "262144Mi", "nvidia.com/gpu": 4, "rdma/hca": 1}
    assert spec["trainer"]["resourcesPerNode"] == {"requests": asked, "limits": asked}
    patched = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    pod = patched["template"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "16384Mi"}},
        {"name": "claim-0", "persistentVolumeClaim": {"claimName": "workspace"}},
        {"name": "claim-1", "persistentVolumeClaim": {"claimName": "corpus"}},
        {"name": "secret-0", "secret": {"secretName": "s3"}},
    ]
    assert pod["containers"][0]["volumeMounts"] == [
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "claim-0", "mountPath": "/workspace"},
        {"name": "claim-0", "mountPath": "/cache", "subPath": "team/cache"},
        {"name": "claim-1", "mountPath": "/corpus", "readOnly": True},
        {"name": "secret-0", "mountPath": "/etc/s3", "readOnly": True},
    ]
    hub = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": hub} in spec["trainer"]["env"]
    for kind in ("DeepSpeedJob", "MPIJob", "PyTorchJob"):
        text = json.dumps(write(work_with(kind, **EVERYTHING)))
        placed = (pod["tolerations"], pod["affinity"], pod["securityContext"])
        for part in (*pod["volumes"], *pod["containers"][0]["volumeMounts"], asked, hub, *placed):
            assert json.dumps(part) in text, kind


def test_where_and_as_whom_the_pods_run(work_with):
    """Conditions without a weight are required, those with one preferred; empty labels mean the job's own
    pods; a pod on its node's network still resolves the cluster's names.
    """
    spec = write(work_with("PyTorchJob", **EVERYTHING, host_network=True))["spec"]["pytorchReplicaSpecs"]
    pod = spec["Worker"]["template"]["spec"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    gpus = {"key": "gpus", "operator": "Gt", "values": ["7"]}
    spot = {"matchExpressions": [{"key": "spot", "operator": "DoesNotExist"}]}
    assert pod["affinity"]["nodeAffinity"] == {
        required: {"nodeSelectorTerms": [{"matchExpressions": [zone, gpus]}]},
        preferred: [{"weight": 50, "preference": spot}],
    }
    own = {"matchLabels": {"nbtrain/job-id": "20261121-031500-a1b2"}}
    assert pod["affinity"]["podAffinity"] == {required: [{"topologyKey": "rack", "labelSelector": own}]}
    host = "kubernetes.io/hostname"
    assert pod["affinity"]["podAntiAffinity"] == {
        required: [{"topologyKey": host, "labelSelector": {"matchLabels": {"app": "loud"}}}],
        preferred: [{"weight": 100, "podAffinityTerm": {"topologyKey": host, "labelSelector": own}}],
    }
    assert pod["securityContext"] == {"fsGroup": 1000, "supplementalGroups": [2000]}
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    plain = write(work_with("PyTorchJob"))["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert not {"affinity", "securityContext", "hostNetwork", "dnsPolicy"} & set(plain)


@pytest.mark.parametrize("kind", ["DeepSpeedJob", "TrainJob", "MPIJob", "PyTorchJob"])
def test_local_checkpoints_lie_in_an_emptydir(work_with, kind):
    """Local checkpoints are written to an emptyDir unless a volume is mounted at this path; {node} and {host}
    become folders in it.
    """
    text = json.dumps(write(work_with(kind, local_dir="/local")))
    for part in (
        {"name": "local-checkpoints", "emptyDir": {}},
        {"name": "local-checkpoints", "mountPath": "/local"},
    ):
        assert json.dumps(part) in text
    assert "local-checkpoints" not in json.dumps(write(work_with(kind)))
    section = KubernetesConfig(mounts=[{"claim": "nvme", "mount_path": "/nvme"}])
    for folder, own in (
        ("/local/{host}", "/local"),
        ("/nvme/x/{node}", None),
        ("/nvme2", "/nvme2"),
        ("/local/n-{node}/x", "/local"),
        ("/n-{node}", None),
    ):
        config = load("gpt-tiny", {"checkpoint.local_dir": folder})
        assert own_folder(config, section) == own


@pytest.mark.parametrize(
    ("toleration", "operator"),
    [({"key": "gpu", "value": "a100"}, "Equal"), ({"key": "gpu"}, "Exists"), ({}, "Exists")],
)
def test_a_toleration_with_a_value_compares_it(work_with, toleration, operator):
    """A toleration with a value uses the operator Equal, Kubernetes' default; a value together with Exists is
    rejected.
    """
    spec = write(work_with("MPIJob", tolerations=[toleration]))["spec"]["mpiReplicaSpecs"]
    assert spec["Worker"]["template"]["spec"]["tolerations"] == [{**toleration, "operator": operator}]


def test_queue_and_priority_have_their_own_place_in_each_kind(work_with):
    """Queue and priority are written where the operator of each kind expects them."""
    deepspeed = write(work_with("DeepSpeedJob", queue="gpu", priority=50))["spec"]
    assert deepspeed["scheduler"] == {"t9kScheduler": {"queue": "gpu", "priority": 50}}
    train = write(work_with("TrainJob", queue="gpu", priority_class="high"))["metadata"]["labels"]
    assert train["kueue.x-k8s.io/queue-name"] == "gpu" and train["kueue.x-k8s.io/priority-class"] == "high"
    for kind in ("MPIJob", "PyTorchJob"):
        policy = write(work_with(kind, queue="gpu", priority_class="high"))["spec"]["runPolicy"]
        assert policy["schedulingPolicy"] == {"queue": "gpu", "priorityClass": "high"}
