"""The rules that join fields: one function per rule, every problem told at once.

Each rule yields messages: where the value was set, what was found, the rule with its numbers, what to change.
Rules of the layout stand in check_layout.py, of ZeRO, formats and DeepSpeed's keys in check_zero.py, of what goes
together in combinations.py, of the data section in check_data.py. Nothing here looks at a file, a device or the
network: what needs the machine is jobs/preflight.py. What may be launched and will disappoint is check_warnings.py.
Most of these would else surface minutes later, on GPUs already taken, as a reshape error, a hang or, worst,
as a run that trains wrongly without a word.
"""

import itertools
import re
from collections.abc import Callable

from nbtrain.base.errors import ConfigError
from nbtrain.config.arithmetic.batch import StepSizes
from nbtrain.config.fields import MOST_TOKENS
from nbtrain.config.rules import layout as check_layout
from nbtrain.config.rules import zero as check_zero
from nbtrain.config.rules.data import RULES as DATA_RULES
from nbtrain.config.rules.wording import Problems, found, join, nearest_divisors, nearest_multiples
from nbtrain.config.schedule_section import UNITS, given_unit
from nbtrain.config.schema import RunConfig


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
            f"{found(config, 'batch.global_batch_size')}\n"
            f"  must be a multiple of micro_batch_size({batch.micro_batch_size}) * data_parallel_size({data}) = {unit}; "
            f"nearest: {join(nearest_multiples(batch.global_batch_size, unit))}."
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
            f"{found(config, f'{key}.start_batch_size')}\n"
            f"  must be less than global_batch_size({batch.global_batch_size}); without a ramp-up set rampup: null."
        )
        return
    distance = batch.global_batch_size - ramp.start_batch_size
    if distance % ramp.batch_size_increment:
        yield (
            f"{found(config, f'{key}.batch_size_increment')}\n"
            f"  must divide global_batch_size({batch.global_batch_size}) - start_batch_size({ramp.start_batch_size})"
            f" = {distance}; nearest: {join(nearest_divisors(ramp.batch_size_increment, distance))}."
        )
    data = config.parallel.data_parallel_size
    unit = batch.micro_batch_size * data
    for field in ("start_batch_size", "batch_size_increment"):
        value = getattr(ramp, field)
        if value % unit:
            yield (
                f"{found(config, f'{key}.{field}')}\n"
                f"  must be a multiple of micro_batch_size({batch.micro_batch_size}) * data_parallel_size({data})"
                f" = {unit}; nearest: {join(nearest_multiples(value, unit))}."
            )


def _step_sizes_problems(config: RunConfig) -> Problems:
    """A step schedule rises in tokens, ends at the global batch size, and its sizes divide among the ranks."""
    batch, sizes = config.batch, config.ramp
    if not isinstance(sizes, StepSizes):
        return
    told = found(config, "batch.step_batch_size_schedule")
    if batch.rampup is not None:
        yield f"{told}\n  is one way to grow the batch and batch.rampup another; set one of them to null."
    starts = [first for first, _ in sizes.parts]
    for number, (before, after) in enumerate(itertools.pairwise(starts), start=2):
        if after <= before:
            yield (
                f"{told}\n  must rise: its size number {number} begins at sequence {after}, the one before at {before} "
                f"(tokens / seq_length({config.model.seq_length}), rounded down)."
            )
    last = sizes.parts[-1][1]
    if last != batch.global_batch_size:
        yield f"{told}\n  must end at global_batch_size({batch.global_batch_size}), and ends at {last}."
    unit = batch.micro_batch_size * config.parallel.data_parallel_size
    for _, size in sizes.parts[:-1]:
        if size % unit:
            yield (
                f"{told}\n  has {size}, which is no multiple of micro_batch_size({batch.micro_batch_size}) * "
                f"data_parallel_size({config.parallel.data_parallel_size}) = {unit}; "
                f"nearest: {join(nearest_multiples(size, unit))}."
            )


def training_ends(config: RunConfig) -> Problems:
    """A length that no run has is a slip of the pen, and overflows what counts samples."""
    unit, tokens = given_unit(config.batch, "train"), config.train_tokens
    if tokens > MOST_TOKENS:
        most = MOST_TOKENS // {"tokens": 1, "samples": config.model.seq_length}.get(
            unit or "tokens", config.tokens_per_step
        )
        steps = f" = {MOST_TOKENS:.0e} tokens" if unit != "tokens" else ""
        yield f"{found(config, f'batch.train_{unit}')}\n  must be at most {most}{steps}."


# --- schedules ------------------------------------------------------------------------------------------------


def learning_rates_are_ordered(config: RunConfig) -> Problems:
    """The schedule rises from lr_warmup_init to lr and falls to min_lr."""
    schedule = config.lr_schedule
    if schedule.min_lr > schedule.lr:
        yield f"{found(config, 'lr_schedule.min_lr')}\n  must be at most lr({schedule.lr:g})."
    if schedule.lr_warmup_init >= schedule.lr:
        yield f"{found(config, 'lr_schedule.lr_warmup_init')}\n  must be less than lr({schedule.lr:g})."
    elif schedule.lr_warmup_init and not config.lr_warmup_tokens:
        yield (
            f"{found(config, 'lr_schedule.lr_warmup_init')}\n"
            "  is where a warm-up begins, and there is none. Set lr_warmup_tokens, or lr_warmup_init: 0."
        )


def amounts_are_given_once(config: RunConfig) -> Problems:
    """An amount has one unit: two would be two wills."""
    for section, stem in (
        ("batch", "train"),
        ("lr_schedule", "lr_warmup"),
        ("lr_schedule", "lr_decay"),
        ("lr_schedule", "lr_wsd_decay"),
    ):
        units = (*UNITS, "fraction") if stem == "lr_warmup" else UNITS
        keys = [f"{section}.{stem}_{unit}" for unit in units]
        given = [key for key in keys if getattr(getattr(config, section), key.partition(".")[2]) is not None]
        if len(given) > 1:
            yield (
                f"{found(config, given[0])}\n"
                + "".join(f"  and {found(config, key)}\n" for key in given[1:])
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
            f"{found(config, 'lr_schedule.lr_decay_style')}\n"
            f"  needs lr_wsd_decay_tokens; usual is 10 % of the decay tokens: {max(config.lr_decay_tokens // 10, 1)}."
        )
    elif wsd is not None and wsd > room > 0:
        yield (
            f"{_found_amount(config, 'lr_wsd_decay')}\n"
            f"  must be at most lr_decay_tokens({config.lr_decay_tokens}) - lr_warmup_tokens({warmup}) = {room}."
        )
    if style == "inverse-square-root" and not warmup:
        yield (
            f"{found(config, 'lr_schedule.lr_decay_style')}\n"
            "  falls as sqrt(lr_warmup_tokens / tokens) and needs a warm-up; usual is 1 % of the decay tokens: "
            f"lr_warmup_tokens: {max(config.lr_decay_tokens // 100, 1)}."
        )


def _found_amount(config: RunConfig, stem: str) -> str:
    """How a message about an amount of lr_schedule begins: in the unit that it was given in, and in tokens."""
    unit, tokens = given_unit(config.lr_schedule, stem) or "fraction", getattr(config, f"{stem}_tokens")
    return found(config, f"lr_schedule.{stem}_{unit}") + (f" = {tokens} tokens" if unit != "tokens" else "")


def weight_decay_has_its_start(config: RunConfig) -> Problems:
    """A weight decay that changes has two ends, and one that does not has one."""
    optimizer = config.optimizer
    start, style = optimizer.start_weight_decay, optimizer.weight_decay_incr_style
    if style == "constant" and start not in (None, optimizer.weight_decay):
        yield (
            f"{found(config, 'optimizer.start_weight_decay')}\n"
            f"  is where weight_decay({optimizer.weight_decay:g}) begins, and weight_decay_incr_style is constant. "
            "Set it to null, or the style to linear or cosine."
        )
    if style != "constant" and start is None:
        yield (
            f"{found(config, 'optimizer.weight_decay_incr_style')}\n"
            f"  goes from start_weight_decay, which is null, to weight_decay({optimizer.weight_decay:g}). "
            "Set start_weight_decay, or the style to constant."
        )


def kept_checkpoints_exist(config: RunConfig) -> Problems:
    """Only checkpoints that are written can be kept."""
    checkpoint = config.checkpoint
    every, interval = checkpoint.keep_every_steps, checkpoint.save_interval_steps
    if every and every % interval:
        yield (
            f"{found(config, 'checkpoint.keep_every_steps')}\n"
            f"  must be a multiple of save_interval_steps({interval}); "
            f"nearest: {join(nearest_multiples(every, interval))}."
        )
    if checkpoint.keep_best and not config.evaluation.eval_iters:
        yield (
            f"{found(config, 'checkpoint.keep_best')}\n"
            "  goes by validation, and evaluation.eval_iters is 0. Set eval_iters, 10 for example, or keep_best: false."
        )


def rollback_has_a_checkpoint(config: RunConfig) -> Problems:
    """Going back needs something to go back to, before the run's end."""
    interval = config.checkpoint.save_interval_steps
    for key in ("on_nan", "on_loss_spike"):
        if getattr(config.stability, key) != "rollback":
            continue
        told = found(config, f"stability.{key}")
        if config.mode == "perf":
            yield f"{told}\n  goes back to a checkpoint, and mode: perf writes none. Set {key}: stop."
        elif config.mode == "full" and interval >= config.train_steps:
            yield (
                f"{told}\n  goes back to a checkpoint, and with save_interval_steps({interval}) none is there before the "
                f"run ends at step {config.train_steps}.\n  Set a smaller checkpoint.save_interval_steps, or {key}: stop."
            )


def mode_has_work(config: RunConfig) -> Problems:
    """mode: eval evaluates something."""
    if config.mode == "eval" and not config.evaluation.eval_iters:
        yield (
            f"{found(config, 'mode')}\n"
            "  has nothing to do with evaluation.eval_iters: 0. Set eval_iters, 10 for example, or mode: full."
        )


def profile_fits_run(config: RunConfig) -> Problems:
    """At least one cycle of the profiler ends before the run does."""
    profile = config.profile
    cycle = profile.wait_steps + profile.warmup_steps + profile.active_steps
    if profile.enabled and cycle > config.train_steps:
        yield (
            f"{found(config, 'profile.enabled')}\n"
            f"  one cycle takes wait_steps({profile.wait_steps}) + warmup_steps({profile.warmup_steps}) + "
            f"active_steps({profile.active_steps}) = {cycle} steps, but the run makes {config.train_steps}."
        )
    if profile.memory_snapshot and config.resources.device == "cpu":
        yield (
            f"{found(config, 'profile.memory_snapshot')}\n"
            "  records a GPU's allocator, and resources.device is cpu. Set it to false; profile_memory is for both."
        )


# --- data and environment -------------------------------------------------------------------------------------


def split_is_readable(config: RunConfig) -> Problems:
    """Three relative sizes, a training share, and a validation share when there is validation."""
    told = found(config, "data.split")
    if not re.fullmatch(r"\s*\d+(\.\d+)?(\s*,\s*\d+(\.\d+)?){2}\s*", config.data.split):
        yield f"{told}\n  must be three sizes with commas, for training, validation and test, e.g. 949,50,1."
        return
    training, validation, _ = (float(part) for part in config.data.split.split(","))
    if training == 0:
        yield f"{told}\n  leaves nothing for training; the first size must be more than 0, e.g. 949,50,1."
    elif validation == 0 and config.evaluation.eval_iters:
        yield (
            f"{told}\n  leaves nothing for validation, but eval_iters is {config.evaluation.eval_iters}. "
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
    training_ends,
    *check_layout.RULES,
    *check_zero.RULES,
    amounts_are_given_once,
    learning_rates_are_ordered,
    warmup_ends_before_decay,
    decay_style_has_its_amounts,
    weight_decay_has_its_start,
    kept_checkpoints_exist,
    rollback_has_a_checkpoint,
    mode_has_work,
    profile_fits_run,
    split_is_readable,
    environment_is_safe,
    *DATA_RULES,
)
