"""Programs other than a GPT's are named, first and in one sentence, whatever file they are met in."""

import pytest

from nbtrain.api.check import check
from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.foreign.importing import import_files
from nbtrain.foreign.job_files.file_kinds import is_foreign

FLAGS = (
    "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --train-iters 1000 --lr 6e-4 "
    "--vocab-file gpt2-vocab.json --merge-file m.txt --data-path corpus/text_document --bf16"
)
ONLY = "nbtrain imports only GPT models of Megatron-LM and Megatron-DeepSpeed."


def refusal(path) -> str:
    """Return the sentence with which a file is refused, by the import and by check alike."""
    with pytest.raises(ConfigError) as error:
        import_files([path], {"tokenizer.vocab_size": 50257})
    assert is_foreign(path)
    try:
        checked = check(path)
    except ConfigError as raised:
        assert str(raised) == str(error.value)
    else:
        assert not checked.works
        (finding,) = checked.findings
        assert f"{finding.place}: {finding.message}" == str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        ("pretrain_bert.py", FLAGS, "runs pretrain_bert.py, which trains BERT: "),
        ("pretrain_t5.py", FLAGS, "runs pretrain_t5.py, which trains T5: "),
        ("pretrain_mamba.py", FLAGS, "runs pretrain_mamba.py, which trains Mamba: "),
        ("pretrain_ict.py", FLAGS, "which trains a retriever with ICT or REALM: "),
        ("pretrain_retro.py", FLAGS, "which trains Retro: "),
        ("pretrain_vision_classify.py", FLAGS, "which trains a vision model: "),
        ("pretrain_vlm.py", FLAGS, "which trains a model of text and images: "),
        ("train_rl.py", FLAGS, "which trains a policy with reinforcement learning: "),
        ("train.py", f"{FLAGS} --bert-load x", "--bert-load: with this flag, train.py trains BERT: "),
        (
            "train.py",
            f"{FLAGS} --decoder-seq-length 128",
            "--decoder-seq-length: with this flag, train.py trains T5: ",
        ),
        (
            "pretrain_gpt.py",
            f"{FLAGS} --hybrid-override-pattern M-M*",
            "with this flag, pretrain_gpt.py trains Mamba",
        ),
        (
            "pretrain_gpt.py",
            f"{FLAGS} --retro-add-retriever",
            "with this flag, pretrain_gpt.py trains Retro: ",
        ),
        ("pretrain_gpt.py", f"{FLAGS} --num-experts 8", "--num-experts 8: this is a mixture of experts, but"),
        (
            "tasks/main.py",
            f"{FLAGS} --task LAMBADA",
            "--task: with this flag, main.py trains or evaluates a downstream task",
        ),
        ("tools/preprocess_data.py", "--input a --output-prefix b", "which does not train. Give the script"),
        ("run_clm.py", "--model_name_or_path gpt2", "which belongs to the Trainer of transformers: "),
        ("run_train.py", "--config-file a.yaml", "which belongs to nanotron: "),
        ("main.py", "training=gpt3/5b cluster_type=bcm", "which belongs to NeMo: "),
        ("examples/train.py", "--lr 0.1 --epochs 3 --seed 1", "which has only 2 of Megatron's flags: "),
        ("train.py", "", "which has none of Megatron's flags: "),
        ("pretrain_gpt.py", f"{FLAGS} --prompt-type qwen", "--prompt-type: only MindSpeed-LLM has this flag"),
        (
            "pretrain_gpt.py",
            f"{FLAGS} --patch-tokenizer-type A",
            "--patch-tokenizer-type: only Pai-Megatron-Patch",
        ),
    ],
)
def test_a_program_that_is_no_gpt_is_refused_first(program, flags, message, tmp_path):
    """A program that trains no dense GPT is refused in one sentence, before any of its flags."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nnodes 1 --nproc_per_node 8 {program} {flags} --no-such-flag 3\n")
    text = refusal(path)
    assert text.startswith("run.sh:1: ") and message in text
    assert "\n" not in text and text.count(". ") <= 1


def test_a_gpt_may_have_another_name(tmp_path):
    """A program with another name and Megatron's flags is imported."""
    path = tmp_path / "run.sh"
    for name in (
        "my_training.py",
        "t5/bert/pretrain_gpt.py",
        "gpt_bert_tokenizer.py",
        "train_and_evaluate.py",
    ):
        path.write_text(f"torchrun --nproc_per_node 8 {name} {FLAGS}\n")
        assert import_files([path]).config.model.num_layers == 12


def test_a_run_with_a_key_of_prices_is_a_run(tmp_path):
    """A run YAML with a wrong key at the top is refused by that key, not called a price table."""
    path = tmp_path / "run.yaml"
    path.write_text("extends: gpt-tiny\nsource: a.txt\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert "prices" not in str(error.value) and "run.yaml:2" in str(error.value)


def test_an_undecided_number_of_experts_is_no_mixture(tmp_path):
    """A number of experts that only the running shell knows is reported as undecided, and can be given."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {FLAGS} --num-experts $EXPERTS\n")
    assert refusal(path).startswith("run.sh:1: --num-experts ${EXPERTS}: the value is not known")
    with pytest.raises(ConfigError, match="--num-experts 8: this is a mixture of experts"):
        import_files([path], ["EXPERTS=8"])


def test_the_command_of_another_program_is_named(tmp_path):
    """A script that starts a program by its own command is refused by the program's name."""
    path = tmp_path / "run.sh"
    path.write_text("set -e\ntune run lora_finetune_single_device --config a.yaml\n")
    with pytest.raises(
        ConfigError, match=r"run\.sh:2: the command runs tune run lora_.*, which belongs to torchtune: nbt"
    ):
        import_files([path])


FILES = {
    "nemo.yaml": ("trainer: {devices: 8, num_nodes: 4}\nmodel: {micro_batch_size: 4}\n", "NeMo"),
    "launcher.yaml": (
        "run: {name: gpt3_5b, time_limit: 1h}\ntrainer: {max_steps: 5}\n",
        "NeMo-Framework-Launcher",
    ),
    "nano.yaml": (
        "parallelism: {dp: 2}\ntokens: {train_steps: 5}\ngeneral: {run: a}\nmodel: {}\n",
        "nanotron",
    ),
    "tune.yaml": ("model: {_component_: torchtune.models.llama3.llama3_8b}\nepochs: 1\n", "torchtune"),
    "titan.toml": (
        '[job]\ndump_folder = "a"\n[parallelism]\na = 1\n[model]\nname = "llama3"\n',
        "torchtitan",
    ),
    "neox.yml": ('{\n  "pipe-parallel-size": 1,\n  "num-layers": 12,\n}\n', "GPT-NeoX"),
    "neox-part.yml": ('{\n  "data-path": "a",\n  "vocab-file": "b",\n  "save": "c",\n}\n', "GPT-NeoX"),
    "lit.yaml": (
        "out_dir: out\ntrain: {save_interval: 5, global_batch_size: 8}\nprecision: bf16\n",
        "LitGPT",
    ),
    "axolotl.yml": ("base_model: a/b\nsequence_len: 512\ndatasets: [{path: c}]\n", "Axolotl"),
    "factory.yaml": ("model_name_or_path: a/b\nfinetuning_type: lora\ntemplate: qwen\n", "LLaMA-Factory"),
    "trl.yaml": ("model_name_or_path: a/b\ndataset_name: c\nuse_peft: true\n", "TRL"),
    "foundry.yaml": (
        "max_seq_len: 2048\nmodel: {name: mpt}\ntrain_loader: {name: text}\nfsdp_config: {a: b}\n",
        "MosaicML's LLM Foundry",
    ),
    "mindspeed.yaml": (
        "model: {model_id: q}\ndata: {template: q}\nparallel: {}\ntraining: {lr: 1}\n",
        "MindSpeed-LLM",
    ),
    "tests.yaml": ("ENV_VARS: {A: 1}\nMODEL_ARGS: {--num-layers: 12}\n", "Megatron-LM's functional tests"),
}


@pytest.mark.parametrize("name", FILES)
def test_the_configuration_of_another_program_is_named(name, tmp_path):
    """A configuration of another program is named by import, check and load."""
    text, program = FILES[name]
    path = tmp_path / name
    path.write_text(text)
    assert refusal(path) == (
        f"{name}: this is a configuration file for {program}, which nbtrain does not read: {ONLY}"
    )
    if path.suffix != ".toml":
        with pytest.raises(ConfigError, match=f"is a configuration file for {program}, not a run YAML"):
            load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "launch.py",
            "import os\n",
            "launch.py: this is a Python program, which nbtrain does not run. Give the shell",
        ),
        (
            "config.json",
            '{"architectures": ["A"], "model_type": "gpt2"}',
            "config.json: this is a model's configuration",
        ),
        (
            "result.json",
            '{"lm loss": {"start": 1}}',
            "result.json: DeepSpeed does not read any key in this file (lm loss).",
        ),
        (
            "chart.yaml",
            "kind: PyTorchJob\nspec:\n  replicas: {{ .Values.workers }}\n",
            "chart.yaml:3: this is a template ({{ ... }}). Run `helm template CHART`",
        ),
        (
            "chart.yaml",
            "kind: Job\n{{- if .Values.a }}\n",
            "chart.yaml:2: this is a template ({{ ... }}). Run",
        ),
        (
            "chart.yaml",
            'kind: PyTorchJob\nspec:\n  replicas: "{{ default 2 .Values.workers }}"\n',
            "chart.yaml:3: this is a template ({{ ... }}). Run",
        ),
        (
            "a.sh",
            "torchrun --nproc_per_node={{ gpus }} pretrain_gpt.py --num-layers 2 --hidden-size 8",
            "a.sh:1: this is a template ({{ ... }}). Run",
        ),
        (
            "a.sh",
            "x=1\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers {{ .Values.layers }}\n",
            "a.sh:2: this is a template ({{ ... }}). Run",
        ),
        (
            "values.yaml",
            "replicaCount: 1\n",
            "values.yaml: this file belongs to a Helm chart. Run `helm template CHART`",
        ),
        (
            "Chart.yaml",
            "apiVersion: v2\nname: a\nversion: 1\n",
            "Chart.yaml: this file belongs to a Helm chart.",
        ),
        (
            "kustomization.yaml",
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
            "kustomization.yaml: this is a kustomization, not a manifest. Run `kubectl kustomize FOLDER`",
        ),
        (
            "job.yaml",
            "kind: DeepSpeedJob\nspec: {worker: {replicas: $NODES}}\n",
            "job.yaml:2: replicas = $NODES: the value must be a whole number. Fill in the variables",
        ),
        (
            "a.json",
            '{"train_batch_size": CONFIG_BATCH}',
            "a.json:1: not JSON: CONFIG_BATCH is a placeholder",
        ),
    ],
)
def test_a_file_says_what_it_is(name, text, message, tmp_path):
    """A file without a job is refused; the message names what the file is, with the line."""
    (tmp_path / name).write_text(text)
    assert refusal(tmp_path / name).startswith(message)


LAYOUTS = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (1, False),
    "HYBRID_SHARD": (3, True),
    "1": (3, False),
    "4": (3, True),
}


@pytest.mark.parametrize("strategy", LAYOUTS)
def test_fsdp_becomes_zero(strategy, tmp_path):
    """A strategy of FSDP becomes the ZeRO stage that shards the same states, with a note."""
    stage, hybrid = LAYOUTS[strategy]
    path = tmp_path / "fsdp.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
        f"  fsdp_sharding_strategy: {strategy}\n  fsdp_activation_checkpointing: true\n"
        "num_machines: 2\nnum_processes: 8\nmixed_precision: bf16\nsome_key: 3\n"
    )
    imported = import_files([path], onto="gpt-125m")
    config, notes = imported.config, [str(note) for note in imported.notes]
    assert (config.parallel.zero_stage, config.parallel.zero_hpz) == (stage, hybrid)
    assert (config.resources.nodes, config.resources.gpus_per_node) == (2, 4)
    assert config.parallel.data_parallel_size == 8 and config.precision.dtype == "bf16"
    assert config.parallel.activation_checkpointing.granularity == "full"
    assert any(note.startswith("fsdp.yaml:4: ") for note in notes)
    assert "fsdp.yaml:9: some_key: nbtrain has no field for it." in notes
    with pytest.raises(
        ConfigError, match="an Accelerate configuration has no model, no data and no training length"
    ):
        import_files([path])
    assert check(path).works


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "distributed_type: TPU\nnum_processes: 8\n",
            "distributed_type = TPU: this type cannot be imported; it must be one of FSDP, DEEPSPEED, ",
        ),
        (
            "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: ALL}\n",
            "must be one of FULL_SHARD, ",
        ),
        (
            "distributed_type: MULTI_GPU\nnum_machines: 3\nnum_processes: 8\n",
            "must be a multiple of num_machines",
        ),
        (
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n",
            "deepspeed_config_file ds.json: the layout is in this file. Import it",
        ),
    ],
)
def test_a_layout_that_nbtrain_lacks_is_refused(text, message, tmp_path):
    """A configuration of Accelerate without a layout of nbtrain is refused with the reason."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        import_files([path], onto="gpt-125m")
    assert message in str(error.value)
    assert not check(path).works


def test_accelerates_deepspeed_is_a_layout(tmp_path):
    """The DeepSpeed section of Accelerate sets stage, offloading and clipping."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 4\nmixed_precision: 'no'\n"
        "deepspeed_config:\n  zero_stage: 3\n  offload_optimizer_device: cpu\n  gradient_clipping: 0.5\n"
        "  gradient_accumulation_steps: 4\n  zero3_init_flag: true\n"
    )
    config = import_files([path], onto="gpt-125m").config
    assert (config.parallel.zero_stage, config.parallel.offload_optimizer.device) == (3, "cpu")
    assert (config.optimizer.clip_grad, config.precision.dtype) == (0.5, "fp32")
