"""Compares a run's predicted and measured step time and peak memory, from plan.json and its progress.

prediction(plan, progress, curves)  ->  {"rows": [{"name", "predicted", "measured", "ratio"}], "basis"}
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any


def prediction(
    plan: Mapping[str, Any] | None, progress: Mapping[str, Any] | None, curves: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the predictions made at submission and the measurements so far; None without a prediction.

    name       "step" (seconds) or "memory" (bytes of device memory; on a CPU, of the process)
    measured   step time at the median throughput, or peak memory of rank 0; None before a measurement
    ratio      measured / predicted; None before a measurement
    basis      source of the predicted step time, as a text
    """
    if not plan:
        return None
    duration, memory = plan.get("duration") or {}, plan.get("memory") or {}
    rate, tokens = duration.get("tokens_per_second"), plan.get("tokens_per_step")
    speeds = [value for value in curves["tokens_per_second"]["values"] if value and math.isfinite(value)]
    # Omit the first value, because the first steps allocate memory and compile kernels.
    speed = statistics.median(speeds[1:] or speeds) if speeds else None
    predicted_step = tokens / rate if tokens and rate else None
    pairs = (
        ("step", predicted_step, tokens / speed if tokens and speed else None),
        ("memory", memory.get("total_bytes"), (progress or {}).get("memory_bytes")),
    )
    rows = [
        {
            "name": name,
            "predicted": predicted,
            "measured": measured,
            "ratio": measured / predicted if measured else None,
        }
        for name, predicted, measured in pairs
        if predicted
    ]
    return {"rows": rows, "basis": duration.get("basis") or ""} if rows else None
