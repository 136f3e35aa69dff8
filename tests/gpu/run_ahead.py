"""Step `run-ahead`: the host launches the next step while the GPU still works on the previous one.

In steps without logging, waits for the GPU are counted, as torch's sync debug mode reports them and as
waiting CUDA runtime calls in a profile. StepGuard checks each step one step later
(nbtrain/train/health/stability.py), so its wait for an event is expected. ZeRO 3 and fp16 need DeepSpeed's
own checks, which wait; those waits are reported but allowed.
"""

import functools
from collections.abc import Iterator
from typing import Any

from tests.gpu.cases import Case, Finding, Place, passed_if
from tests.gpu.parity import FORMATS, overrides_of
from tests.gpu.trained import Trainings

STEPS = 20
# name: (overrides, whether no wait is allowed)
RUNS: dict[str, tuple[dict[str, Any], bool]] = {
    "bf16, ZeRO 1": (FORMATS["bf16"], True),
    "bf16, ZeRO 2": (FORMATS["bf16"] | {"parallel.zero_stage": 2}, True),
    "autocast, ZeRO 1": (FORMATS["autocast"], True),
    "fp32, ZeRO 1": (FORMATS["fp32"], True),
    "bf16, ZeRO 3": (FORMATS["bf16"] | {"parallel.zero_stage": 3}, False),
    "fp16, ZeRO 2": (FORMATS["fp16"] | {"parallel.zero_stage": 2}, False),
}


def cases(place: Place) -> Iterator[Case]:
    """Yield each run once; on a CPU a single run, whose reads of numbers from tensors are counted instead."""
    trainings = Trainings(place)
    for name in RUNS if place.on_gpu else ("bf16, ZeRO 1",):
        yield Case(name, functools.partial(_find, trainings, name))


def _find(trainings: Trainings, name: str) -> Finding:
    overrides, is_strict = RUNS[name]
    sizes = overrides_of(trainings.place.on_gpu)
    tokens = sizes["batch.global_batch_size"] * sizes["model.seq_length"]
    steps = STEPS if trainings.place.on_gpu else 7
    data = {
        "data.name": trainings.dataset("walks", 600, (64, 512), 500),
        "batch.train_tokens": steps * tokens,
    }
    settings = {**sizes, **data, "logging.log_interval_steps": 1000, **overrides}
    run = trainings.make(name, settings, trace=False)
    return judged(trainings.train(run, "waits").found, is_strict and trainings.place.on_gpu)


def judged(found: dict[str, Any], is_strict: bool) -> Finding:
    """Return the counts; a wait fails the case unless the run is allowed to wait."""
    waits, calls, events = found["torch"], found["calls"], found["events"]
    values = {
        "waits of torch": f"{sum(waits.values())} in {found['watched']} steps",
        "waits of the runtime": f"{sum(calls.values())} in {found['profiled']} steps",
        "of the guard": f"{events} in {found['profiled']} steps",
    }
    places = ", ".join(
        f"{place} {count}" for place, count in sorted(waits.items(), key=lambda pair: -pair[1])[:4]
    )
    runtime = ", ".join(f"{name} {count}" for name, count in calls.items())
    words = "; ".join(part for part in (places, runtime) if part) or "no wait"
    seen = found["watched"] > 0 and found["profiled"] > 0
    quiet = not waits and not calls and events <= found["profiled"]
    return passed_if(seen and (quiet or not is_strict), words if seen else "no step was watched", values)
