"""backend.kind: kubernetes: the form of names, and the rules between the section's fields."""

import pytest
from pydantic import ValidationError

from nbtrain.config.load import load
from nbtrain.config.rules.environment import why_reserved
from nbtrain.config.rules.kubernetes import kubernetes_problems
from nbtrain.config.sections.kubernetes_section import KubernetesConfig

MOUNT = {"claim": "workspace", "mount_path": "/workspace"}


@pytest.fixture(scope="module")
def config():
    return load("gpt-125m", {"resources.image": "registry.example.com/nbtrain:0.1.0"})


def messages(config, section):
    """Return the messages of a run without their place, which comes from the configuration."""
    return [finding.message for finding in kubernetes_problems(config, section)]


def test_names_have_kubernetes_own_form():
    """Names that the API server would refuse, or that a launcher would misread, are
    refused before submission.
    """
    good = {
        "namespace": "team-a",
        "mounts": [MOUNT, {"claim": "a.b", "mount_path": "/c/.d", "sub_path": "x/.y"}],
        "node_selector": {"nvidia.com/gpu.product": "NVIDIA-A100", "zone": ""},
        "secret_variables": [{"name": "HF_TOKEN", "secret": "hub", "key": "token.txt"}],
        "python": "/opt/venv/bin/python3.11",
    }
    assert KubernetesConfig(**good).workload == "TrainJob"
    for bad in (
        {"namespace": "Team"},
        {"namespace": "a" * 64},
        {"mounts": [{**MOUNT, "mount_path": "/a/../b"}]},
        {"mounts": [{**MOUNT, "mount_path": "workspace"}]},
        {"mounts": [{**MOUNT, "sub_path": ".."}]},
        {"mounts": [{**MOUNT, "sub_path": "/absolute"}]},
        {"mounts": [{**MOUNT, "claim": "a/b"}]},
        {"node_selector": {"a/b/c": "x"}},
        {"node_selector": {"a": "two words"}},
        {"secret_variables": [{"name": "A-B", "secret": "hub", "key": "token"}]},
        {"secret_variables": [{"name": "A", "secret": "hub", "key": "../token"}]},
        {"python": "python3 -c"},
        {"capabilities": ["ipc lock"]},
        {"priority": 101},
        {"workload": "Job"},
    ):
        with pytest.raises(ValidationError):
            KubernetesConfig(**{**good, **bad})


def test_a_field_without_a_place_in_the_kind_is_refused(config):
    """A field that the kind of Kubernetes object cannot use is refused, because it would have no effect."""

    def problems(**fields):
        return messages(config, KubernetesConfig(mounts=[MOUNT], **fields))

    assert problems(workload="TrainJob", back_off_limit=3) == [
        "backend.kubernetes.back_off_limit = 3\n"
        "  is not supported by a TrainJob: the training runtime controls it. Set failurePolicy in the "
        "runtime."
    ]
    assert problems(workload="MPIJob", autotune="tune", restart_policy="ExitCode") == [
        "backend.kubernetes.autotune = tune\n  is supported by a DeepSpeedJob only, but workload is MPIJob.",
        "backend.kubernetes.restart_policy = ExitCode\n  must be Never or OnFailure for an MPIJob.",
    ]
    assert problems(workload="DeepSpeedJob", priority=5) == [
        "backend.kubernetes.priority = 5\n"
        "  is a priority within a queue, but backend.kubernetes.queue is not set."
    ]
    assert problems(workload="MPIJob", min_nodes=1) == [
        "backend.kubernetes.min_nodes = 1\n  is not supported by an MPIJob: use a DeepSpeedJob "
        "or a PyTorchJob."
    ]
    for kind in ("DeepSpeedJob", "TrainJob", "MPIJob", "PyTorchJob"):
        assert problems(workload=kind, queue="gpu") == []


def test_the_run_directory_outlives_its_pod(config):
    """The workspace must be on a writable volume, and volumes must not overlap the operator's own paths."""

    def problems(mounts, **fields):
        section = KubernetesConfig(workload="DeepSpeedJob", mounts=mounts, **fields)
        return messages(config, section)

    without = (
        "backend.kubernetes.workspace_path = /workspace\n"
        "  must be on a volume from backend.kubernetes.mounts. Otherwise the run directory is deleted with "
        "its pod."
    )
    assert problems([]) == [without]
    assert problems([{**MOUNT, "mount_path": "/work"}]) == [without]
    assert problems([{**MOUNT, "read_only": True}]) == [
        "backend.kubernetes.workspace_path = /workspace\n"
        "  is on a mount with read_only: true, but pods must write to it."
    ]
    assert problems([MOUNT], workspace_path="/workspace/team") == []
    ssh = {"claim": "keys", "mount_path": "/root/.ssh/keys"}
    assert problems([MOUNT, ssh]) == [
        "mount_path = /root/.ssh/keys\n"
        "  is at or below /root/.ssh, which the pods of a DeepSpeedJob need themselves. Use another "
        "mount_path."
    ]
    assert problems([MOUNT, MOUNT]) == [
        "/workspace is mounted 2 times.\n  Each mount_path in mounts and secret_files must be unique."
    ]


def test_sizes_and_names_go_together(config):
    """Elastic bounds must include resources.nodes, nbtrain's labels are reserved,
    and an image is required.
    """

    def problems(config=config, **fields):
        section = KubernetesConfig(workload="PyTorchJob", mounts=[MOUNT], **fields)
        return messages(config, section)

    assert problems(min_nodes=2, max_nodes=4) == [
        "backend.kubernetes.min_nodes = 2\n  must be at most resources.nodes(1).",
        "backend.kubernetes.max_nodes = 4\n"
        "  must be equal to resources.nodes(1), the most pods that a job uses. To allow more pods, raise "
        "resources.nodes.",
        "backend.kubernetes.min_nodes = 2\n"
        "  needs backend.elastic: true. Without it, a restart waits for the only pod.",
    ]
    assert problems(load(config, {"backend.elastic": True}), min_nodes=1, max_nodes=1) == []
    assert problems(max_nodes=1) == [
        "backend.kubernetes.max_nodes = 1\n  has no effect without min_nodes. Set min_nodes too."
    ]
    assert problems(labels={"nbtrain/run": "other"}) == [
        "kubernetes.labels contains the key nbtrain/run.\n"
        "  Keys that begin with nbtrain/ are reserved for nbtrain. Rename the key."
    ]
    # The names that backend.env refuses, more of nbtrain's own, and a name with two values.
    names = ("NBTRAIN_JOB", "RANK", "PYTHONPATH", "DS_ACCELERATOR", "NBTRAIN_TRACE", "TEAM", "A", "A")
    given = [{"name": name, "secret": "a", "key": "b"} for name in (*names, "HF_TOKEN")]
    twice = load(config, {"backend.env": {"TEAM": "nlp"}})
    found = dict(
        message.removeprefix("secret_variables contains ").split(": ", 1)
        for message in problems(twice, secret_variables=given)
    )
    assert found == {
        "NBTRAIN_JOB": "nbtrain sets this variable for each rank. Remove it.",
        "RANK": "nbtrain sets this variable for each rank. Remove it.",
        "PYTHONPATH": why_reserved("PYTHONPATH"),
        "DS_ACCELERATOR": "resources.device determines this variable. Remove it.",
        "NBTRAIN_TRACE": "the name is reserved for nbtrain. Remove the variable.",
        "TEAM": "the variable is also set in backend.env. Remove one of the two.",
        "A": "the variable is listed 2 times. Remove all entries but one.",
    }
    assert problems(load("gpt-125m", {"resources.image": None})) == [
        "neither backend.kubernetes.image nor resources.image is set.\n"
        "  Set one of the two to a container image that contains nbtrain, e.g. "
        "registry.example.com/nbtrain:0.1.0."
    ]


@pytest.mark.parametrize(
    ("toleration", "words"),
    [
        ({"key": "gpu", "value": "a100", "effect": "NoSchedule"}, None),
        ({"key": "gpu"}, None),
        ({}, None),
        (
            {"key": "gpu", "operator": "Exists", "value": "a100"},
            "has operator Exists and the value a100.\n"
            "  The operator Exists does not compare values: remove the operator or the value.",
        ),
        (
            {"value": "a100"},
            "has operator Equal, but no key.\n"
            "  The operator Equal compares the value of a key: set key, or remove operator and value to "
            "tolerate every taint.",
        ),
    ],
)
def test_a_toleration_is_one_that_kubernetes_takes(config, toleration, words):
    """An invalid toleration is refused, because the API server would reject every pod
    and the job would never start.
    """
    section = KubernetesConfig(mounts=[MOUNT], tolerations=[toleration])
    found = [f"backend.kubernetes.tolerations.0 {words}"] if words else []
    assert messages(config, section) == found


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"operator": "In", "values": ["a"]}, ""),
        ({"operator": "In"}, "has operator In and 0 values.\n  The operator In needs at least one value."),
        (
            {"operator": "Exists", "values": ["a"]},
            "has operator Exists and 1 value.\n  The operator Exists needs an empty list of values.",
        ),
        (
            {"operator": "Gt", "values": ["1", "2"]},
            "has operator Gt and 2 values.\n  The operator Gt needs exactly one value.",
        ),
    ],
)
def test_a_condition_on_nodes_has_the_values_of_its_operator(config, condition, words):
    """A condition with too few or too many values is refused, because the API server would reject every
    pod.
    """
    section = KubernetesConfig(mounts=[MOUNT], node_affinity=[{"key": "zone", **condition}])
    found = [f"backend.kubernetes.node_affinity.0 {words}"] if words else []
    assert messages(config, section) == found
    section = KubernetesConfig(
        mounts=[MOUNT], node_affinity=[{"key": "n", "operator": "Lt", "values": ["many"]}]
    )
    (said,) = messages(config, section)
    assert said.startswith("backend.kubernetes.node_affinity.0 has operator Lt and the value many.\n")


@pytest.mark.parametrize(
    ("workload", "context", "words"),
    [
        ("PyTorchJob", {"run_as_user": 1000, "fs_group": 1000, "run_as_non_root": True}, ""),
        ("MPIJob", {"fs_group": 1000}, ""),
        ("PyTorchJob", {"run_as_user": 0, "run_as_non_root": True}, "User 0 is root"),
        ("MPIJob", {"run_as_user": 1000}, "of this workload, MPIJob, must run as root"),
        ("DeepSpeedJob", {"run_as_non_root": True}, "of this workload, DeepSpeedJob, must run as root"),
    ],
)
def test_the_pods_user_fits_their_kind(config, workload, context, words):
    """A user that contradicts run_as_non_root, or that cannot start the kind's sshd, is refused."""
    section = KubernetesConfig(mounts=[MOUNT], workload=workload, security_context=context)
    said = "".join(messages(config, section))
    assert (
        (words in said and said.startswith("backend.kubernetes.security_context has ")) if words else not said
    )


def test_the_runtime_of_a_trainjob_decides_its_network(config):
    """A TrainJob's patches have no hostNetwork, so that the field is refused there."""
    section = KubernetesConfig(mounts=[MOUNT], host_network=True)
    assert "is not supported by a TrainJob: the training runtime controls it" in messages(config, section)[0]
    assert not messages(config, KubernetesConfig(mounts=[MOUNT], host_network=True, workload="PyTorchJob"))


def test_the_jobs_own_deadline_comes_before_the_operators(config):
    """The job's own deadline must come before the operator's, to leave time for a checkpoint."""
    own = load(config, {"backend.deadline_seconds": 3600})

    def problems(config, seconds):
        section = KubernetesConfig(mounts=[MOUNT], active_deadline_seconds=seconds)
        return messages(config, section)

    assert problems(own, 3689) == [
        "backend.kubernetes.active_deadline_seconds = 3689\n"
        "  must be at least 3690 s, so that the job can save a checkpoint before its pods are deleted: "
        "backend.deadline_seconds(3600) + backend.shutdown_timeout_seconds(60) + 30 = 3690. Raise "
        "active_deadline_seconds, or remove one of the two deadlines."
    ]
    assert problems(own, 3690) == problems(own, None) == problems(config, 1) == []


def test_the_autotuner_takes_data_parallel_runs_alone():
    """The autotuner requires a data-parallel run of fixed size, because DeepSpeed's
    autotuner counts every rank.
    """
    image = {"resources.image": "registry.example.com/nbtrain:0.1.0"}

    def problems(run, **fields):
        section = KubernetesConfig(workload="DeepSpeedJob", mounts=[MOUNT], **fields)
        return messages(load(run, {**image, "backend.elastic": True}), section)

    assert problems("gpt-125m-4xdp", autotune="tune") == []
    assert problems("gpt-13b-4xdp-4xpp-4xtp", autotune="run") == [
        "backend.kubernetes.autotune = run\n"
        f"  needs parallel.{field}: 1, but the size is 4; DeepSpeed's autotuner counts every rank as a "
        "data-parallel rank. Set autotune: none, and run `nbtrain search` instead, which tries layouts of "
        "all kinds."
        for field in ("pipeline_parallel_size", "tensor_parallel_size")
    ]
    assert problems("gpt-125m-4xdp", autotune="tune", min_nodes=1) == [
        "backend.kubernetes.autotune = tune\n"
        "  cannot be combined with min_nodes(1), because the best settings for 1 pod may not fit on fewer "
        "pods. Remove autotune or min_nodes."
    ]


def test_shared_memory_holds_what_the_workers_read_ahead():
    """Shared memory must hold the batches that workers prefetch: 2 workers, 8 ranks, 4 x 2,048 tokens."""
    run = load(
        "gpt-125m",
        {
            "resources.image": "x",
            "data.num_workers": 2,
            "batch.micro_batch_size": 4,
            "model.seq_length": 2048,
        },
    )
    needed = run.ranks_per_node * 4096 * (8 + 2 * (3 + 2 * 2 * 16))
    [problem] = messages(run, KubernetesConfig(mounts=[MOUNT], shared_memory_bytes=needed - 1))
    assert f"must be at least {needed}, because the data workers (data.num_workers = 2)" in problem
    for size in (needed, None):
        assert messages(run, KubernetesConfig(mounts=[MOUNT], shared_memory_bytes=size)) == []
