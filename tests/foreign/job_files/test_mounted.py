"""Typical jobs of new users: mounted scripts, patched pods, mpirun's ranks, and scripts for Ascend."""

import json

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.importing import Imported, import_files
from nbtrain.foreign.lint import lint

FLAGS = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --train-iters 5000 "
    "--lr 1.5e-4 --bf16 --vocab-file gpt2-vocab.json --merge-file m.txt --data-path /data/wiki/text_document"
)
SCRIPT = f"""#!/bin/bash
export NCCL_DEBUG=WARN
ARGS=({FLAGS})
exec torchrun --nproc_per_node 4 pretrain_gpt.py "${{ARGS[@]}}"
"""
MAP = {"kind": "ConfigMap", "metadata": {"name": "scripts"}, "data": {"train.sh": SCRIPT}}
PATCH = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}
SECRET = {"name": "TOKEN_FILE", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
TRAIN_JOB = {
    "kind": "TrainJob",
    "metadata": {"name": "gpt-345m"},
    "spec": {
        "trainer": {"numNodes": 2, "command": ["bash", "/scripts/train.sh"], "env": [SECRET]},
        "runtimePatches": [{"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": PATCH}}}],
    },
}


def imported(tmp_path, *documents) -> Imported:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return import_files([path])


def mpi_job(ranks: int) -> dict:
    command = [
        "mpirun",
        "-np",
        str(ranks),
        "-x",
        "NCCL_DEBUG=INFO",
        "-x",
        "PATH",
        "python",
        "pretrain_gpt.py",
    ]
    pods = {
        "Launcher": {"containers": [{"name": "launcher", "command": command, "args": FLAGS.split()}]},
        "Worker": {"containers": [{"name": "worker"}], **PATCH},
    }
    specs = {kind: {"replicas": 4, "template": {"spec": pod}} for kind, pod in pods.items()}
    specs["Launcher"]["replicas"] = 1
    return {
        "kind": "MPIJob",
        "metadata": {"name": "a"},
        "spec": {"slotsPerWorker": 8, "mpiReplicaSpecs": specs},
    }


def test_a_mounted_script_is_read_wherever_its_map_stands(tmp_path):
    """A mounted script is read from its ConfigMap, in any file, with the pod's patch and its Secrets."""
    for documents in ((MAP, TRAIN_JOB), (TRAIN_JOB, MAP)):
        found = imported(tmp_path, *documents)
        resources = found.config.resources
        assert (resources.nodes, resources.gpus_per_node, resources.gpu_type) == (2, 4, "H100")
        assert found.config.batch.train_steps == 5000
        assert found.config.backend.env == {"NCCL_DEBUG": "WARN"}
        (secret,) = found.config.backend.kubernetes.secret_variables
        assert (secret.name, secret.secret, secret.key) == ("TOKEN_FILE", "a", "b")


def test_a_script_that_no_file_holds_is_named(tmp_path):
    """A script that is in none of the files is reported once, without follow-up errors."""
    message = (
        "the command runs /scripts/train.sh, which is in none of the given files. Add its "
        "ConfigMap to the file, or import the script itself with resources.nodes=... "
        "resources.gpus_per_node=..."
    )
    with pytest.raises(ConfigError) as caught:
        imported(tmp_path, TRAIN_JOB)
    assert str(caught.value).partition(": ")[2] == message
    (finding,) = lint([tmp_path / "job.yaml"])
    assert (finding.level, finding.message) == ("error", message)


def test_mpirun_says_how_many_workers_train(tmp_path):
    """mpirun's -np fills the slots of one worker after another, and -x sets environment variables.

    The workers' pods give the GPU type.
    """
    found = imported(tmp_path, mpi_job(32)).config
    assert (found.resources.nodes, found.resources.gpus_per_node, found.resources.gpu_type) == (4, 8, "H100")
    assert found.backend.env == {"NCCL_DEBUG": "INFO"}
    assert imported(tmp_path, mpi_job(8)).config.resources.nodes == 1
    with pytest.raises(
        ConfigError, match=r"mpirun starts 12 ranks, but 4 workers with 8 slots each .* have 32 slots\."
    ):
        imported(tmp_path, mpi_job(12))


def test_workers_without_ranks_are_found(tmp_path):
    """If three of four machines get no ranks, they are reported as paid for but idle."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(mpi_job(8)))
    (found,) = (one for one in lint([path]) if one.rule == "workers_have_ranks")
    assert found.message.startswith(
        "the manifest has 4 workers, but mpirun starts ranks on 1 of them (job.yaml:"
    )
    assert found.cost.text == "costs 3 idle workers"
    path.write_text(yaml.safe_dump(mpi_job(32)))
    assert "workers_have_ranks" not in {one.rule for one in lint([path])}


def test_another_program_is_named(tmp_path):
    """A program that is not Megatron is reported by its name, without a list of unknown flags."""
    path = tmp_path / "a.sh"
    path.write_text("python train.py --epochs 3 --lr 0.1 --batch 5\n")
    message = (
        "the command runs train.py, which has only 1 of Megatron's flags: nbtrain imports "
        "only GPT models of Megatron-LM and Megatron-DeepSpeed."
    )
    assert [one.message for one in lint([path])] == [message]
    with pytest.raises(ConfigError) as error:
        import_files([path])
    assert str(error.value) == f"a.sh:1: {message}"


def test_torchrun_without_nnodes_takes_one_machine(tmp_path):
    """torchrun without --nnodes uses one machine; under srun the number of machines must be given."""
    path = tmp_path / "a.sh"
    path.write_text(SCRIPT)
    given = {"tokenizer.vocab_size": 50257}
    assert import_files([path], given).config.resources.nodes == 1
    path.write_text(SCRIPT.replace("exec torchrun", "srun torchrun"))
    with pytest.raises(ConfigError, match=r"Add resources\.nodes=\.\.\. to the command"):
        import_files([path], given)


def test_flags_of_mindspeed_are_listed(tmp_path):
    """MindSpeed flags that select kernels are listed in a note; a flag of another program is an error."""
    path = tmp_path / "npu.sh"
    launch = "torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py"
    path.write_text(f"{launch} {FLAGS} --use-fused-swiglu --reuse-fp32-param\n")
    notes = [note.text for note in import_files([path]).notes if "MindSpeed" in note.text]
    reason = "this MindSpeed flag for Ascend only chooses a kernel or saves memory."
    assert notes == [f"--use-fused-swiglu: {reason}", f"--reuse-fp32-param: {reason}"]
    path.write_text(f"{launch} {FLAGS} --use-fused-llama\n")
    with pytest.raises(ConfigError, match=r"--use-fused-llama: .* has no such flag"):
        import_files([path])


GIVEN = ["resources.nodes=1", "tokenizer.vocab_size=50257"]


def pytorch_job(volumes: list, mounts: list, path: str) -> dict:
    container = {
        "name": "pytorch",
        "image": "reg/x:1",
        "command": ["bash", path],
        "volumeMounts": mounts,
        "resources": {"limits": {"nvidia.com/gpu": 8}},
    }
    pod = {"template": {"spec": {"containers": [container], "volumes": volumes}}}
    specs = {"Master": {"replicas": 1, **pod}}
    return {"kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": specs}}


def maps(file: str = "train.sh") -> list[dict]:
    """Return two ConfigMaps with a file of one name: with 2 and 4 tensor-parallel ranks."""
    return [
        {
            "kind": "ConfigMap",
            "metadata": {"name": f"tp{size}"},
            "data": {
                file: SCRIPT.replace(
                    "exec torchrun", f"ARGS+=(--tensor-model-parallel-size {size})\ntorchrun"
                )
            },
        }
        for size in (2, 4)
    ]


def volume(name: str, config_map: str, **more) -> dict:
    return {"name": name, "configMap": {"name": config_map, **more}}


@pytest.mark.parametrize(
    ("volumes", "mounts", "path", "size"),
    [
        ([volume("s", "tp2")], [("s", "/s")], "/s/train.sh", 2),
        ([volume("s", "tp4")], [("s", "/s")], "/s/train.sh", 4),
        ([volume("s", "tp4"), volume("t", "tp2")], [("s", "/s"), ("t", "/t/")], "/t/train.sh", 2),
        ([volume("s", "tp2", items=[{"key": "train.sh", "path": "go.sh"}])], [("s", "/s")], "/s/go.sh", 2),
        (
            [{"name": "s", "projected": {"sources": [{"configMap": {"name": "tp2"}}]}}],
            [("s", "/s")],
            "/s/train.sh",
            2,
        ),
    ],
)
def test_of_two_config_maps_with_a_file_of_one_name_the_mounted_one_counts(
    volumes, mounts, path, size, tmp_path
):
    mounted = [{"name": name, "mountPath": folder} for name, folder in mounts]
    documents = [*maps(), pytorch_job(volumes, mounted, path)]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    assert import_files([tmp_path / "job.yaml"], GIVEN).config.parallel.tensor_parallel_size == size


def test_two_config_maps_of_which_the_job_mounts_neither_are_refused(tmp_path):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([*maps(), pytorch_job([], [], "/s/train.sh")]))
    with pytest.raises(
        ConfigError, match=r"job\.yaml:\d+ and job\.yaml:\d+: two ConfigMaps have a file train\.sh"
    ):
        import_files([tmp_path / "job.yaml"], GIVEN)
    # A file that the job does not name may be in both.
    documents = [MAP, *maps("notes.txt"), pytorch_job([], [], "/s/train.sh")]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    assert import_files([tmp_path / "job.yaml"], GIVEN).config.parallel.tensor_parallel_size == 1


def test_a_list_of_kubectl_is_its_items(tmp_path):
    """`kubectl get -o yaml` writes several manifests as one `kind: List`."""
    items = [MAP, pytorch_job([volume("s", "scripts")], [{"name": "s", "mountPath": "/s"}], "/s/train.sh")]
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    (tmp_path / "job.yaml").write_text(text)
    config = import_files([tmp_path / "job.yaml"], GIVEN).config
    assert (config.resources.nodes, config.resources.gpus_per_node, config.model.num_layers) == (1, 4, 24)
    (tmp_path / "job.json").write_text(json.dumps(yaml.safe_load(text)))
    assert import_files([tmp_path / "job.json"], GIVEN).config.resources == config.resources


MERGED = """\
kind: PyTorchJob
metadata: {name: a}
spec:
  pytorchReplicaSpecs:
    Master: &master
      replicas: 1
      template: {spec: {containers: [&train {name: pytorch, image: i, command: [bash, -c, "COMMAND"]}]}}
    Worker:
      replicas: 3
      <<: *master
"""


def test_merge_keys_of_yaml_are_followed(tmp_path):
    """A mapping's own values win over those of <<, and an earlier mapping of a list over a later one."""
    path = tmp_path / "job.yaml"
    text = MERGED.replace("COMMAND", f"torchrun --nproc_per_node=8 pretrain_gpt.py {FLAGS}")
    path.write_text(text)
    config = import_files([path], GIVEN[1:]).config
    assert (config.resources.nodes, config.resources.gpus_per_node) == (4, 8)
    path.write_text(text.replace("<<: *master", "<<: [{replicas: 1}, *master]"))
    assert import_files([path], GIVEN[1:]).config.resources.nodes == 4
    path.write_text(
        text.replace("      replicas: 3\n", "").replace("<<: *master", "<<: [{replicas: 1}, *master]")
    )
    assert import_files([path], GIVEN[1:]).config.resources.nodes == 2
    path.write_text(text.replace("<<: *master", "<<: 3"))
    with pytest.raises(
        ConfigError, match=r"job\.yaml:10: << must refer to a mapping, or to a list of mappings\."
    ):
        import_files([path], GIVEN[1:])
    # Mappings that merge one another without end.
    many = "a0: &a0 {x: 1}\n" + "".join(
        f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 9)}]}}\n" for at in range(1, 9)
    )
    path.write_text(f"{many}{text}")
    with pytest.raises(ConfigError, match=r"more than 100,000 values|<< must refer to"):
        import_files([path], GIVEN[1:])
