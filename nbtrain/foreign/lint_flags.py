"""Checks an argument list: unknown flags, sizes that do not divide each other, idle machines, length."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from nbtrain.base.findings import FATAL, Cost, Finding
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.divisors import nearest_divisors, nearest_multiples
from nbtrain.config.rules.wording import join
from nbtrain.foreign.mapping.conversion import Reading
from nbtrain.foreign.mapping.ranks import ranks_of
from nbtrain.foreign.syntax.flags import Setting
from nbtrain.foreign.syntax.located import Value


def flag_of(source: Reading, dest: str) -> str:
    """Return the flag that sets a value, as the program spells it."""
    setting = source.setting(dest)
    return setting.flag if setting else source.table.by_dest[dest][0].flags[0] if source.has(dest) else dest


def number(source: Reading, dest: str) -> int:
    """Return a positive integer from the argument list.

    Returns 0 if the value is missing, not positive, or known only to the shell.
    """
    value = source.value(dest)
    return value if type(value) is int and value > 0 else 0


def error(source: Reading, rule: str, dest: str, message: str, fix: str) -> Finding:
    """Return a finding for an error that stops the program or DeepSpeed."""
    return Finding("error", rule, flag_of(source, dest), source.place(dest), message, fix, FATAL)


def flags_exist(source: Reading) -> Iterator[Finding]:
    """Check that the program has every flag and accepts its value; otherwise argparse stops it."""
    for complaint in source.arguments.complaints:
        # The flag is the finding's key, which is shown before the message.
        yield replace(complaint, message=complaint.message.removeprefix(f"{complaint.key}: "))


def flags_are_given_once(source: Reading) -> Iterator[Finding]:
    """Check that no flag is set twice, because the last value wins without a message."""
    first: dict[str, Setting] = {}
    for setting in source.arguments.settings:
        before = first.setdefault(setting.option.dest, setting)
        if before is not setting and before.value != setting.value:
            yield Finding(
                "warning",
                "flags_are_given_once",
                setting.flag,
                setting.place,
                f"the flag is set twice: {before.text} at {before.place}, and {setting.text}, which takes "
                "effect.",
                "Keep only one of them.",
                Cost(words="a run with other settings than the file suggests"),
            )


# Flags that exclude each other. Both Megatrons assert this when they start.
EXCLUSIVE = (
    ("fp16", "bf16"),
    ("lr_warmup_fraction", "lr_warmup_samples"),
    ("lr_warmup_fraction", "lr_warmup_iters"),
)


def exclusive(source: Reading) -> Iterator[tuple[Setting, Setting]]:
    """Yield pairs of flags that exclude each other, as (flag, the other flag)."""
    for first, second in EXCLUSIVE:
        one, other = source.setting(first), source.setting(second)
        if one and other and one.value and other.value:
            yield one, other


def beside_ulysses(source: Reading) -> Iterator[tuple[Setting, Setting]]:
    """Yield (Ulysses flag, flag of tensor or pipeline ranks) if both sizes exceed 1.

    Megatron-DeepSpeed asserts that there is no such pair (megatron/core/parallel_state.py). nbtrain can train
    such runs, so an import accepts them.
    """
    ulysses = source.setting("ds_sequence_parallel_size")
    if ulysses is None or number(source, "ds_sequence_parallel_size") < 2:
        return
    for dest in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        other = source.setting(dest)
        if other is not None and number(source, dest) > 1:
            yield ulysses, other


def flags_go_together(source: Reading) -> Iterator[Finding]:
    """Check for flags that exclude each other, such as two number formats or two warm-up lengths."""
    for one, other in (*exclusive(source), *beside_ulysses(source)):
        text = f"{one.text} with {other.text} ({other.place}): the program refuses to start with both."
        yield Finding("error", "flags_go_together", one.flag, one.place, text, "Remove one of them.", FATAL)


def sizes_divide(source: Reading) -> Iterator[Finding]:
    """Check that sizes divide each other.

    The heads must divide the width, tensor ranks and query groups must divide the heads, and pipeline stages
    must divide the layers.
    """
    tensor, pipeline = "tensor_model_parallel_size", "pipeline_model_parallel_size"
    pairs = [("num_attention_heads", tensor), ("num_layers", pipeline)]
    if not number(source, "kv_channels"):
        pairs.insert(0, ("hidden_size", "num_attention_heads"))
    if groups := groups_of(source):
        pairs.append(("num_attention_heads", groups))
    for whole, part in pairs:
        value, divisor = number(source, whole), number(source, part)
        if value and divisor and value % divisor:
            near = join(nearest_divisors(divisor, value))
            name = flag_of(source, whole).lstrip("-")
            text = f"{divisor} does not divide {name}({value}); nearest: {near}."
            yield error(source, "sizes_divide", part, text, f"Set {flag_of(source, part)} to one of {near}.")


def groups_of(source: Reading) -> str:
    """Return the parser's name (dest) for the number of query groups.

    Returns "" if each query head has its own key head.
    """
    if source.value("group_query_attention"):
        return "num_query_groups"
    return "num_key_value_heads" if source.setting("num_key_value_heads") else ""


def ranks_share_groups(source: Reading) -> Iterator[Finding]:
    """Check that each tensor rank has complete groups or, in Megatron-LM, an equal part of one group."""
    tensor, groups = number(source, "tensor_model_parallel_size"), number(source, dest := groups_of(source))
    if not tensor or not groups or groups % tensor == 0:
        return
    if dest == "num_query_groups" and tensor % groups == 0:
        return
    flag = flag_of(source, "tensor_model_parallel_size").lstrip("-")
    rule = "a multiple or a divisor" if dest == "num_query_groups" else "a multiple"
    near = join(nearest_divisors(tensor, groups))
    text = f"{groups} is not {rule} of {flag}({tensor}); tensor-parallel sizes that fit: {near}."
    fix = f"Set {flag_of(source, 'tensor_model_parallel_size')} to one of {near}."
    yield error(source, "ranks_share_groups", dest, text, fix)


def ranks_share_the_sequence(source: Reading) -> Iterator[Finding]:
    """Check that each sequence can be split into two equal chunks for each context-parallel rank.

    Megatron-LM requires this when it starts (validate_args in megatron/training/arguments.py).
    """
    length, context = number(source, "seq_length"), number(source, "context_parallel_size")
    unit = 2 * context
    if context > 1 and length and length % unit:
        near = join(nearest_multiples(length, unit))
        text = (
            f"{length} is not a multiple of 2 * context-parallel-size({context}) = {unit}; nearest: {near}."
        )
        fix = f"Set --seq-length to one of {near}."
        yield error(source, "ranks_share_the_sequence", "seq_length", text, fix)


def positions_hold_the_sequence(source: Reading) -> Iterator[Finding]:
    """Check that a sequence is not longer than max-position-embeddings, the number of learned positions."""
    length, positions = number(source, "seq_length"), number(source, "max_position_embeddings")
    if length and positions and length > positions:
        text = f"{length} is more than max-position-embeddings({positions})."
        fix = f"Set --max-position-embeddings {length}."
        yield error(source, "positions_hold_the_sequence", "seq_length", text, fix)


def ranks_fill_the_machines(source: Reading) -> Iterator[Finding]:
    """Check that tensor x pipeline x context ranks divide nodes x GPUs."""
    ranks = ranks_of(source)
    if not ranks.leave_some_over or flags_are_open(source):
        return
    yield error(
        source,
        "ranks_fill_the_machines",
        "pipeline_model_parallel_size",
        f"{ranks.words} = {ranks.model} ranks, but nodes({ranks.nodes}) * GPUs({ranks.gpus}) = "
        f"{ranks.total}, which is not a whole number of data-parallel replicas.",
        f"Use {ranks.fitting_nodes} nodes or a multiple of that number, or use sizes whose product divides "
        f"{ranks.total}.",
    )


def count(value: Value | None) -> int:
    """Return a number in the manifest; 0 if it is missing or not a number."""
    return int(value.value) if value is not None and str(value.value).isdigit() else 0


def data_parallel_size(source: Reading) -> int:
    """Return the number of data-parallel replicas; 0 if it is unknown or not an integer."""
    return 0 if flags_are_open(source) else ranks_of(source).replicas


def flags_are_open(source: Reading) -> bool:
    """Return whether flags are in a variable that only the shell knows, so that they may set any size."""
    return any(
        unknown.reason or not unknown.name
        for word in source.arguments.lists
        for unknown in word.unknowns or ()
    )


def batch_divides(source: Reading) -> Iterator[Finding]:
    """Check that each step gives each replica the same number of complete micro batches."""
    micro, batch = number(source, "micro_batch_size"), number(source, "global_batch_size")
    data = data_parallel_size(source)
    unit = micro * data
    if unit and batch and batch % unit:
        near = join(nearest_multiples(batch, unit))
        text = f"{batch} is not a multiple of micro-batch-size({micro}) * data-parallel({data}) = {unit}."
        fix = f"Set --global-batch-size to one of {near}."
        yield error(source, "batch_divides", "global_batch_size", text, fix)


def samples_are_the_tokens(source: Reading) -> Iterator[Finding]:
    """Check that --train-samples and --train-tokens are the same amount of training.

    Megatron-DeepSpeed ends at --train-tokens, but counts steps, remaining time and data by --train-samples.
    """
    tokens, samples = number(source, "train_tokens"), number(source, "train_samples")
    length, batch = number(source, "seq_length"), number(source, "global_batch_size")
    if not (tokens and samples and length and batch) or source.setting("rampup_batch_size"):
        return
    steps, shown = -(-tokens // (length * batch)), samples // batch
    if steps == shown or shown == 0:
        return
    if shown < steps:
        text = (
            f"{samples:,} samples of {length:,} tokens are {amounts.count(samples * length)} tokens, so "
            f"training ends at step {shown:,}, before train-tokens({tokens:,}) at step {steps:,}."
        )
        cost = Cost(words=f"{1 - shown / steps:.0%} of the tokens")
    else:
        text = (
            f"{samples:,} samples of {length:,} tokens are {amounts.count(samples * length)} tokens, but "
            f"train-tokens({tokens:,}) ends training at step {steps:,} of the {shown:,} that the log counts. "
            f"The progress in the log therefore ends at {steps / shown:.0%}, and its remaining time is "
            f"{shown / steps:.2f} times too long."
        )
        cost = Cost(words="a wrong progress bar")
    fix = f"Set --train-samples {steps * batch}, the samples of {steps:,} steps."
    flag, place = "--train-samples", source.place("train_samples")
    yield Finding("warning", "samples_are_the_tokens", flag, place, text, fix, cost)


def growth_counts_samples(source: Reading) -> Iterator[Finding]:
    """Check that a run does not count both iterations and samples, which Megatron-LM's validate_args rejects.

    A batch ramp-up counts samples.
    """
    if source.setting("rampup_batch_size") and source.setting("train_iters"):
        yield error(
            source,
            "growth_counts_samples",
            "rampup_batch_size",
            f"combined with --train-iters at {source.place('train_iters')}, but the program refuses a "
            "growing batch if it counts iterations.",
            "Give the training length with --train-samples, and the decay with --lr-decay-samples.",
        )
    mixed = [
        dest for dest in ("lr_decay_samples", "lr_warmup_samples", "train_samples") if source.setting(dest)
    ]
    if source.setting("train_iters") and mixed:
        yield error(
            source,
            "growth_counts_samples",
            mixed[0],
            f"combined with --train-iters at {source.place('train_iters')}, but the program counts either "
            "iterations or samples, not both.",
            "Give every amount in the same unit.",
        )
    for dest in ("lr_decay_iters", "lr_warmup_iters"):
        if source.setting("train_samples") and source.setting(dest):
            yield error(
                source,
                "growth_counts_samples",
                dest,
                f"combined with --train-samples at {source.place('train_samples')}, but the program counts "
                "either iterations or samples, not both.",
                "Give every amount in the same unit.",
            )


def ramp_up_has_a_successor(source: Reading) -> Iterator[Finding]:
    """Warn about --rampup-batch-size if the program also has its successor, --step-batch-size-schedule.

    Megatron-LM's own scripts have used the successor since 2026-04-21.
    """
    if source.setting("rampup_batch_size") and source.has("step_batch_size_schedule"):
        sizes = " ".join(str(one) for one in source.value("rampup_batch_size"))
        yield Finding(
            "warning",
            "ramp_up_has_a_successor",
            "--rampup-batch-size",
            source.place("rampup_batch_size"),
            f"{sizes}: --step-batch-size-schedule replaced this flag on 2026-04-21, before "
            f"{source.table.name}.",
            'Write the sizes, e.g. --step-batch-size-schedule "0:16 2.4B:320 12B:1536"; nbtrain export '
            "writes them exactly.",
            Cost(words="a version that may no longer grow the batch"),
        )


def slots_are_gpus(source: Reading) -> Iterator[Finding]:
    """Check that a worker has as many ranks as GPUs."""
    ranks, gpus = source.job.gpus_per_node, source.job.gpus_asked
    if ranks and gpus and count(ranks) != count(gpus):
        more = count(ranks) > count(gpus)
        yield Finding(
            "error" if more else "warning",
            "slots_are_gpus",
            "slotsPerWorker" if source.job.kind == "DeepSpeedJob" else "ranks of a node",
            ranks.place,
            f"{ranks.value} ranks on each node, but the container requests {gpus.value} GPUs ({gpus.place}).",
            "Make the two numbers equal.",
            Cost(fatal=True)
            if more
            else Cost(words=f"{amounts.counted(count(gpus) - count(ranks), 'idle GPU')} on each node"),
        )


def workers_have_ranks(source: Reading) -> Iterator[Finding]:
    """Check that mpirun starts ranks on all workers of the manifest, because idle workers cost money too."""
    workers, nodes = source.job.workers, source.job.nodes
    if workers is not None and nodes is not None:
        idle = count(workers) - count(nodes)
        yield Finding(
            "warning",
            "workers_have_ranks",
            "replicas",
            workers.place,
            f"the manifest has {workers.value} workers, but mpirun starts ranks on {nodes.value} of them "
            f"({nodes.place}).",
            "Set mpirun's -np to the number of workers times their slots, or use fewer workers.",
            Cost(words=amounts.counted(idle, "idle worker")),
        )


# NVIDIA's monthly images, e.g. pytorch:23.06-py3.
IMAGE_MONTH = re.compile(r"[:-](\d\d)\.(0[1-9]|1[0-2])-py3")
# Programs follow PyTorch's versions. If they are more than a year apart, they rarely work together.
MOST_MONTHS = 12


def image_is_of_the_programs_time(source: Reading) -> Iterator[Finding]:
    """Check that flags and image are of about the same date.

    A program that is much newer or older than the image rarely runs in it.
    """
    image = source.job.image
    match = IMAGE_MONTH.search(str(image.value)) if image else None
    if image is None or match is None:
        return
    year, month = (int(part) for part in source.table.date.split("-")[:2])
    apart = 12 * (year - 2000 - int(match.group(1))) + month - int(match.group(2))
    if abs(apart) > MOST_MONTHS:
        yield Finding(
            "warning",
            "image_is_of_the_programs_time",
            "image",
            image.place,
            f"the image is from 20{match.group(1)}-{match.group(2)}, but the flags are from "
            f"{source.table.name} ({source.table.date}), {abs(apart)} months "
            f"{'newer' if apart > 0 else 'older'} than the image's PyTorch, CUDA and flash attention.",
            f"Use an image from 20{year - 2000:02}-{month:02}, or a version of the program from the image's "
            "date.",
            Cost(words="a program that may not start in this image"),
        )


def context_ranks_hold_all_weights(source: Reading) -> Iterator[Finding]:
    """Note how much memory the model's states take on each context-parallel rank.

    Each sequence is split between context-parallel ranks, but each rank has all weights and gradients and,
    without the distributed optimizer, all optimizer states. With FSDP, which can also shard the weights,
    nothing is reported.
    """
    size, hidden = number(source, "context_parallel_size"), number(source, "hidden_size")
    layers = number(source, "num_layers")
    if size < 2 or not hidden or not layers:
        return
    if source.value("use_megatron_fsdp") or source.value("use_torch_fsdp2"):
        return
    tensor = number(source, "tensor_model_parallel_size") or 1
    pipeline = number(source, "pipeline_model_parallel_size") or 1
    shards = tensor * pipeline
    part = f"1/{shards} of the layers" if shards > 1 else "all layers"
    # 12 h^2 parameters per layer. In bf16, each takes 6 bytes of weight and gradient, and 12 bytes of master
    # weight and moments, which the distributed optimizer shards over all data-parallel and context-parallel
    # ranks (Megatron-LM's README).
    parameters = 12 * layers * hidden**2 // shards
    fix = "Use more tensor or pipeline ranks, which shard the weights and gradients"
    if not source.value("use_distributed_optimizer"):
        held = (
            f"the weights, gradients and optimizer states of {part}, about "
            f"{amounts.size(18 * parameters)} at 18 bytes per parameter"
        )
        fix += (
            ", or add --use-distributed-optimizer, which shards the optimizer states (12 of the 18 bytes) "
            "across all data-parallel and context-parallel ranks"
        )
    elif ranks := data_parallel_size(source) * size:
        held = (
            f"the weights and gradients of {part}, and 1/{ranks} of the optimizer states for them, about "
            f"{amounts.size(6 * parameters + 12 * parameters // ranks)} at 6 + 12/{ranks} bytes per parameter"
        )
    else:
        held = (
            f"the weights and gradients of {part}, about {amounts.size(6 * parameters)} at 6 bytes per "
            "parameter, and a shard of the optimizer states for them"
        )
    yield Finding(
        "note",
        "context_ranks_hold_all_weights",
        "--context-parallel-size",
        source.place("context_parallel_size"),
        f"each sequence is split between the {size} context-parallel ranks, but the weights are not: each "
        f"rank holds {held}.",
        f"{fix}.",
    )


FLAG_RULES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (
    flags_exist,
    flags_are_given_once,
    flags_go_together,
    sizes_divide,
    ranks_share_groups,
    ranks_share_the_sequence,
    positions_hold_the_sequence,
    ranks_fill_the_machines,
    batch_divides,
    samples_are_the_tokens,
    growth_counts_samples,
    ramp_up_has_a_successor,
    slots_are_gpus,
    workers_have_ranks,
    image_is_of_the_programs_time,
    context_ranks_hold_all_weights,
)
