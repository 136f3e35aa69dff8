"""Findings about layouts that waste time, e.g. a large pipeline bubble or slow network traffic."""

from collections.abc import Iterator
from dataclasses import replace

from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text import amounts
from nbtrain.base.text.alternatives import alternatives
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.arithmetic.divisors import divisors
from nbtrain.config.arithmetic.stages import stage_layers
from nbtrain.config.findings import finding_of
from nbtrain.config.load.edits import with_values
from nbtrain.config.rules.check import find_problems
from nbtrain.config.schema import RunConfig
from nbtrain.planner.lint.remedies import DATA, MICRO_BATCH, PIPELINE, TENSOR
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.memory import estimate
from nbtrain.planner.setup.setup import network_of, setup_of
from nbtrain.planner.time.duration import bubble_fraction
from nbtrain.planner.time.network_use import PAYS_FRACTION, gigabytes
from nbtrain.planner.time.rates import INFINITE
from nbtrain.planner.time.step import estimate_step

# A pipeline bubble of at least this fraction of a step is reported.
LARGE_BUBBLE_FRACTION = 0.1
# Waiting for other machines is reported from this fraction of a step on.
LARGE_WAIT_FRACTION = 0.15
# Waiting for FPDT's chunks is reported from this fraction of a step on.
LARGE_CHUNKS_FRACTION = 0.1
# Waiting for gradients and ZeRO's weights is reported from this fraction of a step on. logging.alerts uses
# the same limit during a run.
LARGE_TRAFFIC_FRACTION = 0.3


def bubble_is_small(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the pipeline bubble: the fraction of each step in which stages wait for others.

    It is (p - 1) / (m + p - 1) for m micro batches and p stages of equal cost (arXiv:2104.04473, section
    2.2).
    """
    config = estimates.config
    if (bubble := _bubble(config, estimates.duration.bubble_fraction)) < LARGE_BUBBLE_FRACTION:
        return
    stages, micro_batches = config.parallel.pipeline_parallel_size, config.accumulation_steps
    better = []
    for size in reversed(divisors(config.batch.micro_batch_size)[:-1]):
        changed = with_values(config, {MICRO_BATCH: size})
        if not find_problems(changed):
            better.append((size, _bubble(changed, bubble_fraction(changed))))
    fix = "A larger global_batch_size or fewer stages also shrink the bubble."
    key = "parallel.pipeline_parallel_size"
    if better:
        size, after = next((entry for entry in better if entry[1] < LARGE_BUBBLE_FRACTION), better[-1])
        key = MICRO_BATCH
        fix = f"Set {MICRO_BATCH}: {size}, which lowers the idle share to {after:.0%}. {fix}"
    else:
        fix = "Set a larger batch.global_batch_size, or use fewer pipeline stages."
    held = sorted(set(stage_layers(config)), reverse=True)
    layers = config.model.num_layers
    sizes = f"{_micro_batches(micro_batches)} (m) and {stages} stages (p)"
    ideal = f"(p - 1) / (m + p - 1) = {_ideal(config):.0%} of the computing time"
    shape = f"With {sizes} of equal cost, {ideal} is idle."
    if layers % stages and config.parallel.pipeline_stage_layers is None:
        whole = f"{layers - layers % stages} or {layers + stages - layers % stages}"
        unequal = " and ".join(map(str, held))
        shape = f"The stages have {unequal} layers. With {sizes} of equal cost, only {ideal} would be idle."
        fix = f"{fix} {layers} layers do not divide evenly among {stages} stages; {whole} layers would."
    yield finding_of(
        config,
        "bubble_is_small",
        key,
        f"Pipeline stages are idle for {bubble:.0%} of each step. {shape}",
        fix,
        estimates.share(bubble, "idle time"),
    )


def _micro_batches(count: int) -> str:
    return "1 micro batch" if count == 1 else f"{count:,} micro batches"


def _bubble(config: RunConfig, planned: float) -> float:
    """Return the fraction of a step in which stages wait for others: `planned`, unless it is 0.

    If the device is unknown, the plan has no fraction (0). The result is then the fraction for stages of
    equal cost.
    """
    return planned or _ideal(config)


def _ideal(config: RunConfig) -> float:
    stages = config.parallel.pipeline_parallel_size
    return (stages - 1) / (config.accumulation_steps + stages - 1)


def tensor_ranks_share_a_machine(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the ranks of a tensor-parallel group are on the same machine.

    These ranks sum activations in every layer, and links between machines are slower than links inside one.
    """
    config = estimates.config
    tensor, gpus = config.parallel.tensor_parallel_size, config.resources.gpus_per_node
    if config.resources.device == "cpu" or tensor == 1 or config.resources.nodes == 1 or not gpus % tensor:
        return
    device = find_device(config.resources.gpu_type)
    speeds = ""
    if device:
        fabric, _ = network_of(config.resources)
        network = fabric / gpus if fabric else device.network_bytes_per_second / device.devices_per_node
        slower = device.link_bytes_per_second / 2 / network
        speeds = (
            f" {device.name} GPUs exchange {device.link_bytes_per_second / 2e9:,.0f} GB/s inside a machine, "
            f"but only {network / 1e9:,.1f} GB/s per GPU between machines ({slower:.0f} times less)."
        )
    fix = "Use more pipeline stages or data-parallel ranks instead of tensor-parallel ranks."
    if legal := [str(size) for size in reversed(_tensor_sizes_inside(config))]:
        sizes = alternatives(legal)
        fix = f"Set parallel.tensor_parallel_size: {sizes}, with more pipeline stages or data-parallel ranks."
    yield finding_of(
        config,
        "tensor_ranks_share_a_machine",
        "parallel.tensor_parallel_size",
        f"tensor_parallel_size({tensor}) splits layers across machines of {gpus} "
        f"{'GPU' if gpus == 1 else 'GPUs'} each, so every layer waits for the network.{speeds}",
        fix,
        estimates.share(_waiting(estimates), "most of each layer's time"),
    )


def _tensor_sizes_inside(config: RunConfig) -> list[int]:
    """Return the legal sizes of tensor parallelism that fit inside a machine.

    With such a size, the run has more data-parallel ranks or more pipeline stages instead.
    """
    parallel, gpus = config.parallel, config.resources.gpus_per_node
    tensor, pipeline, data = (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.data_parallel_size,
    )
    found = []
    for size in divisors(gpus):
        if size >= tensor or tensor * data % size:
            continue
        replicas = {DATA: tensor * data // size}
        stages = {PIPELINE: tensor * pipeline // size, "parallel.pipeline_stage_layers": None}
        kinds = [replicas, stages] if tensor * pipeline % size == 0 else [replicas]
        if any(not find_problems(with_values(config, {TENSOR: size, **more})) for more in kinds):
            found.append(size)
    return found


def _waiting(estimates: RunEstimates) -> float:
    """Return the fraction of a step that is saved if no tensor-parallel group spans machines.

    The result is 0 if the time of a step is not known.
    """
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None:
        return 0.0
    setup, tensor = estimates.speed.setup, config.parallel.tensor_parallel_size
    inside = replace(setup, devices_per_node=tensor, nodes=setup.world_size // tensor)
    faster = estimate_step(inside, rates)
    return max(1 - faster.seconds / step.seconds, 0.0) if faster else 0.0


def data_traffic_is_hidden(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that computation hides data-parallel traffic: gradients and, under ZeRO 3, weights.

    arXiv:1910.02054, section 7, derives how many bytes ZeRO sends. Larger micro batches gather weights less
    often.
    """
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None or step.data / step.seconds < LARGE_TRAFFIC_FRACTION:
        return
    parallel, micro = config.parallel, config.batch.micro_batch_size
    fix = (
        "Run `nbtrain search RUN` to find layouts that send less data, with tensor parallelism inside a "
        "machine or with a pipeline."
    )
    key, saved = "parallel.zero_stage", step.data / step.seconds
    better = []
    for size in divisors(config.batch.global_batch_size // parallel.data_parallel_size):
        if size > micro and not find_problems(changed := with_values(config, {MICRO_BATCH: size})):
            setup = setup_of(changed)
            faster = estimate_step(setup, rates) if estimate(setup).fits else None
            if faster and faster.seconds < step.seconds:
                better.append((faster.seconds, size))
    if better:
        seconds, size = min(better)
        key, saved = MICRO_BATCH, 1 - seconds / step.seconds
        times = f"A step then takes {amounts.step(seconds)} instead of {amounts.step(step.seconds)}"
        fix = f"Set {MICRO_BATCH}: {size}. {times}. {fix}"
    yield finding_of(
        config,
        "data_traffic_is_hidden",
        key,
        f"Ranks wait for data-parallel traffic for {step.data / step.seconds:.0%} of each step, with ZeRO "
        f"{parallel.zero_stage} across {config.world_size // parallel.tensor_parallel_size} ranks and "
        f"{_micro_batches(config.accumulation_steps)} of {amounts.counted(micro, 'sequence')} per step.",
        fix,
        estimates.share(saved, "idle time"),
    )


def network_keeps_up(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the network between machines is fast enough.

    The cost is the time that the same machines would save with links as fast as those between their own
    devices.
    """
    config, network = estimates.config, estimates.network
    if network is None or network.waiting < LARGE_WAIT_FRACTION:
        return
    setup, rates = estimates.speed.setup, estimates.speed.rates
    inside = rates and replace(rates, across=replace(rates.inside, bytes_per_second=INFINITE))
    faster = estimate_step(setup, inside) if inside else None
    if faster is None:
        return
    fix = []
    key = "resources.network"
    changed = with_values(config, {"parallel.zero_hpz": True})
    gain = network.hpz
    pays = gain and not network.has_hpz and gain.saved >= PAYS_FRACTION and gain.fits is not False
    if gain and pays and not find_problems(changed):
        key = "parallel.zero_hpz"
        fix.append(
            f"Set parallel.zero_hpz: true. A step then takes {amounts.step(gain.step_seconds)} instead of "
            f"{amounts.step(network.step_seconds)}, and one rank needs {amounts.size(gain.more_bytes)} more "
            "memory."
        )
    fix.append(
        "Run `nbtrain search RUN` to compare layouts on this network; pipeline parallelism sends the least "
        "data between machines."
    )
    if network_of(config.resources)[0] is None:
        fix.append("If your machines have another network, set resources.network.")
    yield finding_of(
        config,
        "network_keeps_up",
        key,
        f"Ranks wait for the network between machines for {network.waiting:.0%} of each step, in which a "
        f"machine sends {gigabytes(network.total_bytes)}. Network: {network.network}.",
        " ".join(fix),
        estimates.share(max(1 - faster.seconds / network.step_seconds, 0.0), "idle time"),
    )


def hpz_stays_inside_a_machine(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that ZeRO++'s second copy is sharded inside a machine.

    Only then does it save traffic between machines.
    """
    config = estimates.config
    parallel, size, ranks = config.parallel, config.zero_hpz_partition_size, config.ranks_per_node
    if not parallel.zero_hpz:
        return
    if size != ranks:
        effect = f"each copy of the parameters is split across only {size} of the machine's ranks."
        if size == 1:
            effect = "each rank holds a complete copy of the parameters."
        if size > ranks:
            effect = "parameters are still gathered across machines."
        on_machine = "1 rank" if ranks == 1 else f"{ranks} ranks"
        yield finding_of(
            config,
            "hpz_stays_inside_a_machine",
            "parallel.zero_hpz_partition_size",
            f"parallel.zero_hpz_partition_size is {size}, but a machine has {on_machine}, so {effect}",
            f"Set parallel.zero_hpz_partition_size: {ranks}, or null.",
            Cost(words="memory or traffic that hpZ should save"),
        )
    elif config.resources.nodes == 1:
        yield finding_of(
            config,
            "hpz_stays_inside_a_machine",
            "parallel.zero_hpz",
            "parallel.zero_hpz is true, but the run uses one machine, where the second copy of the "
            "parameters needs memory and saves no traffic.",
            "Set parallel.zero_hpz: false.",
            Cost(words="memory without a benefit"),
        )


def quantized_gradients_cross_machines(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a run with quantized gradients uses several machines.

    DeepSpeed quantizes gradients only between machines.
    """
    config = estimates.config
    if config.parallel.zero_quantized_gradients and config.resources.nodes == 1:
        yield finding_of(
            config,
            "quantized_gradients_cross_machines",
            "parallel.zero_quantized_gradients",
            "parallel.zero_quantized_gradients has no effect on one machine, because DeepSpeed quantizes "
            "gradients only between machines.",
            "Set parallel.zero_quantized_gradients: false.",
        )


def fpdt_chunks_are_large_enough(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that FPDT's chunks take longer to compute than to move over PCIe (arXiv:2408.16978)."""
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None or step.chunks / step.seconds < LARGE_CHUNKS_FRACTION:
        return
    chunk, key = config.parallel.fpdt_chunk_tokens, "parallel.fpdt_chunk_tokens"
    saved, fix = step.chunks / step.seconds, f"If the run fits device memory without FPDT, set {key}: 0."
    for size in (divisor for divisor in divisors(config.model.seq_length) if divisor > chunk):
        changed = with_values(config, {key: size})
        setup = setup_of(changed)
        other = estimate_step(setup, rates)
        if other is None or estimate(setup).fits is False or find_problems(changed):
            continue
        share = other.chunks / other.seconds
        if share < LARGE_CHUNKS_FRACTION and other.seconds < step.seconds:
            saved, fix = (
                1 - other.seconds / step.seconds,
                f"Set {key}: {size}, which lowers the wait to {share:.0%}.",
            )
            break
    yield finding_of(
        config,
        "fpdt_chunks_are_large_enough",
        key,
        f"GPUs wait for FPDT's chunks for {step.chunks / step.seconds:.0%} of each step. A chunk of "
        f"{chunk:,} tokens is computed faster than PCIe, at {rates.host_bytes_per_second / 1e9:g} GB/s, "
        "moves it to and from host memory.",
        fix,
        estimates.share(saved, "idle time"),
    )


def sequences_are_shared_the_faster_way(estimates: RunEstimates) -> Iterator[Finding]:
    """Check whether sequences are split across ranks by the faster of Ulysses and context parallelism.

    With few ranks, gathering keys may send less than exchanging heads; with many ranks, it sends more.
    """
    config, step = estimates.config, estimates.duration.step
    parallel, rates = config.parallel, estimates.speed.table_rates
    ours, theirs = "ds_sequence_parallel_size", "context_parallel_size"
    if parallel.context_parallel_size > 1:
        ours, theirs = theirs, ours
    if parallel.sequence_ranks == 1 or step is None or rates is None:
        return
    size = getattr(parallel, ours)
    changed = with_values(config, {f"parallel.{ours}": 1, f"parallel.{theirs}": size})
    setup = setup_of(changed)
    other = estimate_step(setup, rates)
    saved = 1 - other.seconds / step.seconds if other else 0.0
    if saved < PAYS_FRACTION or estimate(setup).fits is False or find_problems(changed):
        return
    assert other is not None
    yield finding_of(
        config,
        "sequences_are_shared_the_faster_way",
        f"parallel.{ours}",
        f"Each sequence is split across {size} ranks, which spend {step.sequence / step.seconds:.0%} of a "
        f"step exchanging tokens. A step takes {amounts.amount(step.seconds, digits=3)} s with "
        f"{ours}({size}), and would take {amounts.amount(other.seconds, digits=3)} s with {theirs}({size}).",
        f"Set parallel.{theirs}: {size} and parallel.{ours}: 1.",
        estimates.share(saved, "idle time"),
    )


LAYOUT_RULES = (
    bubble_is_small,
    data_traffic_is_hidden,
    network_keeps_up,
    tensor_ranks_share_a_machine,
    hpz_stays_inside_a_machine,
    quantized_gradients_cross_machines,
    fpdt_chunks_are_large_enough,
    sequences_are_shared_the_faster_way,
)
