"""Every scalar that nbtrain writes: one row each.

The trainer writes from this table, the monitor reads by it, the widgets label with it and
docs/metrics.md is generated from it. Tags in the first block are Megatron-DeepSpeed's, letter for letter,
so that its users' dashboards keep working; scalars marked `by_tokens` are also written as
"<tag> vs tokens" and "<tag> vs samples", with that count in place of the step.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scalar:
    """One row: `name` is the key in code and JSON, `tag` the one in TensorBoard."""

    name: str
    tag: str
    unit: str
    meaning: str
    by_tokens: bool = False


SCALARS: tuple[Scalar, ...] = (
    # Megatron-DeepSpeed's
    Scalar(
        "loss", "lm-loss-training/lm loss", "nats", "Training loss: mean over the global batch, fp32.", True
    ),
    Scalar(
        "validation_loss",
        "lm-loss-validation/lm loss validation",
        "nats",
        "Loss on the validation split.",
        True,
    ),
    Scalar(
        "validation_perplexity",
        "lm-loss-validation/lm loss validation ppl",
        "",
        "exp(validation loss).",
        True,
    ),
    Scalar("learning_rate", "learning-rate/learning-rate", "", "Learning rate of this step.", True),
    Scalar("batch_size", "batch-size/batch-size", "sequences", "Global batch size of this step.", True),
    Scalar("loss_scale", "loss-scale/loss-scale", "", "fp16 loss scale; 1 in fp32 and bf16.", True),
    Scalar("grad_norm", "grad-norm/grad-norm", "", "Global L2 norm of the gradients before clipping.", True),
    Scalar(
        "iteration_time", "iteration-time/iteration-time", "s", "Wall seconds of this step, all parts.", True
    ),
    Scalar("world_size", "world-size/world-size", "ranks", "Ranks in the job.", True),
    Scalar("seq_length", "seqlen/actual_seq_length", "tokens", "Sequence length of this step.", True),
    Scalar("steps_vs_samples", "steps-vs-samples/steps", "samples", "Samples consumed at each step."),
    Scalar("steps_vs_tokens", "steps-vs-tokens/steps", "tokens", "Tokens consumed at each step."),
    # ours: throughput
    Scalar(
        "tokens_per_second", "throughput/tokens per second", "tokens/s", "Tokens per wall second, all ranks."
    ),
    Scalar("samples_per_second", "throughput/samples per second", "samples/s", "Sequences per wall second."),
    Scalar(
        "tflops_per_device",
        "throughput/model TFLOPs per device",
        "TFLOP/s",
        "Model FLOPs, recomputation left out.",
    ),
    Scalar(
        "mfu",
        "throughput/MFU",
        "",
        "Model FLOPs over the device's datasheet peak; absent if none is known.",
    ),
    Scalar(
        "hfu",
        "throughput/HFU",
        "",
        "The same with what activation checkpointing computes a second time.",
    ),
    Scalar(
        "matmul_fraction",
        "throughput/fraction of measured matmul rate",
        "",
        "Model FLOPs over the matrix rate measured on this device at start.",
    ),
    # ours: how the step's time is spent
    Scalar("data_seconds", "time/data wait", "s", "Waiting for the next batch."),
    Scalar("forward_seconds", "time/forward", "s", "Forward passes."),
    Scalar("backward_seconds", "time/backward", "s", "Backward passes, gradient reduction included."),
    Scalar("optimizer_seconds", "time/optimizer", "s", "Clipping and optimizer step."),
    Scalar(
        "pipeline_seconds",
        "time/pipeline",
        "s",
        "Between the stages of a pipeline: transfers, and waiting for the neighbour (the bubble).",
    ),
    Scalar(
        "communication_seconds",
        "time/communication",
        "s",
        "Collectives of one step, measured one by one without overlap; on logged steps of several ranks. "
        "Part of the times above.",
    ),
    Scalar("evaluation_seconds", "time/evaluation", "s", "One validation pass."),
    Scalar("checkpoint_seconds", "time/checkpoint", "s", "One checkpoint, as the training loop feels it."),
    Scalar(
        "checkpoint_write_seconds",
        "time/checkpoint write",
        "s",
        "One checkpoint from its start to its publication, in the background too.",
    ),
    # ours: steps that went wrong; none of these is written until there is one
    Scalar(
        "skipped_steps", "stability/skipped steps", "steps", "Steps that stability.* has skipped, so far."
    ),
    Scalar(
        "overflow_steps",
        "stability/fp16 overflow steps",
        "steps",
        "Steps that fp16's loss scaling skipped, so far.",
    ),
    Scalar(
        "loss_spikes",
        "stability/loss spikes",
        "steps",
        "Losses above loss_spike_factor times the mean of the window, so far.",
    ),
    Scalar("rollbacks", "stability/rollbacks", "", "Returns to a checkpoint after a bad step, so far."),
    # ours: the ranks side by side, on logged steps of several
    Scalar(
        "compute_min_seconds",
        "ranks/compute min",
        "s",
        "Forward and backward pass without collectives: the fastest rank.",
    ),
    Scalar("compute_median_seconds", "ranks/compute median", "s", "The same: the median over the ranks."),
    Scalar("compute_max_seconds", "ranks/compute max", "s", "The same: the slowest rank."),
    Scalar(
        "slowest_rank",
        "ranks/slowest rank",
        "",
        "The rank that is slowest, compared with the other ranks of its pipeline stage.",
    ),
    Scalar(
        "rank_slowdown",
        "ranks/slowdown of the slowest",
        "",
        "How much longer that rank computes than the median of its stage, as a fraction.",
    ),
    # ours: memory
    Scalar("host_memory_bytes", "memory/host resident", "bytes", "Resident memory of rank 0's process."),
    Scalar("host_memory_fraction", "memory/host used fraction", "", "Used share of the machine's memory."),
    Scalar(
        "device_memory_bytes", "memory/device peak allocated", "bytes", "Peak allocated since the last log."
    ),
    Scalar(
        "device_memory_fraction",
        "memory/device used fraction",
        "",
        "Peak allocated over the device's memory.",
    ),
    Scalar("test_loss", "lm-loss-test/lm loss test", "nats", "Loss on the test split, after the last step."),
    Scalar("test_perplexity", "lm-loss-test/lm loss test ppl", "", "exp(test loss)."),
)

FAMILIES: tuple[Scalar, ...] = (
    Scalar(
        "loss/<dataset>",
        "lm-loss-training/lm loss/<dataset>",
        "nats",
        "Training loss of one named dataset of a blend or a mixture: mean over its learnt tokens in the "
        "global batch.",
        True,
    ),
)
"""Scalars of which a run may have several: <dataset> stands for a name."""

BY_NAME = {scalar.name: scalar for scalar in SCALARS}
BY_TAG = {scalar.tag: scalar for scalar in SCALARS}


def scalar(name: str) -> Scalar:
    """The row of a scalar by its name, for one of a family with the name filled in. Raises KeyError."""
    if name in BY_NAME:
        return BY_NAME[name]
    for family in FAMILIES:
        before = family.name.partition("<")[0]
        if name.startswith(before) and name != before:
            tag = family.tag.partition("<")[0] + name.removeprefix(before)
            return replace(family, name=name, tag=tag)
    raise KeyError(name)


def name_of(tag: str) -> str | None:
    """The name of the scalar with this tag, one of a family's too; None if it is none of nbtrain's."""
    if tag in BY_TAG:
        return BY_TAG[tag].name
    for family in FAMILIES:
        before = family.tag.partition("<")[0]
        if tag.startswith(before) and tag != before and not tag.endswith((" vs tokens", " vs samples")):
            return family.name.partition("<")[0] + tag.removeprefix(before)
    return None
