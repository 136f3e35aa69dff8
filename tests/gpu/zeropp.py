"""Step `zeropp`: ZeRO++ (arXiv:2306.10209): the error of DeepSpeed's quantization, and runs that use it.

On one GPU no data is sent, so a run only shows that the kernels are built and called; with several GPUs the
runs use all of them. DeepSpeed maps the largest number of a group to 2 to the power of (bits - 1), and then
clips it by one. So a number is off by at most one step, 1 / 128 or 1 / 8 of the group's largest number
(quantization_utils.h).
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch

from nbtrain.config.load import load_resolved
from nbtrain.jobs.checks.preflight_tools import extensions_can_be_built
from nbtrain.jobs.request.launch import read_launch
from nbtrain.parallel.startup import prepare_deepspeed
from tests.gpu.cases import Case, Finding, Impossible, Place, passed_if
from tests.gpu.parity import FORMATS, overrides_of
from tests.gpu.tolerance import allowed, difference
from tests.gpu.trained import Trained, Trainings

GROUPS, GROUP = 64, 4096
ZERO_3 = FORMATS["bf16"] | {"parallel.zero_stage": 3, "parallel.stage3_param_persistence_threshold": 0}
# name: (overrides, the coarsest format in it)
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "hpZ": ({"parallel.zero_hpz": True}, "bf16"),
    "qwZ": ({"parallel.zero_quantized_weights": True}, "int8"),
    "qgZ": ({"parallel.zero_quantized_gradients": True}, "int4"),
    "hpZ, qwZ, qgZ": (
        {
            "parallel.zero_hpz": True,
            "parallel.zero_quantized_weights": True,
            "parallel.zero_quantized_gradients": True,
        },
        "int4",
    ),
}


def cases(place: Place) -> Iterator[Case]:
    """Yield hpZ, which needs no kernel, then the kernels, and the runs that need them."""
    trainings, ranks = Trainings(place), max(place.gpus, 1)

    @functools.cache
    def reference() -> Trained:
        return _train(trainings, "reference", {}, ranks)

    def find(name: str) -> Finding:
        overrides, coarsest = RUNS[name]
        ours, theirs = _train(trainings, name, overrides, ranks), reference()
        found = difference(ours.losses, ours.norms, theirs.losses, theirs.norms)
        limit = allowed(coarsest)
        values = {"error": f"{found.loss:.1e} nats", "allowed": f"{limit.loss:.1e}"}
        alone = "; on one GPU nothing is sent" if ranks == 1 else ""
        words = f"{len(ours.losses)} steps on {ranks} {'GPUs' if place.on_gpu else 'CPU rank'}{alone}"
        return passed_if(found.loss <= limit.loss, words, values)

    yield Case("hpZ", functools.partial(find, "hpZ"))
    for bits in (8, 4):
        yield Case(f"kernels of INT{bits}", functools.partial(_round_trip, place, bits))
    for name in RUNS:
        if name != "hpZ":
            yield Case(name, functools.partial(find, name))


def _train(trainings: Trainings, name: str, overrides: dict[str, Any], ranks: int) -> Trained:
    if not trainings.place.on_gpu and "quantized" in " ".join(overrides):
        raise Impossible("DeepSpeed's quantization runs on GPUs only")
    sizes = overrides_of(trainings.place.on_gpu)
    sequences = 2 * ranks * max(1, 8 // ranks) if trainings.place.on_gpu else 2
    steps = 20 if trainings.place.on_gpu else 4
    batch = {
        "parallel.data_parallel_size": ranks,
        "batch.micro_batch_size": 2,
        "batch.global_batch_size": sequences,
        "batch.train_tokens": steps * sequences * sizes["model.seq_length"],
        "lr_schedule.lr_warmup_tokens": sequences * sizes["model.seq_length"],
    }
    data = {"data.name": trainings.dataset("walks", 600, (64, 512), 500)}
    run = trainings.make(name, {**sizes, **data, **batch, **ZERO_3, **overrides})
    if reasons := list(extensions_can_be_built(read_launch(load_resolved(run.config_yaml)))):
        raise Impossible(" ".join(map(str, reasons)))
    return trainings.train(run) if ranks == 1 else trainings.train_on_all(run, ranks)


def _round_trip(place: Place, bits: int) -> Finding:
    """Quantize random normal numbers, with a different scale for each group, and restore them."""
    if not place.on_gpu:
        raise Impossible("DeepSpeed's quantization runs on GPUs only")
    prepare_deepspeed("gpu")
    from deepspeed.ops.op_builder import QuantizerBuilder

    kernels = QuantizerBuilder().load()
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(GROUPS, GROUP, generator=generator) * torch.logspace(-3, 2, GROUPS).unsqueeze(1)
    numbers = numbers.to("cuda", torch.half)
    quantized, scales = kernels.quantize(numbers, GROUPS, bits, kernels.Symmetric)
    restored = kernels.dequantize(quantized, scales, GROUPS, bits, kernels.Symmetric)
    return judged_round_trip(numbers, restored, bits)


def judged_round_trip(numbers: torch.Tensor, restored: torch.Tensor, bits: int) -> Finding:
    """Return the largest error of a number, as a fraction of the largest number in its group."""
    largest = numbers.float().abs().amax(dim=1, keepdim=True)
    error = float(((restored.view_as(numbers).float() - numbers.float()).abs() / largest).max())
    # One step, and the result's own rounding to fp16.
    limit = 2.0 ** (1 - bits) + 2.0**-11
    values = {"error": f"{error:.2e} of the group's largest", "allowed": f"{limit:.2e}"}
    return passed_if(error <= limit, f"{numbers.numel():,} numbers in {len(numbers)} groups", values)
