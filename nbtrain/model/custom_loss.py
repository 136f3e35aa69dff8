"""Loss of the last hidden states by a function of the user's file, which gets the logits.

hidden states -> logits of this rank's ids, fp32 -> [all ids] -> loss(...) -> sum / denominator

The logits exist whole, [b, s, v], from here to the end of their backward pass, unlike in the fused loss of
parallel/cross_entropy.py. Padding ids are cut off. A function that takes `vocabulary` gets the logits of this
rank's ids and the means to sum over all of them (parallel/vocabulary.py); any other gets those of all ids.

Shapes: b sequences, s tokens, h hidden, v ids, t tensor-parallel ranks
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel import mappings
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.trained_rows import own_rows
from nbtrain.parallel.vocabulary import Vocabulary


@dataclass(frozen=True)
class LossBatch:
    """The micro batch, as the user's loss receives it.

    Where ranks share sequences, it is this rank's part: with context parallelism two chunks, with other
    tokens between them.
    """

    tokens: torch.Tensor
    """int64 [b, s]: the input tokens; the label of each is the next one."""
    labels: torch.Tensor
    """int64 [b, s]."""
    mask: torch.Tensor
    """fp32 [b, s]: 1 for a token in the loss, 0 for any other."""
    dataset_ids: torch.Tensor | None = None
    """int64 [b, s]: index into dataset_names of the dataset that each label is from; None if there is only
    one.
    """
    dataset_names: tuple[str, ...] = ()
    """Names of the datasets of a blend or mixture; empty if there is only one."""


class LossFunction(Protocol):
    """The user's loss, as the model calls it (train/code/own_loss.py)."""

    takes_vocabulary: bool
    """Whether it gets the logits of this rank's ids, with `vocabulary`."""
    dataset_names: tuple[str, ...]

    def __call__(self, logits: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary) -> torch.Tensor:
        """Return the sum of the losses, an fp32 scalar."""


class CustomInputs(NamedTuple):
    """The user's loss, and what it gets in addition to the inputs of nbtrain's."""

    function: LossFunction
    tokens: torch.Tensor
    """int64 [b, s]."""
    dataset_ids: torch.Tensor | None
    """int64 [b, s]."""


def custom_loss(
    function: LossFunction,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    rows: torch.Tensor | None,
    config: GPTConfig,
    parallel: ModelParallel,
    batch: LossBatch,
    denominator: torch.Tensor | None,
) -> torch.Tensor:
    """Return the sum that the user's loss returns, divided by `denominator` or, without one, by the number of
    tokens in the loss.

    hidden is [b, s, h], or this rank's [b, s/t, h] with sequence parallelism; weight is [v/t, h].
    """
    group = parallel.tensor
    enter = (
        mappings.gather_from_sequence_parallel_region
        if parallel.cuts_tokens
        else mappings.copy_to_tensor_model_parallel_region
    )
    hidden = enter(hidden, group)
    logits = F.linear(hidden, weight)
    if rows is not None:
        (rows,) = mappings.copy_parameters_to_sequence_parallel_region(rows, group=group)
        own = own_rows(rows, config.trained_tokens, group.rank * len(weight), len(weight))
        logits = logits.index_copy(-1, own.columns, F.linear(hidden, own.rows).to(logits.dtype))
    size = config.vocab_size or len(weight) * group.size
    vocabulary = Vocabulary(group, size, len(weight))
    with torch.autocast(hidden.device.type, enabled=False):
        # The function computes in fp32 whatever the format of the products.
        logits = logits[..., : vocabulary.width].float()
        if (softcap := config.final_logit_softcapping) is not None:
            logits = softcap * torch.tanh(logits / softcap)
        if not function.takes_vocabulary:
            logits = vocabulary.gather(logits)
        total = function(logits, batch, vocabulary)
    if denominator is None:
        denominator = batch.mask.sum().clamp(min=1)
    return total / denominator
