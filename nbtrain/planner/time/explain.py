"""Explanation of a step's time: explain(setup) returns Terms that add up to estimate_step(setup).

The Terms in seconds are StepTime's parts, with `compute` divided into products, attention, memory traffic and
output layer. The Terms in bytes are what one rank sends in a step, by kind of parallelism. The estimates are
computed in compute.py, traffic.py and step.py; this module writes the formulas with their numbers.
"""

import math
from collections.abc import Sequence

from nbtrain.planner.setup.engines import ENGINES, Engine
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.setup.terms import Term
from nbtrain.planner.time import compute
from nbtrain.planner.time.compute import chunks_of, number_of_chunks
from nbtrain.planner.time.rates import Rates, rates_of_setup
from nbtrain.planner.time.step import OVERLAPPED_TENSOR, estimate_step
from nbtrain.planner.time.traffic import (
    Collective,
    DataTraffic,
    Group,
    block_traffic,
    boundary_bytes,
    data_traffic,
    group_of,
    muon_traffic,
    trained_parameters,
)

_PTD = "arXiv:2104.04473, section 2.2"
_ZERO = "arXiv:1910.02054, section 7"
_FPDT = "arXiv:2408.16978; DeepSpeed 0.19.8, sequence/fpdt_layer.py; nbtrain/planner/time/compute.py"
_TENSOR = "arXiv:1909.08053, section 3"


def explain(setup: Setup, rates: Rates | None = None) -> list[Term]:
    """Return the Terms of one step. Without `rates`, a device's table rates are used; [] if it is unknown."""
    rates = rates or rates_of_setup(setup)
    step = estimate_step(setup, rates) if rates else None
    if rates is None or step is None:
        return []
    engine, stages = ENGINES[setup.engine], setup.pipeline_parallel_size
    micro, layers = setup.accumulation_steps, setup.shape.num_layers / stages
    terms = [*_compute(setup, rates)]
    times = _blocks(micro, layers)
    full = setup.recompute == "full"
    parts = {
        "recompute": (
            f"{times} x {step.recompute / micro / layers * 1e3:.3g} ms: "
            + (
                "the block's forward pass again"
                if full
                else f"what {setup.recompute} recomputation repeats"
                if setup.recompute != "none"
                else ""
            )
            + ("" if not setup.fpdt_chunk_tokens else f"{', and ' * (setup.recompute != 'none')}FPDT's MLP"),
            "arXiv:2205.05198, section 5",
        ),
        "tensor": (f"{times} x {_tensor(setup, rates)}", _TENSOR),
        "sequence": (
            f"{times} x all-to-all, gather or ring traffic that does not overlap with attention"
            f"{_pieces(setup)}",
            "arXiv:2309.14509, section 3; arXiv:2310.01889",
        ),
        "bubble": (
            "m x (slowest - mean) + (all - slowest) / v, from the times of the stages, with m = "
            f"{_micro_batches(micro)}, {stages} stages of {_layers(setup)} blocks and v = "
            f"{_model_chunks(setup)} per rank",
            _PTD,
        ),
        "pipeline": (
            f"{micro + stages - 1:,} slots x 4 x {setup.virtual_stages} messages of "
            f"{_megabytes(boundary_bytes(setup))}, of which {1 - engine.hidden_pipeline:.0%} do not overlap "
            "with computation",
            _PTD,
        ),
        "data": (_data(setup, rates), _ZERO),
        "optimizer": (_optimizer(setup, rates), "arXiv:1910.02054, section 3.1: what Adam reads and writes"),
        "offload": (
            f"offload_optimizer: {setup.offload_optimizer}, offload_param: {setup.offload_param}; gradients "
            f"to the host and weights to the device at {rates.host_bytes_per_second / 1e9:g} GB/s, NVMe at "
            f"{rates.nvme_bytes_per_second / 1e9:g} GB/s",
            "arXiv:2101.06840, section 4; arXiv:2104.07857, section 5",
        ),
        "host": (
            f"{engine.step_seconds * 1e3:g} ms per step; a block that computes for less than "
            f"{engine.launch_seconds * 1e3 * (4 / 3 if full else 1):.3g} ms waits for its kernels to be "
            "launched",
            f"nbtrain/planner/setup/engines.py: {engine.title}",
        ),
    }
    if step.chunks:
        parts["chunks"] = _chunks(setup, rates, times)
    for name, (formula, source) in parts.items():
        if seconds := getattr(step, name):
            terms.append(Term(name, seconds, "seconds", formula, source))
    return [*terms, *traffic(setup)]


def traffic(setup: Setup) -> list[Term]:
    """Return Terms for the bytes that one rank sends in a step, by kind, without kinds that send nothing."""
    micro, stages = setup.accumulation_steps, setup.pipeline_parallel_size
    layers = setup.shape.num_layers / stages
    found = []

    def term(kind: str, size: float, formula: str, source: str) -> None:
        if size:
            found.append(Term(f"traffic / {kind}", size, "bytes", formula, source))

    def blocks_term(kind: str, collective: Collective, what: str, words: str, source: str) -> None:
        """Add a term for a collective that runs in each block for each micro batch."""
        formula = f"{_blocks(micro, layers)} x {collective.times:g} {what} x {_share(collective)} x {words}"
        term(kind, micro * layers * collective.sent_bytes, formula, source)

    block = block_traffic(setup)
    sums = block.sums
    term(
        "tensor",
        micro * layers * sums.sent_bytes,
        f"{_blocks(micro, layers)} x {sums.times:g} sums x {_share(sums)} x {sums.num_bytes:,} bytes",
        _TENSOR,
    )
    packed = f"{block.shared_groups.num_bytes:,.0f} bytes of query, key and value"
    blocks_term(
        "shared query groups",
        block.shared_groups,
        "gathers and scatters",
        packed,
        "nbtrain/parallel/query_groups.py",
    )
    traded = f"{block.ulysses.num_bytes:,.0f} bytes"
    blocks_term("Ulysses", block.ulysses, "all-to-alls", traded, "arXiv:2309.14509, section 3")
    fpdt = chunks_of(setup)
    forwards = 2 if setup.recompute == "full" else 1
    term(
        "host memory (FPDT)",
        micro * layers * (forwards * fpdt.forward_bytes + fpdt.backward_bytes),
        f"{_blocks(micro, layers)} x ({forwards} x {fpdt.forward_bytes:,.0f} forward + "
        f"{fpdt.backward_bytes:,.0f} backward) bytes of {fpdt.number} chunks, both ways",
        _FPDT,
    )
    muon = muon_traffic(setup)
    matrices = f"{muon.times:g} all-to-alls x {_share(muon)} x {muon.num_bytes:,.0f} bytes of matrices"
    term("Muon", muon.sent_bytes, matrices, "nbtrain/train/engine/muon.py")
    keys = f"{block.context.num_bytes:,.0f} bytes of keys and values"
    what, source = "passes", "arXiv:2310.01889, section 3"
    if ENGINES[setup.engine].gathers_keys:
        what, source = "gathers and scatters", "nbtrain/parallel/context.py"
    blocks_term("context parallelism", block.context, what, keys, source)
    if stages > 1:
        boundary = boundary_bytes(setup)
        term(
            "pipeline",
            2 * micro * setup.virtual_stages * boundary,
            f"2 directions x {_micro_batches(micro)} x {_model_chunks(setup)} x {boundary:,.0f} bytes",
            _PTD,
        )
    if (data := data_traffic(setup)) is not None:
        # hpZ's second gather stays inside a machine.
        gathers = [data.weights] if setup.hpz_size > 1 else [data.weights, data.weights_backward]
        sent = [collective for collective in (data.gradients, data.between_copies, *gathers) if collective]
        size = sum(collective.sent_bytes for collective in sent)
        term("data", size, _data_formula(data, gathers, setup.zero_stage == 3), _ZERO)
    return found


def _share(collective: Collective) -> str:
    """Format the fraction of an array that a rank sends: "2 x 3/4" for an all-reduce over four ranks."""
    twice = "2 x " if collective.factor == 2 else ""
    return f"{twice}{collective.ranks - 1}/{collective.ranks}"


def _data_formula(data: DataTraffic, gathers: Sequence[Collective | None], with_zero_3: bool) -> str:
    """Return the formula, as text, for the bytes that data parallelism and ZeRO send in a step."""
    gradients, copies, weights = data.gradients, data.between_copies, data.weights
    if weights is None:
        return f"all-reduce: {_share(gradients)} x {gradients.num_bytes:,.0f} bytes"
    times = gradients.times
    more = ""
    if copies is not None:
        more = f" + {times:,} x {_share(copies)} x {copies.num_bytes:,.0f} bytes between replicas"
    if not with_zero_3:
        scatters = "1 scatter" if times == 1 else f"{times:,} scatters"
        sent = f"{scatters} x {gradients.num_bytes:,.0f} + 1 gather x {weights.num_bytes:,.0f} bytes"
        return f"{_share(gradients)} x ({sent}){more}"
    number = sum(gather.times for gather in gathers if gather) / times
    gathered = "1 gather" if number == 1 else f"{number:g} gathers"
    sent = f"{gathered} x {weights.num_bytes:,.0f} + 1 scatter x {gradients.num_bytes:,.0f} bytes"
    return f"{_share(gradients)} x {times:,} x ({sent}){more}"


def _kernel(setup: Setup, engine: Engine) -> str:
    """Return text that says which attention kernel runs, and which pairs of positions it computes."""
    shape = setup.shape
    if setup.keeps_scores:
        return "attention that keeps its scores"
    if compute.masks_chunks(setup, engine):
        context = setup.context_parallel_size
        computed = 0.5 + 0.25 / context
        return f"attention with a mask for each chunk of a rank, computing {computed:.1%} of all pairs"
    if shape.attn_softcap:
        half = "nbtrain's kernel for capped scores, causal half"
    elif setup.on_gpu:
        half = f"flash attention {compute.flash_generation(setup, engine)}, causal half"
    else:
        half = "the causal half of all pairs"
    if not shape.window_layers:
        return half
    layers = f"{shape.window_share:.0%} of the layers"
    if setup.masks_windows:
        return f"{half}; in {layers}, all pairs, because the sliding window is a mask"
    return f"{half}; in {layers}, a sliding window of {shape.window_size:,} tokens"


def _compute(setup: Setup, rates: Rates) -> list[Term]:
    """Return the Terms of the four parts of `compute`."""
    engine, shape = ENGINES[setup.engine], setup.shape
    block = compute.block_times(setup, engine, rates)
    forward, backward = compute.attention_seconds(setup, engine, rates)
    micro, stages = setup.accumulation_steps, setup.pipeline_parallel_size
    layers = shape.num_layers / stages
    rate = compute.product_rate(setup, rates)
    tokens, tensor = setup.tokens_per_micro_batch, setup.tensor_parallel_size
    passes = 2 if setup.lora_rank else 3
    flops = 2 * passes * tokens * (shape.attention_weights + shape.mlp_weights) / tensor
    kept = compute.kept_bytes(setup)
    times = _blocks(micro, layers)
    memory = rates.memory_bytes_per_second
    # On a CPU, the rate of matrix products was measured in training, so it includes memory traffic.
    moved = f", and the matrices at {memory / 1e12:.3g} TB/s" if memory < math.inf else ""
    return [
        Term(
            "compute / products",
            micro * layers * passes * block.products,
            "seconds",
            f"{times} x ({flops / 1e12:.4g} TFLOP / {rate / 1e12:.4g} TFLOP/s{moved})",
            "arXiv:2104.04473, section 5.1; rates: nbtrain/planner/time/rates.py",
        ),
        Term(
            "compute / attention",
            micro * layers * (forward + backward),
            "seconds",
            f"{times} x {(forward + backward) * 1e3:.3g} ms: {_kernel(setup, engine)}",
            "arXiv:2205.14135, section 3.1; arXiv:2307.08691",
        ),
        Term(
            "compute / memory",
            micro * layers * 3 * block.memory,
            "seconds",
            f"{times} x {compute.traffic(setup, engine):g} x {kept / 1e9:.4g} GB / {memory / 1e12:.3g} TB/s",
            "arXiv:2205.05198, section 4.1; the program's traffic: nbtrain/planner/setup/engines.py",
        ),
        Term(
            "compute / output layer",
            micro * compute.logits_seconds(setup, rates) / stages,
            "seconds",
            f"{_micro_batches(micro)} x ({2 * compute.logit_products(setup)} x {tokens:,} tokens "
            f"x {shape.hidden_size:,} x {shape.padded_vocab_size:,} / {tensor} FLOP, "
            f"{compute.LOGIT_BYTES} bytes per logit) / {stages}",
            "arXiv:2104.04473, section 5.1",
        ),
    ]


def _tensor(setup: Setup, rates: Rates) -> str:
    sums = block_traffic(setup).sums
    group = group_of(setup, rates, sums.ranks, sums.stride)
    shown = 1 - (OVERLAPPED_TENSOR if setup.overlap_tensor else ENGINES[setup.engine].hidden_tensor)
    hidden = "" if shown == 1 else f", of which {shown:.0%} does not overlap with computation"
    return f"{sums.times:g} sums of {_megabytes(sums.num_bytes)} at {_gigabytes(group)}{hidden}"


def _pieces(setup: Setup) -> str:
    number = number_of_chunks(setup)
    return f", in {number} chunks" if number > 1 else ""


def _chunks(setup: Setup, rates: Rates, times: str) -> tuple[str, str]:
    """Return (formula, source), as text, for the time spent waiting for FPDT's chunks."""
    chunks = chunks_of(setup)
    attention = compute.attention_seconds(setup, ENGINES[setup.engine], rates)
    both = zip(("forward", "backward"), (chunks.forward_bytes, chunks.backward_bytes), attention)
    words = [
        f"{name} {size / 1e9:.3g} GB minus {hidden * 1e3:.3g} ms of attention" for name, size, hidden in both
    ]
    if setup.recompute == "full":
        words[0] = f"2 x {words[0]}"
    formula = (
        f"{times} x ({chunks.number} chunks over PCIe at {rates.host_bytes_per_second / 1e9:g} GB/s: "
        f"{', '.join(words)}, each at least 0; {chunks.merged_bytes / 1e9:.3g} GB of sums at "
        f"{rates.memory_bytes_per_second / 1e12:.3g} TB/s)"
    )
    return formula, _FPDT


def _data(setup: Setup, rates: Rates) -> str:
    group = group_of(setup, rates, setup.data_axis_size, setup.tensor_parallel_size)
    size = sum(term.value for term in traffic(setup) if term.name == "traffic / data")
    engine = ENGINES[setup.engine]
    words = f"{size / 1e9:,.3g} GB over {setup.data_axis_size} ranks at {_gigabytes(group)}"
    if setup.zero_stage:
        words += f" x {engine.zero_share:g}, the fraction that this program's ZeRO reaches"
    return f"{words}, minus what overlaps with computation"


def _optimizer(setup: Setup, rates: Rates) -> str:
    parameters = trained_parameters(setup)
    shared = f" / {setup.zero_size} ranks" if setup.zero_stage else ""
    if setup.offload_optimizer != "none":
        rate = rates.host_adam_parameters_per_second
        return (
            f"{parameters:,} parameters{shared} x ranks per machine / {rate:.3g} parameters per second on "
            "the machine's cores"
        )
    moved = compute.OPTIMIZER_BYTES + compute.GRADIENT_BYTES
    words = (
        f"{parameters:,} parameters x {moved} bytes{shared} / {rates.memory_bytes_per_second / 1e12:.3g} TB/s"
    )
    if products := compute.newton_schulz_seconds(setup, rates):
        words += f" + {products:.3g} s for Muon's {setup.muon_steps} Newton-Schulz iterations"
    return words


def _micro_batches(micro: int) -> str:
    return "1 micro batch" if micro == 1 else f"{micro:,} micro batches"


def _model_chunks(setup: Setup) -> str:
    chunks = setup.virtual_stages
    return "1 model chunk" if chunks == 1 else f"{chunks} model chunks"


def _blocks(micro: int, layers: float) -> str:
    return f"{_micro_batches(micro)} x {layers:g} {'block' if layers == 1 else 'blocks'}"


def _layers(setup: Setup) -> str:
    counts = setup.layers_by_stage
    return str(counts[0]) if len(set(counts)) == 1 else " + ".join(map(str, counts))


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.3g} MB"


def _gigabytes(group: Group) -> str:
    return f"{group.bytes_per_second / 1e9:,.3g} GB/s"
