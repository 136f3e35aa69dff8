"""Rules between fields: one function for each rule; all broken rules are reported together.

Each rule yields findings: where the value was set, what was found, the rule with its numbers, what to change.
Rules of the layout are in layout.py, of attention in attention.py, of ZeRO, number formats and DeepSpeed's
keys in zero.py, of combinations in combinations.py, and of the data section in data.py.
Nothing here looks at a file, a device or the network: checks that need the machine are in
jobs/checks/preflight.py.
Runs that may be launched but will disappoint are in planner/lint/. Without these rules most mistakes would
surface minutes later, on GPUs already taken, as a reshape error or a hang; the worst would train wrongly
without a message.
"""

import itertools
import re
from collections.abc import Callable

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.checkpoint_files import PLACEHOLDERS
from nbtrain.config.arithmetic.divisors import nearest_multiples
from nbtrain.config.arithmetic.splits import split_weights
from nbtrain.config.arithmetic.warmup import warmup_tokens
from nbtrain.config.batch_schedule import StepSizes
from nbtrain.config.findings import mistake, run_checks
from nbtrain.config.rules.attention import ATTENTION_RULES
from nbtrain.config.rules.backends import BACKEND_RULES
from nbtrain.config.rules.data import DATA_RULES
from nbtrain.config.rules.dpo import DPO_RULES
from nbtrain.config.rules.environment import environment_is_safe, is_secret
from nbtrain.config.rules.kubernetes import kubernetes_agrees
from nbtrain.config.rules.layout import LAYOUT_RULES
from nbtrain.config.rules.limits import no_divisor, no_multiple
from nbtrain.config.rules.lora import LORA_RULES
from nbtrain.config.rules.own_layer import OWN_LAYER_RULES
from nbtrain.config.rules.wording import Problems, broken, hidden, join, setting_text
from nbtrain.config.rules.zero import ZERO_RULES
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.fields import MOST_TOKENS
from nbtrain.config.sections.schedule_section import UNITS, OptimizerConfig, given_unit


def check_config(config: RunConfig) -> None:
    """Raise ConfigError with a finding for each broken rule."""
    refuse(find_problems(config), ConfigError)


def find_problems(config: RunConfig) -> list[Finding]:
    """Return a finding for each broken rule, with the rule's name; empty if the run may be launched."""
    return run_checks(RULES, config)


def global_batch_divides(config: RunConfig) -> Problems:
    """Every step gives every rank the same number of complete micro batches."""
    yield from no_multiple(config, "batch.global_batch_size", *_micro_batches(config))


def _micro_batches(config: RunConfig) -> tuple[int, str]:
    """Return the number of sequences in one micro batch on all ranks, and the product that messages show for
    it.
    """
    micro, data = config.batch.micro_batch_size, config.parallel.data_parallel_size
    return micro * data, f"micro_batch_size({micro}) * data_parallel_size({data}) = {micro * data}"


def rampup_is_whole(config: RunConfig) -> Problems:
    """The ramp-up rises and ends exactly at the global batch size. Every size can be divided among the
    ranks.
    """
    batch, ramp = config.batch, config.batch.rampup
    yield from _step_sizes_problems(config)
    if ramp is None:
        return
    key = "batch.rampup"
    if ramp.start_batch_size >= batch.global_batch_size:
        yield broken(
            config,
            f"{key}.start_batch_size",
            f"must be less than global_batch_size({batch.global_batch_size}); without a ramp-up set "
            "rampup: null.",
        )
        return
    distance = batch.global_batch_size - ramp.start_batch_size
    sizes = f"global_batch_size({batch.global_batch_size}) - start_batch_size({ramp.start_batch_size})"
    yield from no_divisor(config, f"{key}.batch_size_increment", distance, f"{sizes} = {distance}")
    for field in ("start_batch_size", "batch_size_increment"):
        yield from no_multiple(config, f"{key}.{field}", *_micro_batches(config))


def _step_sizes_problems(config: RunConfig) -> Problems:
    """A step schedule rises to the global batch size, and each of its sizes divides among the ranks."""
    batch, sizes = config.batch, config.ramp
    if not isinstance(sizes, StepSizes):
        return
    if batch.rampup is not None:
        yield broken(
            config,
            "batch.step_batch_size_schedule",
            "and batch.rampup both grow the batch; set one of them to null.",
        )
    starts = [first for first, _ in sizes.parts]
    for number, (before, after) in enumerate(itertools.pairwise(starts), start=2):
        if after <= before:
            yield broken(
                config,
                "batch.step_batch_size_schedule",
                f"must rise, but size number {number} begins at sequence {after}, the previous "
                f"one at {before} (tokens / seq_length({config.model.seq_length}), rounded down).",
            )
    last = sizes.parts[-1][1]
    if last != batch.global_batch_size:
        yield broken(
            config,
            "batch.step_batch_size_schedule",
            f"must end at global_batch_size({batch.global_batch_size}), but ends at {last}.",
        )
    unit, words = _micro_batches(config)
    for _, size in sizes.parts[:-1]:
        if size % unit:
            nearest = join(nearest_multiples(size, unit))
            yield broken(
                config,
                "batch.step_batch_size_schedule",
                f"has {size}, which is not a multiple of {words}; nearest: {nearest}.",
            )


def training_ends(config: RunConfig) -> Problems:
    """The run is not longer than any real run: such a length is a typing error, and would overflow the
    counters of samples.
    """
    unit, tokens = given_unit(config.batch, "train"), config.train_tokens
    if tokens > MOST_TOKENS:
        most = MOST_TOKENS // {"tokens": 1, "samples": config.model.seq_length}.get(
            unit or "tokens", config.tokens_per_step
        )
        steps = f" = {MOST_TOKENS:.0e} tokens" if unit != "tokens" else ""
        yield broken(config, f"batch.train_{unit}", f"must be at most {most}{steps}.")


def learning_rates_are_ordered(config: RunConfig) -> Problems:
    """The schedule rises from lr_warmup_init to lr and falls to min_lr."""
    schedule = config.lr_schedule
    if schedule.min_lr > schedule.lr:
        yield broken(config, "lr_schedule.min_lr", f"must be at most lr({schedule.lr:g}).")
    if schedule.lr_warmup_init >= schedule.lr:
        yield broken(config, "lr_schedule.lr_warmup_init", f"must be less than lr({schedule.lr:g}).")
    elif schedule.lr_warmup_init and not config.lr_warmup_tokens:
        yield broken(
            config,
            "lr_schedule.lr_warmup_init",
            "is the learning rate at which a warm-up begins, but this run has no warm-up.",
            "Set lr_warmup_tokens, or lr_warmup_init: 0.",
        )


def amounts_are_given_once(config: RunConfig) -> Problems:
    """An amount is set in one unit only, because two fields could contradict each other."""
    for section, stem in (
        ("batch", "train"),
        ("lr_schedule", "lr_warmup"),
        ("lr_schedule", "lr_decay"),
        ("lr_schedule", "lr_wsd_decay"),
    ):
        units = (*UNITS, "fraction") if stem in ("lr_warmup", "lr_wsd_decay") else UNITS
        keys = [f"{section}.{stem}_{unit}" for unit in units]
        given = [key for key in keys if getattr(getattr(config, section), key.partition(".")[2]) is not None]
        if len(given) > 1:
            others = "".join(f"and {config.where(key)}: {setting_text(config, key)}\n  " for key in given[1:])
            rule = "give one amount in several units; set all but one to null."
            yield broken(config, given[0], f"{others}{rule}")


def warmup_ends_before_decay(config: RunConfig) -> Problems:
    """The warm-up ends before the decay does."""
    schedule, warmup = config.lr_schedule, config.lr_warmup_tokens
    constant = schedule.lr_decay_style == "constant"
    limit = config.train_tokens if constant else config.lr_decay_tokens
    if warmup >= limit:
        explicit = given_unit(schedule, "lr_decay") and not constant
        what = "lr_decay_tokens" if explicit else "train_tokens"
        enough = warmup_tokens(limit, config.tokens_per_step)
        yield _broken_amount(
            config,
            "lr_warmup",
            f"must be less than {what}({limit}); usual is {max(enough, 1)} tokens, "
            f"{enough / limit:.1%} of it.",
        )


def decay_style_has_its_amounts(config: RunConfig) -> Problems:
    """WSD needs a last part that fits after the warm-up. An inverse-square-root decay needs a warm-up."""
    style, wsd = config.lr_schedule.lr_decay_style, config.lr_wsd_decay_tokens
    warmup = config.lr_warmup_tokens
    room = config.lr_decay_tokens - warmup
    if style != "WSD" and wsd is not None:
        yield _broken_amount(
            config,
            "lr_wsd_decay",
            f"is read with lr_decay_style: WSD only, but lr_decay_style is {style}.",
            "Set it to null, or lr_decay_style: WSD.",
        )
    elif style == "WSD" and wsd is None:
        yield broken(
            config,
            "lr_schedule.lr_decay_style",
            "needs lr_wsd_decay_tokens; usual is 10 % of the decay tokens: "
            f"{max(config.lr_decay_tokens // 10, 1)}.",
        )
    elif wsd is not None and wsd > room > 0:
        yield _broken_amount(
            config,
            "lr_wsd_decay",
            f"must be at most lr_decay_tokens({config.lr_decay_tokens}) - lr_warmup_tokens({warmup}) = "
            f"{room} tokens.",
        )
    if style == "inverse-square-root" and not warmup:
        enough = warmup_tokens(config.lr_decay_tokens, config.tokens_per_step)
        yield broken(
            config,
            "lr_schedule.lr_decay_style",
            "falls as sqrt(lr_warmup_tokens / tokens), so it needs a warm-up; usual is lr_warmup_tokens: "
            f"{max(enough, 1)}, {enough / config.lr_decay_tokens:.1%} of the decay tokens.",
        )


def _broken_amount(config: RunConfig, stem: str, rule: str, fix: str = "") -> Finding:
    """Return a finding about an amount of lr_schedule, with its value in its own unit and in tokens."""
    unit, tokens = given_unit(config.lr_schedule, stem) or "fraction", getattr(config, f"{stem}_tokens")
    key, in_tokens = f"lr_schedule.{stem}_{unit}", "" if unit == "tokens" else f" = {tokens} tokens"
    return mistake(config, key, f"{setting_text(config, key)}{in_tokens}\n  {rule}", fix)


def weight_decay_has_its_start(config: RunConfig) -> Problems:
    """A weight decay that changes has a start and an end. A constant weight decay has no start."""
    optimizer = config.optimizer
    start, style = optimizer.start_weight_decay, optimizer.weight_decay_incr_style
    if style == "constant" and start not in (None, optimizer.weight_decay):
        yield broken(
            config,
            "optimizer.start_weight_decay",
            f"is where weight_decay({optimizer.weight_decay:g}) starts, but weight_decay_incr_style is "
            "constant.",
            "Set it to null, or the style to linear or cosine.",
        )
    if style != "constant" and start is None:
        yield broken(
            config,
            "optimizer.weight_decay_incr_style",
            f"goes from start_weight_decay, which is null, to weight_decay({optimizer.weight_decay:g}).",
            "Set start_weight_decay, or the style to constant.",
        )


def muon_settings_have_muon(config: RunConfig) -> Problems:
    """Fields that only Muon reads are not set for AdamW."""
    if config.optimizer.type == "Muon":
        return
    for name, field in OptimizerConfig.model_fields.items():
        if name.startswith("muon_") and getattr(config.optimizer, name) != field.default:
            yield broken(
                config,
                f"optimizer.{name}",
                f"is read with optimizer.type: Muon only, but type is {config.optimizer.type}.",
                "Remove it, or set type: Muon.",
            )


def kept_checkpoints_exist(config: RunConfig) -> Problems:
    """Only checkpoints that are written can be kept."""
    checkpoint = config.checkpoint
    if checkpoint.keep_every_steps:
        interval = checkpoint.save_interval_steps
        words = f"save_interval_steps({interval})"
        yield from no_multiple(config, "checkpoint.keep_every_steps", interval, words)
    if checkpoint.keep_best and not config.evaluation.eval_iters:
        yield broken(
            config,
            "checkpoint.keep_best",
            "needs validations, and evaluation.eval_iters is 0.",
            "Set eval_iters, 10 for example, or keep_best: false.",
        )


def tasks_have_validations(config: RunConfig) -> Problems:
    """Tasks are evaluated at validations, so there must be a validation at each of their steps."""
    evaluation, interval = config.evaluation, config.evaluation.eval_interval_steps
    if evaluation.tasks_interval_steps is not None:
        words = f"eval_interval_steps({interval})"
        yield from no_multiple(config, "evaluation.tasks_interval_steps", interval, words)
        if not evaluation.tasks:
            yield broken(
                config,
                "evaluation.tasks_interval_steps",
                "sets when evaluation.tasks are evaluated, but there are none.",
                "Add a task, or remove it.",
            )
    if evaluation.tasks and not evaluation.eval_iters:
        yield broken(
            config,
            "evaluation.eval_iters",
            "turns validations off, but evaluation.tasks are evaluated at validations.",
            "Set eval_iters: 1 or more, or remove the tasks.",
        )


def local_checkpoints_have_a_place(config: RunConfig) -> Problems:
    """checkpoint.local_dir is an absolute path to a folder on each node, and its intervals are consistent."""
    checkpoint, key = config.checkpoint, "checkpoint.local_dir"
    if (folder := checkpoint.local_dir) is None:
        for name in ("local_save_interval_steps", "local_copy_bytes_per_second"):
            if getattr(checkpoint, name) is not None:
                yield broken(
                    config,
                    f"checkpoint.{name}",
                    "is about checkpoints on the nodes' own disks, but checkpoint.local_dir is null.",
                    f"Set local_dir, /local/nvme/nbtrain for example, or {name}: null.",
                )
        return
    if not folder.startswith("/"):
        yield broken(
            config,
            key,
            "must be absolute, because it is looked up on every node; /local/nvme/nbtrain for example.",
        )
    if unknown := sorted(set(re.findall(r"\{[^{}]*\}|[{}]", folder)) - set(PLACEHOLDERS)):
        yield broken(
            config,
            key,
            f"has {', '.join(unknown)}; the only placeholders are {' or '.join(PLACEHOLDERS)}: the node's "
            f"number or "
            "name.",
        )
    for name in ("offload_optimizer", "offload_param"):
        if getattr(config.parallel, name).device == "nvme":
            yield broken(
                config,
                key,
                f"cannot be combined with parallel.{name}.device = nvme: DeepSpeed copies its swap files "
                "into the checkpoint as they are.",
                "Set local_dir: null, or device: cpu and nvme_path: null.",
            )
    interval, local = checkpoint.save_interval_steps, checkpoint.local_save_interval_steps
    if local is not None and local >= interval:
        yield broken(
            config,
            "checkpoint.local_save_interval_steps",
            f"must be less than save_interval_steps({interval}), at which a checkpoint is written to the "
            "nodes' disks anyway.",
            f"Set {interval // 10 or 1} for example, or null." if interval > 1 else "Set it to null.",
        )


def rollback_has_a_checkpoint(config: RunConfig) -> Problems:
    """A rollback needs a checkpoint that is written before the run ends."""
    interval = config.checkpoint.save_interval_steps
    for key in ("on_nan", "on_loss_spike"):
        if getattr(config.stability, key) != "rollback":
            continue
        if config.mode == "perf":
            yield broken(
                config,
                f"stability.{key}",
                "returns to a checkpoint, but mode: perf writes none.",
                f"Set {key}: stop.",
            )
        elif config.mode == "full" and interval >= config.train_steps:
            yield broken(
                config,
                f"stability.{key}",
                f"returns to a checkpoint, but with save_interval_steps({interval}) none is "
                f"written before the run ends at step {config.train_steps}.\n"
                f"  Set a smaller checkpoint.save_interval_steps, or {key}: stop.",
            )


def mode_has_work(config: RunConfig) -> Problems:
    """mode: eval needs validation batches."""
    if config.mode == "eval" and not config.evaluation.eval_iters:
        yield broken(
            config,
            "mode",
            "evaluates nothing, because evaluation.eval_iters is 0.",
            "Set eval_iters, 10 for example, or mode: full.",
        )


def profile_fits_run(config: RunConfig) -> Problems:
    """At least one cycle of the profiler ends before the run does."""
    profile = config.profile
    cycle = profile.wait_steps + profile.warmup_steps + profile.active_steps
    if profile.enabled and cycle > config.train_steps:
        yield broken(
            config,
            "profile.enabled",
            f"one cycle takes wait_steps({profile.wait_steps}) + warmup_steps({profile.warmup_steps}) + "
            f"active_steps({profile.active_steps}) = {cycle} steps, but the run makes {config.train_steps}.",
        )
    if profile.memory_snapshot and config.resources.device == "cpu":
        yield broken(
            config,
            "profile.memory_snapshot",
            "records a GPU's allocator, but resources.device is cpu.",
            "Set it to false; profile_memory works on both.",
        )


def split_is_readable(config: RunConfig) -> Problems:
    """data.split is three relative sizes. Training is more than 0, and so is validation if the run
    validates.
    """
    if not re.fullmatch(r"\s*\d+(\.\d+)?(\s*,\s*\d+(\.\d+)?){2}\s*", config.data.split):
        yield broken(
            config,
            "data.split",
            "must be three sizes separated by commas, for training, validation and test, e.g. 949,50,1.",
        )
        return
    training, validation, _ = split_weights(config.data.split)
    if training == 0:
        yield broken(
            config,
            "data.split",
            "leaves nothing for training; the first size must be more than 0, e.g. 949,50,1.",
        )
    elif validation == 0 and config.evaluation.eval_iters:
        yield broken(
            config,
            "data.split",
            f"leaves nothing for validation, but eval_iters is {config.evaluation.eval_iters}.",
            "Set evaluation.eval_iters: 0, or a split such as 949,50,1.",
        )


def commands_are_safe(config: RunConfig) -> Problems:
    """The arguments of notify.command and backend.preemption_notice are written to config.yaml, so none may
    be a secret.
    """
    yield from _command_is_safe(
        config, "notify.command", config.notify.command, ", or use notify.url_variable"
    )
    yield from _command_is_safe(config, "backend.preemption_notice", config.backend.preemption_notice)


def _command_is_safe(config: RunConfig, key: str, command: list[str], other: str = "") -> Problems:
    if command and not command[0].strip():
        yield hidden(config, key, f"{key}: the first entry, which names the program, is empty.")
    for number, argument in enumerate(command):
        if is_secret("", argument):
            yield hidden(
                config,
                key,
                f"{key}: entry {number} looks like a secret, or an address with one, which config.yaml would "
                "show.\n"
                f"  Have the program read it from the environment{other}.",
            )
        elif "\0" in argument:
            yield hidden(
                config, key, f"{key}: entry {number} contains a NUL character, which no argument can contain."
            )


RULES: tuple[Callable[[RunConfig], Problems], ...] = (
    global_batch_divides,
    rampup_is_whole,
    training_ends,
    *LAYOUT_RULES,
    *ATTENTION_RULES,
    *LORA_RULES,
    *DPO_RULES,
    *OWN_LAYER_RULES,
    *ZERO_RULES,
    amounts_are_given_once,
    learning_rates_are_ordered,
    warmup_ends_before_decay,
    decay_style_has_its_amounts,
    weight_decay_has_its_start,
    muon_settings_have_muon,
    kept_checkpoints_exist,
    tasks_have_validations,
    local_checkpoints_have_a_place,
    rollback_has_a_checkpoint,
    mode_has_work,
    profile_fits_run,
    split_is_readable,
    environment_is_safe,
    commands_are_safe,
    *DATA_RULES,
    *BACKEND_RULES,
    kubernetes_agrees,
)
