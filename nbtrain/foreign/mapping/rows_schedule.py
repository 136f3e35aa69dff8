"""Rows of the mapping: batch size and its growth, length of training, learning rate, weight decay.

Megatron trains by iterations or by samples, and rejects a mix of both (validate_args). An export therefore
writes iterations only if every amount of the run is in steps and the batch does not grow. Megatron-DeepSpeed
also counts tokens: training ends at --train-tokens or at --train-samples, whichever comes first.
"""

import math
import re

from nbtrain.config.batch_schedule import BatchSchedule, Rampup, StepSizes
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.schedule_section import given_unit
from nbtrain.foreign.mapping.conversion import Reading, Writing
from nbtrain.foreign.mapping.rows_model import Row

ITERATIONS = {"tokens": "tokens", "samples": "samples", "steps": "iters"}
GROWTH = ("start_batch_size", "batch_size_increment", "ramp_samples")


# --- batch --------------------------------------------------------------------------------------------


def _read_batch(source: Reading) -> None:
    if source.value("global_batch_size") is not None:
        source.set("batch.global_batch_size", source.value("global_batch_size"), "global_batch_size")
    ramp = source.setting("rampup_batch_size")
    if ramp:
        if len(ramp.value) != 3 or not all(re.fullmatch(r"\d+(_\d+)*", str(one)) for one in ramp.value):
            source.fail(
                "batch.rampup",
                ramp.place,
                f"{ramp.text}: the value must be three whole numbers: the first size, the increment, and the "
                "number of samples over which the batch grows.",
            )
            return
        for name, value in zip(GROWTH, ramp.value):
            source.set(f"batch.rampup.{name}", int(value), "rampup_batch_size")
    if source.value("step_batch_size_schedule"):
        text = str(source.value("step_batch_size_schedule"))
        source.set("batch.step_batch_size_schedule", text, "step_batch_size_schedule")
        last = text.rpartition(":")[2]
        if last.isdigit():
            source.set("batch.global_batch_size", int(last), "step_batch_size_schedule")
    wrong = any(complaint.key == "--global-batch-size" for complaint in source.arguments.complaints)
    if (
        not wrong
        and "batch.global_batch_size" not in source.values
        and source.value("global_batch_size") is None
    ):
        # Without the flag, Megatron runs one micro batch on each data-parallel rank.
        text = "--global-batch-size is missing. Add batch.global_batch_size=... to the command."
        source.fail("batch.global_batch_size", source.job.label, text)


def _write_batch(target: Writing) -> None:
    batch, ramp = target.config.batch, target.config.ramp
    new = target.has("step_batch_size_schedule")
    if ramp is not None and new:
        # The program rejects --global-batch-size together with a schedule.
        exact = batch.step_batch_size_schedule or schedule_text(target.config)
        target.add("step_batch_size_schedule", exact)
        target.unsaid("batch.rampup", "the program has used --step-batch-size-schedule instead since 2026-04")
        return
    target.add("global_batch_size", batch.global_batch_size)
    if isinstance(ramp, StepSizes):
        linear = as_ramp(ramp)
        target.unsaid("batch.step_batch_size_schedule", "the program has only --rampup-batch-size")
        if linear is None:
            target.warnings.append(
                "the batch does not grow, because --rampup-batch-size can only grow it in equal steps"
            )
            return
        ramp = linear
    if ramp is not None:
        target.add("rampup_batch_size", [ramp.start_batch_size, ramp.batch_size_increment, ramp.ramp_samples])


def schedule_text(config: RunConfig) -> str:
    """Return a ramp-up as an exact list of sizes, "0:16 126320640:32 ...", with thresholds in tokens."""
    ramp, batch, seq_length = config.batch.rampup, config.batch.global_batch_size, config.model.seq_length
    assert ramp is not None
    schedule = BatchSchedule(batch, seq_length, 1, config.ramp)
    increments = (batch - ramp.start_batch_size) // ramp.batch_size_increment
    entries = [f"0:{ramp.start_batch_size}"]
    for number in range(1, increments + 1):
        size = ramp.start_batch_size + number * ramp.batch_size_increment
        samples = int(ramp.ramp_samples * number / increments)
        while schedule.size_at(samples) < size:
            samples += 1
        entries.append(f"{samples * seq_length}:{size}")
    return " ".join(entries)


def as_ramp(sizes: StepSizes) -> Rampup | None:
    """Return the ramp-up in equal increments that has exactly these sizes, or None."""
    if len(sizes.parts) < 2:
        return None
    (_, start), (_, second) = sizes.parts[:2]
    samples, last = sizes.parts[-1]
    ramp = Rampup(start, second - start, samples)
    if ramp.batch_size_increment <= 0 or (last - start) % ramp.batch_size_increment:
        return None
    schedule = BatchSchedule(last, 1, 1, ramp)
    firsts = [first for first, _ in sizes.parts]
    equal = all(
        schedule.size_at(at) == sizes.size_at(at) for first in firsts for at in (first, max(first - 1, 0))
    )
    return ramp if equal and len(firsts) == (last - start) // ramp.batch_size_increment + 1 else None


# --- length of training ---------------------------------------------------------------------------------


def _read_length(source: Reading) -> None:
    tokens, samples = source.value("train_tokens"), source.value("train_samples")
    steps, length = source.value("train_iters"), source.said("model.seq_length")
    if source.setting("train_iters") and source.setting("train_samples"):
        # validate_args of both programs.
        source.fail(
            "",
            source.place("train_samples"),
            f"--train-samples {samples} with --train-iters {steps} "
            f"({source.place('train_iters')}): the program refuses to count both. Remove one of them.",
        )
    if tokens is not None and (samples is not None or steps is not None):
        # Training ends at the limit that is reached first. In addition to tokens, the program requires
        # iterations or samples.
        amount, unit, dest = (
            (samples, "samples", "train_samples") if steps is None else (steps, "steps", "train_iters")
        )
        each = 1 if steps is None else source.said("batch.global_batch_size")
        flag = f"--{dest.replace('_', '-')} {amount}"
        known = all(isinstance(value, int) for value in (tokens, amount, length, each))
        if known and amount * each * length < tokens:
            source.set(f"batch.train_{unit}", amount, dest)
            text = f"--train-tokens {tokens}: not imported; training ends earlier, at {flag}."
            source.note(source.place("train_tokens"), text)
        else:
            source.set("batch.train_tokens", tokens, "train_tokens")
            text = f"{flag}: not imported; training ends at --train-tokens {tokens}."
            source.note(source.place(dest), text)
    elif tokens is not None:
        source.set("batch.train_tokens", tokens, "train_tokens")
    elif samples is not None:
        source.set("batch.train_samples", samples, "train_samples")
    elif steps is not None:
        source.set("batch.train_steps", steps, "train_iters")
    else:
        flags = "--train-iters or --train-samples"
        flags = f"--train-tokens, {flags}" if source.has("train_tokens") else flags
        text = (
            f"the files set no training length: {flags} is missing. Add batch.train_tokens=... to the "
            "command."
        )
        source.fail("batch.train_tokens", source.job.label, text)


def counts_iterations(config: RunConfig) -> bool:
    """Return whether every amount of a run is set in steps, so that a script can count in iterations."""
    schedule = config.lr_schedule
    amounts = [given_unit(schedule, stem) for stem in ("lr_warmup", "lr_decay", "lr_wsd_decay")]
    if schedule.lr_wsd_decay_fraction is not None:
        amounts.append("fraction")
    return (
        given_unit(config.batch, "train") == "steps"
        and config.ramp is None
        and all(unit in (None, "steps") for unit in amounts)
    )


def _write_length(target: Writing) -> None:
    config = target.config
    if counts_iterations(config):
        target.add("train_iters", config.batch.train_steps)
        return
    unit = given_unit(config.batch, "train")
    if unit == "tokens" and target.has("train_tokens"):
        target.add("train_tokens", config.train_tokens)
    else:
        target.unsaid(
            f"batch.train_{unit}", "the program counts samples; they are rounded up to complete steps"
        )
    # Write the samples of all steps: Megatron-DeepSpeed ends at the tokens, and its log then shows the right
    # count.
    target.add("train_samples", config.batch.train_samples if unit == "samples" else config.train_samples)


# --- learning rate ----------------------------------------------------------------------------------------


def _read_rate(source: Reading) -> None:
    for stem in ("lr_warmup", "lr_decay", "lr_wsd_decay"):
        for unit, flag in ITERATIONS.items():
            dest = f"{stem}_{flag}"
            if source.has(dest) and (value := source.value(dest)):
                source.set(f"lr_schedule.{stem}_{unit}", value, dest)
                break
    if source.value("lr_warmup_fraction"):
        _read_fraction(source)
    decay = [f"lr_schedule.lr_decay_{unit}" for unit in ITERATIONS]
    if source.value("train_tokens") and not any(key in source.values for key in decay):
        for unit, dest in (("steps", "train_iters"), ("samples", "train_samples")):
            if amount := source.value(dest):
                flag = f"--{dest.replace('_', '-')} {amount}"
                comment = f"{flag}: the decay ends there by default"
                source.set(f"lr_schedule.lr_decay_{unit}", amount, dest, comment)
                break
    if source.value("lr_decay_style") == "WSD":
        source.set("lr_schedule.lr_wsd_decay_style", source.value("lr_wsd_decay_style"), "lr_wsd_decay_style")


def _read_fraction(source: Reading) -> None:
    """Read the warm-up fraction of the decay.

    Megatron-DeepSpeed applies the fraction to samples or iterations, never to tokens.
    """
    key, flag = "lr_schedule.lr_warmup_fraction", "lr_warmup_fraction"
    if source.value("lr_warmup_tokens") is not None:
        text = f"--lr-warmup-fraction {source.value(flag)}: ignored, because --lr-warmup-tokens is set."
        source.note(source.place(flag), text)
        return
    for unit in ITERATIONS:
        source.values.pop(f"lr_schedule.lr_warmup_{unit}", None)
    unit = "iters" if source.value("train_iters") else "samples"
    dest = next((f"{stem}_{unit}" for stem in ("lr_decay", "train") if source.value(f"{stem}_{unit}")), "")
    if not source.value("lr_decay_tokens") or not dest:
        source.set(key, source.value(flag), flag)
        return
    numbers = [source.known(flag, key), source.known(dest, key), source.said("model.seq_length")]
    if unit == "iters":
        numbers.append(source.said("batch.global_batch_size"))
    if all(isinstance(number, int | float) for number in numbers):
        place = source.place(dest)
        comment = f"--lr-warmup-fraction {numbers[0]} of --{dest.replace('_', '-')} {numbers[1]} ({place})"
        source.set("lr_schedule.lr_warmup_tokens", round(math.prod(numbers)), flag, comment)


def _write_rate(target: Writing) -> None:
    config, schedule = target.config, target.config.lr_schedule
    iterations = counts_iterations(config)
    in_tokens = target.has("lr_decay_tokens") and not iterations and schedule.lr_decay_samples is None
    if schedule.lr_warmup_fraction and in_tokens:
        target.add("lr_warmup_tokens", config.lr_warmup_tokens)
        target.unsaid(
            "lr_schedule.lr_warmup_fraction",
            "the program would take this fraction of --train-samples instead of the tokens",
        )
    elif schedule.lr_warmup_fraction:
        target.add("lr_warmup_fraction", schedule.lr_warmup_fraction)
    stems = ["lr_warmup", "lr_decay", *(["lr_wsd_decay"] if target.has("lr_wsd_decay_samples") else [])]
    for stem in stems:
        unit = given_unit(schedule, stem)
        if stem == "lr_wsd_decay" and (tokens := config.lr_wsd_decay_tokens) and unit is None:
            _write_amount(target, stem, "fraction", tokens)
            continue
        if unit is None:
            if stem == "lr_decay" and target.has("train_tokens") and not iterations:
                _write_amount(target, stem, "tokens", config.train_tokens)
                target.unsaid(
                    "lr_schedule.lr_decay_tokens",
                    "the program would decay until --train-samples instead of --train-tokens",
                )
            continue
        amount = getattr(schedule, f"{stem}_{unit}")
        if iterations:
            target.add(f"{stem}_iters", amount)
        elif unit == "samples":
            target.add(f"{stem}_samples", amount)
        else:
            _write_amount(target, stem, unit, getattr(config, f"{stem}_tokens"))
    if target.has("lr_wsd_decay_style") and schedule.lr_decay_style == "WSD":
        target.add("lr_wsd_decay_style", schedule.lr_wsd_decay_style)


def _write_amount(target: Writing, stem: str, unit: str, tokens: int) -> None:
    """Write an amount in tokens or, if the program has no such flag, in the nearest number of samples."""
    if target.has(f"{stem}_tokens"):
        target.add(f"{stem}_tokens", tokens)
        return
    length = target.config.model.seq_length
    samples = round(tokens / length)
    target.add(f"{stem}_samples", samples)
    text = "the program counts samples instead of tokens"
    if samples * length != tokens:
        text += f": {samples:,} samples of {length:,} tokens are {samples * length:,} tokens, not {tokens:,}"
    target.unsaid(f"lr_schedule.{stem}_{unit}", text)


# --- weight decay -----------------------------------------------------------------------------------------


def _read_decay(source: Reading) -> None:
    style = source.value("weight_decay_incr_style")
    if style == "constant":
        source.set("optimizer.weight_decay", source.value("weight_decay"), "weight_decay")
        for dest in ("start_weight_decay", "end_weight_decay"):
            if setting := source.setting(dest):
                source.fail(
                    "optimizer.weight_decay",
                    setting.place,
                    f"{setting.text}: this needs --weight-decay-incr-style linear or cosine; the program "
                    "refuses it with constant.",
                )
        return
    source.set("optimizer.weight_decay_incr_style", style, "weight_decay_incr_style")
    for key, dest in (("start_weight_decay", "start_weight_decay"), ("weight_decay", "end_weight_decay")):
        if source.value(dest) is None:
            flag = f"--{dest.replace('_', '-')}"
            place = source.place("weight_decay_incr_style")
            text = f"--weight-decay-incr-style {style}: {flag} is missing."
            source.fail(f"optimizer.{key}", place, text)
        else:
            source.set(f"optimizer.{key}", source.value(dest), dest)


def _write_decay(target: Writing) -> None:
    optimizer = target.config.optimizer
    if optimizer.weight_decay_incr_style == "constant":
        target.add("weight_decay", optimizer.weight_decay)
        return
    target.add("weight_decay_incr_style", optimizer.weight_decay_incr_style)
    target.add("start_weight_decay", optimizer.start_weight_decay)
    target.add("end_weight_decay", optimizer.weight_decay)


def _amounts(stem: str, *more: str) -> tuple[str, ...]:
    return tuple(f"lr_schedule.{stem}_{unit}" for unit in (*ITERATIONS, *more))


SCHEDULE_ROWS = (
    Row(
        (
            "batch.global_batch_size",
            "batch.step_batch_size_schedule",
            *(f"batch.rampup.{name}" for name in GROWTH),
        ),
        ("global_batch_size", "rampup_batch_size", "step_batch_size_schedule"),
        _read_batch,
        _write_batch,
    ),
    Row(
        tuple(f"batch.train_{unit}" for unit in ITERATIONS),
        ("train_tokens", "train_samples", "train_iters"),
        _read_length,
        _write_length,
    ),
    Row(
        (
            *_amounts("lr_warmup", "fraction"),
            *_amounts("lr_decay"),
            *_amounts("lr_wsd_decay", "fraction", "style"),
        ),
        (
            *(
                f"lr_{stem}_{unit}"
                for stem in ("warmup", "decay", "wsd_decay")
                for unit in ITERATIONS.values()
            ),
            "lr_warmup_fraction",
            "lr_wsd_decay_style",
        ),
        _read_rate,
        _write_rate,
    ),
    Row(
        ("optimizer.weight_decay", "optimizer.start_weight_decay", "optimizer.weight_decay_incr_style"),
        ("weight_decay", "start_weight_decay", "end_weight_decay", "weight_decay_incr_style"),
        _read_decay,
        _write_decay,
    ),
)
