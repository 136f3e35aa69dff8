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
        "backend.kubernetes.back_off_limit = 3\n  is not supported in a TrainJob: the runtime's "
        "failurePolicy "
        "decides it; set it there."
    ]
    assert problems(workload="MPIJob", autotune="tune", restart_policy="ExitCode") == [
        "backend.kubernetes.autotune = tune\n  is supported in a DeepSpeedJob only; workload is MPIJob.",
        "backend.kubernetes.restart_policy = ExitCode\n  must be Never or OnFailure in an MPIJob.",
    ]
    assert problems(workload="DeepSpeedJob", priority=5) == [
        "backend.kubernetes.priority = 5\n  needs queue, because it is the priority in that queue."
    ]
    assert problems(workload="MPIJob", min_nodes=1) == [
        "backend.kubernetes.min_nodes = 1\n  is not supported in an MPIJob: use a DeepSpeedJob "
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
        "backend.kubernetes.workspace_path = /workspace\n  must be on a volume of mounts: without one "
        "the run directory ends with its pod."
    )
    assert problems([]) == [without]
    assert problems([{**MOUNT, "mount_path": "/work"}]) == [without]
    assert problems([{**MOUNT, "read_only": True}]) == [
        "backend.kubernetes.workspace_path = /workspace\n  is on a mount with read_only: true."
    ]
    assert problems([MOUNT], workspace_path="/workspace/team") == []
    ssh = {"claim": "keys", "mount_path": "/root/.ssh/keys"}
    assert problems([MOUNT, ssh]) == [
        "mount_path = /root/.ssh/keys\n  /root/.ssh belongs to the DeepSpeedJob's own pods; mount it "
        "elsewhere."
    ]
    assert problems([MOUNT, MOUNT]) == [
        "/workspace is mounted 2 times\n  each mount_path of mounts and secret_files must be unique."
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
        "backend.kubernetes.max_nodes = 4\n  must be resources.nodes(1): a job never uses more pods; raise "
        "resources.nodes instead.",
        "backend.kubernetes.min_nodes = 2\n  needs backend.elastic = true: without it, a restart waits for "
        "all 1 pods.",
    ]
    assert problems(load(config, {"backend.elastic": True}), min_nodes=1, max_nodes=1) == []
    assert problems(max_nodes=1) == ["backend.kubernetes.max_nodes = 1\n  needs min_nodes."]
    assert problems(labels={"nbtrain/run": "other"}) == [
        "kubernetes.labels has nbtrain/run\n  keys that begin with nbtrain/ are reserved for nbtrain."
    ]
    # The names that backend.env refuses, more of nbtrain's own, and a name with two values.
    names = ("NBTRAIN_JOB", "RANK", "PYTHONPATH", "DS_ACCELERATOR", "NBTRAIN_TRACE", "TEAM", "A", "A")
    given = [{"name": name, "secret": "a", "key": "b"} for name in (*names, "HF_TOKEN")]
    twice = load(config, {"backend.env": {"TEAM": "nlp"}})
    found = dict(
        message.split(" (secret_variables)\n  ") for message in problems(twice, secret_variables=given)
    )
    assert found == {
        "the variable NBTRAIN_JOB": "nbtrain sets this for each rank itself. Remove it.",
        "the variable RANK": "nbtrain sets this for each rank itself. Remove it.",
        "the variable PYTHONPATH": why_reserved("PYTHONPATH"),
        "the variable DS_ACCELERATOR": "resources.device decides this. Remove it.",
        "the variable NBTRAIN_TRACE": "is nbtrain's own. Remove it.",
        "the variable TEAM": "is set in backend.env too. Remove one of the two.",
        "the variable A": "is there 2 times. Remove all but one.",
    }
    assert problems(load("gpt-125m", {"resources.image": None})) == [
        "neither backend.kubernetes.image nor resources.image is set\n  one of them must name a container "
        "image with nbtrain in it, e.g. registry.example.com/nbtrain:0.1.0."
    ]


@pytest.mark.parametrize(
    ("toleration", "words"),
    [
        ({"key": "gpu", "value": "a100", "effect": "NoSchedule"}, None),
        ({"key": "gpu"}, None),
        ({}, None),
        (
            {"key": "gpu", "operator": "Exists", "value": "a100"},
            "has operator Exists and the value a100\n  Exists compares no value: remove the operator or "
            "the value.",
        ),
        (
            {"value": "a100"},
            "has operator Equal and no key\n  Equal compares the value of one key: set key, or remove "
            "operator and value to accept every taint.",
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
        ({"operator": "In"}, "has operator In and 0 values\n  In needs at least one value."),
        (
            {"operator": "Exists", "values": ["a"]},
            "has operator Exists and 1 value\n  Exists takes no values.",
        ),
        ({"operator": "Gt", "values": ["1", "2"]}, "has operator Gt and 2 values\n  Gt takes one value."),
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
    assert said.startswith("backend.kubernetes.node_affinity.0: Lt many\n  Lt compares whole numbers")


@pytest.mark.parametrize(
    ("workload", "context", "words"),
    [
        ("PyTorchJob", {"run_as_user": 1000, "fs_group": 1000, "run_as_non_root": True}, ""),
        ("MPIJob", {"fs_group": 1000}, ""),
        ("PyTorchJob", {"run_as_user": 0, "run_as_non_root": True}, "user 0 is root"),
        ("MPIJob", {"run_as_user": 1000}, "of this kind, MPIJob, run sshd with the keys in /root/.ssh"),
        ("DeepSpeedJob", {"run_as_non_root": True}, "of this kind, DeepSpeedJob, run sshd"),
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
    assert "is not supported in a TrainJob: the runtime decides it" in messages(config, section)[0]
    assert not messages(config, KubernetesConfig(mounts=[MOUNT], host_network=True, workload="PyTorchJob"))


def test_the_jobs_own_deadline_comes_before_the_operators(config):
    """The job's own deadline must come before the operator's, to leave time for a checkpoint."""
    own = load(config, {"backend.deadline_seconds": 3600})

    def problems(config, seconds):
        section = KubernetesConfig(mounts=[MOUNT], active_deadline_seconds=seconds)
        return messages(config, section)

    assert problems(own, 3689) == [
        "backend.kubernetes.active_deadline_seconds = 3689\n  must be at least 3690: "
        "backend.deadline_seconds(3600), after which the job ends with a checkpoint, + "
        "shutdown_timeout_seconds(60) + 30 s. Remove one of the two, or raise it."
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
        f"backend.kubernetes.autotune = run\n  needs parallel.{field}(1), not 4: DeepSpeed's autotuner "
        "counts every rank as a data-parallel one. Set it to none; `nbtrain search` then tries "
        "layouts of all kinds."
        for field in ("pipeline_parallel_size", "tensor_parallel_size")
    ]
    assert problems("gpt-125m-4xdp", autotune="tune", min_nodes=1) == [
        "backend.kubernetes.autotune = tune\n  cannot be combined with min_nodes(1): the best settings on "
        "1 pods "
        "may not fit fewer. Remove one of the two."
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
    assert f"must be at least {needed}: data.num_workers(2)" in problem
    for size in (needed, None):
        assert messages(run, KubernetesConfig(mounts=[MOUNT], shared_memory_bytes=size)) == []
