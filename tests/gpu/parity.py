"""Step `parity`: loss curves of a small GPT on the GPU, in every number format,
compared with fp32 on the CPU.

All runs start with the same weights and samples, without dropout. The order of sums and the rounding of
numbers may differ, within the limits of tolerance.py.
"""

import functools
from collections.abc import Iterator
from typing import Any

from nbtrain.config.arithmetic.devices import find_device
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if
from tests.gpu.tolerance import Difference, allowed, difference
from tests.gpu.trained import Trained, Trainings

FORMATS: dict[str, dict[str, Any]] = {
    "fp32": {"precision.dtype": "fp32"},
    "bf16": {"precision.dtype": "bf16"},
    "autocast": {"precision.dtype": "bf16", "precision.autocast": True},
    "fp16": {"precision.dtype": "fp16", "precision.fp16.initial_scale_power": 11},
    "fp8": {"precision.dtype": "bf16", "precision.fp8": True},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, overrides) for name, overrides in FORMATS.items()},
    "bf16, ZeRO 2": ("bf16", FORMATS["bf16"] | {"parallel.zero_stage": 2}),
    "bf16, ZeRO 3": ("bf16", FORMATS["bf16"] | {"parallel.zero_stage": 3}),
    "bf16, math attention": ("bf16", FORMATS["bf16"] | {"model.attention_backend": "math"}),
    "bf16, full recomputation": (
        "bf16",
        FORMATS["bf16"] | {"parallel.activation_checkpointing.granularity": "full"},
    ),
    "bf16, compiled": ("bf16", FORMATS["bf16"] | {"model.compile": True}),
}
FP8_CAPABILITY = (9, 0)


def overrides_of(on_gpu: bool) -> dict[str, Any]:
    """Return the overrides of a case for the small run in tests/train/launch.py."""
    layers, hidden, heads, seq, steps = (4, 256, 4, 128, 30) if on_gpu else (2, 64, 4, 32, 5)
    tokens = 16 * seq
    return {
        "model.num_layers": layers,
        "model.hidden_size": hidden,
        "model.num_attention_heads": heads,
        "model.seq_length": seq,
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "model.cross_entropy_chunk_tokens": 4 * seq,
        "batch.micro_batch_size": 4,
        "batch.global_batch_size": 16,
        "batch.train_tokens": steps * tokens,
        "lr_schedule.lr_warmup_tokens": 4 * tokens,
        "evaluation.eval_iters": 0,
        "logging.log_interval_steps": 10,
    }


def cases(place: Place) -> Iterator[Case]:
    """Yield every format on the GPU; on a CPU, only bf16 against fp32."""
    trainings = Trainings(place)

    @functools.cache
    def reference() -> Trained:
        return _train(trainings, "reference", FORMATS["fp32"], "cpu")

    def find(name: str) -> Finding:
        number_format, overrides = VARIANTS[name]
        device = find_device(place.gpu_name)
        if number_format == "fp8" and device and device.compute_capability < FP8_CAPABILITY:
            raise Impossible(f"FP8 needs a GPU from Hopper on; {place.gpu_name} is older")
        if number_format == "bf16" and device and device.compute_capability < (8, 0):
            raise Impossible(f"bf16 needs a GPU from Ampere on; {place.gpu_name} is older")
        ours = _train(trainings, name, overrides, place.device)
        theirs = reference()
        return judged(difference(ours.losses, ours.norms, theirs.losses, theirs.norms), number_format, ours)

    for name in VARIANTS if place.on_gpu else ("bf16",):
        yield Case(name, functools.partial(find, name))


def judged(found: Difference, number_format: str, ours: Trained) -> Finding:
    """Return the differences of two curves next to their limits."""
    limit = allowed(number_format)
    values = {
        "first loss": f"{found.first_loss:.1e} of {limit.first_loss:.1e}",
        "loss": f"{found.loss:.1e} of {limit.loss:.1e}",
        "gradient norm": f"{found.norm:.1e} of {limit.norm:.1e}",
    }
    exceeded = found.exceeds(limit)
    losses = ours.losses
    words = f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}"
    return passed_if(not exceeded, "; ".join([*exceeded, words]), values)


def _train(trainings: Trainings, name: str, overrides: dict[str, Any], device: str) -> Trained:
    data = {"data.name": trainings.dataset("walks", 600, (64, 512), 500)}
    place = {"resources.device": device, "resources.gpus_per_node": int(device == "gpu")}
    run = trainings.make(name, {**overrides_of(trainings.place.on_gpu), **data, **place, **overrides})
    return trainings.train(run, device=device)
