"""Reads an Accelerate configuration: turns its FSDP, DeepSpeed or DDP settings into a layout for a run.

PyTorch's FSDP strategies shard what ZeRO shards (https://docs.pytorch.org/docs/stable/fsdp.html):
FULL_SHARD is ZeRO 3, SHARD_GRAD_OP ZeRO 2, NO_SHARD ZeRO 0. HYBRID_SHARD keeps a complete copy of the
parameters on each machine, as ZeRO++'s secondary partition (hpZ, arXiv:2306.10209) does.
"""

from collections.abc import Iterator
from typing import Any

from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.syntax.located import Value
from nbtrain.foreign.syntax.yaml_tree import Tree

# {strategy: (ZeRO stage, whether each machine keeps complete parameters)}. Accelerate also accepts their
# numbers.
STRATEGIES = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, False),
}
NUMBERED = dict(zip("12345", STRATEGIES, strict=True))
FSDP_NAMES = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward", "sharding_strategy")
# Keys that do not affect the run.
WITHOUT_MEANING = {
    "how weights are wrapped, moved and saved": (
        *(
            "fsdp_auto_wrap_policy",
            "fsdp_transformer_layer_cls_to_wrap",
            "fsdp_min_num_params",
            "fsdp_version",
        ),
        *(
            "fsdp_backward_prefetch",
            "fsdp_backward_prefetch_policy",
            "fsdp_forward_prefetch",
            "fsdp_use_orig_params",
        ),
        *("fsdp_cpu_ram_efficient_loading", "fsdp_state_dict_type", "fsdp_sync_module_states"),
        *("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile"),
    ),
    "where and how the processes start": (
        *("compute_environment", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend"),
        *(
            "same_network",
            "main_training_function",
            "gpu_ids",
            "debug",
            "enable_cpu_affinity",
            "downcast_bf16",
        ),
        *(
            "tpu_env",
            "tpu_use_cluster",
            "tpu_use_sudo",
            "use_cpu",
            "distributed_type",
            "command_file",
            "commands",
        ),
        *("tpu_name", "tpu_zone", "dynamo_backend", "num_processes", "num_machines", "mixed_precision"),
    ),
}


def accelerate_job(tree: Tree) -> Job:
    """Return a job with the layout of an Accelerate configuration."""
    job = Job("Accelerate configuration", tree.label)
    kind = str(_text(tree, "distributed_type") or ("FSDP" if tree.find("fsdp_config") else "NO")).upper()
    reader = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron, "MULTI_GPU": _ddp, "NO": _ddp}
    if kind not in reader:
        place = tree.places.get("distributed_type", tree.label)
        job.refused.append(
            (
                place,
                f"distributed_type = {kind}: this type cannot be imported; it must be one of "
                f"{', '.join(reader)}.",
            )
        )
        return job
    _machines(tree, job, kind)
    reader[kind](tree, job)
    precision = _text(tree, "mixed_precision")
    if precision in ("fp16", "bf16"):
        job.settings["precision.dtype"] = Value(precision, tree.places["mixed_precision"])
    elif precision == "fp8":
        job.settings["precision.dtype"] = Value("bf16", tree.places["mixed_precision"])
        job.settings["precision.fp8"] = Value(True, tree.places["mixed_precision"])
    elif precision == "no":
        job.settings["precision.dtype"] = Value("fp32", tree.places["mixed_precision"])
    if (steps := tree.find("gradient_accumulation_steps")) is not None:
        words = "gradient_accumulation_steps: not imported; it follows from the run's batch sizes."
        job.left.append((steps.place, words))
    job.left += list(_other_keys(tree))
    return job


def _text(tree: Tree, dotted: str) -> str:
    value = tree.find(dotted)
    text = "" if value is None or value.value is None else tree.texts.get(dotted, str(value.value))
    return text.strip()


def _is_true(tree: Tree, dotted: str) -> bool:
    return _text(tree, dotted).lower() in ("true", "yes", "on", "1")


def _machines(tree: Tree, job: Job, kind: str) -> None:
    machines, processes = tree.find("num_machines"), tree.find("num_processes")
    count = int(machines.value) if machines and str(machines.value).isdigit() else 1
    if machines and str(machines.value).isdigit():
        job.settings["resources.nodes"] = Value(count, machines.place)
    ranks = int(processes.value) if processes and str(processes.value).isdigit() else 0
    if kind == "NO" or not ranks or processes is None:
        return
    if count and ranks % count == 0:
        job.settings["resources.gpus_per_node"] = Value(ranks // count, processes.place)
    else:
        words = f"num_processes({ranks}) must be a multiple of num_machines({count})."
        job.refused.append((processes.place, words))


def _fsdp(tree: Tree, job: Job) -> None:
    found = next((f"fsdp_config.{name}" for name in FSDP_NAMES if tree.find(f"fsdp_config.{name}")), None)
    text = _text(tree, found).upper() if found else "FULL_SHARD"
    place = tree.places[found] if found else tree.places.get("fsdp_config", tree.label)
    strategy = {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"}.get(text) or NUMBERED.get(text, text)
    if strategy not in STRATEGIES:
        job.refused.append(
            (place, f"{found} = {text}: this strategy is unknown; must be one of {', '.join(STRATEGIES)}.")
        )
        return
    stage, hybrid = STRATEGIES[strategy]
    job.settings["parallel.zero_stage"] = Value(stage, place)
    words = f"{strategy}: ZeRO {stage} shards the same states"
    if hybrid:
        job.settings["parallel.zero_hpz"] = Value(True, place)
        words = (
            "HYBRID_SHARD: as with FSDP, ZeRO 3 with zero_hpz keeps complete parameters on each machine, but "
            "it shards gradients and optimizer states across all machines, which takes less memory"
        )
    elif strategy == "HYBRID_SHARD_ZERO2":
        words = (
            "HYBRID_SHARD_ZERO2: ZeRO 2 shards gradients and optimizer states across all machines, not "
            "within each machine"
        )
    job.left.append((place, f"{words}."))
    if _is_true(tree, "fsdp_config.fsdp_offload_params"):
        place = tree.places["fsdp_config.fsdp_offload_params"]
        job.settings["parallel.offload_optimizer.device"] = Value("cpu", place)
        if stage == 3:
            job.settings["parallel.offload_param.device"] = Value("cpu", place)
    _recompute(tree, job, "fsdp_config.fsdp_activation_checkpointing")


def _recompute(tree: Tree, job: Job, dotted: str) -> None:
    if _is_true(tree, dotted):
        key = "parallel.activation_checkpointing.granularity"
        job.settings[key] = Value("full", tree.places[dotted])


def _deepspeed(tree: Tree, job: Job) -> None:
    file = tree.word("deepspeed_config.deepspeed_config_file")
    if file is not None:
        words = (
            f"deepspeed_config_file {file.text}: the layout is in this file. Import it: run "
            f"`nbtrain import {file.text} --onto RUN`."
        )
        job.refused.append((file.place, words))
        return
    stage = tree.find("deepspeed_config.zero_stage")
    place = stage.place if stage else tree.places.get("deepspeed_config", tree.label)
    # The default is Accelerate's (utils/dataclasses.py, DeepSpeedPlugin).
    job.settings["parallel.zero_stage"] = Value(stage.value if stage else 2, place)
    for name in ("optimizer", "param"):
        device = _text(tree, f"deepspeed_config.offload_{name}_device")
        if device and device != "none":
            place = tree.places[f"deepspeed_config.offload_{name}_device"]
            job.settings[f"parallel.offload_{name}.device"] = Value(device, place)
        if (path := tree.find(f"deepspeed_config.offload_{name}_nvme_path")) and device == "nvme":
            job.settings[f"parallel.offload_{name}.nvme_path"] = path
    if (clip := tree.find("deepspeed_config.gradient_clipping")) and _text(
        tree, "deepspeed_config.gradient_clipping"
    ) != "auto":
        job.settings["optimizer.clip_grad"] = (
            Value(float(clip.value), clip.place) if _is_number(clip.value) else clip
        )
    if steps := tree.find("deepspeed_config.gradient_accumulation_steps"):
        words = "gradient_accumulation_steps: not imported; it follows from the run's batch sizes."
        job.left.append((steps.place, words))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


MEGATRON = {
    "megatron_lm_tp_degree": "parallel.tensor_parallel_size",
    "megatron_lm_pp_degree": "parallel.pipeline_parallel_size",
    "megatron_lm_sequence_parallelism": "parallel.sequence_parallel",
    "megatron_lm_gradient_clipping": "optimizer.clip_grad",
}


def _megatron(tree: Tree, job: Job) -> None:
    for name, key in MEGATRON.items():
        dotted = f"megatron_lm_config.{name}"
        if value := tree.find(dotted):
            job.settings[key] = (
                Value(_is_true(tree, dotted), value.place) if key.endswith("sequence_parallel") else value
            )
    if _is_true(tree, dotted := "megatron_lm_config.megatron_lm_use_distributed_optimizer"):
        job.settings["parallel.zero_stage"] = Value(1, tree.places[dotted])
    _recompute(tree, job, "megatron_lm_config.megatron_lm_recompute_activations")


def _ddp(tree: Tree, job: Job) -> None:
    place = tree.places.get("distributed_type", tree.label)
    job.settings["parallel.zero_stage"] = Value(0, place)


def _other_keys(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield (place, text) for keys without a corresponding field."""
    known = {name for names in WITHOUT_MEANING.values() for name in names}
    read = {"fsdp_config", "deepspeed_config", "megatron_lm_config", "gradient_accumulation_steps"}
    inner = {
        *FSDP_NAMES,
        "fsdp_offload_params",
        "fsdp_activation_checkpointing",
        "zero_stage",
        "gradient_clipping",
    }
    inner |= {*MEGATRON, "megatron_lm_use_distributed_optimizer", "megatron_lm_recompute_activations"}
    inner |= {f"offload_{name}_{what}" for name in ("optimizer", "param") for what in ("device", "nvme_path")}
    inner |= {"gradient_accumulation_steps", "deepspeed_config_file"}
    value = tree.value if isinstance(tree.value, dict) else {}
    for key, section in value.items():
        names = section if key in read and isinstance(section, dict) else {}
        for name in names:
            if name not in inner | known:
                yield tree.places[f"{key}.{name}"], f"{key}.{name}: nbtrain has no field for it."
        if key not in known | read:
            yield tree.places[key], f"{key}: nbtrain has no field for it."
