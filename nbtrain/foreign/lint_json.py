"""Checks a DeepSpeed JSON: valid JSON, keys that DeepSpeed knows, and agreement with the flags."""

from collections.abc import Callable, Iterator
from typing import Any

from nbtrain.base.findings import FATAL, Cost, Finding
from nbtrain.base.text.nearest import nearest
from nbtrain.config.arithmetic.divisors import nearest_multiples
from nbtrain.config.deepspeed.ds_config import KNOWN_KEYS
from nbtrain.config.deepspeed.known_keys import (
    VERSION,
    ignored_keys,
    key_problems,
    nearest_key,
    unknown_optimizer,
)
from nbtrain.config.rules.wording import join
from nbtrain.foreign.lint_flags import data_parallel_size, number
from nbtrain.foreign.mapping.conversion import Reading
from nbtrain.foreign.mapping.deepspeed_keys import accumulation_contradicts, field_of, two_formats
from nbtrain.foreign.mapping.rows_layout import DEEPSPEED_SCALE, other_format
from nbtrain.foreign.syntax.json_comments import Document

STAGE = "zero_optimization.stage"


def _error(document: Document, rule: str, key: str, message: str, fix: str) -> Finding:
    return Finding("error", rule, key, document.place(key), message, fix, FATAL)


def json_is_json(source: Reading) -> Iterator[Finding]:
    """Check that the file is valid JSON.

    Megatron-DeepSpeed reads it with Python's json, which rejects comments and trailing commas. DeepSpeed
    itself accepts both, but rejects a key that is written twice.
    """
    alone = source.job.kind == "DeepSpeed JSON"
    for fault in source.job.deepspeed.faults if source.job.deepspeed else ():
        if fault.is_duplicate and alone:
            text = f"{fault.text}, which DeepSpeed rejects."
            yield Finding("error", "json_is_json", "", fault.place, text, "Remove one of the two.", FATAL)
        elif fault.is_duplicate:
            cost = Cost(words="a key that has no effect")
            text = f"{fault.text}; the last value is used."
            yield Finding("warning", "json_is_json", "", fault.place, text, "Remove one of the two.", cost)
        elif alone:
            cost = Cost(words="a file that only DeepSpeed itself reads")
            text = f"{fault.text}. DeepSpeed itself reads Hjson, which allows it."
            yield Finding("warning", "json_is_json", "", fault.place, text, "Remove it.", cost)
        else:
            yield Finding("error", "json_is_json", "", fault.place, f"{fault.text}.", "Remove it.", FATAL)


def json_keys_are_known(source: Reading) -> Iterator[Finding]:
    """Check that DeepSpeed knows every key: it ignores unknown top-level keys and rejects most others."""
    document = source.job.deepspeed
    if document is None:
        return
    for key in document.value:
        if key not in KNOWN_KEYS:
            text = f"DeepSpeed has no such key and ignores it.{nearest(key, KNOWN_KEYS)}"
            fix, cost = "Remove it, or correct its name.", Cost(words="a setting that does nothing")
            yield Finding("error", "json_keys_are_known", key, document.place(key), text, fix, cost)
    ignored = ignored_keys(document.value)
    for problem in [*source.wrong, *key_problems(document.value)]:
        if problem.key in ignored:
            near = nearest_key(problem.key)
            hint = f" It reads {near} there." if near else ""
            text, fix = f"DeepSpeed {VERSION} ignores it.{hint}", "Remove it, or correct its name."
            cost = Cost(words="a setting that does nothing")
            place = document.place(problem.key)
            yield Finding("warning", "json_keys_are_known", problem.key, place, text, fix, cost)
            continue
        yield _error(document, "json_keys_are_known", problem.key, problem.message, "")
    kind = document.get("optimizer.type")
    if kind is not None and (words := unknown_optimizer(kind)):
        yield _error(document, "json_keys_are_known", "optimizer.type", words, "")


def auto_is_filled_in(source: Reading) -> Iterator[Finding]:
    """Check that no value is "auto", which only the Trainer of transformers and Accelerate replace."""
    document, keys = source.job.deepspeed, list(source.auto)
    if document is None or not keys:
        return
    fields = dict.fromkeys(field for key in keys if (field := field_of(key)))
    yield Finding(
        "warning",
        "auto_is_filled_in",
        "auto",
        source.auto[keys[0]],
        f"{', '.join(keys)}: the Trainer of transformers and Accelerate fill in these values from their "
        "arguments, but DeepSpeed does not.",
        f"Write numbers into the JSON. Or create a run that sets {', '.join(fields) or 'these values'}, and "
        f"apply the JSON to that run: `nbtrain import {document.label} --onto RUN`.",
        Cost(words="values that no program fills in"),
    )


def json_batch_agrees(source: Reading) -> Iterator[Finding]:
    """Check that train_batch_size = micro batch x accumulation steps x replicas, and that the flags agree.

    DeepSpeed asserts this.
    """
    document = source.job.deepspeed
    if document is None:
        return
    batch, micro = document.get("train_batch_size"), document.get("train_micro_batch_size_per_gpu")
    steps, data = document.get("gradient_accumulation_steps"), data_parallel_size(source)
    for key, value, dest in (
        ("train_batch_size", batch, "global_batch_size"),
        ("train_micro_batch_size_per_gpu", micro, "micro_batch_size"),
    ):
        flag = number(source, dest)
        if isinstance(value, int) and flag and value != flag:
            name = f"--{dest.replace('_', '-')}"
            text = f"{value}, but {name} is {flag} ({source.place(dest)}): DeepSpeed asserts that they agree."
            yield _error(document, "json_batch_agrees", key, text, f"Set both to {flag}.")
    if data and (words := accumulation_contradicts(source, data)):
        fix = "Remove gradient_accumulation_steps, or make the four numbers agree."
        yield _error(document, "json_batch_agrees", "gradient_accumulation_steps", words, fix)
        return
    if not all(isinstance(one, int) and one for one in (batch, micro)):
        return
    if not data:
        # The number of replicas is unknown, but it must be an integer.
        if isinstance(steps, int) and steps and batch % (micro * steps):
            text = (
                f"{batch} is not a multiple of train_micro_batch_size_per_gpu({micro}) * "
                f"gradient_accumulation_steps({steps}) = {micro * steps}, whatever the number of GPUs."
            )
            fix = f"Set train_batch_size to one of {join(nearest_multiples(batch, micro * steps))}."
            yield _error(document, "json_batch_agrees", "train_batch_size", text, fix)
        return
    if steps is None and batch % (micro * data):
        text = (
            f"{batch} is not a multiple of train_micro_batch_size_per_gpu({micro}) * data-parallel({data}) "
            f"= {micro * data}."
        )
        fix = f"Set train_batch_size to one of {join(nearest_multiples(batch, micro * data))}."
        yield _error(document, "json_batch_agrees", "train_batch_size", text, fix)


def _stage(document: Document) -> int:
    stage: Any = document.get(STAGE, 0)
    return stage if type(stage) is int else 0


def zero_stage_agrees(source: Reading) -> Iterator[Finding]:
    """Check that --zero-stage equals the JSON's stage.

    The program uses the flag when it builds the model, but DeepSpeed uses the JSON's stage.
    """
    document, flag = source.job.deepspeed, source.setting("zero_stage")
    if document is None or flag is None or flag.value == _stage(document):
        return
    piped = source.value("pipeline_model_parallel_size") != 1
    yield Finding(
        "warning",
        "zero_stage_agrees",
        "--zero-stage",
        flag.place,
        f"the flag is {flag.value}, but {STAGE} is {_stage(document)} ({document.place(STAGE)}), and "
        "DeepSpeed uses the JSON's stage.",
        # A pipeline allows ZeRO 1 at most, and stage 0 trains 16-bit weights wrongly.
        f"Set both to {1 if piped else _stage(document)}.",
        Cost(words="a run with a different ZeRO stage from the flag's"),
    )


def zero_goes_with_the_pipeline(source: Reading) -> Iterator[Finding]:
    """Check that the ZeRO stage is below 2 with DeepSpeed's pipeline engine.

    Megatron-DeepSpeed uses this engine even for a single stage.
    """
    document = source.job.deepspeed
    if document is None or source.program != "megatron-deepspeed" or _stage(document) < 2:
        return
    stages = number(source, "pipeline_model_parallel_size") or 1
    if source.job.program is None or (stages == 1 and source.value("no_pipeline_parallel")):
        return
    if stages > 1:
        text = (
            f"stage {_stage(document)} with pipeline-model-parallel-size({stages}) "
            f"({source.place('pipeline_model_parallel_size')}): DeepSpeed refuses ZeRO 2 and 3 in a pipeline."
        )
        fix = "Set the stage to 1."
    else:
        text = (
            f"stage {_stage(document)} without --no-pipeline-parallel: Megatron-DeepSpeed then uses the "
            "pipeline engine even for a single stage, and DeepSpeed refuses ZeRO 2 and 3 in a pipeline."
        )
        fix = "Add --no-pipeline-parallel, or set the stage to 1."
    yield _error(document, "zero_goes_with_the_pipeline", STAGE, text, fix)


def offload_has_its_optimizer(source: Reading) -> Iterator[Finding]:
    """Check that ZeRO-Offload uses DeepSpeed's CPU Adam.

    DeepSpeed stops with an Adam for GPUs (runtime/engine.py, _configure_optimizer).
    """
    document = source.job.deepspeed
    if document is None or source.job.program is None or source.program != "megatron-deepspeed":
        return
    key = "zero_optimization.offload_optimizer"
    device = document.get(f"{key}.device", "none")
    if document.get("zero_optimization.cpu_offload") is True:
        key, device = "zero_optimization.cpu_offload", "cpu"
    forced = document.get("zero_force_ds_cpu_optimizer", True)
    if device != "none" and forced and not source.value("cpu_optimizer"):
        text = f"device {device} without --cpu-optimizer: DeepSpeed refuses to offload an Adam other than "
        text += "its own."
        yield _error(document, "offload_has_its_optimizer", key, text, "Add --cpu-optimizer to the flags.")


def formats_agree(source: Reading) -> Iterator[Finding]:
    """Check that the number formats agree.

    The flag --fp16 builds the model in fp16, but fp16.enabled in the JSON makes DeepSpeed train in fp16.
    """
    document = source.job.deepspeed
    if document is not None and (words := two_formats(document)):
        yield _error(document, "formats_agree", "fp16.enabled", words, "")
        return
    if found := other_format(source):
        name, words = found
        fix = f'Write "{name}": {{"enabled": true}} there.'
        yield Finding("error", "formats_agree", f"--{name}", source.place(name), words, fix, FATAL)


def zero_0_is_for_fp32(source: Reading) -> Iterator[Finding]:
    """Check that 16-bit weights have ZeRO 1 or higher.

    With stage 0, DeepSpeed makes a dummy optimizer step at the start, so that Adam's bias correction is wrong
    from the first step on.
    """
    document = source.job.deepspeed
    if document is None or _stage(document) != 0 or source.program == "megatron-lm":
        return
    for name in ("fp16", "bf16"):
        if document.get(f"{name}.enabled") is True:
            yield Finding(
                "warning",
                "zero_0_is_for_fp32",
                STAGE,
                document.place(STAGE),
                f"stage 0 with {name}: DeepSpeed's optimizer then makes a dummy step at the start, which "
                "shifts Adam's bias correction. An import sets stage 1.",
                'Write "stage": 1, which needs no more memory.',
                Cost(words="a wrong first phase of training"),
            )
            return


def loss_scale_has_rules(source: Reading) -> Iterator[Finding]:
    """Check that fp16 has settings for the dynamic loss scale and its window."""
    document = source.job.deepspeed
    if document is None or document.get("fp16.enabled") is not True:
        return
    missing = [name for name in DEEPSPEED_SCALE if document.get(f"fp16.{name}") is None]
    if len(missing) < len(DEEPSPEED_SCALE):
        return
    yield Finding(
        "warning",
        "loss_scale_has_rules",
        "fp16",
        document.place("fp16"),
        "fp16 is enabled without settings for the loss scale: DeepSpeed begins at 2^16 and waits 1,000 steps "
        "before it doubles the scale, so the first steps overflow and are skipped.",
        'Add "loss_scale": 0, "initial_scale_power": 11, "loss_scale_window": 500, "hysteresis": 2, '
        '"min_loss_scale": 1.',
        Cost(words="skipped steps at the start"),
    )


JSON_RULES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (
    json_is_json,
    json_keys_are_known,
    auto_is_filled_in,
    json_batch_agrees,
    zero_stage_agrees,
    zero_goes_with_the_pipeline,
    offload_has_its_optimizer,
    formats_agree,
    zero_0_is_for_fp32,
    loss_scale_has_rules,
)
