"""Maps the keys of DeepSpeed's JSON to a run's fields, with one table for import and export.

Keys without a corresponding field go to parallel.deepspeed_extra and are written back from there. In a
Megatron-DeepSpeed job, the flags set the batch and the learning rate; a JSON without flags sets them itself.
"""

from typing import Any, TypeGuard

from nbtrain.base.text.nearest import nearest
from nbtrain.config.deepspeed.ds_config import KNOWN_KEYS
from nbtrain.config.deepspeed.known_keys import (
    VERSION,
    WRONG_VALUE,
    ignored_keys,
    key_problems,
    nearest_key,
    unknown_optimizer,
)
from nbtrain.config.load.autotune import SAME_NAME
from nbtrain.config.rules.zero import DECIDED_ELSEWHERE
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.foreign.mapping.conversion import Reading
from nbtrain.foreign.mapping.rows_layout import DEEPSPEED_SCALE
from nbtrain.foreign.mapping.rows_model import value_of
from nbtrain.foreign.syntax.json_comments import Document

ZERO = "zero_optimization"
# {field of the run: key of the JSON} for fields and keys with equal values.
SAME_KEYS = {
    **{
        f"parallel.{name}": f"{ZERO}.{name}"
        for name in (
            *SAME_NAME,
            "zero_quantized_weights",
            "zero_quantized_gradients",
        )
    },
    "parallel.wall_clock_breakdown": "wall_clock_breakdown",
    "parallel.communication_data_type": "communication_data_type",
}
OFFLOAD = ("device", "nvme_path", "pin_memory", "buffer_count")
# {key without an effect on the run: reason}
WITHOUT_MEANING = {
    "steps_per_print": "it only affects DeepSpeed's reports; nbtrain uses logging.log_interval_steps",
    f"{ZERO}.elastic_checkpoint": "every nbtrain checkpoint loads into any layout",
    "activation_checkpointing": "it only changes where recomputed activations are kept",
    "data_types": "nbtrain sums gradients in fp32",
    "zero_allow_untested_optimizer": "the optimizer is torch's AdamW",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's AdamW",
    "pipeline": "nbtrain sets the pipeline's keys itself",
    "checkpoint": "the section checkpoint sets this",
    "tensorboard": "output/<run>/tensorboard holds every scalar",
    "bf16.immediate_grad_update": "nbtrain sums bf16 gradients in fp32",
    "fp16.auto_cast": "the weights are fp16",
}
# Keys that the rows of the flags read, or that are compared with the flags.
READ_ELSEWHERE = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "prescale_gradients",
    "fp16.enabled",
    "bf16.enabled",
    "optimizer",
    "scheduler",
    f"{ZERO}.stage",
    f"{ZERO}.zero_hpz_partition_size",
    *(f"fp16.{name}" for name in DEEPSPEED_SCALE),
}


def write_json(config: RunConfig) -> dict[str, Any]:
    """Return the DeepSpeed JSON of a run for another program, with all of the run's values."""
    parallel, dtype = config.parallel, config.precision.dtype
    found: dict[str, Any] = {
        "train_batch_size": config.batch.global_batch_size,
        "train_micro_batch_size_per_gpu": config.batch.micro_batch_size,
        "gradient_clipping": config.optimizer.clip_grad,
        "prescale_gradients": parallel.prescale_gradients,
        "steps_per_print": parallel.steps_per_print or config.logging.log_interval_steps,
        ZERO: {"stage": parallel.zero_stage},
    }
    for key, dotted in SAME_KEYS.items():
        _put(found, dotted, value_of(config, key))
    for name in ("offload_optimizer", "offload_param"):
        offload = getattr(parallel, name)
        if offload.device != "none":
            settings = {one: getattr(offload, one) for one in OFFLOAD}
            found[ZERO][name] = {one: value for one, value in settings.items() if value is not None}
    if parallel.zero_hpz:
        found[ZERO]["zero_hpz_partition_size"] = config.zero_hpz_partition_size
    if dtype == "fp16":
        scale = {name: getattr(config.precision.fp16, name) for name in DEEPSPEED_SCALE}
        found["fp16"] = {"enabled": True, **scale}
    elif dtype == "bf16":
        found["bf16"] = {"enabled": True}
    _merge(found, parallel.deepspeed_extra)
    return found


def _put(found: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        found = found.setdefault(parent, {})
    found[last] = value


def _merge(found: dict[str, Any], extra: dict[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(found.get(key), dict):
            _merge(found[key], value)
        else:
            found[key] = value


def read_keys(source: Reading, document: Document) -> None:
    """Import all keys of a job's JSON that no flag sets."""
    read: set[str] = set(READ_ELSEWHERE)
    for section in ("optimizer", "scheduler"):
        if source.job.program is not None and document.get(section) is not None:
            # The arguments of deepspeed.initialize take precedence (runtime/engine.py, _configure_optimizer).
            text = f"{section}: ignored, because the program sets it from its flags."
            source.note(document.place(section), text)
    for key, dotted in SAME_KEYS.items():
        value = document.get(dotted)
        if value is not None:
            whole = isinstance(value, float) and value.is_integer()  # 5e8
            value = int(value) if whole else value
            if dotted == f"{ZERO}.sub_group_size" and value == 0:
                words = (
                    f"{dotted} = 0: imported as 1, because DeepSpeed makes a group of each parameter in both "
                    "cases."
                )
                source.note(document.place(dotted), words)
                value = 1
            if dotted == "communication_data_type":
                value = str(value).lower()
            source.set(key, value, comment=dotted, place=document.place(dotted))
            read.add(dotted)
    _read_offload(source, document, read)
    _read_hpz(source, document)
    _read_prescale(source, document)
    _read_hysteresis(source, document, read)
    extra: dict[str, Any] = {}
    for dotted, value in _leaves(document.value):
        if any(dotted == one or dotted.startswith(f"{one}.") for one in read):
            continue
        _left_over(source, document, dotted, value, extra)
    if extra:
        source.set("parallel.deepspeed_extra", extra, comment="keys without a field", place=document.label)


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted keys in a JSON, with their values.

    The keys inside zero_optimization, fp16 and bf16 are listed one by one; other sections are listed as a
    whole.
    """
    found = []
    for key, inner in value.items():
        if not prefix and key in (ZERO, "fp16", "bf16") and isinstance(inner, dict):
            found += _leaves(inner, f"{key}.")
        else:
            found.append((f"{prefix}{key}", inner))
    return found


def _left_over(source: Reading, document: Document, dotted: str, value: Any, extra: dict[str, Any]) -> None:
    place, top = document.place(dotted), dotted.partition(".")[0]
    if dotted in WITHOUT_MEANING:
        source.note(place, f"{dotted}: {WITHOUT_MEANING[dotted]}.")
    elif dotted == "data_efficiency":
        _read_data_efficiency(source, document)
    elif top not in KNOWN_KEYS:
        hint = nearest(dotted, KNOWN_KEYS)
        source.fail("", place, f"{dotted}: DeepSpeed has no such key.{hint} Remove it, or correct its name.")
    elif top in DECIDED_ELSEWHERE or dotted in DECIDED_ELSEWHERE:
        if value not in (False, None, {}, {"enabled": False}):
            owner = DECIDED_ELSEWHERE.get(dotted) or DECIDED_ELSEWHERE[top]
            source.fail(
                "", place, f"{dotted}: this key cannot be imported, because {owner} determines it. Remove it."
            )
    else:
        _put(extra, dotted, _without_ignored(source, document, dotted, value))


def _without_ignored(source: Reading, document: Document, section: str, value: Any) -> Any:
    """Return a section without the keys that DeepSpeed ignores, which are listed as notes."""
    ignored = [key for key in ignored_keys({section: value})]
    for key in ignored:
        near = nearest_key(key)
        hint = f" It reads {section}.{near}." if near else ""
        source.note(document.place(key), f"{key}: not imported; DeepSpeed {VERSION} ignores it.{hint}")
    names = {key.rpartition(".")[2] for key in ignored}
    return {key: inner for key, inner in value.items() if key not in names} if names else value


# Parts of data_efficiency, and what each of them changes (runtime/data_pipeline/config.py).
DATA_EFFICIENCY = {
    "data_sampling.curriculum_learning": "which samples a step has",
    "data_sampling.dynamic_batching": "the size of a step",
    "data_routing.random_ltd": "which tokens a layer computes",
}


def _read_data_efficiency(source: Reading, document: Document) -> None:
    """Reject the parts of data_efficiency that are turned on.

    DeepSpeed reads each part's own switch; the outer `enabled` does not turn any of them off.
    """
    on = []
    for part, words in DATA_EFFICIENCY.items():
        dotted = f"data_efficiency.{part}"
        if document.get(f"{dotted}.enabled") is True:
            on.append(part)
            text = (
                f"{dotted}: it changes {words}, and nbtrain has no field for it. Remove it, or turn it off."
            )
            source.fail("", document.place(f"{dotted}.enabled"), text)
    if not on:
        text = (
            "data_efficiency: not imported; it enables none of curriculum_learning, dynamic_batching and "
            "random_ltd."
        )
        source.note(document.place("data_efficiency"), text)


def _read_offload(source: Reading, document: Document, read: set[str]) -> None:
    for name, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        if document.get(f"{ZERO}.{old}") is True:
            key = f"parallel.{name}.device"
            source.set(key, "cpu", comment=old, place=document.place(f"{ZERO}.{old}"))
        section = document.get(f"{ZERO}.{name}")
        read |= {f"{ZERO}.{old}", *(f"{ZERO}.{name}.{one}" for one in OFFLOAD), f"{ZERO}.{name}"}
        device = document.get(f"{ZERO}.{name}.device", "none")
        for one, value in section.items() if isinstance(section, dict) else ():
            dotted = f"{ZERO}.{name}.{one}"
            if value and (
                (one == "pin_memory" and device == "none") or (one == "nvme_path" and device != "nvme")
            ):
                needs = "nvme" if one == "nvme_path" else "cpu or nvme"
                text = f"{dotted}: not imported; DeepSpeed reads it only with device {needs}, not {device}."
                source.note(document.place(dotted), text)
            elif one in OFFLOAD:
                source.set(f"parallel.{name}.{one}", value, comment=dotted, place=document.place(dotted))
            else:
                text = f"{dotted}: not imported; nbtrain uses DeepSpeed's default."
                source.note(document.place(dotted), text)


def _read_hpz(source: Reading, document: Document) -> None:
    dotted = f"{ZERO}.zero_hpz_partition_size"
    size = document.get(dotted, 1)
    if size and size > 1:
        place = document.place(dotted)
        source.set("parallel.zero_hpz", True, comment=dotted, place=place)
        source.set("parallel.zero_hpz_partition_size", size, comment=dotted, place=place)


def _read_prescale(source: Reading, document: Document) -> None:
    asked, place = document.get("prescale_gradients"), document.place("prescale_gradients")
    if asked and source.values.get("parallel.zero_stage"):
        text = "prescale_gradients: not imported; ZeRO divides the gradients after summing them in fp32."
        source.note(place, text)
    elif asked is not None:
        source.set("parallel.prescale_gradients", asked, comment="prescale_gradients", place=place)


def _read_hysteresis(source: Reading, document: Document, read: set[str]) -> None:
    dotted = "fp16.consecutive_hysteresis"
    read.add(dotted)
    if document.get(dotted):
        text = "not imported; the loss scale may halve earlier, because overflows need not be consecutive."
        source.note(document.place(dotted), f"{dotted}: {text}")


def drop_auto(source: Reading, document: Document) -> None:
    """Drop "auto" values, which the Trainer of transformers fills in from its own arguments."""

    def kept(value: Any, prefix: str) -> Any:
        if not isinstance(value, dict):
            return value
        found = {}
        for key, inner in value.items():
            dotted = f"{prefix}{key}"
            if inner == "auto":
                text = (
                    f"{dotted}: not imported; the Trainer of transformers fills in auto, and the run keeps "
                    "its own value."
                )
                source.note(document.place(dotted), text)
                source.auto[dotted] = document.place(dotted)
            else:
                found[key] = kept(inner, f"{dotted}.")
        return found

    document.value = kept(document.value, "")


def drop_wrong(source: Reading, document: Document) -> None:
    """Drop values that DeepSpeed rejects. The import fails at each of them, and lint reports them."""
    for problem in list(key_problems(document.value)):
        if problem.rule == WRONG_VALUE:
            source.fail("", document.place(problem.key), problem.message)
            source.wrong.append(problem)
            *parents, last = problem.key.split(".")
            document.get(".".join(parents)).pop(last) if parents else document.value.pop(last)


def two_formats(document: Document) -> str:
    """Return DeepSpeed's objection to a JSON with both fp16 and bf16; "" if at most one is enabled."""
    if document.get("fp16.enabled") is not True or document.get("bf16.enabled") is not True:
        return ""
    place = document.place("bf16.enabled")
    return f"bf16.enabled is also true ({place}), but DeepSpeed refuses both together. Remove one of them."


def read_alone(source: Reading, document: Document) -> None:
    """Read the settings of a JSON without flags: format, loss scale, ZeRO, batch, optimizer and schedule."""
    place = document.place
    for name in ("fp16", "bf16"):
        if document.get(f"{name}.enabled") is True:
            source.set("precision.dtype", name, comment=f"{name}.enabled", place=place(name))
    if source.values.get("precision.dtype") == "fp16":
        for name, default in DEEPSPEED_SCALE.items():
            value = document.get(f"fp16.{name}", default)
            value = float(value) if name == "loss_scale" else value
            source.set(f"precision.fp16.{name}", value, comment=f"fp16.{name}", place=place(f"fp16.{name}"))
    for key, dotted in ALONE_KEYS.items():
        value = document.get(dotted)
        if isinstance(value, int):
            source.set(key, value, comment=dotted, place=place(dotted))
        elif value is not None:
            source.fail(key, place(dotted), f"{dotted} = {value}: the value must be a whole number.")
    _read_accumulation(source, document)
    clip = document.get("gradient_clipping")
    if isinstance(clip, int | float):
        source.set(
            "optimizer.clip_grad", float(clip), comment="gradient_clipping", place=place("gradient_clipping")
        )
    _read_optimizer(source, document)
    read_keys(source, document)


def accumulation_contradicts(source: Reading, ranks: Any) -> str:
    """Return a sentence if batch, micro batch, accumulation steps and data-parallel ranks disagree.

    DeepSpeed asserts that they agree. The flags provide what the JSON does not set. Returns "" if they agree.
    """
    document = source.job.deepspeed
    if document is None or not isinstance(steps := document.get("gradient_accumulation_steps"), int):
        return ""
    sizes, names = [], []
    for name, dest in (
        ("train_batch_size", "global_batch_size"),
        ("train_micro_batch_size_per_gpu", "micro_batch_size"),
    ):
        value = document.get(name)
        given = source.value(dest) if value is None and source.job.program is not None else value
        sizes.append(given)
        names.append(name if value is not None else f"--{dest.replace('_', '-')}")
    batch, micro = sizes
    if not all(type(number) is int and number > 0 for number in (batch, micro, steps, ranks)):
        return ""
    product = micro * steps * ranks
    if batch == product:
        return ""
    parts = f"{names[1]}({micro}) * gradient_accumulation_steps({steps}) * data-parallel({ranks})"
    return f"{names[0]}({batch}) is not {parts} = {product}."


def _read_accumulation(source: Reading, document: Document) -> None:
    """Note the accumulation steps, or fail if the batch would have to be computed from them.

    The batch also depends on the number of replicas, which a JSON without flags does not contain.
    """
    key = "gradient_accumulation_steps"
    if (steps := document.get(key)) is None:
        return
    if document.get("train_batch_size") is not None:
        text = (
            f"{key}: not imported; it follows from train_batch_size, the micro batch and the data-parallel "
            "ranks."
        )
        source.note(document.place(key), text)
    elif "train_batch_size" not in source.auto:
        source.fail(
            "batch.global_batch_size",
            document.place(key),
            f"{key} = {show(steps)}: the batch size also depends on the number of data-parallel ranks, and "
            "train_batch_size is missing. Add batch.global_batch_size=... to the command.",
        )


# {field: key} that read_alone() reads in addition to SAME_KEYS.
ALONE_KEYS = {
    "batch.global_batch_size": "train_batch_size",
    "batch.micro_batch_size": "train_micro_batch_size_per_gpu",
    "parallel.zero_stage": f"{ZERO}.stage",
}
# Values of further parameters for which DeepSpeed's Adam equals torch's AdamW.
AS_TORCH: dict[str, tuple[bool, ...]] = {
    "adam_w_mode": (True,),
    "bias_correction": (True,),
    "amsgrad": (False,),
    "torch_adam": (True, False),
    "fp32_optimizer_states": (True,),
}
OPTIMIZER = {"lr": "lr_schedule.lr", "eps": "optimizer.adam_eps", "weight_decay": "optimizer.weight_decay"}


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _read_optimizer(source: Reading, document: Document) -> None:
    kind = document.get("optimizer.type")
    if kind is not None and str(kind).lower() not in ("adam", "adamw", "fusedadam"):
        place = document.place("optimizer.type")
        words = unknown_optimizer(kind) or "only Adam and AdamW can be imported. Set one of them."
        source.fail("", place, f"optimizer.type = {kind}: {words}")
    for name, key in OPTIMIZER.items():
        value = document.get(f"optimizer.params.{name}")
        dotted = f"optimizer.params.{name}"
        if _is_number(value):
            source.set(key, float(value), comment=dotted, place=document.place(dotted))
        elif value is not None:
            text = f"{dotted}: the value must be a number, not {show(value)}."
            source.fail("", document.place(dotted), text)
    params = document.get("optimizer.params")
    for name, value in params.items() if isinstance(params, dict) else ():
        # DeepSpeed's AdamW decouples the decay regardless of adam_w_mode.
        same = value in AS_TORCH.get(name, ()) or (name == "adam_w_mode" and str(kind).lower() == "adamw")
        if name not in (*OPTIMIZER, "betas") and not same:
            dotted = f"optimizer.params.{name}"
            text = f"{dotted} = {show(value)}: it changes the optimizer, and nbtrain has no field for it. "
            text += "Remove it."
            source.fail("", document.place(dotted), f"{text}")
    betas = document.get("optimizer.params.betas")
    if betas is not None and not (
        isinstance(betas, list) and len(betas) == 2 and all(map(_is_number, betas))
    ):
        place = document.place("optimizer.params.betas")
        text = f"optimizer.params.betas: the value must be two numbers, not {show(betas)}."
        source.fail("", place, text)
        betas = None
    for number, value in enumerate(betas or []):
        source.set(
            f"optimizer.adam_beta{number + 1}",
            float(value),
            comment="optimizer.params.betas",
            place=document.place("optimizer.params.betas"),
        )
    _read_scheduler(source, document)


SCHEDULER = {
    "warmup_min_lr": "lr_schedule.lr_warmup_init",
    "warmup_max_lr": "lr_schedule.lr",
    "warmup_num_steps": "lr_schedule.lr_warmup_steps",
    "total_num_steps": "lr_schedule.lr_decay_steps",
}
# Scheduler parameters that are fractions of the optimizer's learning rate.
SHARES = {"warmup_min_ratio": "lr_schedule.lr_warmup_init", "cos_min_ratio": "lr_schedule.min_lr"}
STYLES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
# Parameters of each scheduler with DeepSpeed's defaults (runtime/lr_schedules.py in 0.19.8).
_WARMUP = {"warmup_min_lr": 0.0, "warmup_max_lr": None, "warmup_num_steps": 1000}
SCHEDULER_PARAMS: dict[str, dict[str, float | None]] = {
    "WarmupLR": _WARMUP,
    "WarmupDecayLR": {**_WARMUP, "warmup_max_lr": 0.001, "total_num_steps": None},
    "WarmupCosineLR": {
        "warmup_min_ratio": 0.0,
        "warmup_num_steps": 1000,
        "cos_min_ratio": 0.0001,
        "total_num_steps": None,
    },
}


def _read_scheduler(source: Reading, document: Document) -> None:
    kind, place = document.get("scheduler.type"), document.place("scheduler.type")
    if kind is None:
        return
    params = document.get("scheduler.params") or {}
    if not isinstance(params, dict):
        where = document.place("scheduler.params")
        text = f"scheduler.params: the value must be an object {{ ... }}, not {show(params)}."
        source.fail("", where, text)
        return
    if not isinstance(kind, str) or kind not in STYLES or params.get("warmup_type", "log") != "linear":
        source.fail(
            "lr_schedule.lr_decay_style",
            place,
            f"scheduler {show(kind)} with warmup_type {show(params.get('warmup_type', 'log'))}: only the "
            f"schedulers {', '.join(STYLES)} can be imported, with warmup_type linear.",
        )
        return
    source.set("lr_schedule.lr_decay_style", STYLES[kind], comment=f"scheduler {kind}", place=place)
    known = SCHEDULER_PARAMS[kind]
    for name, value in params.items():
        dotted = f"scheduler.params.{name}"
        where = f"{document.place(dotted)}: {dotted}"
        if name not in known and {name: value} not in (
            {"warmup_type": "linear"},
            {"last_batch_iteration": -1},
        ):
            source.fail("", where, f"DeepSpeed's {kind} has no such parameter. Remove it.")
        elif name in known and value is not None and not _is_number(value):
            source.fail("", where, f"the value must be a number, not {show(value)}.")
    for name, default in known.items():
        dotted = f"scheduler.params.{name}"
        value = params.get(name, default)
        if _is_number(value) and dotted not in source.auto:
            comment = dotted if name in params else f"DeepSpeed's default of {dotted}"
            _set_scheduler(source, kind, name, value, comment, document.place(dotted))


def _set_scheduler(source: Reading, kind: str, name: str, value: float, comment: str, place: str) -> None:
    if key := SCHEDULER.get(name):
        source.set(key, int(value) if key.endswith("_steps") else float(value), comment=comment, place=place)
        if kind == "WarmupDecayLR" and name == "warmup_min_lr":
            # The decay ends at the learning rate at which the warm-up begins.
            source.set("lr_schedule.min_lr", float(value), comment=comment, place=place)
        return
    key, rate = SHARES[name], source.said("lr_schedule.lr")
    if value == 0 or isinstance(rate, int | float):
        source.set(key, float(value * (rate or 0)), comment=comment, place=place)
    else:
        text = f"{comment}({value:g}) is a fraction of the optimizer's lr, which the JSON does not contain"
        source.fail(key, place, f"{text}. Add {key}=... to the command.")


def field_of(dotted: str) -> str | None:
    """Return the run field that corresponds to a key in the JSON, or None."""
    return {
        **{key: name for name, key in (SAME_KEYS | ALONE_KEYS).items()},
        **{f"optimizer.params.{name}": key for name, key in OPTIMIZER.items()},
        **{f"scheduler.params.{name}": key for name, key in SCHEDULER.items()},
        "optimizer.params.betas": "optimizer.adam_beta1",
        "gradient_clipping": "optimizer.clip_grad",
        "fp16.enabled": "precision.dtype",
        "bf16.enabled": "precision.dtype",
    }.get(dotted)
