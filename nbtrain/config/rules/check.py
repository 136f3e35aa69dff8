"""Rules that the fields of a run must satisfy together, and check_config(), which reports all broken rules.

Each rule is a function that yields findings: where the value was set, what was found, the rule with its
numbers, and what to change. Rules about the layout are in layout.py, about attention in attention.py, about
ZeRO, number formats and DeepSpeed's keys in zero.py, about combinations of features in combinations.py, and
about the data section in data.py. No rule reads a file, a device or the network: checks that need the machine
are in jobs/checks/preflight.py. Warnings about runs that can start but will waste time or money are in
planner/lint/.

Without these rules, most mistakes would surface minutes later as a reshape error or a hang, while the job
holds its GPUs. The worst mistakes would train a wrong model without any message.
"""

import itertools
import re
from collections.abc import Callable

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.checkpoint_files import PLACEHOLDERS
from nbtrain.base.text import amounts
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
    """Return a finding for each broken rule, with the rule's name. The list is empty if the run is valid."""
    return run_checks(RULES, config)


def global_batch_divides(config: RunConfig) -> Problems:
    """Check that the global batch divides into the same number of complete micro batches on every rank."""
    yield from no_multiple(config, "batch.global_batch_size", *_micro_batches(config))


def _micro_batches(config: RunConfig) -> tuple[int, str]:
    """Return (micro_batch_size times data_parallel_size, the calculation as text for messages)."""
    micro, data = config.batch.micro_batch_size, config.parallel.data_parallel_size
    return micro * data, f"micro_batch_size({micro}) * data_parallel_size({data}) = {micro * data}"


def rampup_is_whole(config: RunConfig) -> Problems:
    """Check that the ramp-up increases and ends exactly at the global batch size.

    Each of its batch sizes must divide among the ranks.
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
            f"must be less than global_batch_size({batch.global_batch_size}). To train without a ramp-up, "
            "set rampup: null.",
        )
        return
    distance = batch.global_batch_size - ramp.start_batch_size
    sizes = f"global_batch_size({batch.global_batch_size}) - start_batch_size({ramp.start_batch_size})"
    yield from no_divisor(config, f"{key}.batch_size_increment", distance, f"{sizes} = {distance}")
    for field in ("start_batch_size", "batch_size_increment"):
        yield from no_multiple(config, f"{key}.{field}", *_micro_batches(config))


def _step_sizes_problems(config: RunConfig) -> Problems:
    """Check that step_batch_size_schedule is in order and ends at the global batch size.

    Each of its batch sizes must divide evenly among the ranks.
    """
    batch, sizes = config.batch, config.ramp
    if not isinstance(sizes, StepSizes):
        return
    if batch.rampup is not None:
        yield broken(
            config,
            "batch.step_batch_size_schedule",
            "and batch.rampup both increase the batch size. Set one of the two to null.",
        )
    starts = [first for first, _ in sizes.parts]
    for number, (before, after) in enumerate(itertools.pairwise(starts), start=2):
        if after <= before:
            yield broken(
                config,
                "batch.step_batch_size_schedule",
                f"must list its sizes in order, but size number {number} starts at sequence {after} and the "
                f"size before it at sequence {before} (tokens / seq_length({config.model.seq_length}), "
                "rounded down).",
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
                f"contains the size {size}, which is not a multiple of {words}; nearest: {nearest}.",
            )


def training_ends(config: RunConfig) -> Problems:
    """Check that the training length is realistic.

    An unrealistic length is a typing error, and would overflow the sample counters.
    """
    unit, tokens = given_unit(config.batch, "train"), config.train_tokens
    if tokens > MOST_TOKENS:
        most = MOST_TOKENS // {"tokens": 1, "samples": config.model.seq_length}.get(
            unit or "tokens", config.tokens_per_step
        )
        steps = f" = {MOST_TOKENS:.0e} tokens" if unit != "tokens" else ""
        yield broken(config, f"batch.train_{unit}", f"must be at most {most}{steps}.")


def learning_rates_are_ordered(config: RunConfig) -> Problems:
    """Check that lr_warmup_init is less than lr, and that min_lr is at most lr."""
    schedule = config.lr_schedule
    if schedule.min_lr > schedule.lr:
        yield broken(config, "lr_schedule.min_lr", f"must be at most lr({schedule.lr:g}).")
    if schedule.lr_warmup_init >= schedule.lr:
        yield broken(config, "lr_schedule.lr_warmup_init", f"must be less than lr({schedule.lr:g}).")
    elif schedule.lr_warmup_init and not config.lr_warmup_tokens:
        yield broken(
            config,
            "lr_schedule.lr_warmup_init",
            "is the learning rate at the start of the warm-up, but this run has no warm-up.",
            "Set lr_warmup_tokens to add a warm-up, or set lr_warmup_init: 0.",
        )


def amounts_are_given_once(config: RunConfig) -> Problems:
    """Check that each length is set in one unit only, because two fields could contradict each other."""
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
            rule = "set the same length in different units. Keep one of them, and set the others to null."
            yield broken(config, given[0], f"{others}{rule}")


def warmup_ends_before_decay(config: RunConfig) -> Problems:
    """Check that the warm-up ends before the learning rate reaches the end of its decay."""
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
            f"must be less than {what}({limit}); a usual warm-up is {enough / limit:.1%} of {what}: "
            f"{max(enough, 1)} tokens.",
        )


def decay_style_has_its_amounts(config: RunConfig) -> Problems:
    """Check that lr_decay_style has the lengths that it needs.

    WSD needs the length of its final decay, which must fit after the warm-up. An inverse-square-root decay
    needs a warm-up.
    """
    style, wsd = config.lr_schedule.lr_decay_style, config.lr_wsd_decay_tokens
    warmup = config.lr_warmup_tokens
    room = config.lr_decay_tokens - warmup
    if style != "WSD" and wsd is not None:
        yield _broken_amount(
            config,
            "lr_wsd_decay",
            f"applies only with lr_decay_style: WSD, but lr_decay_style is {style}.",
            "Set lr_decay_style: WSD, or remove the setting.",
        )
    elif style == "WSD" and wsd is None:
        usual = max(config.lr_decay_tokens // 10, 1)
        fits = f", but only {room} tokens follow the warm-up" if 0 < room < usual else ""
        yield broken(
            config,
            "lr_schedule.lr_decay_style",
            "needs lr_wsd_decay_tokens, the length of the final decay. A usual length is 10 % of the decay "
            f"tokens: {usual}{fits}.",
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
            "decays the learning rate as sqrt(lr_warmup_tokens / tokens), so it needs a warm-up. A usual "
            f"length is {enough / config.lr_decay_tokens:.1%} of the decay tokens: set lr_warmup_tokens: "
            f"{max(enough, 1)}.",
        )


def _broken_amount(config: RunConfig, stem: str, rule: str, fix: str = "") -> Finding:
    """Return an error about a length in lr_schedule, with its value in the setting's unit and in tokens."""
    unit, tokens = given_unit(config.lr_schedule, stem) or "fraction", getattr(config, f"{stem}_tokens")
    key, in_tokens = f"lr_schedule.{stem}_{unit}", "" if unit == "tokens" else f" = {tokens} tokens"
    return mistake(config, key, f"{setting_text(config, key)}{in_tokens}\n  {rule}", fix)


def weight_decay_has_its_start(config: RunConfig) -> Problems:
    """Check that start_weight_decay is set if, and only if, the weight decay changes over the run."""
    optimizer = config.optimizer
    start, style = optimizer.start_weight_decay, optimizer.weight_decay_incr_style
    if style == "constant" and start not in (None, optimizer.weight_decay):
        yield broken(
            config,
            "optimizer.start_weight_decay",
            f"differs from weight_decay({optimizer.weight_decay:g}), but weight_decay_incr_style is "
            "constant.",
            "Set start_weight_decay: null, or set weight_decay_incr_style to linear or cosine.",
        )
    if style != "constant" and start is None:
        yield broken(
            config,
            "optimizer.weight_decay_incr_style",
            f"changes the weight decay from start_weight_decay to weight_decay({optimizer.weight_decay:g}), "
            "but start_weight_decay is null.",
            "Set start_weight_decay, or set weight_decay_incr_style: constant.",
        )


def muon_settings_have_muon(config: RunConfig) -> Problems:
    """Check that fields that apply only to Muon are not set for another optimizer."""
    if config.optimizer.type == "Muon":
        return
    for name, field in OptimizerConfig.model_fields.items():
        if name.startswith("muon_") and getattr(config.optimizer, name) != field.default:
            yield broken(
                config,
                f"optimizer.{name}",
                f"applies only to optimizer.type: Muon, but optimizer.type is {config.optimizer.type}.",
                f"Remove {name}, or set optimizer.type: Muon.",
            )


def kept_checkpoints_exist(config: RunConfig) -> Problems:
    """Check that keep_every_steps is a multiple of save_interval_steps, and keep_best has a validation loss.

    Otherwise, no checkpoint would be kept at some of the steps, or no checkpoint would be the best.
    """
    checkpoint = config.checkpoint
    if checkpoint.keep_every_steps:
        interval = checkpoint.save_interval_steps
        words = f"save_interval_steps({interval})"
        yield from no_multiple(config, "checkpoint.keep_every_steps", interval, words)
    if checkpoint.keep_best and not config.evaluation.eval_iters:
        yield broken(
            config,
            "checkpoint.keep_best",
            "compares validation losses, but validation is off because evaluation.eval_iters is 0.",
            "Set evaluation.eval_iters, e.g. to 10, or set keep_best: false.",
        )


def tasks_have_validations(config: RunConfig) -> Problems:
    """Check that the run validates at every step at which it evaluates tasks."""
    evaluation, interval = config.evaluation, config.evaluation.eval_interval_steps
    if evaluation.tasks_interval_steps is not None:
        words = f"eval_interval_steps({interval})"
        yield from no_multiple(config, "evaluation.tasks_interval_steps", interval, words)
        if not evaluation.tasks:
            yield broken(
                config,
                "evaluation.tasks_interval_steps",
                "sets how often evaluation.tasks are evaluated, but the run has no tasks.",
                "Add a task, or remove tasks_interval_steps.",
            )
    if evaluation.tasks and not evaluation.eval_iters:
        yield broken(
            config,
            "evaluation.eval_iters",
            "turns validation off, but evaluation.tasks are evaluated as part of a validation.",
            "Set eval_iters to at least 1, or remove the tasks.",
        )


def local_checkpoints_have_a_place(config: RunConfig) -> Problems:
    """Check that checkpoint.local_dir is valid, and that the settings for it are consistent with it."""
    checkpoint, key = config.checkpoint, "checkpoint.local_dir"
    if (folder := checkpoint.local_dir) is None:
        for name in ("local_save_interval_steps", "local_copy_bytes_per_second"):
            if getattr(checkpoint, name) is not None:
                yield broken(
                    config,
                    f"checkpoint.{name}",
                    "applies to checkpoints on the nodes' local disks, but checkpoint.local_dir is null.",
                    f"Set local_dir, e.g. to /local/nvme/nbtrain, or set {name}: null.",
                )
        return
    if not folder.startswith("/"):
        yield broken(
            config,
            key,
            "must be an absolute path, because every node opens it; e.g. /local/nvme/nbtrain.",
        )
    if unknown := sorted(set(re.findall(r"\{[^{}]*\}|[{}]", folder)) - set(PLACEHOLDERS)):
        yield broken(
            config,
            key,
            f"contains {', '.join(unknown)}, but the only placeholders are {' and '.join(PLACEHOLDERS)}: the "
            "number and the name of the node.",
        )
    for name in ("offload_optimizer", "offload_param"):
        if getattr(config.parallel, name).device == "nvme":
            yield broken(
                config,
                key,
                f"cannot be combined with parallel.{name}.device = nvme, because DeepSpeed copies its swap "
                "files into the checkpoint unchanged.",
                f"Set local_dir: null, or set {name}.device: cpu and {name}.nvme_path: null.",
            )
    interval, local = checkpoint.save_interval_steps, checkpoint.local_save_interval_steps
    if local is not None and local >= interval:
        yield broken(
            config,
            "checkpoint.local_save_interval_steps",
            f"must be less than save_interval_steps({interval}): at that interval, a checkpoint is written "
            "to the nodes' local disks anyway.",
            f"Set it to {interval // 10 or 1}, for example, or to null."
            if interval > 1
            else "Set it to null.",
        )


def rollback_has_a_checkpoint(config: RunConfig) -> Problems:
    """Check that a run that may roll back writes a checkpoint before its last step."""
    interval = config.checkpoint.save_interval_steps
    for key in ("on_nan", "on_loss_spike"):
        if getattr(config.stability, key) != "rollback":
            continue
        if config.mode == "perf":
            yield broken(
                config,
                f"stability.{key}",
                "returns to a checkpoint, but a run with mode: perf writes no checkpoints.",
                f"Set {key}: stop.",
            )
        elif config.mode == "full" and interval >= config.train_steps:
            yield broken(
                config,
                f"stability.{key}",
                f"returns to a checkpoint, but with save_interval_steps({interval}) no checkpoint is "
                f"written before the run ends at step {config.train_steps}.\n"
                f"  Lower checkpoint.save_interval_steps, or set {key}: stop.",
            )


def mode_has_work(config: RunConfig) -> Problems:
    """Check that a run with mode: eval has validation batches to evaluate."""
    if config.mode == "eval" and not config.evaluation.eval_iters:
        yield broken(
            config,
            "mode",
            "evaluates no batches, because evaluation.eval_iters is 0.",
            "Set evaluation.eval_iters, e.g. to 10, or set mode: full.",
        )


def profile_fits_run(config: RunConfig) -> Problems:
    """Check that the run is long enough for one profiler cycle, and that memory snapshots have a GPU."""
    profile = config.profile
    cycle = profile.wait_steps + profile.warmup_steps + profile.active_steps
    if profile.enabled and cycle > config.train_steps:
        yield broken(
            config,
            "profile.enabled",
            f"needs a run of at least one profiler cycle, wait_steps({profile.wait_steps}) + "
            f"warmup_steps({profile.warmup_steps}) + active_steps({profile.active_steps}) = {cycle} steps, "
            f"but the run has {amounts.counted(config.train_steps, 'step')}.",
        )
    if profile.memory_snapshot and config.resources.device == "cpu":
        yield broken(
            config,
            "profile.memory_snapshot",
            "records the allocator of a GPU, but resources.device is cpu.",
            "Set memory_snapshot: false. profile_memory works on CPUs too.",
        )


def split_is_readable(config: RunConfig) -> Problems:
    """Check that data.split lists three relative sizes, and leaves data for training and validation."""
    if not re.fullmatch(r"\s*\d+(\.\d+)?(\s*,\s*\d+(\.\d+)?){2}\s*", config.data.split):
        yield broken(
            config,
            "data.split",
            "must be three relative sizes separated by commas, for training, validation and test, e.g. "
            "949,50,1.",
        )
        return
    training, validation, _ = split_weights(config.data.split)
    if training == 0:
        yield broken(
            config,
            "data.split",
            "leaves no data for training; the first size must be more than 0, e.g. 949,50,1.",
        )
    elif validation == 0 and config.evaluation.eval_iters:
        yield broken(
            config,
            "data.split",
            f"leaves no data for validation, but evaluation.eval_iters is {config.evaluation.eval_iters}.",
            "Set evaluation.eval_iters: 0, or use a split such as 949,50,1.",
        )


def commands_are_safe(config: RunConfig) -> Problems:
    """Check that no argument of notify.command or backend.preemption_notice is a secret.

    Both commands are written to config.yaml.
    """
    yield from _command_is_safe(
        config, "notify.command", config.notify.command, ", or use notify.url_variable"
    )
    yield from _command_is_safe(config, "backend.preemption_notice", config.backend.preemption_notice)


def _command_is_safe(config: RunConfig, key: str, command: list[str], other: str = "") -> Problems:
    if command and not command[0].strip():
        yield hidden(config, key, f"{key}: the first entry must name a program, but it is empty.")
    for number, argument in enumerate(command):
        if is_secret("", argument):
            yield hidden(
                config,
                key,
                f"{key}: entry {number} looks like a secret, or a URL that contains one, and config.yaml "
                "would show it.\n"
                f"  Let the program read the secret from the environment{other}.",
            )
        elif "\0" in argument:
            yield hidden(
                config,
                key,
                f"{key}: entry {number} contains a NUL character, which arguments cannot contain.",
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
