"""Findings about the training schedule: learning rate, warm-up, number format, epochs, validations, saves."""

import math
from collections.abc import Iterator

from nbtrain.base.errors import DataError
from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.arithmetic.saves import local_saves
from nbtrain.config.arithmetic.warmup import LEAST_WARMUP_STEPS, USUAL_WARMUP_FRACTION, usual_warmup_tokens
from nbtrain.config.findings import finding_of
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import given_unit, other_warmups
from nbtrain.dataset.of_run import other_text_of_tokenizer
from nbtrain.planner.lint.intervals import SAVE_INTERVAL, rounded_up, saves_every, validations_every
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.lint.training_lengths import is_far, neighbours
from nbtrain.planner.memory import estimate_memory

# More than four passes over the same text add little (arXiv:2305.16264, section 5).
USEFUL_EPOCHS = 4
# If the learning rate reaches min_lr within this fraction of the run, the model learns little from the rest.
LEAST_DECAY_FRACTION = 1 / 3
# Tokens per parameter: about 20 are best for a given compute budget (arXiv:2203.15556), and some models use
# thousands. For models of at least LEAST_PARAMETERS, far fewer or far more tokens suggest a mistaken unit.
USUAL_TOKENS = 20
LEAST_TOKENS, MOST_TOKENS = 0.1, 10_000
LEAST_PARAMETERS = 100e6
# If a run lasts for one step and its training length is below this number, the length is assumed to be meant
# in millions or billions.
MOST_WITHOUT_ZEROS = 100_000
# GPT-3's (parameters, learning rate, tokens per step): arXiv:2005.14165, table 2.1.
GPT3_RATES = (
    (125e6, 6e-4, 0.5e6),
    (350e6, 3e-4, 0.5e6),
    (760e6, 2.5e-4, 0.5e6),
    (1.3e9, 2e-4, 1e6),
    (2.7e9, 1.6e-4, 1e6),
    (6.7e9, 1.2e-4, 2e6),
    (13e9, 1e-4, 2e6),
    (175e9, 6e-5, 3.2e6),
)
# Published runs use up to 10 times the learning rate of GPT-3's table (SmolLM 360M: 3e-3,
# huggingface.co/blog/smollm). With small batches, they use up to 32 times the rate scaled by the square root
# of the batch ratio.
MOST_RATE_FACTOR = 10
MOST_SCALED_FACTOR = 32
LEAST_SCALED_FACTOR = 1 / 10
# Validations or checkpoints that take more than this fraction of the time are reported.
USUAL_PAUSE_FRACTION = 0.1
# A save interval that costs less than this fraction of the run is good enough.
LEAST_LOSS_FRACTION = 0.01


def learning_rate_suits_size(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the learning rate against GPT-3's table, scaled by the square root of the batch ratio.

    For batches below the size of the gradient noise, Adam's best learning rate grows roughly with the square
    root of the batch size (arXiv:2405.14578). It falls with the size of the model. Fine-tuning may use a far
    lower rate, such as 1e-6 for preferences (arXiv:2305.18290, appendix B).
    """
    config, rate = estimates.config, estimates.config.lr_schedule.lr
    parameters, tokens = count_parameters(config).total, config.tokens_per_step
    near = min(GPT3_RATES, key=lambda row: abs(math.log(row[0] / parameters)))
    table, scale = near[1], math.sqrt(tokens / near[2])
    # Models smaller than the smallest GPT-3 use higher rates. The table's slope is the cube root of the size.
    table *= max(GPT3_RATES[0][0] / parameters, 1) ** (1 / 3)
    high = rate > MOST_RATE_FACTOR * table * max(scale, 1) or rate > MOST_SCALED_FACTOR * table * scale
    if not high and (config.init_from is not None or rate >= LEAST_SCALED_FACTOR * table * scale):
        return
    usual = float(f"{table * scale:.1g}")
    ratio = rate / (table * scale)
    words = f"{ratio:.0f} times" if high else f"only 1/{1 / ratio:.0f} of"
    effect = (
        "A learning rate this high often makes the loss diverge"
        if high
        else "A model learns little at this learning rate"
    )
    yield finding_of(
        config,
        "learning_rate_suits_size",
        "lr_schedule.lr",
        f"lr({rate:g}) is {words} {usual:g}, the usual learning rate for {amounts.count(parameters)} "
        f"parameters and {amounts.count(tokens)} tokens per step (GPT-3's table, arXiv:2005.14165, table "
        f"2.1, scaled by the square root of the batch). {effect}.",
        f"Set lr_schedule.lr: {usual:g}{_rates_below(config, usual)}.",
        Cost(words="the run, if the loss diverges" if high else "a worse model"),
    )


def _rates_below(config: RunConfig, rate: float) -> str:
    """Return, as text, the changes that keep min_lr and lr_warmup_init below a new lr, `rate`.

    An example is " and min_lr: 1e-05". The text is "" if both are already low enough.
    """
    schedule = config.lr_schedule
    above = {"min_lr": schedule.min_lr > rate, "lr_warmup_init": schedule.lr_warmup_init >= rate}
    scaled = (
        f" and {name}: {float(f'{getattr(schedule, name) * rate / schedule.lr:.1g}'):g}"
        for name, is_above in above.items()
        if is_above
    )
    return "".join(scaled)


def warmup_is_long_enough(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the warm-up lasts at least 100 steps."""
    config = estimates.config
    steps, warmup = config.scheduled_steps, config.lr_warmup_tokens
    samples = -(-warmup // config.model.seq_length)
    warmup_steps = config.batch_schedule.step_at(samples)
    warmup_steps += config.batch_schedule.samples_after(warmup_steps) < samples
    if warmup_steps >= LEAST_WARMUP_STEPS or steps < 10 * LEAST_WARMUP_STEPS:
        return
    fraction = warmup / config.train_tokens
    usual = usual_warmup_tokens(config)
    message = (
        f"The warm-up takes {amounts.counted(warmup_steps, 'step')} of {steps:,} "
        f"({100 * fraction:.2g} % of the run)"
        if warmup
        else f"There is no warm-up in a run of {steps:,} steps"
    )
    yield finding_of(
        config,
        "warmup_is_long_enough",
        _warmup_field(config),
        f"{message}. With fewer than {LEAST_WARMUP_STEPS} warm-up steps, the loss may fail to decrease.",
        f"Set lr_schedule.lr_warmup_tokens: {rounded_up(usual) / 1e6:g}e6{_instead_of(config)}. That is "
        f"{usual / config.train_tokens:.1%} of the run.",
        Cost(words="the run, if the loss diverges"),
        # Most runs warm up for a hundredth of their length, however few steps that is.
        "note" if fraction >= USUAL_WARMUP_FRACTION else "warning",
    )


def _warmup_field(config: RunConfig) -> str:
    return f"lr_schedule.{next(iter(other_warmups(config.lr_schedule)), 'lr_warmup_tokens')}"


def _instead_of(config: RunConfig) -> str:
    others = other_warmups(config.lr_schedule)
    return f" instead of {others[0]}" if others else ""


def warmup_ends_before_the_run(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the warm-up ends before the run does, so that the learning rate reaches lr."""
    config = estimates.config
    if config.lr_warmup_tokens < config.train_tokens:
        return
    reached, usual = config.train_tokens / config.lr_warmup_tokens, usual_warmup_tokens(config)
    yield finding_of(
        config,
        "warmup_ends_before_the_run",
        _warmup_field(config),
        f"The warm-up of {config.lr_warmup_tokens:,} tokens does not end before the run of "
        f"{config.train_tokens:,} tokens: the learning rate reaches only {100 * reached:.2g} % of "
        f"lr({config.lr_schedule.lr:g}).",
        f"Set lr_schedule.lr_warmup_tokens: {usual}{_instead_of(config)} ({usual / config.train_tokens:.1%} "
        "of the run), or train for longer.",
        Cost(words="a worse model"),
    )


def tokens_suit_the_size(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the training length is plausible for the size of the model.

    A factor of a thousand suggests a mistaken unit.
    """
    config = estimates.config
    parameters, tokens = count_parameters(config).total, config.train_tokens
    ratio = tokens / parameters
    if parameters < LEAST_PARAMETERS or LEAST_TOKENS <= ratio <= MOST_TOKENS or config.shortened_by:
        return
    if config.init_from is not None and ratio < LEAST_TOKENS:
        # Fine-tuning starts from trained weights, so few tokens are usual.
        return
    unit, amount = config.batch.train_amount
    few = ratio < LEAST_TOKENS
    slipped = amount * 1000 if few else max(amount // 1000, 1)
    shown, more = (f"{ratio:.2g}", "") if few else (f"{ratio:,.0f}", ", and few runs use thousands")
    usual = amounts.count(USUAL_TOKENS * parameters)
    yield finding_of(
        config,
        "tokens_suit_the_size",
        f"batch.train_{unit}",
        f"{amounts.count(tokens)} tokens for {amounts.count(parameters)} parameters are {shown} tokens per "
        f"parameter. About {USUAL_TOKENS} are usual (arXiv:2203.15556){more}.",
        f"If you meant another unit, set batch.train_{unit}: {slipped}. {USUAL_TOKENS} tokens per parameter "
        f"are {usual} tokens.",
        Cost(words="a model that has learned little" if few else "time on more text than the model can use"),
    )


def tokens_match_a_published_length(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a published model of a similar size used a similar number of tokens per parameter.

    Megatron-LM's script for 175B trains on 9 tokens per parameter. Published models of that size were trained
    on at most 2.1, or on at least 19.
    """
    config = estimates.config
    parameters, tokens = count_parameters(config).total, config.train_tokens
    ratio = tokens / parameters
    if parameters < LEAST_PARAMETERS or config.shortened_by or config.init_from is not None:
        return
    if not LEAST_TOKENS <= ratio <= MOST_TOKENS or not is_far(parameters, tokens):
        return
    found = [length for length in neighbours(parameters, tokens) if length is not None]
    named = " and ".join(f"{length.name} with {length.ratio:,.3g} ({length.source})" for length in found)
    unit, _ = config.batch.train_amount
    usual = amounts.count(USUAL_TOKENS * parameters)
    yield finding_of(
        config,
        "tokens_match_a_published_length",
        f"batch.train_{unit}",
        f"{amounts.count(tokens)} tokens for {amounts.count(parameters)} parameters are {ratio:,.3g} tokens "
        "per parameter. No published model of a similar size has a similar ratio; the nearest "
        f"{'is' if len(found) == 1 else 'are'} {named}.",
        f"About {USUAL_TOKENS} tokens per parameter, here {usual}, give the lowest loss for a given compute "
        "budget (arXiv:2203.15556). More tokens give a better model of this size.",
        Cost(words="comparability with published models"),
        "note",
    )


def _decay_field(config: RunConfig) -> str:
    return f"lr_decay_{given_unit(config.lr_schedule, 'lr_decay') or 'tokens'}"


def _decay_words(config: RunConfig) -> str:
    """Return the length of the decay as text, e.g. "lr_decay_steps(4,768 = 2,499,805,184 tokens)"."""
    field, tokens = _decay_field(config), f"{config.lr_decay_tokens:,}"
    if field == "lr_decay_tokens":
        return f"{field}({tokens})"
    return f"{field}({getattr(config.lr_schedule, field):,} = {tokens} tokens)"


def _whole_decay(config: RunConfig) -> str:
    """Return the fix that makes the decay as long as the run.

    Only one unit may be set, so a decay in another unit is set to null.
    """
    field = _decay_field(config)
    tokens, whole = config.train_tokens, "To decay over the whole run, set"
    if field == "lr_decay_tokens":
        return f"{whole} lr_schedule.lr_decay_tokens to {tokens} or to null."
    return f"{whole} {field}: null, or set lr_schedule.lr_decay_tokens: {tokens} instead of {field}."


def decay_ends_with_the_run(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the learning rate is not at min_lr for most of the run."""
    config = estimates.config
    fraction = config.lr_decay_tokens / config.train_tokens
    if config.lr_schedule.lr_decay_style not in ("cosine", "linear") or fraction >= LEAST_DECAY_FRACTION:
        return
    yield finding_of(
        config,
        "decay_ends_with_the_run",
        f"lr_schedule.{_decay_field(config)}",
        f"The learning rate stays at min_lr({config.lr_schedule.min_lr:g}) for {1 - fraction:.1%} of the "
        f"run, because {_decay_words(config)} is only {fraction:.1%} of "
        f"train_tokens({config.train_tokens:,}).",
        _whole_decay(config),
        estimates.share(1 - fraction, "time at the lowest learning rate"),
    )


def decay_reaches_its_end(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the learning rate falls to min_lr before the run ends."""
    config = estimates.config
    if config.lr_schedule.lr_decay_style == "constant" or config.lr_decay_tokens <= config.train_tokens:
        return
    yield finding_of(
        config,
        "decay_reaches_its_end",
        f"lr_schedule.{_decay_field(config)}",
        f"The learning rate does not reach min_lr, because {_decay_words(config)} is more than "
        f"train_tokens({config.train_tokens:,}).",
        _whole_decay(config),
        Cost(words="a worse model"),
    )


def training_is_longer_than_a_step(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the run lasts for more than one step.

    A run of one step suggests that the training length was meant in millions or billions.
    """
    config = estimates.config
    unit, amount = config.batch.train_amount
    if config.scheduled_steps > 1 or unit == "steps":
        return
    yield finding_of(
        config,
        "training_is_longer_than_a_step",
        f"batch.train_{unit}",
        f"train_{unit}({amount:,}) lasts for only one step, because a step trains on "
        f"{config.tokens_per_step:,} tokens.",
        f"If you mean billions, set train_{unit}: {amount}e9; for millions, set {amount}e6."
        if amount < MOST_WITHOUT_ZEROS
        else f"For more steps, lower batch.global_batch_size, or raise train_{unit}.",
        Cost(words="a run that learns almost nothing"),
    )


def fp16_scale_can_move(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that fp16's loss scale is dynamic, and whether bf16 would be as fast.

    A dynamic scale is lowered after an overflow, and the step is skipped. With a fixed scale, the run ends.
    """
    config = estimates.config
    scale = config.precision.fp16
    if config.precision.dtype != "fp16":
        return
    if scale.loss_scale:
        yield finding_of(
            config,
            "fp16_scale_can_move",
            "precision.fp16.loss_scale",
            f"With fp16 and the fixed loss_scale({scale.loss_scale:g}), any gradient above 65504 / "
            f"{scale.loss_scale:g} = {65504 / scale.loss_scale:g} becomes Inf, and the scale is never "
            "lowered.",
            "Set precision.fp16.loss_scale: 0 to use a dynamic scale that is halved after overflows "
            "(initial_scale_power, loss_scale_window, hysteresis).",
            Cost(words="the run, if a gradient overflows"),
        )
    device = find_device(config.resources.gpu_type)
    if config.resources.device == "gpu" and device and device.peak("bf16") is not None:
        yield finding_of(
            config,
            "bf16_needs_no_scale",
            "precision.dtype",
            f"The run uses fp16, but on {device.name} bf16 is as fast, has the range of fp32 and needs no "
            "loss scale.",
            "Set precision.dtype: bf16, unless you must reproduce the numbers of an fp16 run.",
            level="note",
        )


def dataset_is_not_repeated_too_often(estimates: RunEstimates) -> Iterator[Finding]:
    """Check how often the run repeats its training text.

    If the dataset is not prepared, the number is estimated from the size of Wikipedia.
    """
    passes, config = estimates.epochs, estimates.config
    words = f"{passes:.1f} times" if passes is not None else ""
    basis = ""
    if passes is None and estimates.text is not None:
        # The data are not prepared yet: use the lowest estimate from the size of Wikipedia.
        passes, most = estimates.text.epochs(config.train_tokens)
        words, basis = (
            f"{passes:,.3g} to {most:,.3g} times",
            f" The size of the text is estimated: {estimates.text.basis}.",
        )
    if passes is None or passes <= USEFUL_EPOCHS:
        return
    unit, amount = config.batch.train_amount
    useful = int(amount * USEFUL_EPOCHS / passes)
    yield finding_of(
        config,
        "dataset_is_not_repeated_too_often",
        f"batch.train_{unit}",
        f"The run reads its training text {words}, but more than {USEFUL_EPOCHS} passes add little "
        f"(arXiv:2305.16264).{basis}",
        f"Use more text, or lower train_{unit} to {useful:,}, which is {USEFUL_EPOCHS} passes.",
        estimates.share(1 - USEFUL_EPOCHS / passes, "time on repeated text"),
    )


def dataset_counts_agree(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the .idx file can be read and agrees with the manifest next to it."""
    dataset = estimates.disk.dataset
    restore = (
        "Restore the files that the manifest lists, or run `nbtrain prepare RUN.yaml --force` to build the "
        "dataset again."
    )
    if dataset is not None and dataset.problem:
        yield finding_of(
            estimates.config,
            "dataset_counts_agree",
            "data.name",
            dataset.problem,
            "" if "nbtrain prepare" in dataset.problem else restore,
            Cost(words="the start of the run, which is rejected"),
        )


def tokenizer_is_of_this_text(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the tokenizer was trained on the run's text; otherwise it needs more tokens."""
    try:
        clause = other_text_of_tokenizer(estimates.config)
    except DataError as error:
        clause, costs = str(error).rstrip("."), ""
    else:
        costs = " Such a tokenizer needs more tokens for this text than one that is trained on it."
    if clause:
        yield finding_of(
            estimates.config,
            "tokenizer_is_of_this_text",
            "tokenizer.name",
            f"{clause}.{costs}",
            "To train a tokenizer on this text, remove tokenizer.name, and set data.name to a new name.",
            level="note",
        )


def validations_are_few(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the time spent on validations: a batch costs a forward pass, a third of a training step."""
    config = estimates.config
    evaluation = config.evaluation
    interval = evaluation.eval_interval_steps
    if config.mode == "eval" or not evaluation.eval_iters or interval >= config.train_steps:
        return
    fraction = _share(estimates, "validation", evaluation.eval_iters / (evaluation.eval_iters + 3 * interval))
    if fraction <= USUAL_PAUSE_FRACTION:
        return
    enough = validations_every(config, _sparser(interval, fraction))
    yield finding_of(
        config,
        "validations_are_few",
        "evaluation.eval_interval_steps",
        f"Validations take {fraction:.0%} of the time, with a forward pass of {evaluation.eval_iters:,} "
        f"{'batch' if evaluation.eval_iters == 1 else 'batches'} after every "
        f"{'step' if interval == 1 else f'{interval:,} steps'}.",
        f"Set evaluation.eval_interval_steps: {enough}, so that validations take "
        f"{_fewer(fraction, enough / interval)} of the time, or lower eval_iters.",
        estimates.share(fraction, "time without training"),
    )


def checkpoints_are_few(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the time for which training waits for checkpoints, unless they are saved in the background."""
    config = estimates.config
    interval, size = config.checkpoint.save_interval_steps, estimates.disk.checkpoint_bytes
    fraction = _share(estimates, "checkpoints", 0.0)
    if fraction <= USUAL_PAUSE_FRACTION or interval >= config.train_steps:
        return
    if estimates.interruptions is not None and interval >= estimates.interruptions.best_save_interval_steps:
        return  # With fewer saves, the run would repeat more steps after interruptions than it would save.
    fixes = []
    # Keep at least one checkpoint before the end, from which the run can be resumed.
    most = max(config.train_steps // 2, 1)
    sparser = saves_every(config, min(_sparser(interval, fraction), most), at_least=True)
    if sparser is not None and sparser > interval:
        fixes.append(
            f"{SAVE_INTERVAL}: {sparser}, so that checkpoints take {_fewer(fraction, sparser / interval)} of "
            "the time"
        )
    if _may_save_in_background(estimates):
        fixes.append("checkpoint.async_save: true to save in the background")
    if not fixes:
        return  # The run is too short for fewer checkpoints.
    yield finding_of(
        config,
        "checkpoints_are_few",
        SAVE_INTERVAL,
        f"Checkpoints take {fraction:.0%} of the time: {amounts.size(size)} is written after every "
        f"{'step' if interval == 1 else f'{interval:,} steps'}.",
        f"Set {', or set '.join(fixes)}.",
        estimates.share(fraction),
    )


def _may_save_in_background(estimates: RunEstimates) -> bool:
    """Return whether checkpoint.async_save: true would change the run, is legal, and fits host memory.

    If the memory of a machine is unknown, it is assumed to be enough.
    """
    config = estimates.config
    is_decided = config.checkpoint.async_save is None and config.resources.memory_per_node_bytes is not None
    if is_decided or estimates.duration.saves_in_background:
        return False
    changed = with_values(config, {"checkpoint.async_save": True})
    return not find_problems(changed) and estimate_memory(changed).fits_host is not False


def local_checkpoints_are_few(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the time for which training waits for checkpoints on the nodes' local disks."""
    config = estimates.config
    interval, fraction = (
        config.checkpoint.local_save_interval_steps,
        _share(estimates, "local checkpoints", 0.0),
    )
    if interval is None or fraction <= USUAL_PAUSE_FRACTION:
        return
    key, sparser = "checkpoint.local_save_interval_steps", _sparser(interval, fraction)
    saves = config.checkpoint.save_interval_steps
    if sparser < saves:
        fix = (
            f"Set {key}: {sparser}, so that these checkpoints take {USUAL_PAUSE_FRACTION:.0%} of the time, "
            f"or set {key}: null."
        )
    else:
        fix = (
            f"Set {key}: null. Even without it, a checkpoint is written to the local disks every {saves:,} "
            "steps (save_interval_steps)."
        )
    yield finding_of(
        config,
        "local_checkpoints_are_few",
        key,
        f"Checkpoints on the nodes' local disks take {fraction:.0%} of the time: a checkpoint is written "
        f"after every {'step' if interval == 1 else f'{interval:,} steps'}.",
        fix,
        estimates.share(fraction),
    )


def saves_fit_interruptions(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the save interval against the interruptions that are expected during the run."""
    config, expected = estimates.config, estimates.interruptions
    if expected is None:
        return
    interval, best = expected.save_interval_steps, expected.best_save_interval_steps
    every = amounts.elapsed(interval * expected.step_seconds)
    message = f"save_interval_steps({interval:,}) saves a checkpoint every {every}. "
    if math.isfinite(expected.seconds):
        lost = expected.seconds - expected.best_seconds
        if lost < LEAST_LOSS_FRACTION * expected.undisturbed_seconds:
            return
        why = f"each save stops the training for {amounts.elapsed(expected.save_seconds)}"
        if interval > best:
            repeated = amounts.elapsed(interval * expected.step_seconds / 2)
            loss = " in which a node loses its disk" if local_saves(config) else ""
            why = f"each interruption{loss} repeats {repeated} of training on average"
        sudden = amounts.amount(expected.expected_sudden)
        count = "1 interruption is expected that leaves"
        if sudden != "1":
            count = f"{sudden} interruptions are expected that leave"
        message += (
            f"About {count} no time to save ({expected.basis}), and {why}. With "
            f"save_interval_steps({best:,}), the run is expected to end {amounts.elapsed(lost)} earlier than "
            f"with save_interval_steps({interval:,}) (Daly 2006)."
        )
        costs = estimates.share(lost / expected.undisturbed_seconds)
    else:
        ending = "the run would never end"
        if local_saves(config):
            ending = "the run would never end if each interruption destroyed a node's disk"
        message += (
            f"With {amounts.amount(expected.per_day)} interruptions per day ({expected.basis}), the run "
            f"practically never trains that long without an interruption, and {ending}."
        )
        costs = Cost(words="a run that never ends")
    every_steps = saves_every(config, _round(best))
    fix = f"Set {SAVE_INTERVAL}: {every_steps}." if every_steps not in (None, interval) else ""
    yield finding_of(config, "saves_fit_interruptions", SAVE_INTERVAL, message, fix, costs)


def _round(steps: int) -> int:
    """Round a number of steps to two significant digits."""
    unit = 10 ** max(len(str(steps)) - 2, 0)
    return max(1, round(steps / unit) * unit)


def _share(estimates: RunEstimates, part: str, otherwise: float) -> float:
    """Return a part's fraction of the run's time, or `otherwise` if the plan has no estimate of the time."""
    duration = estimates.duration
    return duration.parts.get(part, 0.0) / duration.seconds if duration.seconds else otherwise


def _sparser(interval: int, fraction: float) -> int:
    """Return a round interval, in steps, at which pauses take at most USUAL_PAUSE_FRACTION of the time.

    `fraction` is the fraction of the time that pauses take at the run's `interval`.
    """
    ratio = fraction / (1 - fraction) * (1 - USUAL_PAUSE_FRACTION) / USUAL_PAUSE_FRACTION
    return rounded_up(math.ceil(interval * ratio))


def _fewer(fraction: float, times: float) -> str:
    """Return, as a percentage, the share of the time that pauses take if they are `times` times rarer.

    `fraction` is the share of the time that pauses take now.
    """
    left = fraction / times
    return f"{left / (1 - fraction + left):.0%}"


def preferences_have_no_dropout(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a run with dpo has no dropout.

    The reference is computed without dropout, so the first margins would be dropout noise. Papers and TRL
    train DPO without dropout.
    """
    config = estimates.config
    if config.dpo is None:
        return
    values = {
        "model.hidden_dropout": config.model.hidden_dropout,
        "model.attention_dropout": config.model.attention_dropout,
        "lora.dropout": config.lora.dropout if config.lora is not None else 0.0,
    }
    given = {key: value for key, value in values.items() if value > 0}
    if not given:
        return
    yield finding_of(
        config,
        "preferences_have_no_dropout",
        next(iter(given)),
        "dpo compares the model with a reference that is computed without dropout, but this run sets "
        f"{' and '.join(f'{key} = {value:g}' for key, value in given.items())}. Rewards and margins then "
        "contain dropout noise, even before the first step.",
        f"Set {' and '.join(f'{key}: 0' for key in given)}.",
        Cost(words="a worse model"),
    )


SCHEDULE_RULES = (
    learning_rate_suits_size,
    warmup_is_long_enough,
    warmup_ends_before_the_run,
    tokens_suit_the_size,
    tokens_match_a_published_length,
    decay_ends_with_the_run,
    decay_reaches_its_end,
    training_is_longer_than_a_step,
    fp16_scale_can_move,
    dataset_is_not_repeated_too_often,
    dataset_counts_agree,
    tokenizer_is_of_this_text,
    validations_are_few,
    checkpoints_are_few,
    local_checkpoints_are_few,
    saves_fit_interruptions,
    preferences_have_no_dropout,
)
