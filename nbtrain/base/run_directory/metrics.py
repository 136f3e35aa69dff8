"""Table of all scalars that nbtrain writes, one row for each.

The trainer writes the scalars of this table, the monitor reads them, the widgets use its labels, and
docs/metrics.md is generated from it. Tags in the first block are exactly Megatron-DeepSpeed's, so that its
users' dashboards keep working; scalars marked `by_tokens` are also written as "<tag> vs tokens" and
"<tag> vs samples", with that count instead of the step.
"""

from dataclasses import dataclass, replace

from nbtrain.base.text.table import rows


@dataclass(frozen=True)
class Scalar:
    """One row: `name` is the scalar's key in code and JSON, `tag` its tag in TensorBoard."""

    name: str
    tag: str
    unit: str
    meaning: str
    by_tokens: bool = False


def _scalars(text: str, by_tokens: bool = False) -> list[Scalar]:
    return [Scalar(name, tag, unit, meaning, by_tokens) for name, tag, unit, meaning in rows(text)]


_MEGATRON_DEEPSPEED = """
loss | lm-loss-training/lm loss | nats | Training loss: mean over the global batch, fp32.
validation_loss | lm-loss-validation/lm loss validation | nats | Loss on the validation split.
validation_perplexity | lm-loss-validation/lm loss validation ppl | |
    exp(validation loss); absent with dpo, and if it is too large for a float.
learning_rate | learning-rate/learning-rate | | Learning rate of this step.
batch_size | batch-size/batch-size | sequences | Global batch size of this step.
loss_scale | loss-scale/loss-scale | | fp16 loss scale; 1 in fp32 and bf16.
grad_norm | grad-norm/grad-norm | | Global L2 norm of the gradients before clipping.
iteration_time | iteration-time/iteration-time | s | Wall seconds of this step, all parts.
world_size | world-size/world-size | ranks | Ranks in the job.
seq_length | seqlen/actual_seq_length | tokens | Sequence length of this step.
"""
# The first two tags are from Megatron-DeepSpeed. stability/* is written only after a bad step has happened,
# and ranks/* only at logged steps of jobs with several ranks.
_OTHERS = """
steps_vs_samples | steps-vs-samples/steps | samples | Samples consumed at each step.
steps_vs_tokens | steps-vs-tokens/steps | tokens | Tokens consumed at each step.
tokens_per_second | throughput/tokens per second | tokens/s | Tokens per wall second, all ranks.
samples_per_second | throughput/samples per second | samples/s | Sequences per wall second.
tflops_per_device | throughput/model TFLOPs per device | TFLOP/s | Model FLOPs, without recomputation.
mfu | throughput/MFU | | Model FLOPs over the device's datasheet peak; absent if the peak is not known.
hfu | throughput/HFU | | Model FLOPs and recomputation over the device's datasheet peak.
matmul_fraction | throughput/fraction of measured matmul rate | |
    Model FLOPs over the matrix rate measured on this device at start.
data_seconds | time/data wait | s | Waiting for the next batch.
forward_seconds | time/forward | s | Forward passes.
backward_seconds | time/backward | s | Backward passes, including the reduction of gradients.
optimizer_seconds | time/optimizer | s | Clipping and optimizer step.
pipeline_seconds | time/pipeline | s |
    Transfers between pipeline stages, and waiting for the neighbouring stage (the bubble).
communication_seconds | time/communication | s | Collectives of one step, measured one by one without overlap,
    at logged steps of several ranks. The times of the other parts include it.
evaluation_seconds | time/evaluation | s | Time of one validation.
tasks_seconds | time/tasks | s | Time of one evaluation of evaluation.tasks.
checkpoint_seconds | time/checkpoint | s | Time for which the training loop waits for one checkpoint.
checkpoint_write_seconds | time/checkpoint write | s |
    Time from the start of one checkpoint until it is complete, including writing in the background.
skipped_steps | stability/skipped steps | steps | Number of steps that stability.* has skipped so far.
overflow_steps | stability/fp16 overflow steps | steps |
    Number of steps that fp16's loss scaling has skipped so far.
loss_spikes | stability/loss spikes | steps |
    Number of losses so far that were above loss_spike_factor times the mean of the window.
rollbacks | stability/rollbacks | | Number of returns to a checkpoint after a bad step so far.
steps_without_loss | stability/steps without loss | steps |
    Number of steps so far without a token in the loss. They have no loss and do not count in means.
compute_min_seconds | ranks/compute min | s |
    Forward and backward pass without collectives: the fastest rank.
compute_median_seconds | ranks/compute median | s |
    Forward and backward pass without collectives: the median over the ranks.
compute_max_seconds | ranks/compute max | s |
    Forward and backward pass without collectives: the slowest rank.
slowest_rank | ranks/slowest rank | |
    The rank that is slowest compared with the other ranks of its pipeline stage.
rank_slowdown | ranks/slowdown of the slowest | |
    Fraction by which the slowest rank computes longer than the median of its pipeline stage.
host_memory_bytes | memory/host resident | bytes | Resident memory of rank 0's process.
host_memory_fraction | memory/host used fraction | | Fraction of the machine's memory that is in use.
device_memory_bytes | memory/device peak allocated | bytes | Peak allocated since the process began.
device_memory_fraction | memory/device used fraction | | Peak allocated over the device's memory.
reward_margin | rewards/margins | |
    With dpo: mean reward of the chosen answers minus the mean reward of the rejected answers.
reward_accuracy | rewards/accuracies | |
    With dpo: share of the pairs whose chosen answer has the higher reward.
reward_chosen | rewards/chosen | | With dpo: mean reward of the chosen answers of the step's pairs.
reward_rejected | rewards/rejected | | With dpo: mean reward of the rejected answers of the step's pairs.
validation_reward_margin | rewards/validation margins | | With dpo: reward_margin on the validation split.
validation_reward_accuracy | rewards/validation accuracies | |
    With dpo: reward_accuracy on the validation split.
test_loss | lm-loss-test/lm loss test | nats | Loss on the test split, after the last step.
test_perplexity | lm-loss-test/lm loss test ppl | |
    exp(test loss); absent with dpo, and if it is too large for a float.
"""
_FAMILIES = """
loss/<dataset> | lm-loss-training/lm loss/<dataset> | nats |
    Training loss of one dataset of a blend or mixture: mean over its tokens in the loss in the global batch.
validation_loss/<dataset> | lm-loss-validation/lm loss validation/<dataset> | nats |
    Validation loss of one dataset of a blend or mixture: mean over its tokens in the loss.
validation_perplexity/<dataset> | lm-loss-validation/lm loss validation ppl/<dataset> | |
    exp(validation_loss/<dataset>); absent if it is too large for a float.
task/<task> | tasks/<task> | |
    A metric of evaluation.tasks: the name of its results, a space, and acc, acc_norm or perplexity.
code/<name> | code/<name> | |
    A scalar of the file in `code`: of loss(), over all micro batches and ranks of the step, or of scalars().
"""

SCALARS = (*_scalars(_MEGATRON_DEEPSPEED, by_tokens=True), *_scalars(_OTHERS))
FAMILIES = tuple(_scalars(_FAMILIES, by_tokens=True))
"""Scalars of which a run may have several. Placeholders such as <dataset> stand for a name."""

BY_NAME = {scalar.name: scalar for scalar in SCALARS}
BY_TAG = {scalar.tag: scalar for scalar in SCALARS}


def scalar(name: str) -> Scalar:
    """Return the row of a scalar by its name. Raises KeyError for an unknown name.

    For a scalar of a family, name and tag of the row have the actual name instead of the placeholder.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    for family in FAMILIES:
        before = family.name.partition("<")[0]
        if name.startswith(before) and name != before:
            tag = family.tag.partition("<")[0] + name.removeprefix(before)
            return replace(family, name=name, tag=tag)
    raise KeyError(name)


def name_of(tag: str) -> str | None:
    """Return the name of the scalar with this tag, including scalars of a family. None for an unknown tag."""
    if tag in BY_TAG:
        return BY_TAG[tag].name
    for family in FAMILIES:
        before = family.tag.partition("<")[0]
        if tag.startswith(before) and tag != before and not tag.endswith((" vs tokens", " vs samples")):
            return family.name.partition("<")[0] + tag.removeprefix(before)
    return None
