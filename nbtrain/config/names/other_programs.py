"""Table of other training programs: how their scripts, commands and configuration files are recognized.

nbtrain imports GPT runs of Megatron-LM and Megatron-DeepSpeed. Other programs are recognized, so that their
files are neither read as a GPT run nor refused flag by flag.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A model other than a dense GPT that a program trains with Megatron's flags."""

    name: str
    """Name of the model, worded to follow "trains"."""
    scripts: str
    """Regular expression for the file names of programs that train this model."""
    flags: str = "(?!)"
    """Regular expression for flags that only this model has, used if the program's name does not identify a
    model.
    """
    changes_gpt: str = "(?!)"
    """Regular expression for flags with which pretrain_gpt.py, too, trains this model."""


OTHER_MODELS = (
    OtherModel("BERT", r".*bert.*", r"--bert-.*"),
    OtherModel("Retro", r".*retro.*", r"--retro-.*", r"--retro-(add-retriever|project-dir|workdir)"),
    OtherModel(
        "a model of text and images",
        r".*(vlm|multimodal|llava).*|(.*[_-])?(vl|clip|mimo)([_.-].*)?",
        r"--(language-model-type|vision-model-type|model-provider)",
    ),
    OtherModel(
        "a vision model",
        r".*vision.*|(.*[_-])?(vit|swin|dino)([_.-].*)?",
        r"--(vision-.*|dino-.*|patch-dim|num-classes|img-[hw])",
    ),
    OtherModel("T5", r".*_t5.*", r"--decoder-(seq-length|num-layers)|--vocab-extra-ids"),
    OtherModel(
        "a retriever with ICT or REALM",
        r".*_(ict|realm)\b.*|.*orqa.*",
        r"--(ict|biencoder|retriever)-.*|--indexer-(batch-size|log-interval)",
    ),
    OtherModel(
        "Mamba",
        r".*(mamba|hybrid).*",
        r"--mamba-.*",
        r"--(hybrid-(attention|mlp)-ratio|hybrid-(override|layer)-pattern|is-hybrid-model)",
    ),
    OtherModel(
        "a policy with reinforcement learning",
        r".*(_rl|_ppo|_grpo|rlhf).*",
        r"--(rl|grpo)-.*",
        r"--perform-rl-step",
    ),
    OtherModel("or evaluates a downstream task", r"(?!)", r"--task"),
)
EXPERTS = re.compile(r"--(num-experts|moe-num-experts)")
"""Flags that set the number of experts. A model with 1 expert is dense."""
# Programs that add flags to Megatron's, with the flags that only they have.
DIALECTS = {
    "MindSpeed-LLM": re.compile(
        r"--(tokenizer-name-or-path|prompt-type(-path)?|stage|is-instruction-dataset|context-parallel-algo|"
        r"use-ascend-.*|tp-2d|tp-[xy]|nd[12]-dim\d-size|use-cp-send-recv-overlap|no-shared-storage|"
        r"enable-high-availability|rope-scaling-type|reuse-fp32-param|use-distributed-optimizer-npu|lora-r|"
        r"enable-recompute-layers-per-pp-rank|swap-optimizer|moe-tp-extend-ep|padded-samples|variable-seq-lengths|"
        r"kv-head-repeat-before-uly-alltoall|megatron-cp-in-bnsd|cp-window-size|attention-mask-type)"
    ),
    "Pai-Megatron-Patch": re.compile(
        r"--(patch-tokenizer-type|max-padding-length|transformer-type|extra-vocab-size|train-data|valid-data|"
        r"dataset|eval-dataset|convert-checkpoint-from-megatron-to-transformers|use-llama2-rotary-.*|"
        r"dataset-type|tensorboard-queue|target-expert-model-parallel-size)"
    ),
    "BigScience's Megatron-DeepSpeed": re.compile(
        r"--(pp-partition-method|codecarbon-dir|tokenizer-name-or-path|abort-on-unmet-fused-kernel-constraints|"
        r"pad-vocab-size-to|embed-layernorm|sync-tp-duplicated-parameters|position-embedding-type-alibi|"
        r"kill-switch-path|skip-train-iteration-range|(train|valid|test)-weighted-split-paths(-path)?|glu-activation)"
    ),
}
# Programs that accept Megatron's flags but do not train.
NO_TRAINING = re.compile(
    r"(preprocess|prepare|convert|merge|split|build|create|download|tokenize|clean)_?\w*\.py|(?!train_)\w*(_eval|"
    r"evaluate|generate|generation|inference|_server|_cli|checkpoint_util)\w*\.py|setup\.py"
)
# Other program names that contain GPT. The flags tell whether such a program trains another model.
GPT_NAMES = re.compile(r"(.*[_-])?gpt\d?([_.-].*)")
GPT_SCRIPTS = re.compile(r"pretrain_gpt\w*\.py|pretrain_llama\w*\.py|pretrain_qwen\w*\.py")

Keys = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A program with its own settings, which nbtrain does not read."""

    name: str
    keys: Keys = ()
    """Groups of dotted keys. A file with at least one key of each group is a configuration of the program."""
    commands: str = "(?!)"
    """Regular expression for the program's command lines, such as "tune run"."""
    scripts: str = "(?!)"
    """Regular expression for the program's Python scripts or modules."""
    flags: str = "(?!)"
    """Regular expression for flags that only this program has."""


OTHER_PROGRAMS = (
    OtherProgram(
        "Helm's values or chart", (("apiVersion",), ("appVersion", "dependencies"), ("name",), ("version",))
    ),
    OtherProgram(
        "Megatron-LM's functional tests",
        (("MODEL_ARGS",), ("ENV_VARS", "TEST_TYPE")),
    ),
    OtherProgram("Megatron-LM's --yaml-cfg", (("language_model",), ("model_parallel",))),
    OtherProgram(
        "NeMo-Framework-Launcher",
        (
            ("run.name", "launcher_scripts_path", "training_config"),
            ("trainer", "cluster_type", "run.time_limit"),
        ),
    ),
    OtherProgram(
        "NeMo",
        (
            ("trainer.devices", "trainer.num_nodes", "trainer.gpus", "trainer.max_steps", "trainer._target_"),
            ("model", "exp_manager", "restore_from_path", "model_config"),
        ),
        commands=r"nemo( |$).*|nemo_launcher.*",
        scripts=r"(.*/)?megatron_\w+_(pretraining|finetuning|continue_training|sft|eval)\.py|(.*/)?nemo[./].*",
        flags=r"--config-(path|name)|\+{0,2}(training|peft|stages|cluster|fw_inference|(trainer|exp_manager)\.\w+)=.*",
    ),
    OtherProgram(
        "nanotron",
        (("parallelism",), ("tokens",), ("data_stages", "checkpoints", "general")),
        scripts=r"(.*/)?run_train\.py|nanotron.*",
        flags=r"--config-file",
    ),
    OtherProgram(
        "torchtune",
        (
            (
                "model._component_",
                "tokenizer._component_",
                "optimizer._component_",
                "dataset._component_",
                "checkpointer._component_",
            ),
        ),
        commands=r"tune (run|download|cp).*",
    ),
    OtherProgram(
        "torchtitan",
        (
            ("parallelism", "training.local_batch_size", "training.batch_size"),
            ("job", "training"),
            ("model.name", "model.flavor"),
        ),
        scripts=r"(.*/)?torchtitan[./]\w*train.*",
        flags=r"--(job\.config[_-]file|module|model\.flavor)",
    ),
    OtherProgram(
        "MosaicML's LLM Foundry",
        (
            ("train_loader", "variables", "models", "max_duration"),
            ("max_seq_len", "variables.max_seq_len", "fsdp_config"),
            ("model", "models", "tokenizer", "icl_tasks"),
        ),
        commands=r"composer .*",
    ),
    OtherProgram(
        "LitGPT",
        (
            ("train.save_interval", "train.global_batch_size", "train.micro_batch_size"),
            ("out_dir", "checkpoint_dir"),
        ),
        commands=r"litgpt .*",
        scripts=r"litgpt.*",
    ),
    OtherProgram(
        "Axolotl",
        (("base_model",), ("sequence_len", "datasets", "adapter", "micro_batch_size")),
        commands=r"axolotl .*",
        scripts=r"axolotl\..*",
    ),
    OtherProgram(
        "LLaMA-Factory",
        (("finetuning_type", "template", "cutoff_len"), ("model_name_or_path",)),
        commands=r"(llamafactory-cli|lmf) .*",
        scripts=r"(.*/)?llamafactory.*",
        flags=r"--(finetuning_type|cutoff_len)",
    ),
    OtherProgram("verl", (("actor_rollout_ref", "algorithm.adv_estimator"),), scripts=r"verl\..*"),
    OtherProgram("OLMo", (("model.d_model",), ("optimizer", "scheduler", "fsdp"))),
    OtherProgram(
        "ms-swift",
        commands=r"swift (sft|pt|rlhf).*",
        scripts=r"(.*/)?swift/cli/.*",
        flags=r"--(model_id_or_path|sft_type)",
    ),
    OtherProgram(
        "TRL",
        (("model_name_or_path",), ("dataset_name", "use_peft", "lora_target_modules")),
        commands=r"trl (sft|dpo|grpo|kto|reward|rloo).*",
        scripts=r"(.*/)?trl[./].*",
    ),
    OtherProgram(
        "the Trainer of transformers",
        (("model_name_or_path", "output_dir"), ("per_device_train_batch_size", "num_train_epochs")),
        scripts=r"(.*/)?run_(clm|mlm|plm|glue|summarization|translation|qa)\w*\.py",
        flags=r"--(per_device_train_batch_size|per-device-train-batch-size|model_name_or_path|num_train_epochs|output_dir)",
    ),
    OtherProgram("MindSpeed-LLM", (("model.model_id", "parallel.fsdp_modules"), ("training", "data"))),
    OtherProgram(
        "MindSpeed-MM or MindSpeed-RL",
        (("megatron_training", "actor_config", "text_decoder", "image_encoder"),),
        scripts=r"(.*/)?(mindspeed_mm|train_(grpo|ppo|orm)|pretrain_sora|pretrain_vlm)\b.*",
    ),
    OtherProgram(
        "DeepSpeed-Chat",
        scripts=r"(.*/)?step\d_\w+/main\.py",
        flags=r"--(actor_model_name_or_path|critic_zero_stage)",
    ),
    OtherProgram(
        "lm-evaluation-harness",
        (("task", "group"), ("output_type", "doc_to_text", "dataset_path", "aggregate_metric_list")),
        commands=r"lm_eval .*|lm-eval .*",
        scripts=r"lm_eval.*",
    ),
    OtherProgram("Ray", (("cluster_name",), ("available_node_types", "provider"))),
    OtherProgram(
        "SkyPilot", (("run",), ("resources", "num_nodes", "file_mounts"), ("setup", "resources.accelerators"))
    ),
    OtherProgram(
        "AWS CloudFormation",
        (("AWSTemplateFormatVersion", "Resources"), ("Resources",), ("Parameters", "Outputs", "Description")),
    ),
    OtherProgram("Docker Compose", (("services",), ("services", "version"))),
)

# GPT-NeoX spells its keys with _ or -, and splits a configuration into several files.
_NEOX_KEYS = """
pipe_parallel_size model_parallel_size num_layers hidden_size num_attention_heads norm pos_emb no_weight_tying
gpt_j_residual output_layer_parallelism scaled_upper_triang_masked_softmax_fusion train_iters lr_decay_iters
checkpoint_factor data_impl data_path train_data_paths vocab_file merge_file save load tensorboard_dir log_dir
use_wandb tokenizer_type launcher deepspeed_slurm deepspeed_mpi hostfile checkpoint_activations eval_iters
keep_last_n_checkpoints attention_config weight_decay text_gen_type log_interval eval_interval num_workers
warmup lr_decay_style partition_activations wall_clock_breakdown min_lr
"""
NEOX_KEYS = frozenset(_NEOX_KEYS.split())
# Keys that no other program has; one of them suffices.
_NEOX_ALONE = """
pipe_parallel_size gpt_j_residual no_weight_tying output_layer_parallelism text_gen_type deepspeed_slurm
deepspeed_mpi checkpoint_factor
"""
NEOX_ALONE = frozenset(_NEOX_ALONE.split())
NEOX_LEAST = 2
MODEL_CONFIG: Keys = (("architectures", "torch_dtype", "transformers_version"), ("model_type",))


def has_keys(value: Mapping[str, Any], keys: Keys) -> bool:
    """Return whether a mapping has at least one dotted key of each group. False if there are no groups."""
    return bool(keys) and all(any(_is_there(value, dotted) for dotted in group) for group in keys)


def _is_there(value: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def is_accelerate(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping is an Accelerate configuration, or only its FSDP section."""
    whole = "distributed_type" in value and len(value) > 1
    return whole or ("fsdp_config" in value and not value.keys() & {"model", "models", "model_name_or_path"})


def program_of_file(value: Mapping[str, Any]) -> str:
    """Return the name of the program that a configuration belongs to, judged by its keys; "" if unknown."""
    for program in OTHER_PROGRAMS:
        if has_keys(value, program.keys):
            return program.name
    names = {str(key).replace("-", "_") for key in value}
    neox = names & NEOX_ALONE or len(names & NEOX_KEYS) >= max(NEOX_LEAST, len(names) / 2)
    return "GPT-NeoX" if neox else ""


def program_of_command(words: Sequence[str]) -> str:
    """Return the name of the known program that a command line starts; "" if it starts none of them."""
    text = " ".join(words)
    for program in OTHER_PROGRAMS:
        if re.fullmatch(program.commands, text, re.DOTALL):
            return program.name
    return ""


def program_of_script(script: str, flags: Sequence[str]) -> str:
    """Return the name of the known program that a Python script belongs to; "" if it is unknown.

    The program is recognized by the script's path or by its flags.
    """
    for program in OTHER_PROGRAMS:
        if re.fullmatch(program.scripts, script):
            return program.name
    for program in OTHER_PROGRAMS:
        if any(re.fullmatch(program.flags, flag) for flag in flags):
            return program.name
    return "GPT-NeoX" if re.fullmatch(r"(.*/)?deepy\.py", script) else ""


def models_by_flag(gpt: bool) -> Iterator[tuple[OtherModel, re.Pattern[str]]]:
    """Yield each of OTHER_MODELS, with a pattern that matches flags with which a program trains this model.

    `gpt` says whether the program, judged by its name, trains a GPT.
    """
    for model in OTHER_MODELS:
        yield model, re.compile(model.changes_gpt if gpt else f"{model.flags}|{model.changes_gpt}")
