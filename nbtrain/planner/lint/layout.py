"""Findings about the layout: bubble, tensor ranks across machines, useless ZeRO++, small chunks of FPDT, the
slower way to share sequences.
"""

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

# A bubble from this fraction of each step on is worth a change.
LARGE_BUBBLE_FRACTION = 0.1
EQUAL = "equal stages"
# Fraction of each step that waits for other machines.
LARGE_WAIT_FRACTION = 0.15
# Fraction of each step in which FPDT waits for its chunks.
LARGE_CHUNKS_FRACTION = 0.1
# Fraction of each step spent waiting for gradients and ZeRO's weights; logging.alerts has the same limit in a
# run.
LARGE_TRAFFIC_FRACTION = 0.3


def bubble_is_small(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the pipeline bubble: stages wait at both ends of a step, for (p - 1) / (m + p - 1) of it if
    stages cost alike.

    arXiv:2104.04473, section 2.2; m micro batches, p stages.
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
    fix = "A larger global_batch_size or fewer pipeline stages make it smaller."
    key = "parallel.pipeline_parallel_size"
    if better:
        size, after = next((entry for entry in better if entry[1] < LARGE_BUBBLE_FRACTION), better[-1])
        key, fix = MICRO_BATCH, f"Set {MICRO_BATCH}: {size}: the wait is then {after:.0%}. {fix}"
    held = sorted(set(stage_layers(config)), reverse=True)
    layers = config.model.num_layers
    shape = EQUAL
    if layers % stages and config.parallel.pipeline_stage_layers is None:
        whole = f"{layers - layers % stages} or {layers + stages - layers % stages}"
        shape = f"stages of {' and '.join(map(str, held))} layers, of which equal ones would wait"
        fix = f"{fix} {layers} layers do not divide among {stages} stages; {whole} would."
    batches = "1 micro batch" if micro_batches == 1 else f"{micro_batches:,} micro batches"
    yield finding_of(
        config,
        "bubble_is_small",
        key,
        f"The pipeline waits {bubble:.0%} of each step: with {batches} for {stages} {shape} "
        f"(p - 1) / (m + p - 1) = {_ideal(config):.0%} of the computing{' is a wait' * (shape == EQUAL)}.",
        fix,
        estimates.share(bubble, "time without computation"),
    )


def _bubble(config: RunConfig, planned: float) -> float:
    """Return the planned idle fraction, or the one for equal stages if the device is unknown."""
    return planned or _ideal(config)


def _ideal(config: RunConfig) -> float:
    stages = config.parallel.pipeline_parallel_size
    return (stages - 1) / (config.accumulation_steps + stages - 1)


def tensor_ranks_share_a_machine(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that tensor ranks share a machine: they sum activations in every layer, and links between
    machines are slower.
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
            f" {device.name}: {device.link_bytes_per_second / 2e9:,.0f} GB/s inside a machine, "
            f"{network / 1e9:,.1f} GB/s for each GPU between machines, {slower:.0f} times slower."
        )
    fix = "Use more stages or data-parallel ranks instead of tensor-parallel ones."
    if legal := [str(size) for size in reversed(_tensor_sizes_inside(config))]:
        sizes = alternatives(legal)
        fix = f"Set parallel.tensor_parallel_size: {sizes}, and more stages or data-parallel ranks."
    yield finding_of(
        config,
        "tensor_ranks_share_a_machine",
        "parallel.tensor_parallel_size",
        f"tensor_parallel_size({tensor}) reaches across nodes of {gpus} GPUs: every layer then waits for the "
        f"network.{speeds}",
        fix,
        estimates.share(_waiting(estimates), "most of the time of every layer"),
    )


def _tensor_sizes_inside(config: RunConfig) -> list[int]:
    """Return the sizes of tensor parallelism that stay inside a machine and with which more data-parallel
    ranks, or more stages, make a run that the rules allow.
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
    """Return the fraction of a step that would be saved if tensor ranks had the links of one machine."""
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None:
        return 0.0
    setup, tensor = estimates.speed.setup, config.parallel.tensor_parallel_size
    inside = replace(setup, devices_per_node=tensor, nodes=setup.world_size // tensor)
    faster = estimate_step(inside, rates)
    return max(1 - faster.seconds / step.seconds, 0.0) if faster else 0.0


def data_traffic_is_hidden(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that data-parallel traffic is hidden: gradients, and under ZeRO 3 the weights, are sent behind
    the computation.

    arXiv:1910.02054, section 7: volumes of ZeRO; larger micro batches gather weights less often.
    """
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None or step.data / step.seconds < LARGE_TRAFFIC_FRACTION:
        return
    parallel, micro = config.parallel, config.batch.micro_batch_size
    fix = "`nbtrain search` ranks layouts that send less: tensor parallelism inside a machine, or a pipeline."
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
        times = f"a step then takes {amounts.step(seconds)} instead of {amounts.step(step.seconds)}"
        fix = f"Set {MICRO_BATCH}: {size}: {times}. {fix}"
    yield finding_of(
        config,
        "data_traffic_is_hidden",
        key,
        f"{step.data / step.seconds:.0%} of each step waits for data-parallel traffic: ZeRO "
        f"{parallel.zero_stage} over {config.world_size // parallel.tensor_parallel_size} ranks, "
        f"{config.accumulation_steps:,} micro batches of {micro} in a step.",
        fix,
        estimates.share(saved, "time without computation"),
    )


def network_keeps_up(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the network between machines is fast enough: a step waits for what computation does not
    hide.

    The price is what the same machines would save with links as fast as those between their own devices.
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
            f"Set parallel.zero_hpz: true: a step then takes {amounts.step(gain.step_seconds)} instead of "
            f"{amounts.step(network.step_seconds)}, with {amounts.size(gain.more_bytes)} more memory."
        )
    fix.append(
        "`nbtrain search` ranks layouts for this network; a pipeline sends the least between machines."
    )
    if network_of(config.resources)[0] is None:
        fix.append("If yours is another network, set resources.network.")
    yield finding_of(
        config,
        "network_keeps_up",
        key,
        f"{network.waiting:.0%} of each step waits for the network between machines ({network.network}): "
        f"a machine sends {gigabytes(network.total_bytes)} in a step.",
        " ".join(fix),
        estimates.share(max(1 - faster.seconds / network.step_seconds, 0.0), "time without computation"),
    )


def hpz_stays_inside_a_machine(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that ZeRO++'s second copy is sharded inside a machine; only then does it save traffic between
    machines.
    """
    config = estimates.config
    parallel, size, ranks = config.parallel, config.zero_hpz_partition_size, config.ranks_per_node
    if not parallel.zero_hpz:
        return
    if size != ranks:
        from_where = "across machines anyway" if size > ranks else "from fewer ranks than could share them"
        yield finding_of(
            config,
            "hpz_stays_inside_a_machine",
            "parallel.zero_hpz_partition_size",
            f"parallel.zero_hpz_partition_size = {size}, and a machine has {ranks} ranks: parameters are "
            f"gathered {from_where}.",
            f"Set parallel.zero_hpz_partition_size: {ranks}, or null.",
            Cost(words="traffic that hpZ is there to save"),
        )
    elif config.resources.nodes == 1:
        yield finding_of(
            config,
            "hpz_stays_inside_a_machine",
            "parallel.zero_hpz",
            "parallel.zero_hpz = true: on one machine the second copy takes memory and saves no traffic.",
            "Set parallel.zero_hpz: false.",
            Cost(words="memory for nothing"),
        )


def quantized_gradients_cross_machines(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that quantized gradients have several machines: DeepSpeed quantizes them only between
    machines.
    """
    config = estimates.config
    if config.parallel.zero_quantized_gradients and config.resources.nodes == 1:
        yield finding_of(
            config,
            "quantized_gradients_cross_machines",
            "parallel.zero_quantized_gradients",
            "parallel.zero_quantized_gradients = true: on one machine gradients are not quantized; DeepSpeed "
            "quantizes them between machines only.",
            "Set parallel.zero_quantized_gradients: false.",
        )


def fpdt_chunks_are_large_enough(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the size of FPDT's chunks: only a large chunk takes longer to compute than to move over PCIe
    (arXiv:2408.16978).
    """
    config, step = estimates.config, estimates.duration.step
    rates = estimates.speed.table_rates
    if step is None or rates is None or step.chunks / step.seconds < LARGE_CHUNKS_FRACTION:
        return
    chunk, key = config.parallel.fpdt_chunk_tokens, "parallel.fpdt_chunk_tokens"
    saved, fix = step.chunks / step.seconds, f"Set {key}: 0 if the run fits its memory without FPDT."
    for size in (one for one in divisors(config.model.seq_length) if one > chunk):
        changed = with_values(config, {key: size})
        setup = setup_of(changed)
        other = estimate_step(setup, rates)
        if other is None or estimate(setup).fits is False or find_problems(changed):
            continue
        share = other.chunks / other.seconds
        if share < LARGE_CHUNKS_FRACTION and other.seconds < step.seconds:
            saved, fix = 1 - other.seconds / step.seconds, f"Set {key}: {size}: the wait is then {share:.0%}."
            break
    yield finding_of(
        config,
        "fpdt_chunks_are_large_enough",
        key,
        f"{step.chunks / step.seconds:.0%} of each step waits for FPDT's chunks: chunks of {chunk:,} tokens "
        f"are computed faster than {rates.host_bytes_per_second / 1e9:g} GB/s of PCIe move them to and from "
        "host memory.",
        fix,
        estimates.share(saved, "time without computation"),
    )


def sequences_are_shared_the_faster_way(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that ranks share sequences by Ulysses or context parallelism, whichever is faster: keys that few
    ranks gather may be fewer than the heads that they would exchange, or more.
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
        f"a step takes {amounts.amount(step.seconds, digits=3)} s, {step.sequence / step.seconds:.0%} of it "
        f"to exchange tokens between the {size} ranks of a sequence; with {theirs}({size}), it would take "
        f"{amounts.amount(other.seconds, digits=3)} s.",
        f"Set parallel.{theirs}: {size} and {ours}: 1.",
        estimates.share(saved, "time without computation"),
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
