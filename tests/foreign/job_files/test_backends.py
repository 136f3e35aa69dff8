"""The place where a job runs: each value of a manifest or of a batch script becomes a field, or is listed."""

import subprocess

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.read import read_files
from nbtrain.foreign.job_files.slurm_options import count, gpu_request, memory_bytes, sbatch_lines, seconds

FLAGS = (
    "pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 --lr 6e-4 "
    "--vocab-file gpt2-vocab.json --merge-file m.txt --data-path corpus/text_document --bf16"
)


def pod(name: str, command: list[str] | None, gpus: int = 4, **more) -> dict:
    """Return a pod template with volumes, devices and placement."""
    container = {
        "name": name,
        "image": "registry.example.com/megatron:1",
        "imagePullPolicy": "Always",
        "workingDir": "/data/team",
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}},
        ],
        "resources": {
            "limits": {
                "nvidia.com/gpu": gpus,
                "rdma/hca": 2,
                "cpu": "16",
                "memory": "64Gi",
                "hugepages-2Mi": "1Gi",
            }
        },
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "privileged": True},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data", "subPath": "a"},
            {"name": "text", "mountPath": "/text", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "keys", "mountPath": "/keys"},
            {"name": "host", "mountPath": "/host"},
        ],
        **({"command": command} if command else {}),
    }
    spec = {
        "containers": [container, {"name": "sidecar", "image": "log:1"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "team-data"}},
            {"name": "text", "persistentVolumeClaim": {"claimName": "text"}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "keys", "secret": {"secretName": "ssh-keys"}},
            {"name": "host", "hostPath": {"path": "/mnt"}},
        ],
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "hostNetwork": True,
        **more,
    }
    metadata = {"annotations": {"sidecar.istio.io/inject": "false"}, "labels": {"team": "nlp"}}
    return {"metadata": metadata, "spec": spec}


def deepspeed_job() -> dict:
    return {
        "apiVersion": "batch.tensorstack.dev/v1beta1",
        "kind": "DeepSpeedJob",
        "metadata": {"name": "gpt", "namespace": "nlp"},
        "spec": {
            "scheduler": {"t9kScheduler": {"queue": "batch", "priority": 50}},
            "runPolicy": {"activeDeadlineSeconds": 86400, "backoffLimit": 3, "cleanUpPolicy": "Unfinished"},
            "elastic": {"enabled": True, "minReplicas": 1, "maxReplicas": 2, "expectedReplicas": 2},
            "config": {
                "slotsPerWorker": 4,
                "localRank": True,
                "otherArgs": ["--ssh_port=2222"],
                "run": {"python": FLAGS.split()},
            },
            "worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": pod("worker", None)},
        },
    }


COMMON = {
    "backend.kind": "kubernetes",
    "resources.nodes": 2,
    "resources.gpus_per_node": 4,
    "resources.cpus_per_node": 16,
    "resources.memory_per_node_bytes": 64 * 2**30,
    "resources.image": "registry.example.com/megatron:1",
    "resources.gpu_type": "H100",
    "backend.env": {"NCCL_DEBUG": "INFO"},
    "backend.kubernetes.workspace_path": "/data/team",
    "backend.kubernetes.shared_memory_bytes": 8 * 2**30,
    "backend.kubernetes.extra_resources": {"rdma/hca": 2},
    "backend.kubernetes.capabilities": ["IPC_LOCK"],
    "backend.kubernetes.node_selector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": "a"},
    "backend.kubernetes.service_account": "trainer",
    "backend.kubernetes.image_pull_secrets": ["registry"],
    "backend.kubernetes.labels": {"team": "nlp"},
    "backend.kubernetes.annotations": {"sidecar.istio.io/inject": "false"},
}


def value(config, dotted: str):
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def imported(tmp_path, *documents: dict, overrides=()):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return import_files([path], overrides)


def check_common(config, but: tuple[str, ...] = ()) -> None:
    assert {key: value(config, key) for key in COMMON if key not in but} == {
        key: expected for key, expected in COMMON.items() if key not in but
    }
    section = config.backend.kubernetes
    assert [mount.model_dump(exclude_defaults=True) for mount in section.mounts] == [
        {"claim": "team-data", "mount_path": "/data", "sub_path": "a"},
        {"claim": "text", "mount_path": "/text", "read_only": True},
    ]
    assert [secret.secret for secret in section.secret_files] == ["ssh-keys"]
    assert [variable.secret for variable in section.secret_variables] == ["wandb"]
    assert [entry.key for entry in section.tolerations] == ["gpu"]


def notes_of(found) -> str:
    return "\n".join(str(note) for note in found.notes)


def test_a_deepspeed_jobs_place_comes_along(tmp_path):
    """Queue, priority, policies, elastic sizes, claims, devices and placement become fields; the rest is
    listed by name, and the YAML reads back.
    """
    found = imported(tmp_path, deepspeed_job())
    section = found.config.backend.kubernetes
    check_common(found.config)
    assert (section.namespace, section.workload) == ("nlp", "DeepSpeedJob")
    assert (section.queue, section.priority, section.image_pull_policy) == ("batch", 50, "Always")
    assert (section.active_deadline_seconds, section.back_off_limit) == (86400, 3)
    assert (section.clean_up_policy, section.restart_policy) == ("unfinished", "OnFailure")
    assert (section.min_nodes, section.max_nodes, found.config.backend.elastic) == (1, 2, True)
    for name in (
        *("config.otherArgs", "containers.1", "hostNetwork", "containers.0.securityContext.privileged"),
        *("volumes.4.hostPath", "containers.0.volumeMounts.4", "limits.hugepages-2Mi"),
    ):
        assert f"{name}: nbtrain has no field for it." in notes_of(found)
    found.write(tmp_path / "run.yaml")
    assert load(tmp_path / "run.yaml") == found.config


COMMAND = ["torchrun", "--nproc_per_node", "4", *FLAGS.split()]
KUBEFLOW = {
    "cleanPodPolicy": "Running",
    "backoffLimit": 2,
    "ttlSecondsAfterFinished": 600,
    "schedulingPolicy": {"queue": "batch", "priorityClass": "high", "minAvailable": 2},
}


def test_kubeflows_places_come_along(tmp_path):
    """PyTorchJob, MPIJob and TrainJob have the same pods and their own policies."""
    replicas = {
        role: {"replicas": 1, "restartPolicy": "ExitCode", "template": pod("pytorch", COMMAND)}
        for role in ("Master", "Worker")
    }
    job = {
        "kind": "PyTorchJob",
        "metadata": {"name": "gpt"},
        "spec": {"runPolicy": KUBEFLOW, "pytorchReplicaSpecs": replicas},
    }
    found = imported(tmp_path, job)
    section = found.config.backend.kubernetes
    check_common(found.config)
    assert (section.queue, section.priority_class, section.clean_up_policy) == ("batch", "high", "unfinished")
    assert (section.workload, section.restart_policy, section.back_off_limit) == ("PyTorchJob", "ExitCode", 2)
    assert "runPolicy.ttlSecondsAfterFinished: nbtrain has no field for it." in notes_of(found)
    assert "runPolicy.schedulingPolicy.minAvailable: nbtrain has no field for it." in notes_of(found)

    mpirun = ["mpirun", "-np", "8", "python", *FLAGS.split()]
    specs = {
        "Launcher": {"template": pod("launcher", mpirun, 0)},
        "Worker": {"replicas": 2, "template": pod("worker", ["sshd", "-De"])},
    }
    job = {
        "kind": "MPIJob",
        "metadata": {"name": "gpt"},
        "spec": {"slotsPerWorker": 4, "mpiReplicaSpecs": specs},
    }
    check_common(imported(tmp_path, job).config)

    template = pod("node", None)
    (container, *_) = template["spec"]["containers"]
    trainer = {
        "numNodes": 2,
        "image": container.pop("image"),
        "command": COMMAND,
        "env": container.pop("env"),
        "resourcesPerNode": container.pop("resources"),
    }
    container.pop("imagePullPolicy")
    patch = {
        "template": {
            "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": template}}}]}
        }
    }
    job = {
        "kind": "TrainJob",
        "metadata": {"name": "gpt", "labels": {"kueue.x-k8s.io/queue-name": "batch", "team": "nlp"}},
        "spec": {
            "runtimeRef": {"name": "torch-h100", "kind": "TrainingRuntime"},
            "activeDeadlineSeconds": 3600,
            "trainer": trainer,
            "runtimePatches": [{"manager": "a.b/c", "trainingRuntimeSpec": patch}],
        },
    }
    found = imported(tmp_path, job)
    section = found.config.backend.kubernetes
    check_common(found.config)
    assert (section.queue, section.runtime, section.runtime_kind) == (
        "batch",
        "torch-h100",
        "TrainingRuntime",
    )
    assert section.active_deadline_seconds == 3600


def test_every_value_of_a_manifest_is_read_or_listed(tmp_path):
    """A key that is added anywhere in a manifest is named in the notes, with its line."""

    def places(tree, path=()):
        if isinstance(tree, dict):
            yield path
            for key, inner in tree.items():
                yield from places(inner, (*path, key))
        elif isinstance(tree, list):
            for at, inner in enumerate(tree):
                yield from places(inner, (*path, at))

    free = (
        "metadata",
        "labels",
        "imagePullSecrets",
        "annotations",
        "nodeSelector",
        "limits",
        "env",
        "emptyDir",
    )
    for path in places(deepspeed_job()):
        if not path or set(path) & set(free):
            continue
        job = deepspeed_job()
        inner = job
        for part in path:
            inner = inner[part]
        inner["newField"] = "x"
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        (found,) = read_files([tmp_path / "job.yaml"])
        notes = "".join(f" {text}" for _, text in found.left)
        shown = ".".join(map(str, (*path, "newField"))).rpartition("template.spec.")[2].removeprefix("spec.")
        above = [
            shown[:end] for end in (*(at for at, letter in enumerate(shown) if letter == "."), len(shown))
        ]
        assert any(f" {key}: nbtrain has no field for it." in notes for key in above), path


def test_devices_are_known_by_name(tmp_path):
    """GPUs are resources with the names of device plugins; another name with "gpu" in it is no GPU."""
    job = deepspeed_job()
    (container, _) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["resources"] = {
        "limits": {"amd.com/gpu": 4, "rdma/gpu_rdma_shared": 1, "nvidia.com/gpumem": 16}
    }
    del job["spec"]["config"]["slotsPerWorker"]
    config = imported(tmp_path, job).config
    assert (config.resources.gpus_per_node, config.backend.kubernetes.gpu_resource) == (4, "amd.com/gpu")
    assert config.backend.kubernetes.extra_resources == {"rdma/gpu_rdma_shared": 1, "nvidia.com/gpumem": 16}
    container["resources"] = {"limits": {"nvidia.com/mig-3g.40gb": 2}}
    job["spec"]["config"]["slotsPerWorker"] = 2
    assert imported(tmp_path, job).config.backend.kubernetes.gpu_resource == "nvidia.com/mig-3g.40gb"
    # If there are two kinds, the first one gives the number and the name; the other is listed.
    container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] = 1
    del job["spec"]["config"]["slotsPerWorker"]
    found = import_files([written(tmp_path, job)])
    assert (found.config.resources.gpus_per_node, found.config.backend.kubernetes.gpu_resource) == (
        2,
        "nvidia.com/mig-3g.40gb",
    )
    assert "gpu_resource nvidia.com/mig-1g.10gb: not imported" in notes_of(found)


def written(tmp_path, document: dict):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def test_ranks_are_those_of_the_operator(tmp_path):
    """A launcher that works counts as a worker, the elastic policy may hold the ranks, and torchrun prefers
    its own option to the operator's variable.
    """
    job = mpi_job("mpirun", "-np", "12", "python", *FLAGS.split())
    job["spec"] |= {"slotsPerWorker": 4, "runLauncherAsWorker": True}
    resources = imported(tmp_path, job, overrides=["batch.global_batch_size=48"]).config.resources
    assert (resources.nodes, resources.gpus_per_node) == (3, 4)

    job = pytorch_job("torchrun", *FLAGS.split())
    job["spec"]["elasticPolicy"] = {"nProcPerNode": 2}
    found = imported(tmp_path, job)
    assert (found.config.resources.gpus_per_node, "nProcPerNode" in notes_of(found)) == (2, False)

    trainer = {"numNodes": 2, "numProcPerNode": 8, "command": ["torchrun", "--nproc_per_node=4"]}
    trainer["command"] += FLAGS.split()
    job = {"kind": "TrainJob", "metadata": {"name": "gpt"}, "spec": {"trainer": trainer}}
    resources = imported(tmp_path, job).config.resources
    assert (resources.nodes, resources.gpus_per_node) == (2, 4)


def mpi_job(*command: str) -> dict:
    replicas = {
        "Launcher": {"template": pod("launcher", [*command])},
        "Worker": {"replicas": 2, "template": pod("worker", None)},
    }
    return {"kind": "MPIJob", "metadata": {"name": "gpt"}, "spec": {"mpiReplicaSpecs": replicas}}


def pytorch_job(*command: str) -> dict:
    replicas = {"Worker": {"replicas": 2, "template": pod("pytorch", [*command])}}
    return {"kind": "PyTorchJob", "metadata": {"name": "gpt"}, "spec": {"pytorchReplicaSpecs": replicas}}


def test_secrets_stay_out_of_the_run_yaml(tmp_path):
    """Secrets of annotations, variables, options and addresses are listed by name, without their value."""
    secret = "hf_abcdefghijklmnopqrst"
    job = pytorch_job("torchrun", *FLAGS.split(), "--wandb-project", secret)
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    template["metadata"]["annotations"] |= {"team/api-token": "plain", "note": f"with {secret}"}
    template["spec"]["containers"][0]["env"] += [
        {"name": "OTHER", "value": secret},
        {"name": "HTTPS_PROXY", "value": "http://me:plain@proxy:3128"},
    ]
    found = imported(tmp_path, job)
    for name in ("annotations.team/api-token", "annotations.note", "OTHER", "HTTPS_PROXY"):
        assert f"# - job.yaml:{place_of(found, name)}: {name}" in found.text
    assert secret not in found.text and "plain" not in found.text
    assert found.config.backend.kubernetes.annotations == {"sidecar.istio.io/inject": "false"}

    path = tmp_path / "job.sbatch"
    option = f"#SBATCH --export=ALL,WANDB_API_KEY=plain --comment={secret}"
    path.write_text(f"#!/bin/bash\n#SBATCH -N 2\n{option}\nsrun torchrun --nproc_per_node 4 {FLAGS}\n")
    found = import_files([path])
    assert "# - job.sbatch:3: --export: not imported; it looks like a secret." in found.text
    assert secret not in found.text and "plain" not in found.text
    for option in ("--export=ALL,HTTP_AUTH=plain", "--export=ALL,HTTPS_PROXY=http://me:plain@proxy:3128"):
        path.write_text(f"#!/bin/bash\n#SBATCH -N 2 {option}\nsrun torchrun --nproc_per_node 4 {FLAGS}\n")
        found = import_files([path])
        assert "# - job.sbatch:2: --export: not imported; it looks like a secret." in found.text
        assert "plain" not in found.text


def place_of(found, name: str) -> str:
    return next(note.place for note in found.notes if note.message.startswith(name)).rpartition(":")[2]


def test_secrets_of_all_containers_are_kept(tmp_path):
    """The Launcher's variables from Secrets are added to the workers'; one name has one Secret."""
    job = mpi_job("mpirun", "python", *FLAGS.split())
    job["spec"]["slotsPerWorker"] = 4
    (container, _) = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    container["env"] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": "other", "key": "key"}}}
        for name in ("HF_TOKEN", "WANDB_API_KEY", "MASTER_ADDR")
    ]
    container["env"].append({"name": "TEAM", "value": "nlp"})
    (worker, _) = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    worker["env"].append({**worker["env"][1], "name": "TEAM"})
    found = imported(tmp_path, job)
    variables = found.config.backend.kubernetes.secret_variables
    assert [(entry.name, entry.secret) for entry in variables] == [
        ("WANDB_API_KEY", "wandb"),
        ("TEAM", "wandb"),
        ("HF_TOKEN", "other"),
    ]
    notes = notes_of(found)
    assert ("env WANDB_API_KEY: not imported; another container takes its value from another Secret") in notes
    assert "TEAM: not imported; another container takes its value from a Secret." in notes
    # A variable that nbtrain sets itself is not imported, and a note says why.
    assert "MASTER_ADDR: nbtrain sets this variable for each rank. Remove it." in notes


def test_a_name_that_is_a_list_is_no_traceback(tmp_path):
    """A list as the name of a variable, a volume or its mount is refused or listed."""
    for part in ("env", "volumeMounts", "volumes"):
        job = pytorch_job("torchrun", *FLAGS.split())
        spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        (spec if part == "volumes" else spec["containers"][0])[part][1]["name"] = [1]
        try:
            imported(tmp_path, job)
        except ConfigError as error:
            assert str(error)


def test_two_files_of_one_name_are_refused(tmp_path):
    """Two files with one name are refused; neither is dropped silently."""
    paths = [tmp_path / folder / "train.sh" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"torchrun --nproc_per_node 4 {FLAGS}\n")
    with pytest.raises(ConfigError, match=r"train\.sh: two of the files have this name"):
        import_files(paths)


def test_a_key_is_written_once(tmp_path):
    """A manifest with a key that is written twice is refused with the second place, as kubectl does."""
    path = tmp_path / "job.yaml"
    text = yaml.safe_dump(pytorch_job("torchrun", *FLAGS.split()))
    path.write_text(f"{text}spec: {{}}\n")
    with pytest.raises(ConfigError, match=rf"job\.yaml:{len(text.splitlines()) + 1}: spec is written twice"):
        import_files([path])


def test_a_place_without_a_volume_stays_local(tmp_path):
    """Without a claim for the run directory, the fields are set, and a note says what the place lacks."""
    job = deepspeed_job()
    spec = job["spec"]["worker"]["template"]["spec"]
    spec["volumes"] = spec["volumes"][2:]
    found = imported(tmp_path, job)
    assert (found.config.backend.kind, found.config.backend.kubernetes.queue) == ("local", "batch")
    assert (
        "backend.kind stays local: the manifest has no persistentVolumeClaim for the workspace"
        in notes_of(found)
    )


def test_variables_and_claims_may_be_in_other_files(tmp_path):
    """envFrom, a claim and a runtime are read from the files that hold them, and asked for otherwise."""
    job = deepspeed_job()
    (container, _) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["envFrom"] = [{"configMapRef": {"name": "network"}, "prefix": "NCCL_"}]
    with pytest.raises(
        ConfigError, match=r"job\.yaml:\d+: envFrom: the variables are in the ConfigMap network, whi"
    ):
        imported(tmp_path, job)
    assert imported(tmp_path, job, overrides={"backend.env": {}}).config.backend.kind == "kubernetes"
    other = tmp_path / "map.yaml"
    other.write_text(
        yaml.safe_dump({"kind": "ConfigMap", "metadata": {"name": "network"}, "data": {"IB_HCA": "mlx5"}})
    )
    claim = tmp_path / "claim.yaml"
    claim.write_text(
        yaml.safe_dump(
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "team-data"},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}},
            }
        )
    )
    found = import_files([tmp_path / "job.yaml", other, claim])
    config = found.config
    assert "envFrom" not in notes_of(found)
    assert config.backend.env == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"}
    assert [file.file for file in config.imported_from] == ["job.yaml", "map.yaml", "claim.yaml"]

    train_job = {
        "kind": "TrainJob",
        "metadata": {"name": "gpt"},
        "spec": {
            "runtimeRef": {"name": "torch"},
            "trainer": {"numProcPerNode": "auto", "command": ["torchrun", *FLAGS.split()]},
        },
    }
    with pytest.raises(ConfigError) as error:
        imported(tmp_path, train_job)
    assert "Add resources.nodes=... to the command" in str(error.value)
    assert "Add resources.gpus_per_node=... to the command" in str(error.value)
    train_job["spec"]["trainer"]["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": 4}}
    runtime = {
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {"mlPolicy": {"numNodes": 3}},
    }
    other.write_text(yaml.safe_dump(runtime))
    files = [written(tmp_path, train_job), other]
    resources = import_files(files, ["batch.global_batch_size=48"]).config.resources
    assert (resources.nodes, resources.gpus_per_node) == (3, 4)


SBATCH = f"""#!/bin/bash
#SBATCH -J gpt-run --nodes=2 --ntasks-per-node=1
#SBATCH -p gpu,long -A nlp   # two options
#SBATCH --qos high
#SBATCH --gres=gpu:a100:4,lscratch:16
#SBATCH --time=1-12:30:00
#SBATCH --mem-per-gpu=32G
#SBATCH --cpus-per-task=16
#SBATCH --array=1-4%1
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@300
#SBATCH --exclusive
#SBATCH --mail-type=END
#SBATCH --constraint="a100&ib"
#SBATCH --output=logs/%j.out
#SBATCH --chdir=/scratch

module purge
module load cuda/12.4
source /opt/venv/bin/activate
source settings.sh
export NCCL_DEBUG=INFO
#SBATCH --nodes=16
srun torchrun --nnodes=2 --nproc_per_node=4 {FLAGS}
"""


def test_a_batch_scripts_place_comes_along(tmp_path):
    """Every #SBATCH option before the first command is a field, a further option, or is listed; so are the
    commands that prepare the shell.
    """
    path = tmp_path / "train.sbatch"
    path.write_text(SBATCH)
    found = import_files([path])
    config, slurm = found.config, found.config.backend.slurm
    assert (config.name, config.backend.kind) == ("gpt-run", "slurm")
    assert (config.resources.nodes, config.resources.gpus_per_node, config.resources.cpus_per_node) == (
        2,
        4,
        16,
    )
    assert config.resources.memory_per_node_bytes == 4 * 32 * 2**30
    assert (slurm.partition, slurm.account, slurm.qos) == ("gpu,long", "nlp", "high")
    assert (slurm.gres, slurm.constraint) == ("gpu:a100:4,lscratch:16", "a100&ib")
    assert (slurm.time_limit_seconds, slurm.signal_before_seconds) == (131_400, 300)
    assert (slurm.array, slurm.requeue, slurm.exclusive) == ("1-4%1", False, True)
    assert slurm.sbatch_options == ["--mail-type=END"]
    assert slurm.setup == ["module purge", "module load cuda/12.4", "source /opt/venv/bin/activate"]
    for text in (
        "--output=logs/%j.out: not imported; ",
        "--chdir=/scratch: not imported; ",
        "source settings.sh: ",
    ):
        assert text in notes_of(found)
    path.write_text(SBATCH.replace("1-4%1", "1-4"))
    assert "--array=1-4: not imported; the tasks of an array share the run" in notes_of(import_files([path]))


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        ("-N4", "--nodes", "4"),
        ("-N 4 --gres gpu:8", "--gres", "gpu:8"),
        ("--exclusive --mem=0", "--exclusive", ""),
        ("--comment='a b'", "--comment", "a b"),
        ("-t 30", "--time", "30"),
    ],
)
def test_options_of_a_line_are_read_as_sbatch_does(line, name, found):
    """Several options are read from one line, short or long, joined or not."""
    options = {
        option.name: option.value for option in sbatch_lines(f"#!/bin/sh\n#SBATCH {line}\necho\n", "a")
    }
    assert options[name] == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--gres=gpu:a100:4", ("--gres", 4, "gpu:a100:4")),
        ("--gres=gpu", ("--gres", 1, "gpu:1")),
        ("--gpus-per-node=a100:4", ("--gpus-per-node", 4, "gpu:a100:4")),
        ("-N 2 -G a100:8", ("--gpus", 4, "gpu:a100:4")),
        ("-N 3 --gpus=8", None),
        ("--tres-per-node=gres/gpu:a100:4", ("--tres-per-node", 4, "gpu:a100:4")),
        ("--tres-per-node=gres:gpu=4", ("--tres-per-node", 4, "gpu:4")),
        ("--ntasks-per-node=4 --gpus-per-task=h100:1", ("--gpus-per-task", 4, "gpu:h100:4")),
        ("--gres=lscratch:16", None),
    ],
)
def test_gpus_are_read_in_each_of_sbatchs_spellings(line, found):
    lines = list(sbatch_lines(f"#!/bin/sh\n#SBATCH {line}\necho\n", "a"))
    nodes = count(lines, "--nodes")
    request = gpu_request(lines, nodes.value if nodes else 1)
    assert (request and (request.option, request.per_node.value, request.gres)) == found


@pytest.mark.parametrize(
    ("lines", "gres", "options"),
    [
        ("--gpus-per-node=a100:4", "gpu:a100:4", []),
        ("--gpus-per-node=4", None, []),
        ("--gres=gpu:4", None, []),
        ("--tres-per-node=gres/gpu:a100:4", "gpu:a100:4", []),
        ("--tres-per-node=gres/gpu:4,license/x:1", None, ["--tres-per-node=gres/gpu:4,license/x:1"]),
    ],
)
def test_the_type_of_gpu_stays_requested(tmp_path, lines, gres, options):
    """A type of GPU is imported as backend.slurm.gres, and no request is written twice."""
    path = tmp_path / "train.slurm"
    path.write_text(f"#!/bin/bash\n#SBATCH -N 1 {lines}\nsrun torchrun --nproc_per_node 4 {FLAGS}\n")
    slurm = import_files([path]).config.backend.slurm
    assert (slurm.gres, slurm.sbatch_options) == (gres, options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 5400), ("90:30", 5430), ("2:00:00", 7200), ("1-0", 86_400), ("1-2:30", 95_400), ("soon", None)],
)
def test_time_limits_have_slurms_forms(text, expected):
    """Times are minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    assert seconds(text) == expected


def test_memory_is_in_mebibytes_without_a_unit():
    """Amounts of memory have the unit M if none is written."""
    assert [memory_bytes(text) for text in ("4000", "4G", "1t", "all")] == [4000 * 2**20, 2**32, 2**40, None]


def test_the_files_are_in_the_runs_record(tmp_path):
    """A run records name, hash and commit of each file, "+changes" if it differs from the commit."""
    path = tmp_path / "train.sh"
    path.write_text(f"torchrun --nproc_per_node 4 {FLAGS}\n")
    (file,) = import_files([path]).config.imported_from
    assert (file.file, len(file.sha256), file.commit) == ("train.sh", 64, None)

    def git(*words: str) -> str:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.run(
            ["git", "-C", tmp_path, *settings, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("add", "train.sh")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    found = import_files([path])
    assert found.config.imported_from[0].commit == commit
    found.write(tmp_path / "run.yaml")
    assert load(tmp_path / "run.yaml").imported_from == found.config.imported_from
    # A JSON next to the script is read and recorded too, and a layout for the run adds its own file.
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
    deepspeed = tmp_path / "ds.sh"
    deepspeed.write_text(f"deepspeed --num_gpus 4 {FLAGS} --deepspeed --deepspeed_config ds.json\n")
    assert [file.file for file in import_files([deepspeed]).config.imported_from] == ["ds.sh", "ds.json"]
    layout = import_files([tmp_path / "ds.json"], None, str(tmp_path / "run.yaml"))
    assert [file.file for file in layout.config.imported_from] == ["train.sh", "ds.json"]
    path.write_text(path.read_text() + "\n")
    assert import_files([path]).config.imported_from[0].commit == f"{commit}+changes"
