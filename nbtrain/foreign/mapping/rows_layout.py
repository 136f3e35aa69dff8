"""Rows of the mapping: number format, loss scale, ZeRO, recomputation, and parallel layout."""

import math

from nbtrain.foreign.mapping.conversion import Reading, Writing
from nbtrain.foreign.mapping.ranks import GPUS, NODES, ranks_of
from nbtrain.foreign.mapping.rows_model import Row
from nbtrain.foreign.syntax.located import whole_number

# DeepSpeed's own defaults (runtime/fp16, DeepSpeedFP16Config in 0.19.8).
DEEPSPEED_SCALE = {
    "loss_scale": 0.0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


# --- number format --------------------------------------------------------------------------------


def _read_format(source: Reading) -> None:
    document = source.job.deepspeed
    asked = [name for name in ("fp16", "bf16") if source.value(name)]
    for name in ("fp16", "bf16"):
        if document and document.get(f"{name}.enabled") is True and not asked:
            source.set("precision.dtype", name, comment=f"{name}.enabled", place=document.place(name))
            return
    if found := other_format(source):
        flag, words = found
        fix = f'Write "{flag}": {{"enabled": true}} there.'
        source.fail("precision.dtype", source.place(flag), f"--{flag}: {words} {fix}")
    dtype = asked[0] if asked else "fp32"
    source.set(
        "precision.dtype", dtype, dtype if asked else "fp16", "" if asked else "neither --fp16 nor --bf16"
    )


def other_format(source: Reading) -> tuple[str, str] | None:
    """Return the flag of a number format that the JSON does not turn on, and a sentence about it.

    Returns None if the flags and the JSON agree.
    """
    document = source.job.deepspeed
    if document is None or source.job.program is None:
        return None
    for name, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if source.value(name) and document.get(f"{name}.enabled") is not True:
            found = other if document.get(f"{other}.enabled") else name
            found = f"{found}.enabled is {'true' if found == other else 'not true'}"
            words = (
                f"{found} in {document.label}: DeepSpeed would train in a different format than the model's."
            )
            return name, words
    return None


def _write_format(target: Writing) -> None:
    if target.config.precision.dtype != "fp32":
        target.add(target.config.precision.dtype)


def _read_fp8(source: Reading) -> None:
    form = source.value("fp8") if source.has("fp8") else None
    dest = "fp8"
    for name in ("hybrid", "e4m3"):
        if source.has(f"fp8_{name}") and source.value(f"fp8_{name}"):
            form, dest = name, f"fp8_{name}"
    if form == "hybrid":
        source.set("precision.fp8", True, dest)
    elif form:
        source.fail(
            "precision.fp8",
            source.place(dest),
            f"FP8 in {form} only: precision.fp8 uses the hybrid format, with e4m3 forward and e5m2 backward. "
            "Set the flag to hybrid.",
        )


def _write_fp8(target: Writing) -> None:
    if not target.config.precision.fp8:
        return
    if target.has("fp8"):
        target.add("fp8", "hybrid")
    else:
        target.add("fp8_hybrid")


def _read_scale(source: Reading) -> None:
    if source.values.get("precision.dtype") != "fp16":
        return
    document = source.job.deepspeed
    if source.program == "megatron-deepspeed":
        if document is None:
            return
        for name, default in DEEPSPEED_SCALE.items():
            value = document.get(f"fp16.{name}", default)
            value = float(value) if name == "loss_scale" else value
            given = document.get(f"fp16.{name}") is not None
            comment = f"fp16.{name}" if given else f"DeepSpeed's default of fp16.{name}"
            source.set(f"precision.fp16.{name}", value, comment=comment, place=document.place(f"fp16.{name}"))
        return
    key = "precision.fp16.initial_scale_power"
    initial = source.known("initial_loss_scale", key)
    if initial is not None and not (initial > 0 and math.log2(initial).is_integer()):
        place = source.place("initial_loss_scale")
        text = f"--initial-loss-scale {initial:g}: the value must be a power of two."
        source.fail(key, place, text)
    elif initial is not None:
        source.set(key, int(math.log2(initial)), "initial_loss_scale")
    scale = source.known("loss_scale", "precision.fp16.loss_scale")
    source.set("precision.fp16.loss_scale", float(scale or 0), "loss_scale")
    for dest in ("loss_scale_window", "min_loss_scale"):
        if (value := source.known(dest, f"precision.fp16.{dest}")) is not None:
            source.set(f"precision.fp16.{dest}", int(value), dest)
    source.set("precision.fp16.hysteresis", source.value("hysteresis"), "hysteresis")


def _write_scale(target: Writing) -> None:
    if target.config.precision.dtype != "fp16" or target.table.program == "megatron-deepspeed":
        return
    scale = target.config.precision.fp16
    if scale.loss_scale:
        target.add("loss_scale", scale.loss_scale)
    target.add("initial_loss_scale", float(2**scale.initial_scale_power))
    target.add("loss_scale_window", float(scale.loss_scale_window))
    target.add("hysteresis", scale.hysteresis)
    target.add("min_loss_scale", float(scale.min_loss_scale))


# --- ZeRO -----------------------------------------------------------------------------------------


def _read_zero(source: Reading) -> None:
    if (found := _stage(source)) is None:
        return
    stage, place, comment = found
    pipeline = source.value("pipeline_model_parallel_size")
    if stage >= 2 and isinstance(pipeline, int) and pipeline > 1:
        source.note(
            place,
            f"ZeRO {stage} with {pipeline} pipeline stages: imported as zero_stage 1, because DeepSpeed "
            "refuses ZeRO 2 and 3 in a pipeline.",
        )
        stage, comment = 1, f"{comment}, which a pipeline cannot have"
    source.set("parallel.zero_stage", stage, comment=comment, place=place)
    stage_for_format(source)


def stage_for_format(source: Reading, dtype: str | None = None) -> None:
    """Replace ZeRO 0 with ZeRO 1 for 16-bit weights, which DeepSpeed trains wrongly in stage 0.

    `dtype` is the format of the run that a layout is applied to.
    """
    key, dtype = "parallel.zero_stage", source.said("precision.dtype", dtype)
    if source.values.get(key) != 0 or dtype == "fp32":
        return
    place, comment = source.origins[key], source.comments[key]
    source.note(place, "ZeRO 0 with 16-bit weights: imported as zero_stage 1, which gives the same results.")
    source.set(key, 1, comment=f"{comment}: ZeRO 0, which nbtrain supports only with fp32", place=place)


def _stage(source: Reading) -> tuple[int, str, str] | None:
    """Return the ZeRO stage that the program uses, its place and a comment.

    Returns None if the files do not determine the stage.
    """
    if source.program == "megatron-deepspeed":
        document = source.job.deepspeed
        if document is None:
            named = source.setting("deepspeed_config")
            name = named.value if named else "ds_config.json"
            template = (
                ", or the template from which the script makes it with sed"
                if source.job.substitutions
                else ""
            )
            source.fail(
                "parallel.zero_stage",
                named.place if named else source.job.label,
                f"{name} is missing: it sets the ZeRO stage and the loss scale. "
                f"Pass this file as well{template}.",
            )
            return 0, source.job.label, "no DeepSpeed JSON"
        stage, place = document.get("zero_optimization.stage", 0), document.place("zero_optimization.stage")
        flag = source.setting("zero_stage")
        if flag and flag.value != stage:
            text = f"{flag.text}: ignored, because DeepSpeed uses the JSON's stage, {stage} ({place})."
            source.note(flag.place, text)
        return int(stage), place, "zero_optimization.stage"
    for dest in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if source.has(dest) and source.value(dest):
            megatron = dest == "use_megatron_fsdp"
            strategy = "optim_grads_params"
            if megatron:
                strategy = source.known("data_parallel_sharding_strategy", "parallel.zero_stage")
            return (SHARDING[strategy], source.place(dest), f"{dest}, {strategy}") if strategy else None
    if source.value("use_distributed_optimizer"):
        return 1, source.place("use_distributed_optimizer"), "--use-distributed-optimizer"
    return 0, source.job.label, "no --use-distributed-optimizer"


def _write_zero(target: Writing) -> None:
    stage = target.config.parallel.zero_stage
    if target.table.program == "megatron-deepspeed":
        target.add("zero_stage", stage)
        if target.config.parallel.offload_optimizer.device != "none":
            # Without DeepSpeed's CPU Adam, DeepSpeed raises an error (engine.py, _configure_optimizer).
            target.add("cpu_optimizer")
        return
    if stage:
        target.add("use_distributed_optimizer")
    if stage >= 2 and target.has("use_megatron_fsdp"):
        target.add("use_megatron_fsdp")
        target.add("data_parallel_sharding_strategy", {value: key for key, value in SHARDING.items()}[stage])
        target.add("gradient_accumulation_fusion", False)
        target.add("ckpt_format", "fsdp_dtensor")
    elif stage >= 2:
        target.unsaid(
            "parallel.zero_stage",
            "the program's distributed optimizer is ZeRO 1, which takes more memory but computes the same "
            "sums",
        )


# --- recomputation --------------------------------------------------------------------------------


def _read_recompute(source: Reading) -> None:
    key = "parallel.activation_checkpointing.granularity"
    interval = "parallel.activation_checkpointing.interval_layers"
    if source.setting("checkpoint_activations"):
        if source.program == "megatron-lm":
            place = source.place("checkpoint_activations")
            rest = "--recompute-granularity full --recompute-method uniform"
            source.fail(
                key,
                place,
                f"--checkpoint-activations: the program exits with this flag. Replace it with {rest}.",
            )
            return
        source.set(key, "full", "checkpoint_activations")
        source.set(interval, source.value("checkpoint_num_layers"), "checkpoint_num_layers")
        return
    granularity = source.value("recompute_granularity")
    if source.has("recompute_activations") and source.value("recompute_activations"):
        granularity = "selective"
    if granularity == "full":
        method = source.value("recompute_method")
        if method != "uniform":
            place, found = (
                source.place("recompute_granularity"),
                f"--recompute-method {method or 'is missing'}",
            )
            words = "nbtrain supports only the method uniform. Set --recompute-method uniform."
            source.fail(key, place, f"full recomputation, {found}: {words}")
            return
        source.set(key, "full", "recompute_granularity")
        source.set(interval, source.value("recompute_num_layers") or 1, "recompute_num_layers")
    elif granularity:
        dest = "recompute_granularity" if source.setting("recompute_granularity") else "recompute_activations"
        source.set(key, "selective", dest)


def _write_recompute(target: Writing) -> None:
    recompute = target.config.parallel.activation_checkpointing
    if recompute.granularity == "full" and target.has("deepspeed_activation_checkpointing"):
        target.add("checkpoint_activations")
        target.add("deepspeed_activation_checkpointing")
        target.add("checkpoint_num_layers", recompute.interval_layers)
    elif recompute.granularity == "full":
        target.add("recompute_granularity", "full")
        target.add("recompute_method", "uniform")
        target.add("recompute_num_layers", recompute.interval_layers)
    elif recompute.granularity == "selective":
        target.add("recompute_granularity", "selective")


# --- clipping, Ulysses, context parallelism, FPDT -------------------------------------------------


def _read_clip(source: Reading) -> None:
    document = source.job.deepspeed if source.program == "megatron-deepspeed" else None
    if document is not None and document.get("gradient_clipping") is not None:
        value, place = float(document.get("gradient_clipping")), document.place("gradient_clipping")
        source.set("optimizer.clip_grad", value, comment="gradient_clipping", place=place)
    elif document is not None and source.value("deepspeed") and "gradient_clipping" not in source.auto:
        # The program leaves clipping to DeepSpeed (megatron/optimizer/__init__.py), whose default is 0.
        flag = f"--clip-grad({source.value('clip_grad')})"
        source.note(
            document.label,
            f"gradient_clipping is not set, so DeepSpeed does not clip gradients, and {flag} has no effect.",
        )
        source.set("optimizer.clip_grad", 0.0, comment="no gradient_clipping", place=document.label)
    else:
        source.set("optimizer.clip_grad", source.value("clip_grad"), "clip_grad")


def _write_clip(target: Writing) -> None:
    target.add("clip_grad", target.config.optimizer.clip_grad)


def _read_sequence(source: Reading) -> None:
    if source.has("ds_sequence_parallel_size") and source.setting("ds_sequence_parallel_size"):
        size = source.value("ds_sequence_parallel_size")
        source.set("parallel.ds_sequence_parallel_size", size, "ds_sequence_parallel_size")
    if source.has("context_parallel_size") and source.setting("context_parallel_size"):
        size = source.value("context_parallel_size")
        source.set("parallel.context_parallel_size", size, "context_parallel_size")
    if source.has("ds_sequence_parallel_fpdt") and source.value("ds_sequence_parallel_fpdt"):
        dest = "ds_sequence_parallel_fpdt_chunk_size"
        source.set("parallel.fpdt_chunk_tokens", source.value(dest), dest)


def _write_sequence(target: Writing) -> None:
    parallel = target.config.parallel
    if parallel.ds_sequence_parallel_size > 1:
        if target.has("ds_sequence_parallel_size"):
            target.add("ds_sequence_parallel_size", parallel.ds_sequence_parallel_size)
            if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
                target.warnings.append(
                    f"{target.table.name} rejects --ds-sequence-parallel-size with tensor or pipeline "
                    "parallelism"
                )
        else:
            target.unsaid("parallel.ds_sequence_parallel_size", "the program has no Ulysses")
    if parallel.context_parallel_size > 1:
        if target.has("context_parallel_size"):
            target.add("context_parallel_size", parallel.context_parallel_size)
        else:
            target.unsaid("parallel.context_parallel_size", "the program has no context parallelism")
    if parallel.fpdt_chunk_tokens:
        if target.has("ds_sequence_parallel_fpdt"):
            target.add("ds_sequence_parallel_fpdt")
            target.add("ds_sequence_parallel_fpdt_chunk_size", parallel.fpdt_chunk_tokens)
            target.add("ds_sequence_parallel_fpdt_offloading")
        else:
            target.unsaid("parallel.fpdt_chunk_tokens", "the program has no FPDT")


def _read_pipeline(source: Reading) -> None:
    """Read the layout; the remaining ranks are data-parallel."""
    job, given = source.job, source.given
    for key, found in ((NODES, job.nodes), (GPUS, job.gpus_per_node or job.gpus_asked)):
        if found is not None:
            source.set(key, whole_number(found, key), comment=f"{job.kind}", place=found.place)
        elif key not in given and not job.is_asked(key):
            source.fail(
                key,
                job.label,
                f"the file does not say how many ranks there are. Add {key}=... to the command.",
            )
    ranks = ranks_of(source)
    place = source.place("tensor_model_parallel_size")
    if ranks.leave_some_over:
        source.fail(
            "parallel.data_parallel_size",
            place,
            f"{ranks.words} = {ranks.model} ranks do not divide nodes({ranks.nodes}) * "
            f"gpus_per_node({ranks.gpus}) = {ranks.total}. Add {NODES}={ranks.fitting_nodes} to the command, "
            "or a multiple of that number.",
        )
    elif ranks.replicas:  # an error in a size is reported for the size itself
        source.set("parallel.data_parallel_size", ranks.replicas, comment=ranks.comment, place=place)


def _write_pipeline(target: Writing) -> None:
    config = target.config
    pipeline = config.parallel.pipeline_parallel_size
    if target.has("no_pipeline_parallel") and pipeline == 1:
        target.add("no_pipeline_parallel")
    if config.model.num_layers % pipeline:
        target.warnings.append(
            f"{target.table.name} requires --num-layers({config.model.num_layers}) to be a multiple of "
            f"--pipeline-model-parallel-size({pipeline})"
        )


LAYOUT_ROWS = (
    Row(("precision.dtype",), ("fp16", "bf16"), _read_format, _write_format),
    Row(("precision.fp8",), ("fp8", "fp8_hybrid", "fp8_e4m3"), _read_fp8, _write_fp8),
    Row(
        tuple(f"precision.fp16.{name}" for name in DEEPSPEED_SCALE),
        ("loss_scale", "initial_loss_scale", "loss_scale_window", "hysteresis", "min_loss_scale"),
        _read_scale,
        _write_scale,
    ),
    Row(
        ("parallel.zero_stage",),
        (
            "zero_stage",
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "use_torch_fsdp2",
            "data_parallel_sharding_strategy",
        ),
        _read_zero,
        _write_zero,
    ),
    Row(
        (
            "parallel.activation_checkpointing.granularity",
            "parallel.activation_checkpointing.interval_layers",
        ),
        (
            "checkpoint_activations",
            "deepspeed_activation_checkpointing",
            "checkpoint_num_layers",
            "recompute_activations",
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
        ),
        _read_recompute,
        _write_recompute,
    ),
    Row(("optimizer.clip_grad",), ("clip_grad",), _read_clip, _write_clip),
    Row(
        (
            "parallel.ds_sequence_parallel_size",
            "parallel.context_parallel_size",
            "parallel.fpdt_chunk_tokens",
        ),
        (
            "ds_sequence_parallel_size",
            "context_parallel_size",
            "ds_sequence_parallel_fpdt",
            "ds_sequence_parallel_fpdt_chunk_size",
            "ds_sequence_parallel_fpdt_offloading",
        ),
        _read_sequence,
        _write_sequence,
    ),
    Row(
        ("parallel.data_parallel_size", "resources.nodes", "resources.gpus_per_node"),
        ("no_pipeline_parallel",),
        _read_pipeline,
        _write_pipeline,
    ),
)
