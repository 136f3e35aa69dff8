"""Findings about device memory, host memory, and memory that a layout could shard but does not."""

from collections.abc import Iterator

from nbtrain.base.findings import Cost, Finding
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.parameters import count_layers
from nbtrain.config.findings import finding_of
from nbtrain.config.load.edits import with_values
from nbtrain.config.own_blocks import has_own_layer, read_own_block
from nbtrain.planner.lint.allocator import with_expandable_segments
from nbtrain.planner.lint.remedies import (
    RECOMPUTE,
    ZERO,
    Remedy,
    cheapest_remedy,
    host_remedy,
    nvme_words,
    stages_allowed,
)
from nbtrain.planner.lint.run_estimates import RunEstimates
from nbtrain.planner.memory import AVERAGE_FRAGMENTATION, SPARE_FRACTION, estimate_memory, fragmented_bytes

# {ZeRO stage: the state that it shards}
STAGE_DIVIDES = {
    1: "the optimizer state",
    2: "gradients and optimizer state",
    3: "weights, gradients and optimizer state",
}
# Every host that trains has more memory than this, because torch alone needs as much.
LEAST_HOST_BYTES = 2**28
# Plausible range of a host's memory, to find out whether a number was meant in GiB, MiB or KiB.
USUAL_HOST_BYTES = (2**32, 24 * 2**40)


def memory_fits(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that the fullest rank fits its device with 5 % headroom."""
    config, memory = estimates.config, estimates.memory
    if memory.device_bytes is None:
        yield finding_of(
            config,
            "memory_fits",
            "resources.gpu_type",
            "The GPU type is not set, so the plan cannot tell whether the run fits its memory.",
            "Set resources.gpu_type.",
        )
        return
    if memory.total_bytes <= (1 - SPARE_FRACTION) * memory.device_bytes:
        return
    verdict = "The run does not fit"
    if memory.fits:
        verdict = f"The run fits with less than {100 * SPARE_FRACTION:.0f} % headroom"
    largest = max(memory.parts, key=lambda part: memory.parts[part])
    remedy = cheapest_remedy(config, SPARE_FRACTION)
    if remedy:
        key, fix = next(iter(remedy.changes)), f"Set {remedy.words}. One rank then needs {_after(remedy)}."
    else:
        key = "parallel.data_parallel_size"
        fix = "No layout fits these GPUs. Use GPUs with more memory, more GPUs, or a smaller model."
        if config.resources.device == "cpu":
            fix = "No layout fits this machine. Use a machine with more memory, or a smaller model."
    over = memory.total_bytes - memory.device_bytes
    has = f"and {memory.device} has {amounts.size(memory.device_bytes)}"
    if config.resources.device == "cpu":
        may = "and may use" if memory.fits else "but may use only"
        has = f"{may} {amounts.size(memory.device_bytes)} ({memory.device})"
    cost = Cost(words="the run, if memory runs out") if memory.fits else Cost(True, num_bytes=over)
    yield finding_of(
        config,
        "memory_fits",
        key,
        f"{verdict}: one rank needs {amounts.size(memory.total_bytes)}, {has}. The largest part is "
        f"{largest.replace('_', ' ')} with {amounts.size(memory.parts[largest])}.",
        fix,
        cost,
        "warning" if memory.fits else "error",
    )


def own_blocks_are_counted(estimates: RunEstimates) -> Iterator[Finding]:
    """Report which numbers of a run with custom blocks are computed as if it used nbtrain's own block."""
    config = estimates.config
    if not has_own_layer(config):
        return
    shape = config.shape
    ours = count_layers(shape, 1, first=False, last=False, tensor=1).total
    estimated = "Activations and step time are estimated as if the run used nbtrain's own block"
    if (block := read_own_block(config)) is None:
        yield finding_of(
            config,
            "own_blocks_are_counted",
            "code",
            f"The blocks come from layer() in {config.code}, and their parameters have not been counted yet. "
            f"The plan counts nbtrain's own block instead, with {ours:,} parameters. {estimated}.",
            "Run `nbtrain submit RUN`. If torch is installed, the command counts the parameters in a trial "
            "before it starts the job.",
            Cost(words="the accuracy of the plan"),
        )
        return
    yield finding_of(
        config,
        "own_blocks_are_counted",
        "code",
        f"The blocks come from layer() in {config.code}. Each block has {block.on_rank(1):,} parameters, as "
        f"counted in a trial; nbtrain's own block would have {ours:,}. FLOPs are counted as one use of every "
        f"matrix per token. {estimated}.",
        "To measure memory and time, submit a short run (batch.max_steps).",
        level="note",
    )


def fragmentation_leaves_room(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that a run with usual fragmentation fits, or that its allocator uses expandable segments."""
    config, memory = estimates.config, estimates.memory
    if memory.device_bytes is None or config.resources.device == "cpu" or not memory.fits:
        return
    reserved = fragmented_bytes(memory.allocated_bytes) + memory.parts["runtime"]
    joined = with_expandable_segments(config)
    if reserved <= memory.device_bytes or joined is None:
        return
    name, value = joined
    yield finding_of(
        config,
        "fragmentation_leaves_room",
        "backend.env",
        f"The run may run out of memory because of fragmentation. If {100 * AVERAGE_FRAGMENTATION:.0f} % of "
        "torch's memory is in segments too small to use, which is the average of eight models "
        f"(arXiv:2401.08156), one rank needs {amounts.size(reserved)}, but {memory.device} has "
        f"{amounts.size(memory.device_bytes)}.",
        f"Set {name}: {value} in backend.env, so that the allocator joins free segments.",
        Cost(words="the run, if memory runs out"),
        "note",
    )


def _after(remedy: Remedy) -> str:
    """Return the memory that a rank needs after a remedy, e.g. "33.6 GiB, and 480.0 GiB of host memory"."""
    host = remedy.memory.total_host_bytes
    beside = f", and {amounts.size(host)} of host memory" if host else ""
    return f"{amounts.size(remedy.memory.total_bytes)}{beside}"


def host_memory_fits(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that offloaded state and asynchronous saves fit a rank's share of host memory."""
    config, memory = estimates.config, estimates.memory
    if memory.fits_host is not False or _is_slip(estimates):
        return
    assert memory.host_bytes is not None
    largest = max(memory.host_parts, key=lambda part: memory.host_parts[part])
    ranks = config.ranks_per_node
    needed, present = (ranks * size for size in (memory.total_host_bytes, memory.host_bytes))
    if remedy := host_remedy(config):
        key = next(iter(remedy.changes))
        host = remedy.memory.total_host_bytes
        after = f"{amounts.size(host)} of host memory" if host else "no extra host memory"
        fix = f"Set {remedy.words}. One rank then needs {after}."
    else:
        key = "resources.memory_per_node_bytes"
        nvme = nvme_words(config)
        more = f"Use machines with {amounts.size(needed)} of memory, or use more machines"
        fix = f"{more}. Or set {nvme}." if nvme else f"{more}."
    message = (
        f"Host memory is too small: the {ranks} ranks of a machine need {amounts.size(needed)} "
        f"({amounts.size(memory.total_host_bytes)} each), but resources.memory_per_node_bytes is "
        f"{amounts.size(present)} ({amounts.size(memory.host_bytes)} for each rank)."
    )
    if ranks == 1:
        message = (
            f"Host memory is too small: each machine has one rank, which needs {amounts.size(needed)}, but "
            f"resources.memory_per_node_bytes is {amounts.size(present)}."
        )
    message += f" The largest part is {largest.replace('_', ' ')}."
    yield finding_of(
        config,
        "host_memory_fits",
        key,
        message,
        fix,
        Cost(True, num_bytes=needed - present),
        "error",
    )


def model_is_made_in_host_memory(estimates: RunEstimates) -> Iterator[Finding]:
    """Check that host memory suffices at the start, when each rank builds its part of the model there."""
    config, memory, given = (
        estimates.config,
        estimates.memory,
        estimates.config.resources.memory_per_node_bytes,
    )
    needed = memory.ranks_per_node * memory.initial_host_bytes
    if config.resources.device == "cpu" or given is None or needed <= given or _is_slip(estimates):
        return
    larger = f"or use machines with {amounts.size(needed)} of memory."
    if stages_allowed(config)[-1:] == [3]:
        fix = f"Set {ZERO}: 3, which shards each parameter as it is created, {larger}"
        sharded = estimate_memory(with_values(config, {ZERO: 3}))
        if (least := sharded.ranks_per_node * sharded.initial_host_bytes) > given:
            fix = (
                f"Set {ZERO}: 3, which shards each parameter as it is created, and use machines with "
                f"{amounts.size(least)} of memory."
            )
    else:
        fix = f"Shard the model across more tensor or pipeline ranks, {larger}"
    ranks, part = memory.ranks_per_node, amounts.size(memory.initial_host_bytes)
    each = f"the {ranks} ranks of a machine need {part} each, {amounts.size(needed)} together"
    if ranks == 1:
        each = f"each machine has one rank, which needs {part}"
    yield finding_of(
        config,
        "model_is_made_in_host_memory",
        "resources.memory_per_node_bytes",
        f"Each rank first creates its part of the model in host memory: {each}, but "
        f"resources.memory_per_node_bytes is only {amounts.size(given)}.",
        fix,
        Cost(True, num_bytes=needed - given),
        "error",
    )


def host_memory_is_in_bytes(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the unit of memory_per_node_bytes: a number of GiB is far too small for a machine."""
    if not _is_slip(estimates):
        return
    config, given = estimates.config, estimates.config.resources.memory_per_node_bytes
    assert given is not None
    least, most = USUAL_HOST_BYTES
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
    meant = next(
        ((unit, given * size) for unit, size in units.items() if least <= given * size <= most), None
    )
    fix = (
        f"If you mean {given:,} {meant[0]}, set memory_per_node_bytes: {meant[1]}."
        if meant
        else "Set memory_per_node_bytes to the memory of a machine in bytes."
    )
    yield finding_of(
        config,
        "host_memory_is_in_bytes",
        "resources.memory_per_node_bytes",
        f"resources.memory_per_node_bytes = {given} is only {amounts.size(given)}, but training needs a "
        f"machine with more than {amounts.size(LEAST_HOST_BYTES)}.",
        fix,
        Cost(True),
        "error",
    )


def _is_slip(estimates: RunEstimates) -> bool:
    given = estimates.config.resources.memory_per_node_bytes
    return given is not None and given < LEAST_HOST_BYTES


def sequence_ranks_hold_all_weights(estimates: RunEstimates) -> Iterator[Finding]:
    """Check the ZeRO stage of a run with Ulysses or context parallelism.

    They split only the tokens of a sequence across ranks. Only ZeRO shards weights, gradients and moments.
    """
    config, memory = estimates.config, estimates.memory
    parallel = config.parallel
    name, zero = "ds_sequence_parallel_size", parallel.zero_stage
    if parallel.context_parallel_size > 1:
        name = "context_parallel_size"
    size = getattr(parallel, name)
    if size == 1 or zero == 3 or memory.fits is not False:
        return
    whole = {0: "weights, gradients and optimizer state", 1: "weights and gradients", 2: "weights"}[zero]
    if stages := stages_allowed(config):
        fix = (
            f"Set parallel.zero_stage: {stages[-1]}, which shards {STAGE_DIVIDES[stages[-1]]} across "
            "data-parallel ranks, including the ranks across which each sequence is split."
        )
    elif parallel.fpdt_chunk_tokens:
        fix = ""  # FPDT supports neither tensor nor pipeline parallelism
    else:
        fix = (
            f"Use a smaller {name} and a larger tensor_parallel_size or pipeline_parallel_size, which shard "
            "the weights."
        )
    yield finding_of(
        config,
        "sequence_ranks_hold_all_weights",
        f"parallel.{name}",
        f"{name}({size}) splits the tokens of a sequence, but not the weights. With zero_stage({zero}), each "
        f"of the {size} ranks holds the same {whole}. Each rank needs {amounts.size(memory.states_bytes)} "
        "for model state.",
        fix,
        Cost(words="memory that sharding would save"),
    )


def full_saves_more_than_selective(estimates: RunEstimates) -> Iterator[Finding]:
    """Check whether a run that is short of memory would save memory with full recomputation.

    Selective recomputation is faster, but keeps more activations.
    """
    config, memory = estimates.config, estimates.memory
    if config.parallel.activation_checkpointing.granularity != "selective" or memory.device_bytes is None:
        return
    if memory.total_bytes <= (1 - SPARE_FRACTION) * memory.device_bytes:
        return
    full = estimate_memory(with_values(config, {RECOMPUTE: "full"}))
    saved = memory.parts["activations"] - full.parts["activations"]
    if saved <= 0:
        return
    yield finding_of(
        config,
        "full_saves_more_than_selective",
        RECOMPUTE,
        f"Selective recomputation keeps {amounts.size(memory.parts['activations'])} of activations, while "
        f"full recomputation would keep only {amounts.size(full.parts['activations'])}. Selective "
        "recomputation is faster, but needs more memory (arXiv:2205.05198, section 5).",
        f"If the run needs more memory, set {RECOMPUTE}: full.",
        Cost(num_bytes=saved),
    )


MEMORY_RULES = (
    own_blocks_are_counted,
    memory_fits,
    fragmentation_leaves_room,
    host_memory_is_in_bytes,
    host_memory_fits,
    model_is_made_in_host_memory,
    sequence_ranks_hold_all_weights,
    full_saves_more_than_selective,
)
