"""Scales down each section of a run's configuration for its twin."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.config.batch_schedule import BatchSchedule, Rampup, StepSizes
from nbtrain.config.rules.check import find_problems
from nbtrain.config.rules.combinations import CLASHES
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.data_section import CleaningConfig, DataConfig
from nbtrain.config.sections.schedule_section import given_unit
from nbtrain.config.sections.sources import FineTuningSourceModel

STEPS = 7

# KEEP_LAST keeps all checkpoints: steps 3, 6 and 7, and step 4 if the run stops there.
SAVE_INTERVAL_STEPS = 3

KEEP_LAST = 4

EVAL_INTERVAL_STEPS = 2

STOP_STEP = 4
"""Step at which the resumed run stops: after a checkpoint and a validation, and during a batch-size ramp."""

# Steps before the full batch size in a step batch-size schedule.
RAMP_STEPS = 5

SEQ_LENGTH = 64

HEAD_SIZE = 16

VOCAB_SIZE = 500

NUM_DOCUMENTS = 400

LEARNING_RATE = 1e-3

# Prefix of tokenizer and dataset names. The names contain a hash of the settings, so twins with equal
# settings share them, and a twin does not depend on earlier twins.
SHARED = "twin"

# Fields of `data` that have no effect on the made-up words of a twin.
MADE_OF_TEXT = ("cleaning", "extra_json_keys", "split_sentences")


@dataclass(frozen=True)
class Abilities:
    """Properties of this machine that affect how a twin can be trained."""

    fp16: bool = False
    """Whether DeepSpeed's CPU accelerator supports fp16, which depends on the processor."""
    compiler: bool = False
    """Whether a C++ compiler was found, which model.compile needs."""


@dataclass(frozen=True)
class NotProven:
    """A property of the run that its twin does not have."""

    what: str
    """The property: a field with its value, or a description."""
    why: str
    instead: str
    """Replacement that the twin uses."""


def small_model(
    config: RunConfig, folded: dict[str, int], abilities: Abilities, missing: list[NotProven]
) -> dict[str, Any]:
    model = config.model
    layers = sum(_stage_layers(config, folded["pipeline_parallel_size"]))
    if config.parallel.activation_checkpointing.granularity != "none":
        layers = max(layers, _interval(config))
    tensor, ulysses = folded["tensor_parallel_size"], folded["ds_sequence_parallel_size"]
    heads, groups = _small_heads(config, tensor, ulysses)
    values = model.model_dump()
    backend, compiled = model.attention_backend, model.compile
    if backend in ("flash", "efficient"):
        what = f"model.attention_backend: {backend}"
        missing.append(NotProven(what, "this kernel runs only on GPUs", "attention_backend: auto"))
        backend = "auto"
    if compiled and not abilities.compiler:
        missing.append(
            NotProven("model.compile: true", "no C++ compiler was found on this machine", "compile: false")
        )
        compiled = False
    positions = model.max_position_embeddings
    head = HEAD_SIZE
    if model.kv_channels is not None and model.kv_channels * model.num_attention_heads != model.hidden_size:
        # As in the run, the heads together have a different width than the hidden states.
        head = HEAD_SIZE + 8 if model.kv_channels * model.num_attention_heads > model.hidden_size else 8
    width = round(model.resolved_ffn_hidden_size / model.hidden_size * heads * HEAD_SIZE)
    values |= {
        "num_layers": layers,
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "kv_channels": model.kv_channels and head,
        "hidden_size": heads * HEAD_SIZE,
        "ffn_hidden_size": model.ffn_hidden_size and max(width // (16 * tensor), 1) * 16 * tensor,
        "seq_length": SEQ_LENGTH,
        "max_position_embeddings": positions and SEQ_LENGTH * (1 if positions == model.seq_length else 2),
        "make_vocab_size_divisible_by": min(model.make_vocab_size_divisible_by, 128),
        # With the small standard deviation of a wide model, a narrow model's gradients would vanish in
        # rounding noise.
        "init_method_std": max(model.init_method_std, 0.02),
        # 48 does not divide the sequence, so the chunks have different sizes.
        "cross_entropy_chunk_tokens": 48 if model.cross_entropy_chunk_tokens else 0,
        "attention_backend": backend,
        "compile": compiled,
        # Rotate an even number of dimensions of each head, and at least two.
        "rotary_percent": max(round(model.rotary_percent * head / 2), 1) * 2 / head,
    }
    values |= _small_windows(config, layers)
    if model.position_embedding_type != "rope":
        values["rotary_percent"] = model.rotary_percent
    return values


def _small_heads(config: RunConfig, tensor: int, ulysses: int) -> tuple[int, int | None]:
    """Return the twin's (attention heads, query groups).

    As in the run, each tensor rank has complete groups or a part of one group. The number of groups is None
    if the run does not set it.
    """
    model, parallel = config.model, config.parallel
    ranks, groups = tensor * ulysses, model.num_query_groups
    heads = -(-4 // ranks) * ranks
    if groups is None:
        return heads, None
    if groups == model.num_attention_heads:
        return heads, heads
    if groups < parallel.tensor_parallel_size:
        return heads, max(tensor // 2, 1)
    if groups // parallel.tensor_parallel_size % parallel.ds_sequence_parallel_size:
        return heads, tensor * max(ulysses // 2, 1)
    return 2 * max(2, ranks), max(2, ranks)


def _small_windows(config: RunConfig, layers: int) -> dict[str, Any]:
    """Return attention-window settings that hide part of the twin's sequence, in the run's layer pattern."""
    model = config.model
    found: dict[str, Any] = {}
    if model.window_size is not None and model.window_size < model.seq_length:
        found["window_size"] = SEQ_LENGTH // 4
    for name in ("window_attn_skip_freq", "no_rope_freq"):
        pattern = getattr(model, name)
        if isinstance(pattern, list):
            # Shrink the pattern evenly, and keep both kinds of layer if the run has both.
            own = [pattern[layer * len(pattern) // layers] for layer in range(layers)]
            if len({*pattern}) == 2 and len({*own}) == 1 and layers > 1:
                own[-1] = 1 - own[-1]
            found[name] = own
        elif pattern is not None and pattern > layers:
            found[name] = max(layers, 2)
    return found


def _interval(config: RunConfig) -> int:
    return min(config.parallel.activation_checkpointing.interval_layers, 2)


def _stage_layers(config: RunConfig, stages: int) -> list[int]:
    """Return the number of blocks in each of the twin's stages, equal or unequal as in the run."""
    per_stage = 2 if stages <= 2 or _interval(config) > 1 else 1
    cut = config.parallel.pipeline_stage_layers
    if cut is None or len(set(cut)) == 1:
        return [per_stage] * stages
    # Choose evenly spaced stages of the run, including the first and the last stage.
    chosen = [cut[round(stage * (len(cut) - 1) / max(stages - 1, 1))] for stage in range(stages)]
    return [per_stage + (count > min(cut)) for count in chosen]


def small_batch(config: RunConfig, folded: dict[str, int]) -> dict[str, Any]:
    batch = config.batch
    data, stages = folded["data_parallel_size"], folded["pipeline_parallel_size"]
    micro = min(batch.micro_batch_size, 2 if stages == 1 else 1)
    accumulation = min(config.accumulation_steps, max(2, stages))
    unit, whole = micro * data, micro * data * accumulation
    values: dict[str, Any] = {"micro_batch_size": micro, "global_batch_size": whole}
    if accumulation > 1 and batch.rampup is not None:
        sizes = dict.fromkeys(("start_batch_size", "batch_size_increment"), unit)
        values["rampup"] = sizes | {"ramp_samples": _ramp_samples(unit, whole)}
    elif accumulation > 1 and isinstance(config.ramp, StepSizes):
        values["step_batch_size_schedule"] = f"0:{unit} {RAMP_STEPS * unit * SEQ_LENGTH}:{whole}"
    length, _ = batch.train_amount
    seven = type(batch).model_validate(values | {"train_steps": STEPS})
    model = config.model.model_copy(update={"seq_length": SEQ_LENGTH})
    schedule = config.model_copy(update={"batch": seven, "model": model}).batch_schedule
    made = {"steps": STEPS, "samples": schedule.samples_after(STEPS), "tokens": schedule.tokens_after(STEPS)}
    return values | {f"train_{length}": made[length]}


def _ramp_samples(unit: int, whole: int) -> int:
    """Return the number of samples of the twin's batch-size ramp, from `unit` to `whole` samples per step.

    It is the largest number with which the last of the STEPS has `whole` samples.
    """

    def last_size(ramp_samples: int) -> int:
        schedule = BatchSchedule(whole, 1, 1, Rampup(unit, unit, ramp_samples))
        return schedule.size_at(schedule.samples_after(STEPS - 1))

    return max(samples for samples in range(1, STEPS * whole) if last_size(samples) == whole)


def small_lr_schedule(config: RunConfig, small: RunConfig) -> dict[str, Any]:
    """Return the run's learning-rate schedule scaled to the twin, with LEARNING_RATE as its peak.

    Warmup and decay keep their fractions of training. A warmup lasts at least one step.
    """
    schedule = config.lr_schedule
    scale = LEARNING_RATE / schedule.lr

    def shared(tokens: int) -> int:
        return tokens * small.train_tokens // config.train_tokens

    values = schedule.model_dump() | {"lr": LEARNING_RATE}
    values |= {key: values[key] * scale for key in ("min_lr", "lr_warmup_init")}
    step = small.tokens_per_step
    warmup = min(max(shared(config.lr_warmup_tokens), step), small.train_tokens // 2)
    decay = max(shared(config.lr_decay_tokens), warmup + step)
    amounts = {"lr_warmup": warmup if config.lr_warmup_tokens else 0, "lr_decay": decay}
    if (wsd := config.lr_wsd_decay_tokens) is not None:
        amounts["lr_wsd_decay"] = min(max(shared(wsd), step), decay - amounts["lr_warmup"])
    for stem, tokens in amounts.items():
        if unit := given_unit(schedule, stem):
            steps = max(tokens // step, 1) if stem == "lr_wsd_decay" else _steps(small, tokens)
            values[f"{stem}_{unit}"] = {"tokens": tokens, "samples": tokens // SEQ_LENGTH, "steps": steps}[
                unit
            ]
    if schedule.lr_warmup_fraction:
        values["lr_warmup_fraction"] = max(schedule.lr_warmup_fraction, 0.25)
    if schedule.lr_wsd_decay_fraction:
        values["lr_wsd_decay_fraction"] = min(max(schedule.lr_wsd_decay_fraction, 0.25), 0.5)
    return values


def _steps(small: RunConfig, tokens: int) -> int:
    return max(small.batch_schedule.step_at(tokens // SEQ_LENGTH), 1) if tokens else 0


def small_precision(config: RunConfig, abilities: Abilities, missing: list[NotProven]) -> dict[str, Any]:
    values = config.precision.model_dump()
    if config.precision.fp8:
        missing.append(NotProven("precision.fp8: true", _why_not_on_cpu("fp8"), "bf16 products"))
        values["fp8"] = False
    if config.precision.dtype == "fp16" and not abilities.fp16:
        what = "precision.dtype: fp16 and its loss scale"
        why = "DeepSpeed's CPU accelerator does not support fp16 on this processor"
        missing.append(NotProven(what, why, "bf16 weights with fp32 masters"))
        values["dtype"] = "bf16"
    return values


def small_parallel(config: RunConfig, folded: dict[str, int], missing: list[NotProven]) -> dict[str, Any]:
    parallel = config.parallel
    values = parallel.model_dump() | folded
    for key, size in folded.items():
        if (whole := getattr(parallel, key)) != size:
            missing.append(NotProven(f"parallel.{key}: {whole}", "a twin has only a few ranks", f"{size}"))
    for kind, key, off in (
        ("fpdt", "fpdt_chunk_tokens", 0),
        ("qwz", "zero_quantized_weights", False),
        ("qgz", "zero_quantized_gradients", False),
    ):
        if (value := getattr(parallel, key)) != off:
            values[key] = off
            missing.append(NotProven(f"parallel.{key}: {value}", _why_not_on_cpu(kind), f"{key}: {off}"))
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(parallel, name)
        if offload.device == "nvme":
            why = "it needs an NVMe disk and a compiled op"
            missing.append(NotProven(f"parallel.{name}.device: nvme", why, "device: cpu"))
            values[name] |= {"device": "cpu", "nvme_path": None}
        if offload.pin_memory:
            what = f"parallel.{name}.pin_memory: true"
            missing.append(NotProven(what, "pinned memory exists only for GPUs", "pin_memory: false"))
            values[name]["pin_memory"] = False
    if parallel.zero_hpz:
        kinds = ("data", "ds_sequence", "context")
        ranks = math.prod(folded[f"{kind}_parallel_size"] for kind in kinds)
        # hpZ's second copy of the weights is sharded across fewer ranks than the first, if possible in the
        # twin too.
        whole = config.zero_hpz_partition_size >= parallel.data_axis_size or ranks < 4 or ranks % 2
        values["zero_hpz_partition_size"] = ranks if whole else ranks // 2
    values["activation_checkpointing"]["interval_layers"] = _interval(config)
    if parallel.pipeline_stage_layers is not None:
        values["pipeline_stage_layers"] = _stage_layers(config, folded["pipeline_parallel_size"])
    values["process_group_timeout_seconds"] = min(parallel.process_group_timeout_seconds, 300.0)
    return values


def _why_not_on_cpu(kind: str) -> str:
    return next(refusal.reason for refusal in CLASHES if refusal.kind == kind and "cpu" in refusal.others)


def small_data(
    config: RunConfig, values: dict[str, Any], folder: str, missing: list[NotProven]
) -> list[dict[str, Any]]:
    """Set the data and tokenizer in `values` to small data of the same kind as the run's.

    Return one dict of settings for each part of a blend, which must be prepared first; [] without a blend.
    """
    data = config.data
    shown = f"dataset {data.name} and tokenizer {config.tokenizer.name}"
    missing.append(NotProven(shown, "a twin trains on made-up words", "mock documents from fixed seeds"))
    for key in MADE_OF_TEXT:
        if (value := getattr(data, key)) != DataConfig.model_fields[key].default:
            shown = f"data.{key}" if isinstance(value, CleaningConfig) else f"data.{key}: {value}"
            missing.append(NotProven(shown, "this setting has no effect on made-up words", "plain documents"))
    kept = ["split_rule", "seed", "shuffle", "reset_position_ids", "inter_document_masking", "eod_mask_loss"]
    small: dict[str, Any] = {key: getattr(data, key) for key in kept}
    small["packing"] = data.resolved_packing
    small |= {"split": "90,5,5", "num_prepare_workers": 1, "num_workers": min(data.num_workers, 1)}
    sources, datasets = [] if data.blend else _sources(config, folder), []
    tokenizer = _shared_name(sources)
    if data.blend:
        small["blend"] = []
        for letter, entry in zip("ab", data.blend):
            mock = {"kind": "mock", "num_documents": NUM_DOCUMENTS, "seed": ord(letter)}
            part = {"name": f"{tokenizer}-{letter}", "sources": [mock], "num_prepare_workers": 1}
            datasets.append({"data": part})
            small["blend"].append({"name": part["name"], "weight": entry.weight})
    values["tokenizer"] = {"name": tokenizer, "vocab_size": VOCAB_SIZE}
    name = _shared_name([tokenizer, small.get("blend")])
    values["data"] = {**small, "name": name, "sources": sources}
    return datasets


def _shared_name(made_of: list[Any]) -> str:
    """Return a name derived from a hash of settings, so that equal settings have the same name."""
    text = json.dumps(made_of, sort_keys=True)
    return f"{SHARED}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _sources(config: RunConfig, folder: str) -> list[dict[str, Any]]:
    """Return small sources for the run's first two: made-up words, or prompts with completions."""
    sources: list[dict[str, Any]] = []
    for number, whole in enumerate(config.data.sources[:2]):
        if isinstance(whole, FineTuningSourceModel):
            name = f"prompts-{number}"
            source = {"kind": "prompt-completion", "path": f"{folder}/{name}.jsonl", "weight": whole.weight}
        else:
            name = f"mock-{number}"
            source = {"kind": "mock", "num_documents": NUM_DOCUMENTS, "seed": number}
        sources.append({"name": name, **source})
    return sources or [{"kind": "mock", "num_documents": NUM_DOCUMENTS}]


def in_one_process(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration that trains a run in a single process.

    Its samples and its padded vocabulary size equal the run's.
    """
    tensor = config.parallel.tensor_parallel_size
    kept = {"communication_data_type", "process_group_timeout_seconds"}
    parallel = {"zero_stage": 0} | {key: getattr(config.parallel, key) for key in kept}
    divisible = config.model.make_vocab_size_divisible_by * tensor
    values = config.model_dump()
    values["model"] |= {"make_vocab_size_divisible_by": divisible, "compile": False}
    values |= {"parallel": parallel, "name": name}
    return validated(values)


def validated(values: dict[str, Any]) -> RunConfig:
    config = RunConfig.model_validate(values)
    heading = "this run cannot have a twin, because its scaled-down configuration violates these rules:"
    refuse(find_problems(config), ConfigError, heading)
    return config
