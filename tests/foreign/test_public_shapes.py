"""Scripts in the shape of public ones: scopes, undecided values, Ascend's and Megatron-DeepSpeed's forms."""

import pytest
import yaml

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.script_jobs import jobs_of_script
from nbtrain.foreign.lint import lint
from tests.foreign.public_shapes import MEGATRON, ascend_script, deepspeed_script

LAUNCH = (
    f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {MEGATRON} --tensor-model-parallel-size $TP\n"
)
GIVEN = {"tokenizer.vocab_size": 50257}


def tensor_ranks(lines: str) -> str:
    """Return the value that --tensor-model-parallel-size gets after some lines."""
    (job,) = jobs_of_script(f"{lines}\n{LAUNCH}", "train.sh")
    word = job.flag("--tensor-model-parallel-size")
    assert word is not None and not word.unknowns
    return word.text


def imported(tmp_path, text: str, *overrides: str):
    (tmp_path / "train.sh").write_text(text)
    return import_files([tmp_path / "train.sh"], ["tokenizer.vocab_size=50257", *overrides])


@pytest.mark.parametrize(
    "lines",
    [
        "TP=4\necho x | TP=1",
        "TP=4\nTP=1 echo hi",
        "TP=4\nTP=1 python prepare.py",
        "TP=4\n(\n export TP=1\n python prepare.py\n)",
        "TP=4\nTP=1 &\nwait",
        "TP=4\nf() { local TP=1; echo $TP; }\nf",
        "f() { TP=4; }\nf",
        "TP=4\nx=$(TP=1; echo $TP)",
        "TP=4\nls | while read line; do TP=1; done",
        "TP=4\nif false; then TP=1; fi",
        "TP=${TP:-4}",
        "TP=4\nexport TP",
        "declare -A T=([7b]=4 [1b]=1)\nTP=${T[7b]}",
        "GPUS=8\nTP=$((GPUS / 2))",
        'eval "TP=4"',
        "TP=1\nTP=4 # 1",
        "set -- 1 4\nTP=$2",
        "SIZE=7b\ncase $SIZE in 1b|2b) TP=1;; 7*) TP=4;; *) TP=8;; esac",
        "for TP in 1 2 4; do :; done",
        "TP=gpt-7b-tp4\nTP=${TP##*tp}",
        "IFS=, read -r A TP <<< '1,4'",
        "TP=$(echo 1,4 | cut -d, -f2)",
        "if [ -f x ]; then TP=4; else TP=4; fi",
        "if [ -f x ]; then exit 1; fi\nTP=4",
    ],
)
def test_an_assignment_has_the_scope_of_bash(lines):
    assert tensor_ranks(lines) == "4"


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (
            "TP=1\nsource override.sh",
            "train.sh:2: the value of TP is not known (override.sh, which is sourced there, may set",
        ),
        (
            "TP=1\n. ./lib/sizes.sh",
            "train.sh:2: the value of TP is not known (sizes.sh, which is sourced there, may set it)",
        ),
        (
            "x=1",
            "train.sh:2: the value of TP is not known (no file sets it). Add TP=..., or parallel.tensor_",
        ),
        (
            "TP=$(python size.py)",
            "train.sh:1: the value of TP is not known (nbtrain does not run $(python size.py)). Add TP=...",
        ),
        (
            "x=1\nTP=$1",
            "train.sh:2: the value of $1 is not known (it is an argument of the script). Add 1=..., or "
            "parallel.tensor_",
        ),
        (
            "TP=1\nif [ -f big ]; then\n TP=8\nfi",
            "train.sh:3: the value of TP is not known (it depends on a condition). Add TP",
        ),
        (
            "TP=1\n[ $SIZE = big ] && TP=8",
            "train.sh:2: the value of SIZE, which determines TP, is not known (no file sets it). Add",
        ),
        (
            "TP=1\nfor f in $(ls); do TP=$f; done",
            "train.sh:2: the value of TP is not known (a loop sets it). Add TP=...",
        ),
        (
            "TP=1\nwhile [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift;; esac; shift; done",
            "the value of TP is not known (it depends on the script's arguments; without arguments, it is "
            "1). Add TP=...",
        ),
        (
            "TP=${SLURM_NNODES:-1}",
            "train.sh:1: the value of SLURM_NNODES is not known (a scheduler sets it; without a scheduler, $",
        ),
    ],
)
def test_a_value_that_is_not_decided_is_asked_for_by_name_and_line(lines, asked, tmp_path):
    with pytest.raises(ConfigError) as error:
        imported(tmp_path, f"{lines}\n{LAUNCH}")
    assert asked in str(error.value) and len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "override"),
    [
        ("TP=1\nsource override.sh", "TP=4"),
        ("x=1", "TP=4"),
        ("TP=${TP:-1}", "TP=4"),
        ("TP=$(python size.py)", "TP=4"),
        ("TP=$1", "1=4"),
        ("TP=1\n[ $SIZE = big ] && TP=4", "SIZE=big"),
        ("TP=1\n[ $SIZE = big ] && TP=8", "TP=4"),
        ("TP=1\nfor w in $*; do case $w in --tp=*) TP=${w#*=};; esac; done", "1=--tp=4"),
    ],
)
def test_an_import_continues_with_the_value_that_was_asked_for(lines, override, tmp_path):
    found = imported(tmp_path, f"{lines}\n{LAUNCH}", override)
    assert found.config.parallel.tensor_parallel_size == 4


def test_a_value_that_changes_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"TP=8: train\.sh:1 sets TP itself\. Change TP there"):
        imported(tmp_path, f"TP=4\n{LAUNCH}", "TP=8")
    with pytest.raises(ConfigError, match=r"TQ=8: TQ is neither a run field nor a variable in these files\."):
        imported(tmp_path, f"TP=4\n{LAUNCH}", "TQ=8")


def test_a_sourced_file_that_is_passed_is_read(tmp_path):
    (tmp_path / "train.sh").write_text(f"TP=1\nsource ./conf/sizes.sh\n{LAUNCH}")
    (tmp_path / "sizes.sh").write_text("SIZES=(1 4)\nTP=${SIZES[1]}\n")
    found = import_files([tmp_path / "train.sh", tmp_path / "sizes.sh"], GIVEN)
    assert found.config.parallel.tensor_parallel_size == 4
    assert found.text.count("sizes.sh:1") == 0 and "--tensor-model-parallel-size 4" in found.text


def test_flags_that_say_nothing_may_stay_undecided(tmp_path):
    """A condition that adds flags without a meaning for the run is noted; another flag is asked for."""
    text = 'C="{}"\nif [ -n "$KEY" ]; then C="$C {}"; fi\n$C\n'
    command = LAUNCH.replace("$TP", "1").strip()
    found = imported(tmp_path, text.format(command, "--wandb-project x"))
    assert any("C is nothing or --wandb-project x, depending on" in note.text for note in found.notes)
    with pytest.raises(
        ConfigError, match=r"train\.sh:2: the value of KEY, .* is not known .* Add KEY=\.\.\. or C=\.\.\."
    ):
        imported(tmp_path, text.format(command, "--swiglu"))


@pytest.mark.parametrize(
    ("cut", "what"),
    [("# a note \\\n", "the comment # a note"), ("#  --fp16 \\\n", "the comment #  --fp16")],
)
def test_a_comment_that_cuts_a_command_is_found(cut, what, tmp_path):
    """A comment in a continued command ends it, as in bash: the flags after it are not part of it."""
    launch = LAUNCH.partition(" --tensor")[0]
    text = f"{launch} \\\n{cut}  --tensor-model-parallel-size 4\n"
    found = imported(tmp_path, text)
    assert found.config.parallel.tensor_parallel_size == 1
    (note,) = (note for note in found.notes if note.rule == "commands_are_not_cut")
    assert note.place == "train.sh:2" and what in note.message
    assert "--tensor-model-parallel-size 4 is not part of the command" in note.message
    assert "commands_are_not_cut" in {finding.rule for finding in lint([tmp_path / "train.sh"], GIVEN)}
    without = imported(tmp_path, f"{launch}\n  --tensor-model-parallel-size 4\n")
    (note,) = (note for note in without.notes if note.rule == "commands_are_not_cut")
    assert (
        note.place == "train.sh:2" and "the missing backslash at the end of the previous line" in note.message
    )
    with pytest.raises(
        ConfigError, match=r"train\.sh:1: in bash, the space after the backslash ends the command"
    ):
        imported(tmp_path, f"{launch} \\ # four\n  --tensor-model-parallel-size 4\n")


def test_here_documents_that_are_no_json_are_not_read_as_one(tmp_path):
    hosts = "cat > hostfile <<EOF\na slots=8\nb slots=8\nEOF\n"
    launch = LAUNCH.replace("torchrun --nnodes 1 --nproc_per_node 8", "deepspeed --hostfile=hostfile")
    resources = imported(tmp_path, hosts + launch.replace("$TP", "1")).config.resources
    assert (resources.nodes, resources.gpus_per_node) == (2, 8)
    ssh = "cat <<EOF >> ssh_config\nHost *\n  Port 2222\nEOF\n"
    assert imported(tmp_path, ssh + LAUNCH.replace("$TP", "2")).config.parallel.tensor_parallel_size == 2


def test_ascends_script_follows_its_case_and_run_py(tmp_path):
    """run.py of Ascend's GPT-2 starts DeepSpeed's launcher; the size of the model is in a `case`."""
    text = ascend_script()
    with pytest.raises(ConfigError) as error:
        imported(tmp_path, text)
    assert "train.sh:8: the value of size, which determines BATCH, LAYERS, HIDDEN, HEADS, TP, PP, is " in str(
        error.value
    )
    assert "is not known (it depends on the script's arguments;" in str(error.value)
    assert "it is 345M" in str(error.value)
    for overrides, sizes in (
        (("size=1.3B",), (24, 2048, 2, 32)),
        (("1=--size=345M", "2=--data=/d"), (24, 1024, 1, 16)),
    ):
        config = imported(tmp_path, text, *overrides).config
        model, parallel = config.model, config.parallel
        found = (
            model.num_layers,
            model.hidden_size,
            parallel.tensor_parallel_size,
            config.batch.global_batch_size,
        )
        assert found == sizes
        assert (config.resources.nodes, config.resources.gpus_per_node, parallel.pipeline_parallel_size) == (
            1,
            8,
            2,
        )


def test_contradictions_of_a_megatron_deepspeed_script_are_named(tmp_path):
    """Batch, stage, pipeline and an unknown flag contradict each other: each is an error or a finding."""
    path = tmp_path / "train.sh"
    path.write_text(deepspeed_script())
    text = "\n".join("\n".join(finding.lines()) for finding in lint([path], GIVEN))
    for part in (
        "train.sh:21: --foo-bar",
        "64, but --global-batch-size is 1024 (train.sh:19)",
        "2 with pipeline-model-parallel-size(2) (train.sh:17)",
        "1, but zero_optimization.stage is 2 (train.sh:12)",
    ):
        assert part in text


def pytorch_job(command: object, gpus: int = 8, **environment: str) -> dict:
    container = {"name": "pytorch", "image": "reg/x:1", "command": command}
    container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
    pod = {"template": {"spec": {"containers": [container]}}}
    specs = {"Master": {"replicas": 1, **pod}, "Worker": {"replicas": 3, **pod}}
    return {"kind": "PyTorchJob", "metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": specs}}


def of_manifest(tmp_path, manifest: dict):
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    return import_files([tmp_path / "job.yaml"], GIVEN).config


TORCHRUN = f"torchrun --nproc_per_node=8 pretrain_gpt.py {MEGATRON} --tensor-model-parallel-size "


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", f"{TORCHRUN} ${{TP:-1}}"],
        [*TORCHRUN.split(), "$(TP)"],
        ["bash", "-c", f"pip install -e . && python setup.py build && {TORCHRUN} $TP"],
        ["bash", "-c", f"torchrun --nproc_per_node=8 tools/preprocess.py --input x && {TORCHRUN} $TP"],
        ["bash", "-c", f"torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK {TORCHRUN[9:]} $TP"],
        ["bash", "-c", f"torchrun --nnodes=$PET_NNODES {TORCHRUN[9:]} $TP"],
    ],
)
def test_what_a_manifest_sets_wins_over_defaults(command, tmp_path):
    config = of_manifest(tmp_path, pytorch_job(command, TP="4"))
    assert (config.parallel.tensor_parallel_size, config.parallel.data_parallel_size) == (4, 8)
    assert (config.resources.nodes, config.resources.gpus_per_node) == (4, 8)


def test_ranks_of_pods_are_those_of_the_launcher(tmp_path):
    plain = of_manifest(tmp_path, pytorch_job(["python", "-u", *TORCHRUN.split()[2:], "1"]))
    assert (plain.resources.nodes, plain.resources.gpus_per_node) == (4, 1)
    every = of_manifest(tmp_path, pytorch_job(["bash", "-c", f"{TORCHRUN} 1".replace("=8", "=gpu")], 4))
    assert (every.resources.nodes, every.resources.gpus_per_node) == (4, 4)
    command = ["bash", "-c", f"{TORCHRUN} 1".replace("torchrun", "torchrun --nnodes=2")]
    with pytest.raises(
        ConfigError, match=r"torchrun starts ranks on 2 machines, but the manifest has 4 pods"
    ):
        of_manifest(tmp_path, pytorch_job(command))
