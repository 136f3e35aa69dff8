"""Findings about the training schedule: learning rate, warm-up, number format, epochs, validations."""

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

# More than four passes over the same text add little: arXiv:2305.16264, section 5.
USEFUL_EPOCHS = 4
# If the learning rate reaches min_lr within this fraction of the run, the rest of the text teaches little.
LEAST_DECAY_FRACTION = 1 / 3
# Tokens per parameter: about 20 are best for a given time (arXiv:2203.15556), and thousands are in use. For
# real models, from LEAST_PARAMETERS on, far fewer or far more tokens mean that a unit was mistaken.
USUAL_TOKENS = 20
LEAST_TOKENS, MOST_TOKENS = 0.1, 10_000
LEAST_PARAMETERS = 100e6
# A number from here on is not taken for a count of millions or billions whose zeros were forgotten.
MOST_WITHOUT_ZEROS = 100_000
# Learning rates of GPT-3, with the tokens of a step: arXiv:2005.14165, table 2.1.
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
# Distance of published runs from GPT-3's learning rate: up to 10 times the table's (SmolLM 360M: 3e-3,
# huggingface.co/blog/smollm), and small batches up to 32 times the rate that the root of the batch gives.
MOST_RATE_FACTOR = 10
MOST_SCALED_FACTOR = 32
LEAST_SCALED_FACTOR = 1 / 10
# Validations or checkpoints beyond this share of the time cost more than they are worth.
USUAL_PAUSE_FRACTION = 0.1
# A save interval that loses less of the run than this is good enough.
LEAST_LOSS_FRACTION = 0.01


def learning_rate_suits_size(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the learning rate against the model's size and batch: GPT-3's table, times the square root of the
    batch ratio.

    Adam's best rate grows with the square root of the batch (arXiv:2405.14578), and falls with the size. A
    fine-tuning may have a far lower rate, such as 1e-6 for preferences (arXiv:2305.18290, appendix B).
    """
    config, rate = estimates.config, estimates.config.lr_schedule.lr
    parameters, tokens = count_parameters(config).total, config.tokens_per_step
    near = min(GPT3_RATES, key=lambda row: abs(math.log(row[0] / parameters)))
    table, scale = near[1], math.sqrt(tokens / near[2])
    # Models below GPT-3's smallest have higher rates: the slope of the table, a third power of the size.
    table *= max(GPT3_RATES[0][0] / parameters, 1) ** (1 / 3)
    high = rate > MOST_RATE_FACTOR * table * max(scale, 1) or rate > MOST_SCALED_FACTOR * table * scale
    if not high and (config.init_from is not None or rate >= LEAST_SCALED_FACTOR * table * scale):
        return
    usual = float(f"{table * scale:.1g}")
    ratio = rate / (table * scale)
    words = f"{ratio:.0f} times" if high else f"1/{1 / ratio:.0f} of"
    yield finding_of(
        config,
        "learning_rate_suits_size",
        "lr_schedule.lr",
        f"lr({rate:g}) is {words} what GPT-3's table gives for {amounts.count(parameters)} parameters and "
        f"{amounts.count(tokens)} tokens a step, {usual:g} (arXiv:2005.14165, table 2.1, times the root of "
        f"the batch); {'a rate this high often diverges' if high else 'a rate this low learns little'}.",
        f"Set lr_schedule.lr: {usual:g}{_rates_below(config, usual)}.",
        Cost(words="a run that diverges" if high else "a worse model"),
    )


def _rates_below(config: RunConfig, rate: float) -> str:
    """Return the changes of the rates that must be below lr, for another lr: " and min_lr: 1e-05"."""
    schedule = config.lr_schedule
    above = {"min_lr": schedule.min_lr > rate, "lr_warmup_init": schedule.lr_warmup_init >= rate}
    scaled = (
        f" and {name}: {float(f'{getattr(schedule, name) * rate / schedule.lr:.1g}'):g}"
        for name, is_above in above.items()
        if is_above
    )
    return "".join(scaled)


def warmup_is_long_enough(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the learning rate rises over at least 100 steps."""
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
        f"{message}; fewer than {LEAST_WARMUP_STEPS} steps raise the risk of a loss that does not decrease.",
        f"Set lr_schedule.lr_warmup_tokens: {rounded_up(usual) / 1e6:g}e6{_instead_of(config)}, "
        f"{usual / config.train_tokens:.1%} of the run.",
        Cost(words="a run that may diverge"),
        # Most runs warm up for a hundredth of the run, however few steps that is.
        "note" if fraction >= USUAL_WARMUP_FRACTION else "warning",
    )


def _warmup_field(config: RunConfig) -> str:
    return f"lr_schedule.{next(iter(other_warmups(config.lr_schedule)), 'lr_warmup_tokens')}"


def _instead_of(config: RunConfig) -> str:
    others = other_warmups(config.lr_schedule)
    return f" instead of {others[0]}" if others else ""


def warmup_ends_before_the_run(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the warm-up ends before the run; otherwise the configured learning rate is never reached."""
    config = estimates.config
    if config.lr_warmup_tokens < config.train_tokens:
        return
    reached, usual = config.train_tokens / config.lr_warmup_tokens, usual_warmup_tokens(config)
    yield finding_of(
        config,
        "warmup_ends_before_the_run",
        _warmup_field(config),
        f"The warm-up of {config.lr_warmup_tokens:,} tokens is longer than the run, "
        f"{config.train_tokens:,}: the learning rate reaches only {reached:.2g} of "
        f"lr({config.lr_schedule.lr:g}).",
        f"Set lr_schedule.lr_warmup_tokens: {usual}{_instead_of(config)}, {usual / config.train_tokens:.1%} "
        "of the run, or train for longer.",
        Cost(words="a run that never reaches its learning rate"),
    )


def tokens_suit_the_size(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the training length is plausible for the model; a factor of a thousand suggests a mistaken
    unit.
    """
    config = estimates.config
    parameters, tokens = count_parameters(config).total, config.train_tokens
    ratio = tokens / parameters
    if parameters < LEAST_PARAMETERS or LEAST_TOKENS <= ratio <= MOST_TOKENS or config.shortened_by:
        return
    if config.init_from is not None and ratio < LEAST_TOKENS:
        # Fine-tuning continues from weights that are already trained.
        return
    unit, amount = config.batch.train_amount
    few = ratio < LEAST_TOKENS
    slipped = amount * 1000 if few else max(amount // 1000, 1)
    shown, more = (f"{ratio:.2g}", "") if few else (f"{ratio:,.0f}", ", and few runs take thousands")
    usual = amounts.count(USUAL_TOKENS * parameters)
    yield finding_of(
        config,
        "tokens_suit_the_size",
        f"batch.train_{unit}",
        f"{amounts.count(tokens)} tokens are {shown} for each of {amounts.count(parameters)} parameters; "
        f"about {USUAL_TOKENS} are usual (arXiv:2203.15556){more}.",
        f"Set batch.train_{unit}: {slipped} if the unit is mistaken; {usual} tokens are {USUAL_TOKENS} a "
        "parameter.",
        Cost(words="a model that has learned little" if few else "more text than the model can use"),
    )


def tokens_match_a_published_length(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that some published model of a similar size was trained on as many tokens per parameter.

    Megatron-LM's script for 175B trains on 9 tokens a parameter; published models of that size were trained
    on at most 2.1, or on 19 and more.
    """
    config = estimates.config
    parameters, tokens = count_parameters(config).total, config.train_tokens
    ratio = tokens / parameters
    if parameters < LEAST_PARAMETERS or config.shortened_by or config.init_from is not None:
        return
    if not LEAST_TOKENS <= ratio <= MOST_TOKENS or not is_far(parameters, tokens):
        return
    found = [length for length in neighbours(parameters, tokens) if length is not None]
    named = " and ".join(f"{length.name} {length.ratio:,.3g} ({length.source})" for length in found)
    unit, _ = config.batch.train_amount
    usual = amounts.count(USUAL_TOKENS * parameters)
    yield finding_of(
        config,
        "tokens_match_a_published_length",
        f"batch.train_{unit}",
        f"{amounts.count(tokens)} tokens are {ratio:,.3g} for each of {amounts.count(parameters)} "
        f"parameters; no published model of a similar size is near that. The nearest: {named}.",
        f"About {USUAL_TOKENS} a parameter, {usual} tokens, give the lowest loss for the time "
        "(arXiv:2203.15556); more give a better model of this size.",
        Cost(words="an untried ratio of tokens to parameters"),
        "note",
    )


def _decay_field(config: RunConfig) -> str:
    return f"lr_decay_{given_unit(config.lr_schedule, 'lr_decay') or 'tokens'}"


def _decay_words(config: RunConfig) -> str:
    """Return e.g. "lr_decay_tokens(2,500,000,000)" or "lr_decay_steps(4,768 = 2,499,805,184 tokens)"."""
    field, tokens = _decay_field(config), f"{config.lr_decay_tokens:,}"
    if field == "lr_decay_tokens":
        return f"{field}({tokens})"
    return f"{field}({getattr(config.lr_schedule, field):,} = {tokens} tokens)"


def _whole_decay(config: RunConfig) -> str:
    """Return the fix that makes the decay as long as the run.

    Only one unit may be set: any other is refused together with lr_decay_tokens.
    """
    field = _decay_field(config)
    null = "null" if field == "lr_decay_tokens" else f"{field}: null"
    instead = "" if field == "lr_decay_tokens" else f" instead of {field}"
    tokens = config.train_tokens
    return f"Set lr_schedule.lr_decay_tokens: {tokens}{instead}, or {null}, which is the length of the run."


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
        f"The learning rate is at min_lr({config.lr_schedule.min_lr:g}) for {1 - fraction:.1%} of the run: "
        f"{_decay_words(config)} are {fraction:.2g} of train_tokens({config.train_tokens:,}).",
        _whole_decay(config),
        estimates.share(1 - fraction, "text that teaches little"),
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
        f"min_lr is not reached: {_decay_words(config)} is more than train_tokens({config.train_tokens:,}).",
        _whole_decay(config),
        Cost(words="a worse model than its tokens could give"),
    )


def training_is_longer_than_a_step(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that train_tokens lasts for more than one step: a number that lacks its "billions" does not."""
    config = estimates.config
    unit, amount = config.batch.train_amount
    if config.scheduled_steps > 1 or unit == "steps":
        return
    yield finding_of(
        config,
        "training_is_longer_than_a_step",
        f"batch.train_{unit}",
        f"train_{unit}({amount:,}) is one step of {config.tokens_per_step:,} tokens.",
        f"Write the whole number: {amount}e9 if billions are meant, {amount}e6 for millions."
        if amount < MOST_WITHOUT_ZEROS
        else "A smaller batch.global_batch_size, or more training, gives more steps.",
        Cost(words="a run that trains nothing"),
    )


def fp16_scale_can_move(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that fp16's loss scale is dynamic: after an overflow it skips the step, while a fixed scale ends
    the run.
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
            f"fp16 with a fixed loss_scale({scale.loss_scale:g}): the first gradient above "
            f"65504 / {scale.loss_scale:g} = {65504 / scale.loss_scale:g} becomes Inf, and no rule lowers "
            "the scale.",
            "Set precision.fp16.loss_scale: 0 for a scale that halves after overflows (initial_scale_power, "
            "loss_scale_window, hysteresis).",
            Cost(words="a run that may stop at an overflow"),
        )
    device = find_device(config.resources.gpu_type)
    if config.resources.device == "gpu" and device and device.peak("bf16") is not None:
        yield finding_of(
            config,
            "bf16_needs_no_scale",
            "precision.dtype",
            f"fp16 on {device.name}, where bf16 is as fast, has the range of fp32 and needs no loss scale.",
            "Set precision.dtype: bf16 unless the numbers of an fp16 run must be reproduced.",
            level="note",
        )


def dataset_is_not_repeated_too_often(estimates: RunEstimates) -> Iterator[Finding]:
    """Check how often a run repeats its training split, prepared or estimated from Wikipedia's size."""
    passes, config = estimates.epochs, estimates.config
    words = f"{passes:.1f} times" if passes is not None else ""
    basis = ""
    if passes is None and estimates.text is not None:
        # Before the data are prepared: the least that Wikipedia's size allows.
        passes, most = estimates.text.epochs(config.train_tokens)
        words, basis = f"{passes:,.3g} to {most:,.3g} times", f" The text: {estimates.text.basis}."
    if passes is None or passes <= USEFUL_EPOCHS:
        return
    unit, amount = config.batch.train_amount
    useful = int(amount * USEFUL_EPOCHS / passes)
    yield finding_of(
        config,
        "dataset_is_not_repeated_too_often",
        f"batch.train_{unit}",
        f"The run reads its training text {words}; more than {USEFUL_EPOCHS} add little "
        f"(arXiv:2305.16264).{basis}",
        f"Use more text or fewer train_{unit}: {useful:,} are {USEFUL_EPOCHS} passes.",
        estimates.share(1 - USEFUL_EPOCHS / passes, "text that adds little"),
    )


def dataset_counts_agree(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the .idx can be read and agrees with the manifest next to it."""
    dataset = estimates.disk.dataset
    if dataset is not None and dataset.problem:
        yield finding_of(
            estimates.config,
            "dataset_counts_agree",
            "data.name",
            dataset.problem,
            ""
            if "nbtrain prepare" in dataset.problem
            else "Bring the files of the manifest back, or make the dataset again: `nbtrain prepare RUN.yaml "
            "--force`.",
            Cost(words="a start that is refused"),
        )


def tokenizer_is_of_this_text(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the tokenizer suits the text; a tokenizer made from other text needs more tokens for it."""
    try:
        clause = other_text_of_tokenizer(estimates.config)
    except DataError as error:
        clause = str(error).rstrip(".")
    if clause:
        yield finding_of(
            estimates.config,
            "tokenizer_is_of_this_text",
            "tokenizer.name",
            f"{clause}: it needs more tokens for this text than one that is trained on it.",
            "Leave tokenizer.name out and give data.name a new value to train one on this text.",
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
        f"Validations take {fraction:.0%} of the time: {evaluation.eval_iters:,} "
        f"{'batch' if evaluation.eval_iters == 1 else 'batches'} after every "
        f"{amounts.counted(interval, 'step')}, each a forward pass.",
        f"Set evaluation.eval_interval_steps: {enough} for {_fewer(fraction, enough / interval)}, or fewer "
        "eval_iters.",
        estimates.share(fraction, "time that trains nothing"),
    )


def checkpoints_are_few(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the time that training waits for checkpoints, unless they are written in the background."""
    config = estimates.config
    interval, size = config.checkpoint.save_interval_steps, estimates.disk.checkpoint_bytes
    fraction = _share(estimates, "checkpoints", 0.0)
    if fraction <= USUAL_PAUSE_FRACTION or interval >= config.train_steps:
        return
    if estimates.interruptions is not None and interval >= estimates.interruptions.best_save_interval_steps:
        return  # saving less often would cost more in repeated steps than it saves
    fixes = []
    # A run that resumes needs a checkpoint on its way.
    most = max(config.train_steps // 2, 1)
    sparser = saves_every(config, min(_sparser(interval, fraction), most), at_least=True)
    if sparser is not None and sparser > interval:
        fixes.append(f"{SAVE_INTERVAL}: {sparser} for {_fewer(fraction, sparser / interval)}")
    if _may_save_in_background(estimates):
        fixes.append("async_save: true" if fixes else "checkpoint.async_save: true")
    if not fixes:
        return  # the run is too short for fewer checkpoints
    yield finding_of(
        config,
        "checkpoints_are_few",
        SAVE_INTERVAL,
        f"Checkpoints take {fraction:.0%} of the time: {amounts.size(size)} are written after every "
        f"{amounts.counted(interval, 'step')}.",
        f"Set {', or '.join(fixes)}.",
        estimates.share(fraction),
    )


def _may_save_in_background(estimates: RunEstimates) -> bool:
    """Return whether checkpoint.async_save: true would change how checkpoints are written, and is allowed and
    possible as far as the memory of a machine is known.
    """
    config = estimates.config
    is_decided = config.checkpoint.async_save is None and config.resources.memory_per_node_bytes is not None
    if is_decided or estimates.duration.saves_in_background:
        return False
    changed = with_values(config, {"checkpoint.async_save": True})
    return not find_problems(changed) and estimate_memory(changed).fits_host is not False


def local_checkpoints_are_few(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the time that training waits for the checkpoints that stay on the nodes' disks."""
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
        fix = f"Set {key}: {sparser} for {USUAL_PAUSE_FRACTION:.0%}, or null."
    else:
        fix = f"Set {key}: null: one is written there every {saves:,} steps anyway (save_interval_steps)."
    yield finding_of(
        config,
        "local_checkpoints_are_few",
        key,
        f"Checkpoints that stay on the nodes' disks take {fraction:.0%} of the time: one is written after "
        f"every {amounts.counted(interval, 'step')}.",
        fix,
        estimates.share(fraction),
    )


def saves_fit_interruptions(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the save interval against the interruptions that the run expects."""
    config, expected = estimates.config, estimates.interruptions
    if expected is None:
        return
    interval, best = expected.save_interval_steps, expected.best_save_interval_steps
    every = amounts.elapsed(interval * expected.step_seconds)
    said = f"save_interval_steps({interval:,}) saves every {every}. "
    if math.isfinite(expected.seconds):
        lost = expected.seconds - expected.best_seconds
        if lost < LEAST_LOSS_FRACTION * expected.undisturbed_seconds:
            return
        why = f"each save holds the training up for {amounts.elapsed(expected.save_seconds)}"
        if interval > best:
            repeated = amounts.elapsed(interval * expected.step_seconds / 2)
            which = "each in which a node loses its disk" if local_saves(config) else "each of them"
            why = f"{which} repeats {repeated} on average"
        said += (
            f"The run expects about {amounts.amount(expected.expected_sudden)} interruptions before which it "
            f"cannot save ({expected.basis}), and {why}. With {amounts.counted(best, 'step')} it is expected "
            f"to end {amounts.elapsed(lost)} earlier (Daly 2006)."
        )
        costs = estimates.share(lost / expected.undisturbed_seconds)
    else:
        said += (
            f"With {amounts.amount(expected.per_day)} interruptions a day ({expected.basis}), the run "
            "practically never trains that long without one, and does not end"
            f"{' if each takes the disk of a node with it' if local_saves(config) else ''}."
        )
        costs = Cost(words="a run that does not end")
    every_steps = saves_every(config, _round(best))
    fix = f"Set {SAVE_INTERVAL}: {every_steps}." if every_steps not in (None, interval) else ""
    yield finding_of(config, "saves_fit_interruptions", SAVE_INTERVAL, said, fix, costs)


def _round(steps: int) -> int:
    """Round a number of steps to two significant digits."""
    unit = 10 ** max(len(str(steps)) - 2, 0)
    return max(1, round(steps / unit) * unit)


def _share(estimates: RunEstimates, part: str, otherwise: float) -> float:
    """Return a part's share of the run's time; `otherwise` if the plan has no time."""
    duration = estimates.duration
    return duration.parts.get(part, 0.0) / duration.seconds if duration.seconds else otherwise


def _sparser(interval: int, fraction: float) -> int:
    """Return a round interval, in steps, at which pauses that now take `fraction` of the time take no more of
    it than is usual.
    """
    ratio = fraction / (1 - fraction) * (1 - USUAL_PAUSE_FRACTION) / USUAL_PAUSE_FRACTION
    return rounded_up(math.ceil(interval * ratio))


def _fewer(fraction: float, times: float) -> str:
    """Return the share of the time that pauses of `fraction` take if there are `times` fewer of them."""
    left = fraction / times
    return f"{left / (1 - fraction + left):.0%}"


def preferences_have_no_dropout(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a run with `dpo` has no dropout: the reference is computed without it, so the first margins
    would be its noise.

    Papers and TRL train DPO without dropout.
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
        "dpo compares the model with a reference that is computed without dropout, and "
        f"{', '.join(f'{key} = {value:g}' for key, value in given.items())}: rewards and margins are partly "
        "the noise of the dropout, also before the first step.",
        f"Set {', '.join(f'{key}: 0' for key in given)}.",
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
