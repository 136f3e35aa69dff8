"""The rules that join fields: one function per rule, every problem told at once.

Each rule yields messages: where the value was set, what was found, the rule with its numbers, what to change.
Rules of the data section stand in check_data.py. Nothing here looks at a file, a device or the network: what needs the machine is jobs/preflight.py.
Most of these would else surface minutes later, on GPUs already taken, as a reshape error, a hang or, worst,
as a run that trains wrongly without a word.
"""

import itertools
import re
from collections.abc import Callable, Iterable

from nbtrain.config.batch import StepSizes
from nbtrain.config.check_data import RULES as DATA_RULES
from nbtrain.config.check_wording import Problems
from nbtrain.config.check_wording import found as _found
from nbtrain.config.deepspeed import deepspeed_config
from nbtrain.config.devices import DEVICES, find_device, nearest_device_names
from nbtrain.config.schema import UNITS, RunConfig, given_unit
from nbtrain.errors import ConfigError


def check_config(config: RunConfig) -> None:
    """Raises ConfigError with the message of every broken rule, one below the other."""
    if problems := find_problems(config):
        raise ConfigError("\n".join(problems))


def find_problems(config: RunConfig) -> list[str]:
    """The message of every broken rule; empty when the run may be launched."""
    return [problem for rule in RULES for problem in rule(config)]


# --- batch ----------------------------------------------------------------------------------------------------


def global_batch_divides(config: RunConfig) -> Problems:
    """Every step gives every rank the same whole number of micro batches."""
    batch, data = config.batch, config.parallel.data_parallel_size
    unit = batch.micro_batch_size * data
    if batch.global_batch_size % unit:
        yield (
            f"{_found(config, 'batch.global_batch_size')}\n"
            f"  must be a multiple of micro_batch_size({batch.micro_batch_size}) * data_parallel_size({data}) = {unit}; "
            f"nearest: {_join(_nearest_multiples(batch.global_batch_size, unit))}."
        )


def rampup_is_whole(config: RunConfig) -> Problems:
    """The ramp rises, ends exactly at the global batch size, and each of its sizes divides among the ranks."""
    batch, ramp = config.batch, config.batch.rampup
    yield from _step_sizes_problems(config)
    if ramp is None:
        return
    key = "batch.rampup"
    if ramp.start_batch_size >= batch.global_batch_size:
        yield (
            f"{_found(config, f'{key}.start_batch_size')}\n"
            f"  must be less than global_batch_size({batch.global_batch_size}); without a ramp-up set rampup: null."
        )
        return
    distance = batch.global_batch_size - ramp.start_batch_size
    if distance % ramp.batch_size_increment:
        yield (
            f"{_found(config, f'{key}.batch_size_increment')}\n"
            f"  must divide global_batch_size({batch.global_batch_size}) - start_batch_size({ramp.start_batch_size})"
            f" = {distance}; nearest: {_join(_nearest_divisors(ramp.batch_size_increment, distance))}."
        )
    data = config.parallel.data_parallel_size
    unit = batch.micro_batch_size * data
    for field in ("start_batch_size", "batch_size_increment"):
        value = getattr(ramp, field)
        if value % unit:
            yield (
                f"{_found(config, f'{key}.{field}')}\n"
                f"  must be a multiple of micro_batch_size({batch.micro_batch_size}) * data_parallel_size({data})"
                f" = {unit}; nearest: {_join(_nearest_multiples(value, unit))}."
            )


def _step_sizes_problems(config: RunConfig) -> Problems:
    """A step schedule rises in tokens, ends at the global batch size, and its sizes divide among the ranks."""
    batch, sizes = config.batch, config.ramp
    if not isinstance(sizes, StepSizes):
        return
    found = _found(config, "batch.step_batch_size_schedule")
    if batch.rampup is not None:
        yield f"{found}\n  is one way to grow the batch and batch.rampup another; set one of them to null."
    starts = [first for first, _ in sizes.parts]
    for number, (before, after) in enumerate(itertools.pairwise(starts), start=2):
        if after <= before:
            yield (
                f"{found}\n  must rise: its size number {number} begins at sequence {after}, the one before at {before} "
                f"(tokens / seq_length({config.model.seq_length}), rounded down)."
            )
    last = sizes.parts[-1][1]
    if last != batch.global_batch_size:
        yield f"{found}\n  must end at global_batch_size({batch.global_batch_size}), and ends at {last}."
    unit = batch.micro_batch_size * config.parallel.data_parallel_size
    for _, size in sizes.parts[:-1]:
        if size % unit:
            yield (
                f"{found}\n  has {size}, which is no multiple of micro_batch_size({batch.micro_batch_size}) * "
                f"data_parallel_size({config.parallel.data_parallel_size}) = {unit}; "
                f"nearest: {_join(_nearest_multiples(size, unit))}."
            )


# --- model and layout -----------------------------------------------------------------------------------------


def heads_divide(config: RunConfig) -> Problems:
    """Each head has the same width, each tensor-parallel rank the same number of heads."""
    model, tensor = config.model, config.parallel.tensor_parallel_size
    if model.hidden_size % model.num_attention_heads:
        yield (
            f"{_found(config, 'model.hidden_size')}\n"
            f"  must be a multiple of num_attention_heads({model.num_attention_heads}); "
            f"nearest: {_join(_nearest_multiples(model.hidden_size, model.num_attention_heads))}."
        )
    if model.num_attention_heads % tensor:
        yield (
            f"{_found(config, 'parallel.tensor_parallel_size')}\n"
            f"  must divide num_attention_heads({model.num_attention_heads}); "
            f"nearest: {_join(_nearest_divisors(tensor, model.num_attention_heads))}."
        )
    ffn = model.resolved_ffn_hidden_size
    if ffn % tensor:
        key = "model.ffn_hidden_size" if model.ffn_hidden_size else "model.hidden_size"
        yield (
            f"{config.where(key)}: the MLP's width = {ffn}\n"
            f"  must be a multiple of tensor_parallel_size({tensor}); nearest: {_join(_nearest_multiples(ffn, tensor))}."
        )


def layers_divide(config: RunConfig) -> Problems:
    """Each pipeline stage holds the same number of layers; a recomputed piece fits into a stage."""
    layers, pipeline = config.model.num_layers, config.parallel.pipeline_parallel_size
    if layers % pipeline:
        yield (
            f"{_found(config, 'parallel.pipeline_parallel_size')}\n"
            f"  must divide num_layers({layers}); nearest: {_join(_nearest_divisors(pipeline, layers))}."
        )
        return
    checkpointing = config.parallel.activation_checkpointing
    if checkpointing.granularity == "full" and checkpointing.interval_layers > layers // pipeline:
        yield (
            f"{_found(config, 'parallel.activation_checkpointing.interval_layers')}\n"
            f"  must be at most num_layers({layers}) / pipeline_parallel_size({pipeline}) = {layers // pipeline}."
        )


def sequence_fits_positions(config: RunConfig) -> Problems:
    """Every position of a sequence has a learned embedding."""
    model = config.model
    if model.seq_length > model.resolved_max_position_embeddings:
        yield (
            f"{_found(config, 'model.seq_length')}\n"
            f"  must be at most max_position_embeddings({model.max_position_embeddings}); "
            f"set seq_length: {model.max_position_embeddings}, or max_position_embeddings: {model.seq_length}."
        )


def sequence_parallel_has_a_group(config: RunConfig) -> Problems:
    """Sequence parallelism shares the tensor-parallel group and cuts the sequence among it."""
    parallel, tensor = config.parallel, config.parallel.tensor_parallel_size
    if not parallel.sequence_parallel:
        return
    if tensor == 1:
        yield (
            f"{_found(config, 'parallel.sequence_parallel')}\n"
            "  needs tensor_parallel_size > 1, which is 1. Set sequence_parallel: false."
        )
    elif config.model.seq_length % tensor:
        yield (
            f"{_found(config, 'model.seq_length')}\n"
            f"  must be a multiple of tensor_parallel_size({tensor}) with sequence_parallel; "
            f"nearest: {_join(_nearest_multiples(config.model.seq_length, tensor))}."
        )


def layout_fits_resources(config: RunConfig) -> Problems:
    """One process per GPU; on CPU the same number of processes on each machine."""
    parallel, resources, world = config.parallel, config.resources, config.world_size
    data, pipeline, tensor = (
        parallel.data_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.tensor_parallel_size,
    )
    layout = f"data({data}) * pipeline({pipeline}) * tensor({tensor}) = {world} processes"
    nodes, gpus = resources.nodes, resources.gpus_per_node
    if resources.device == "cpu":
        if world % nodes:
            yield (
                f"{config.where('resources.nodes')}: {layout},\n"
                f"  which do not spread evenly over nodes({nodes}). "
                f"Nearest: {_join(_nearest_divisors(nodes, world))}."
            )
        return
    if world == nodes * gpus:
        return
    fixes = []
    if gpus and world % gpus == 0:
        fixes.append(f"nodes: {world // gpus}")
    elif world % nodes == 0:
        fixes.append(f"gpus_per_node: {world // nodes}")
    if (nodes * gpus) % (pipeline * tensor) == 0 and nodes * gpus:
        fixes.append(f"data_parallel_size: {nodes * gpus // (pipeline * tensor)}")
    advice = f" Set {', or '.join(fixes)}." if fixes else ""
    yield (
        f"{config.where('resources.gpus_per_node')}: {layout},\n"
        f"  but resources give nodes({nodes}) * gpus_per_node({gpus}) = {nodes * gpus}.{advice}"
    )


def gpu_type_is_known(config: RunConfig) -> Problems:
    """The plan needs the device's memory and peak."""
    name = config.resources.gpu_type
    if name is None or find_device(name):
        return
    near = nearest_device_names(name) or [device.name for device in DEVICES]
    yield (
        f"{_found(config, 'resources.gpu_type')}\n"
        f"  is not in the device table. Nearest: {', '.join(near)}. null leaves memory and peak unknown."
    )


# --- ZeRO and precision ---------------------------------------------------------------------------------------


def zero_stage_trains_right(config: RunConfig) -> Problems:
    """ZeRO 0 counts Adam's steps wrongly with 16-bit weights and clips wrongly with a cut model.

    Measured with DeepSpeed 0.19: stage 0 in bf16 or fp16 makes a dummy optimizer step at start, so that the
    bias correction is off from then on; with pipeline or tensor parallelism its gradient norm is that of a part.
    """
    parallel, precision = config.parallel, config.precision
    if parallel.zero_stage:
        return
    found = _found(config, "parallel.zero_stage")
    if precision.dtype != "fp32" and not precision.autocast:
        yield (
            f"{found}\n"
            f"  is only for fp32 weights, and precision.dtype is {precision.dtype}: DeepSpeed's stage 0 starts Adam one "
            "step ahead there.\n  Set zero_stage: 1, which costs nothing, or precision.dtype: fp32."
        )
    tensor, pipeline = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    if tensor * pipeline > 1:
        yield (
            f"{found}\n"
            f"  does not go with tensor_parallel_size({tensor}) * pipeline_parallel_size({pipeline}) > 1: "
            "gradients would be clipped by the norm of one part.\n  Set zero_stage: 1."
        )


def zero_stage_allows_pipeline(config: RunConfig) -> Problems:
    """DeepSpeed's pipeline engine refuses ZeRO 2 and 3, late, after the GPUs are taken."""
    stage, pipeline = config.parallel.zero_stage, config.parallel.pipeline_parallel_size
    if stage >= 2 and pipeline > 1:
        yield (
            f"{_found(config, 'parallel.zero_stage')}\n"
            f"  does not go with pipeline_parallel_size({pipeline}): gradients must stay whole between micro batches. "
            "Set zero_stage: 1."
        )


def autocast_is_bf16(config: RunConfig) -> Problems:
    """Autocast keeps fp32 weights and no loss scale: that is bf16's way."""
    precision = config.precision
    if precision.autocast and precision.dtype != "bf16":
        yield (
            f"{_found(config, 'precision.autocast')}\n"
            f"  needs precision.dtype: bf16, which is {precision.dtype}. Set dtype: bf16, or autocast: false."
        )


def loss_scale_has_room(config: RunConfig) -> Problems:
    """A loss scale starts at or above the least it may fall to."""
    scale = config.precision.fp16
    if config.precision.dtype != "fp16":
        return
    start = scale.loss_scale or 2.0**scale.initial_scale_power
    if start < scale.min_loss_scale:
        key = "loss_scale" if scale.loss_scale else "initial_scale_power"
        yield (
            f"{_found(config, f'precision.fp16.{key}')}\n"
            f"  starts the loss scale at {start:g}, below min_loss_scale({scale.min_loss_scale:g})."
        )


# Keys that nbtrain leaves out of DeepSpeed's configuration on purpose, and the field that decides instead.
DECIDED_ELSEWHERE = {
    "optimizer": "optimizer",
    "scheduler": "lr_schedule",
    "fp16": "precision",
    "bf16": "precision",
    "amp": "precision",
    "torch_autocast": "precision.autocast",
    "data_types": "precision",
    "gradient_accumulation_dtype": "precision",
    "activation_checkpointing": "parallel.activation_checkpointing",
    "tensor_parallel": "parallel.tensor_parallel_size",
    "tensorboard": "logging",
    "elasticity": "parallel.data_parallel_size",
}


def deepspeed_extra_is_extra(config: RunConfig) -> Problems:
    """Nobody writes a second value for what a field decides."""
    extra = config.parallel.deepspeed_extra
    for key in sorted(extra.keys() & DECIDED_ELSEWHERE):
        yield (
            f"{config.where(f'parallel.deepspeed_extra.{key}')}: parallel.deepspeed_extra sets {key}, "
            f"which {DECIDED_ELSEWHERE[key]} decides. Take it out, and change that."
        )
    rest = {key: value for key, value in extra.items() if key not in DECIDED_ELSEWHERE}
    # Stage 0 has its own rule above; with it alone deepspeed_config would say the same again.
    if rest and config.parallel.zero_stage:
        narrowed = config.parallel.model_copy(update={"deepspeed_extra": rest})
        copy = config.model_copy(update={"parallel": narrowed})
        try:
            deepspeed_config(copy)
        except ConfigError as error:
            yield str(error)


# --- schedules ------------------------------------------------------------------------------------------------


def learning_rates_are_ordered(config: RunConfig) -> Problems:
    """The schedule falls from lr to min_lr."""
    schedule = config.lr_schedule
    if schedule.min_lr > schedule.lr:
        yield f"{_found(config, 'lr_schedule.min_lr')}\n  must be at most lr({schedule.lr:g})."


def amounts_are_given_once(config: RunConfig) -> Problems:
    """An amount has one unit: two would be two wills."""
    for section, stem in (
        ("batch", "train"),
        ("lr_schedule", "lr_warmup"),
        ("lr_schedule", "lr_decay"),
        ("lr_schedule", "lr_wsd_decay"),
    ):
        keys = [f"{section}.{stem}_{unit}" for unit in UNITS]
        given = [key for key in keys if getattr(getattr(config, section), key.partition(".")[2]) is not None]
        if len(given) > 1:
            yield (
                f"{_found(config, given[0])}\n"
                + "".join(f"  and {_found(config, key)}\n" for key in given[1:])
                + "  say the same in two units; set all but one to null."
            )


def warmup_ends_before_decay(config: RunConfig) -> Problems:
    """Warm-up, then decay."""
    schedule, warmup = config.lr_schedule, config.lr_warmup_tokens
    constant = schedule.lr_decay_style == "constant"
    limit = config.train_tokens if constant else config.lr_decay_tokens
    if warmup >= limit:
        explicit = given_unit(schedule, "lr_decay") and not constant
        what = "lr_decay_tokens" if explicit else "train_tokens"
        yield (
            f"{_found_amount(config, 'lr_warmup')}\n"
            f"  must be less than {what}({limit}); usual is 1 % of it: {max(limit // 100, 1)}."
        )


def decay_style_has_its_amounts(config: RunConfig) -> Problems:
    """WSD needs the length of its last part, which fits behind the warm-up; an inverse square root needs a warm-up."""
    style, wsd, warmup = (
        config.lr_schedule.lr_decay_style,
        config.lr_wsd_decay_tokens,
        config.lr_warmup_tokens,
    )
    room = config.lr_decay_tokens - warmup
    if style != "WSD" and wsd is not None:
        yield (
            f"{_found_amount(config, 'lr_wsd_decay')}\n"
            f"  is of lr_decay_style: WSD, and lr_decay_style is {style}. Set it to null, or lr_decay_style: WSD."
        )
    elif style == "WSD" and wsd is None:
        yield (
            f"{_found(config, 'lr_schedule.lr_decay_style')}\n"
            f"  needs lr_wsd_decay_tokens; usual is 10 % of the decay tokens: {max(config.lr_decay_tokens // 10, 1)}."
        )
    elif wsd is not None and wsd > room > 0:
        yield (
            f"{_found_amount(config, 'lr_wsd_decay')}\n"
            f"  must be at most lr_decay_tokens({config.lr_decay_tokens}) - lr_warmup_tokens({warmup}) = {room}."
        )
    if style == "inverse-square-root" and not warmup:
        yield (
            f"{_found(config, 'lr_schedule.lr_decay_style')}\n"
            "  falls as sqrt(lr_warmup_tokens / tokens) and needs a warm-up; usual is 1 % of the decay tokens: "
            f"lr_warmup_tokens: {max(config.lr_decay_tokens // 100, 1)}."
        )


def _found_amount(config: RunConfig, stem: str) -> str:
    """How a message about an amount of lr_schedule begins: in the unit that it was given in, and in tokens."""
    unit, tokens = given_unit(config.lr_schedule, stem), getattr(config, f"{stem}_tokens")
    return _found(config, f"lr_schedule.{stem}_{unit}") + (f" = {tokens} tokens" if unit != "tokens" else "")


def kept_checkpoints_exist(config: RunConfig) -> Problems:
    """Only checkpoints that are written can be kept."""
    checkpoint = config.checkpoint
    every, interval = checkpoint.keep_every_steps, checkpoint.save_interval_steps
    if every and every % interval:
        yield (
            f"{_found(config, 'checkpoint.keep_every_steps')}\n"
            f"  must be a multiple of save_interval_steps({interval}); "
            f"nearest: {_join(_nearest_multiples(every, interval))}."
        )


def mode_has_work(config: RunConfig) -> Problems:
    """mode: eval evaluates something."""
    if config.mode == "eval" and not config.evaluation.eval_iters:
        yield (
            f"{_found(config, 'mode')}\n"
            "  has nothing to do with evaluation.eval_iters: 0. Set eval_iters, 10 for example, or mode: full."
        )


def profile_fits_run(config: RunConfig) -> Problems:
    """At least one cycle of the profiler ends before the run does."""
    profile = config.profile
    cycle = profile.wait_steps + profile.warmup_steps + profile.active_steps
    if profile.enabled and cycle > config.train_steps:
        yield (
            f"{_found(config, 'profile.enabled')}\n"
            f"  one cycle takes wait_steps({profile.wait_steps}) + warmup_steps({profile.warmup_steps}) + "
            f"active_steps({profile.active_steps}) = {cycle} steps, but the run makes {config.train_steps}."
        )


# --- data and environment -------------------------------------------------------------------------------------


def split_is_readable(config: RunConfig) -> Problems:
    """Three relative sizes, a training share, and a validation share when there is validation."""
    found = _found(config, "data.split")
    if not re.fullmatch(r"\s*\d+(\.\d+)?(\s*,\s*\d+(\.\d+)?){2}\s*", config.data.split):
        yield f"{found}\n  must be three sizes with commas, for training, validation and test, e.g. 949,50,1."
        return
    training, validation, _ = (float(part) for part in config.data.split.split(","))
    if training == 0:
        yield f"{found}\n  leaves nothing for training; the first size must be more than 0, e.g. 949,50,1."
    elif validation == 0 and config.evaluation.eval_iters:
        yield (
            f"{found}\n  leaves nothing for validation, but eval_iters is {config.evaluation.eval_iters}. "
            "Set evaluation.eval_iters: 0, or a split such as 949,50,1."
        )


# Set by torchrun or by nbtrain for each rank: a value from the YAML would send every rank to the same place.
RESERVED_ENVIRONMENT = re.compile(
    r"RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    r"|TORCHELASTIC_.*|NBTRAIN_(JOB|ATTEMPT|RUN_DIR|EXIT_FD)"
)
SECRET_NAMES = re.compile(
    r"(.*_)?(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|APIKEY|(API|ACCESS|PRIVATE|SECRET)_KEY)(_ID)?"
)
SECRET_VALUES = re.compile(r"(hf_|ghp_|github_pat_|glpat-|sk-|xox[bp]-|AKIA)[A-Za-z0-9_-]{12,}")


def environment_is_safe(config: RunConfig) -> Problems:
    """Names that a process can have, none of nbtrain's own, and no secret: the values are written down."""
    for name, value in config.backend.env.items():
        # An override's place repeats its value, which may be the secret.
        where = config.where(f"backend.env.{name}").partition("=")[0]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield f"{where}: backend.env: {name!r} is no name of a variable: letters, digits and _, no digit first."
        elif RESERVED_ENVIRONMENT.fullmatch(name):
            yield f"{where}: backend.env.{name}: nbtrain sets this for each rank itself. Take it out."
        elif SECRET_NAMES.fullmatch(name.upper()) or SECRET_VALUES.search(value):
            yield (
                f"{where}: backend.env.{name} looks like a secret, and config.yaml and environment.json would show it.\n"
                "  Take it out and set it in the shell that submits: ranks inherit that environment."
            )
        elif "\0" in value:
            yield f"{where}: backend.env.{name} holds a NUL character, which no environment can."


RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    global_batch_divides,
    rampup_is_whole,
    heads_divide,
    layers_divide,
    sequence_fits_positions,
    sequence_parallel_has_a_group,
    layout_fits_resources,
    gpu_type_is_known,
    zero_stage_trains_right,
    zero_stage_allows_pipeline,
    autocast_is_bf16,
    loss_scale_has_room,
    deepspeed_extra_is_extra,
    amounts_are_given_once,
    learning_rates_are_ordered,
    warmup_ends_before_decay,
    decay_style_has_its_amounts,
    kept_checkpoints_exist,
    mode_has_work,
    profile_fits_run,
    split_is_readable,
    environment_is_safe,
    *DATA_RULES,
)


# --- wording --------------------------------------------------------------------------------------------------


def _nearest_multiples(value: int, unit: int) -> list[int]:
    below = value // unit * unit
    return [multiple for multiple in (below, below + unit) if multiple]


def _nearest_divisors(value: int, whole: int) -> list[int]:
    divisors = [divisor for divisor in range(1, whole + 1) if whole % divisor == 0]
    below = [divisor for divisor in divisors if divisor < value]
    above = [divisor for divisor in divisors if divisor > value]
    return [*below[-1:], *above[:1]]


def _join(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)
