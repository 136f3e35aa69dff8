"""Seconds of one optimizer step on this machine's CPU, computed from its calibration.

    micro batch   blocks and ends (embeddings, output layer, loss), at the measured rates of the layers
    tensor        4 all-reduces of [tokens, h] in each block, 6 with full recomputation; 2 in the ends
    bubble        1F1B: the slowest stage m times, each other stage once (arXiv:2104.04473, section 2.2)
    host          DeepSpeed's overhead per step, micro batch and block
    optimizer     seconds per parameter: gradients, their sum over data-parallel ranks, AdamW, ZeRO; with
                  Muon, also its matrix products at the best measured rate

The parts "host" and "optimizer" come from measured steps of very small models
(train/calibration/engine_steps.py). With m micro batches, a step takes

    seconds = F + m (M + L layers) + P parameters + m (layers x block + ends)

F, M, L and P (Overhead) are unknown for each number of ranks, number format and ZeRO stage, so four models
are measured. Between measured sizes, the seconds are interpolated as a power of the size. The rates for two
ranks are measured on one rank while the other rank is busy, because cores share caches and memory.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

from nbtrain.config.arithmetic.flops import muon_flops_by_parameter
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.shape import Shape
from nbtrain.planner.calibration.calibration import Calibration, Figure
from nbtrain.planner.setup.setup import Setup

BLOCK_SEQUENCE = 256
"""Sequence length of the measured blocks (train/calibration/kernels.py)."""
HEAD_SIZE = 64

PARTS = (
    *("compute", "recompute", "tensor", "sequence", "bubble"),
    *("pipeline", "data", "optimizer", "offload", "host"),
)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds that DeepSpeed's engine adds to the computation of a step: F, M, L and P in this order."""

    step: float
    micro_batch: float
    block: float
    """Seconds per block and micro batch."""
    parameter: float
    """Seconds per parameter on the rank."""


def calibrated_step(setup: Setup, calibration: Calibration) -> dict[str, float] | None:
    """Return the seconds of a step by part (PARTS); None if the calibration does not apply to the setup.

    It applies to a CPU run on one machine in fp32 or bf16, without offloading, Ulysses, context parallelism,
    LoRA and preference pairs (dpo). The measured steps train all weights, with three matrix products in the
    output layer.
    """
    measured = calibration.of("block", dtype=setup.dtype)
    if setup.on_gpu or not measured or setup.nodes > 1 or setup.offload_optimizer != "none":
        return None
    if setup.sharing > 1 or setup.autocast or setup.lora_rank or setup.prefers:
        return None
    if setup.muon_steps and setup.dtype not in calibration.matmul_flops():
        return None
    return _Rank(setup, calibration).step()


class _Rank:
    """One rank of a setup, and its rates as measured while one or two ranks of the machine were busy."""

    def __init__(self, setup: Setup, calibration: Calibration):
        self.setup, self.calibration = setup, calibration
        self.ranks = 1 if setup.world_size == 1 else 2
        if not calibration.of("block", ranks=self.ranks):
            self.ranks = 1
        self.tokens = setup.tokens_per_micro_batch

    def step(self) -> dict[str, float]:
        setup = self.setup
        micro_batches, stages = setup.accumulation_steps, setup.pipeline_parallel_size
        layers = setup.layers_by_stage
        forward, backward = self.block()
        again = forward if setup.recompute == "full" else 0.0
        sums, end_sums = self.tensor_sums()
        overhead = self.overhead()
        costs = [count * (forward + backward + again + sums + overhead.block) for count in layers]
        first, last = self.ends()
        costs[0] += first
        costs[-1] += last + end_sums
        slowest, whole = max(costs), sum(costs)
        total = micro_batches * slowest + whole - slowest
        each = micro_batches / stages
        parts = dict.fromkeys(PARTS, 0.0)
        parts["compute"] = each * (sum(layers) * (forward + backward) + first + last)
        parts["recompute"] = each * sum(layers) * again
        parts["tensor"] = each * (sum(layers) * sums + end_sums)
        parts["bubble"] = total - micro_batches * whole / stages
        parts["host"] = each * sum(layers) * overhead.block + overhead.step
        parts["host"] += micro_batches * overhead.micro_batch
        parts["optimizer"] = overhead.parameter * self.parameters(layers) + self.newton_schulz()
        if stages > 1:
            sent = self.collective("send_recv", self.activation_bytes())
            parts["pipeline"] = 2 * (micro_batches + stages - 1) * sent
        if (more := setup.data_axis_size) > 2:
            parts["data"] = self._more_ranks(more, parts["optimizer"])
        return parts

    def newton_schulz(self) -> float:
        """Return the seconds of Muon's matrix products per step on this rank; 0 with AdamW."""
        setup = self.setup
        if not setup.muon_steps:
            return 0.0
        whole = max(setup.layers_by_stage) * sum(muon_flops_by_parameter(setup.shape, setup.muon_steps))
        rates = self.calibration.matmul_flops() | self.calibration.matmul_flops(self.ranks)
        return whole / setup.muon_ranks / rates[setup.dtype]

    def block(self) -> tuple[float, float]:
        """Return the seconds of one block for one micro batch on this rank: (forward, backward)."""
        shape, tensor = self.setup.shape, self.setup.tensor_parallel_size
        figures = self.calibration.of("block", ranks=self.ranks, dtype=self.setup.dtype)
        norms = self.calibration.of("norms", ranks=self.ranks, dtype=self.setup.dtype)
        uncut = self._by_size(norms, lambda figure: figure["seconds"])
        seconds = []
        for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
            whole = self._by_size(figures, lambda figure, name=name: figure[name])  # type: ignore[misc]
            whole += self._attention(name)
            cut = max(whole - share * uncut, 0.0)
            # The measured block has an MLP of width 4 h, but a run's MLP may be wider or narrower.
            width = (shape.attention_weights + shape.mlp_weights) / (12 * shape.hidden_size**2)
            seconds.append(cut * width / tensor + share * uncut)
        return seconds[0], seconds[1]

    def _attention(self, name: str) -> float:
        """Return the seconds to add to the measured block for attention at the setup's sequence length.

        The result is negative if sequences are shorter than the block's BLOCK_SEQUENCE tokens, and 0 without
        measurements of attention. `name` is the pass: "forward" or "backward".
        """
        figures = self.calibration.of("attention", ranks=self.ranks, dtype=self.setup.dtype)
        points = sorted((figure["seq"], figure[name]) for figure in figures)
        if not points:
            return 0.0
        more = power_between(points, self.setup.shape.seq_length) - power_between(points, BLOCK_SEQUENCE)
        return more * self.tokens * self.setup.shape.query_width / HEAD_SIZE

    def _by_size(self, figures: list[Figure], value: Callable[[Figure], float]) -> float:
        return _by_size(figures, self.setup.shape.hidden_size, self.tokens, value)

    def ends(self) -> tuple[float, float]:
        """Return the seconds of the embeddings, the output layer and the loss for one micro batch.

        The result is (first stage, last stage). All of the time is counted for the last stage, because the
        embeddings take little time compared with the output layer.
        """
        figures = self.calibration.of("ends", ranks=self.ranks, dtype=self.setup.dtype)
        shape = self.setup.shape
        vocabulary = shape.padded_vocab_size // self.setup.tensor_parallel_size
        return 0.0, _ends(figures, shape.hidden_size, vocabulary, self.tokens)

    def activation_bytes(self) -> int:
        """Return the bytes of a [tokens, h] tensor in the number format of the activations."""
        return self.tokens * self.setup.shape.hidden_size * (4 if self.setup.dtype == "fp32" else 2)

    def tensor_sums(self) -> tuple[float, float]:
        """Return the seconds of tensor-parallel sums per micro batch: (in a block, outside the blocks)."""
        if self.setup.tensor_parallel_size == 1:
            return 0.0, 0.0
        once = self.collective("all_reduce", self.activation_bytes())
        return (6 if self.setup.recompute == "full" else 4) * once, 2 * once

    def collective(self, kind: str, size: float) -> float:
        """Return the seconds of a collective (such as all_reduce) over `size` bytes; 0 if not measured."""
        figures = self.calibration.of("collective", collective=kind, ranks=2)
        points = sorted((one["bytes"], one["seconds"]) for one in figures)
        # Messages below the smallest measured size take the same time, which is the latency.
        return power_between(points, max(size, points[0][0])) if points else 0.0

    def _more_ranks(self, ranks: int, optimizer: float) -> float:
        """Return the seconds by which sums over `ranks` instead of two ranks lengthen the optimizer step.

        `optimizer` is the time of the optimizer step as measured with two ranks. The result is 0 if sums over
        `ranks` ranks were not measured.
        """
        two, more = (self.calibration.of("collective", collective="all_reduce", ranks=n) for n in (2, ranks))
        if not two or not more:
            return 0.0
        largest = [max(figures, key=lambda one: one["bytes"])["seconds"] for figures in (two, more)]
        return max(largest[1] / largest[0] - 1, 0.0) * optimizer

    def parameters(self, layers: tuple[int, ...]) -> int:
        """Return the number of parameters on the fullest rank."""
        shape, tensor, last = self.setup.shape, self.setup.tensor_parallel_size, len(layers) - 1
        return max(
            count_layers(shape, count, at == 0, at == last, tensor).total for at, count in enumerate(layers)
        )

    def overhead(self) -> Overhead:
        """Return the overhead for this rank's ZeRO stage and number of data-parallel ranks."""
        stage = {2: 1}.get(self.setup.zero_stage, self.setup.zero_stage)
        ranks = self.ranks if self.setup.data_axis_size > 1 else 1
        figures = self.calibration.of("step", dtype=self.setup.dtype, zero_stage=stage)
        figures = [one for one in figures if one["ranks"] == ranks] or figures
        return overhead_of({one["model"]: one for one in figures}, self.calibration, ranks)


def overhead_of(models: dict[str, Figure], calibration: Calibration, ranks: int) -> Overhead:
    """Return F, M, L and P, fitted to the steps of the four models; negative values are set to 0.

    `models` is {"base", "micro", "layers" or "wide": its measured step}. All values are 0 if a model is
    missing.
    """
    if set(models) != {"base", "micro", "layers", "wide"}:
        return Overhead(0.0, 0.0, 0.0, 0.0)
    left, parameters = {}, {}
    for name, one in models.items():
        hidden, tokens, dtype = one["hidden"], one["tokens"], one["dtype"]
        blocks = calibration.of("block", ranks=ranks, dtype=dtype)
        block = _by_size(blocks, hidden, tokens, lambda figure: figure["forward"] + figure["backward"])
        ends = _ends(calibration.of("ends", ranks=ranks, dtype=dtype), hidden, one["vocabulary"], tokens)
        left[name] = one["seconds"] - one["micro_batches"] * (one["layers"] * block + ends)
        shape = Shape(
            one["layers"],
            hidden,
            max(hidden // HEAD_SIZE, 1),
            4 * hidden,
            one["vocabulary"],
            tokens,
            max(hidden // HEAD_SIZE, 1),
            HEAD_SIZE,
            learned_positions=tokens,
        )
        parameters[name] = count_layers(shape, one["layers"], True, True, 1).total
    more = parameters["wide"] - parameters["base"]
    parameter = max((left["wide"] - left["base"]) / more, 0.0)
    deeper = models["layers"]["layers"] - models["base"]["layers"]
    grown = parameter * (parameters["layers"] - parameters["base"])
    block = max((left["layers"] - left["base"] - grown) / deeper, 0.0)
    batches = models["micro"]["micro_batches"] - models["base"]["micro_batches"]
    micro_batch = max((left["micro"] - left["base"]) / batches - block, 0.0)
    step = max(left["base"] - micro_batch - block - parameter * parameters["base"], 0.0)
    return Overhead(step, micro_batch, block, parameter)


def power_between(points: list[tuple[float, float]], x: float) -> float:
    """Return the value at x, interpolated or extrapolated from measured (x, value) points as a power of x."""
    points = [(at, max(value, 1e-12)) for at, value in points]
    if len(points) == 1:
        return points[0][1]
    upper = min(max(bisect.bisect_left([at for at, _ in points], x), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    slope = math.log(y1 / y0) / math.log(x1 / x0)
    return y0 * (x / x0) ** slope


def _by_size(figures: list[Figure], hidden: int, tokens: int, value: Callable[[Figure], float]) -> float:
    """Return the seconds that `tokens` tokens take at a hidden size, interpolated between measurements.

    `value` returns the seconds of a measurement. The measurements are interpolated first by tokens, then by
    hidden size.
    """
    by_hidden: dict[int, list[tuple[float, float]]] = {}
    for figure in figures:
        by_hidden.setdefault(figure["hidden"], []).append((figure["tokens"], value(figure)))
    points = []
    for size, measured in sorted(by_hidden.items()):
        measured.sort()
        # Outside the measured range, the seconds are proportional to the number of tokens.
        nearest = min(max(tokens, measured[0][0]), measured[-1][0])
        points.append((float(size), power_between(measured, nearest) * tokens / nearest))
    return power_between(points, hidden) if points else 0.0


def _ends(figures: list[Figure], hidden: int, vocabulary: int, tokens: int) -> float:
    """Return the seconds that embeddings, output layer and loss take for `tokens` tokens."""
    by_hidden: dict[int, list[tuple[float, float]]] = {}
    for figure in figures:
        each = figure["seconds"] / figure["tokens"]
        by_hidden.setdefault(figure["hidden"], []).append((figure["vocabulary"], each))
    points = [
        (float(size), power_between(sorted(seen), vocabulary)) for size, seen in sorted(by_hidden.items())
    ]
    return tokens * power_between(points, hidden) if points else 0.0
