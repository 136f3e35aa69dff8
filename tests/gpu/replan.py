"""Today's plan of measured cases, and what has changed since a case was measured.

A row keeps the plan of the code that it was measured with. The page shows today's plan next to it, so that
an old plan is not mistaken for the current one. Measured values are never changed.
"""

from collections.abc import Collection, Mapping
from typing import Any

from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import parse_yaml
from nbtrain.planner.time.duration import estimate_duration
from tests.benchmarks import train_gpu
from tests.gpu import memory, speed
from tests.train.launch import TINY

# Changes since a case was measured, by step, case and the row's key: a new result has another key.
SINCE: dict[tuple[str, str, str], str] = {
    ("run-ahead", "fp32, ZeRO 1", "b70cf248266ef1df"): (
        "both lines belonged to DeepSpeed's mask of a bad norm, and the other waits to it and to DeepSpeed's "
        "throughput timer. train/engine/run_ahead.py replaced the mask and "
        "config/deepspeed/ds_config.py turned the timer off; the other three rows were measured after that. "
        "On a CPU, a step of fp32 reads no number "
        "from a tensor (tests/train/engine/test_run_ahead.py)"
    ),
    **{
        ("zeropp", case, "aad692629549a497"): (
            "TORCH_CUDA_ARCH_LIST had 9.0a, a letter that DeepSpeed's builder does not read; "
            "parallel/startup.py now removes letters before DeepSpeed is imported"
        )
        for case in ("kernels of INT8", "kernels of INT4", "qwZ", "hpZ, qwZ, qgZ")
    },
    **{
        ("memory", case, "6bfa67f13da17a0a"): (
            "states were planned with gradients, which DeepSpeed releases before the next step, and "
            "without cuBLAS's workspaces; the device's memory without the free blocks that torch keeps. "
            "One GPU now allocates one bucket for gradients (config/deepspeed/ds_config.py), "
            "and allocated two then"
        )
        for case in ("125m as its YAML says", "1.3b as its YAML says")
    },
    ("memory", "125m, micro 16, none", "6bfa67f13da17a0a"): (
        "states were planned with 16-bit gradients, which DeepSpeed releases before the next step, "
        "and without cuBLAS's workspaces; the device's memory without the free blocks that torch keeps"
    ),
    ("speed", "125m, nbtrain", "6c03e27e6ad1d117"): (
        "the constants of nbtrain's engine were set from this step (planner/setup/engines.py), so that "
        "today's plan shows their fit and not the accuracy of a prediction"
    ),
}


def today(step: str, row: Mapping[str, Any], gpu_name: str) -> dict[str, str]:
    """Return today's values of a row's planned columns; {} if the step plans nothing for it."""
    if not row["values"] or find_device(gpu_name) is None:
        return {}
    if step == "memory":
        return _memory(row, gpu_name)
    if step == "speed" and row["values"].get("planned"):
        return _speed(row, gpu_name)
    return {}


def _memory(row: Mapping[str, Any], gpu_name: str) -> dict[str, str]:
    plan = memory.plan_of(row["name"], gpu_name)
    if plan is None:
        return {}
    planned_bytes = {"states": plan.states, "allocated": plan.allocated, "of the device": plan.device}
    values = {}
    for part, size in planned_bytes.items():
        planned, measured = size / memory.GIB, float(row["values"][f"{part} GiB"])
        values[f"{part}, planned"] = f"{planned:.2f} ({planned / measured - 1:+.1%})"
    return values


def _speed(row: Mapping[str, Any], gpu_name: str) -> dict[str, str]:
    planned = _tokens_per_second(row["name"], gpu_name)
    measured = float(row["values"]["tokens/s"].replace(",", ""))
    return {"planned": f"{planned:,.0f} ({planned / measured - 1:+.0%})"}


def _tokens_per_second(case: str, gpu_name: str) -> float:
    """Plan the run of tests/benchmarks/train_gpu.py with its default options."""
    device = find_device(gpu_name)
    options = train_gpu.arguments([])
    options.compiled, options.gpu_type = "compiled" in case, device.name if device else None
    size = train_gpu.SIZES[case.split(",")[0]]
    base = RunConfig.model_validate(parse_yaml(TINY, "tiny.yaml").value)
    config = load(base, train_gpu.run_yaml_overrides(size, options, "gpu"))
    planned = estimate_duration(config, use_measured=False).tokens_per_second
    assert planned is not None
    return planned


def not_run(step: str, names: Collection[str], gpu_name: str) -> list[str]:
    """Return the planned cases of a step that are not among `names`, each with today's plan.

    A plan that stands here before its case is measured is a prediction.
    """
    if find_device(gpu_name) is None:
        return []
    if step == "speed":
        cases = [f"{size}, nbtrain{more}" for more in ("", ", compiled") for size in speed.TARGETS]
        plans = {case: f"{_tokens_per_second(case, gpu_name):,.0f} tokens/s" for case in cases}
    elif step == "memory":
        planned = {case: memory.plan_of(case, gpu_name) for case, _ in memory.wanted(on_gpu=True)}
        plans = {case: f"{plan.device / memory.GIB:.1f} GiB" for case, plan in planned.items() if plan}
    else:
        return []
    return [f"{case}: {words}" for case, words in plans.items() if case not in names]


def verdict(step: str, row: Mapping[str, Any], gpu_name: str) -> str:
    """Return how far today's plan of a row's memory is off at most; "" for other steps."""
    values = today(step, row, gpu_name) if step == "memory" else {}
    if not values:
        return ""
    off = max(abs(float(value.partition("(")[2].rstrip("%)"))) for value in values.values())
    return f"today's plan is off by {off:.1f}% at most, allowed is {memory.ALLOWED:.0%}"


def since(step: str, row: Mapping[str, Any]) -> str:
    """Return what has changed since the row was measured; "" if nothing is known to have."""
    return SINCE.get((step, row["name"], row["key"]), "")


def is_old(step: str, row: Mapping[str, Any], gpu_name: str) -> bool:
    """Return whether today's plan is another, or the code that the case is about has changed."""
    return bool(since(step, row)) or any(
        row["values"].get(column) != value for column, value in today(step, row, gpu_name).items()
    )
