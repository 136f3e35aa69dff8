"""Random legal runs: an example in which some fields have other values that the schema allows."""

import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig

EXAMPLES = Path(__file__).parents[2] / "examples" / "megatron-gpt" / "training"
NAMES = [path.stem for path in sorted(EXAMPLES.glob("*.yaml"))]

WHOLE = (0, 1, 2, 3, 4, 7, 8, 16, 64, 100, 1001, 65_536, 1_000_003, 2_500_000_000)
REAL = (0.0, 1e-12, 1e-5, 6e-4, 0.021, 0.1, 1 / 3, 0.5, 0.95, 1.0, 1.5, 2.0, 90.0, 65_536.0)
# Characters that a shell, a YAML reader or a JSON reader could misinterpret.
TEXTS = (
    "text",
    "it's 5 o'clock",
    "a b #c",
    "$HOME/x",
    "über/β",
    "1:30",
    "yes",
    "010",
    '"',
    "a\\b",
    "-x",
    "~",
)

LAYOUTS = (
    *({"nodes": 1, "gpus_per_node": size, "data_parallel_size": size} for size in (1, 2, 8)),
    {"nodes": 2, "gpus_per_node": 4, "data_parallel_size": 2, "tensor_parallel_size": 4},
    {"nodes": 2, "gpus_per_node": 2, "data_parallel_size": 2, "pipeline_parallel_size": 2},
    {"nodes": 1, "gpus_per_node": 8, "tensor_parallel_size": 2, "pipeline_parallel_size": 4},
    {"nodes": 1, "gpus_per_node": 4, "data_parallel_size": 2, "ds_sequence_parallel_size": 2},
    {"nodes": 1, "gpus_per_node": 4, "data_parallel_size": 2, "context_parallel_size": 2},
)
SIZES = tuple(f"{kind}_parallel_size" for kind in ("data", "tensor", "pipeline", "ds_sequence", "context"))
# Fields that only make sense together.
GROUPS: dict[str, tuple[dict[str, Any], ...]] = {
    "ramp": (
        {"batch.rampup": {"start_batch_size": 32, "batch_size_increment": 32, "ramp_samples": 100_003}},
        {"batch.rampup": {"start_batch_size": 64, "batch_size_increment": 64, "ramp_samples": 5_000}},
        {"batch.step_batch_size_schedule": "0:32 10M:64 1B:256"},
    ),
    "length": tuple(
        {f"batch.train_{one}": None for one in ("tokens", "samples", "steps")}
        | {f"batch.train_{unit}": size}
        for unit, size in (("tokens", 1_234_567_891), ("samples", 1_000_001), ("steps", 5_000))
    ),
    "warm-up": tuple(
        {f"lr_schedule.lr_warmup_{unit}": None for unit in ("tokens", "samples", "steps", "fraction")}
        | {f"lr_schedule.lr_warmup_{unit}": size}
        for unit, size in (("tokens", 1_234_567), ("samples", 1_001), ("steps", 50), ("fraction", 0.03))
    ),
    "decay": tuple(
        {f"lr_schedule.lr_decay_{unit}": None for unit in ("tokens", "samples", "steps")}
        | {f"lr_schedule.lr_decay_{unit}": size}
        for unit, size in (("tokens", 1_000_000_007), ("samples", 900_001), ("steps", 4_000))
    ),
    "wsd": tuple(
        {"lr_schedule.lr_decay_style": "WSD", f"lr_schedule.lr_wsd_decay_{unit}": size}
        for unit, size in (("tokens", 100_000_001), ("samples", 50_001), ("steps", 300))
    ),
    "data": (
        {"data.sources": [{"kind": "jsonl", "path": "it is, #1.jsonl"}]},
        {"data.sources": [], "data.blend": [{"name": "a", "weight": 0.3}, {"prefix": "b/c", "weight": 2}]},
        {"data.packing": "best_fit", "data.split_rule": "megatron-core"},
    ),
    "offload": (
        {"parallel.offload_optimizer.device": "cpu", "parallel.zero_stage": 2},
        {"parallel.offload_optimizer.device": "nvme", "parallel.offload_optimizer.nvme_path": "/nvme/it's",
         "parallel.zero_stage": 3},
        {"parallel.offload_param.device": "cpu", "parallel.zero_stage": 3},
    ),
    "full": ({"parallel.activation_checkpointing": {"granularity": "full", "interval_layers": 2}},),
    "FPDT": (
        {"parallel.fpdt_chunk_tokens": 512, "precision.dtype": "bf16", "model.attention_dropout": 0.0,
         "parallel.zero_stage": 1},
    ),
    "extra": (
        {"parallel.deepspeed_extra": {"comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]}}},
        {"parallel.deepspeed_extra": {"zero_optimization": {"round_robin_gradients": True}}},
    ),
    "environment": ({"backend.env": {"A": "it is $5", "B_1": "", "C": "é\t#"}},),
    "cpu": ({"resources.device": "cpu", "resources.gpu_type": None, "precision.dtype": "fp32"},),
    "layout": tuple(
        {f"parallel.{size}": layout.get(size, 1) for size in SIZES}
        | {f"resources.{key}": layout[key] for key in ("nodes", "gpus_per_node")}
        for layout in LAYOUTS
    ),
}  # fmt: skip


@functools.cache
def fields() -> dict[str, list[Any]]:
    """Return the values to draw from, for each field of the run's JSON schema."""
    schema = RunConfig.model_json_schema()
    found: dict[str, list[Any]] = {}

    def walk(node: dict[str, Any], prefix: str) -> None:
        for key, value in node.get("properties", {}).items():
            reference = value.get("$ref")
            inner = schema["$defs"][reference.rpartition("/")[2]] if reference else value
            if "properties" in inner:
                walk(inner, f"{prefix}{key}.")
            elif values := list(_values(inner)):
                found[prefix + key] = values

    walk(schema, "")
    return found


def _values(value: dict[str, Any]) -> Iterator[Any]:
    for option in value.get("anyOf", [value]):
        if "enum" in option:
            yield from option["enum"]
        kind = option.get("type")
        if kind == "null":
            yield None
        elif kind == "boolean":
            yield from (False, True)
        elif kind in ("integer", "number"):
            yield from (one for one in (WHOLE if kind == "integer" else REAL) if _within(option, one))
        elif kind == "string" and "maxLength" in option:
            yield from TEXTS


def _within(bounds: dict[str, Any], value: float) -> bool:
    least, most = bounds.get("minimum", value), bounds.get("maximum", value)
    above, below = bounds.get("exclusiveMinimum", value - 1), bounds.get("exclusiveMaximum", value + 1)
    return bool(least <= value <= most and above < value < below)


def drawn_run(chance: random.Random) -> RunConfig:
    """Draw an example and up to 25 changes; a change that would break a rule is skipped."""
    values, changes = fields(), {}
    config = load(name := chance.choice(NAMES))
    for _ in range(chance.randint(5, 25)):
        if chance.random() < 0.3:
            change = chance.choice(GROUPS[chance.choice(list(GROUPS))])
        else:
            key = chance.choice(sorted(values))
            change = {key: chance.choice(values[key])}
        try:
            config = load(name, changes | change)
            changes |= change
        except ConfigError:
            continue
    return config
