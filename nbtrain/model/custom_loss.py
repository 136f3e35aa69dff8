"""Computes a user-defined loss from the last hidden states.

    hidden states -> fp32 logits of this rank's token ids -> logits of all ids, unless loss() has the
    parameter `vocabulary` -> loss(...) -> sum / denominator

Unlike in the fused loss of parallel/cross_entropy.py, the full logits, [b, s, v], are in memory until the end
of their backward pass. Padding ids are removed. A function with the parameter `vocabulary` receives the
logits of this rank's ids and an object that sums over all ids (parallel/vocabulary.py). Any other function
receives the logits of all ids.

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
    """The micro batch that a user-defined loss receives.

    If each sequence is split between ranks, the batch has only this rank's tokens. With context parallelism,
    these tokens are two chunks that are not adjacent in the sequence.
    """

    tokens: torch.Tensor
    """int64 [b, s]: input tokens."""
    labels: torch.Tensor
    """int64 [b, s]: the token that follows each input token."""
    mask: torch.Tensor
    """fp32 [b, s]: 1 for tokens in the loss, 0 for all others."""
    dataset_ids: torch.Tensor | None = None
    """int64 [b, s]: index in dataset_names of each label's dataset; None if there is only one dataset."""
    dataset_names: tuple[str, ...] = ()
    """Names of the datasets in a blend or mixture; empty if there is only one dataset."""


class LossFunction(Protocol):
    """Type of the user-defined loss, as the model calls it (train/code/own_loss.py)."""

    takes_vocabulary: bool
    """Whether the function receives `vocabulary` and only the logits of this rank's ids."""
    dataset_names: tuple[str, ...]

    def __call__(self, logits: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary) -> torch.Tensor:
        """Return the sum of the losses as an fp32 scalar."""


class CustomInputs(NamedTuple):
    """The user-defined loss and its additional inputs."""

    function: LossFunction
    tokens: torch.Tensor
    """int64 [b, s]: input tokens of whole sequences."""
    dataset_ids: torch.Tensor | None
    """int64 [b, s]: see LossBatch; here for whole sequences."""


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
    """Return the sum that the user-defined loss returns, divided by `denominator`.

    Without a denominator, the sum is divided by the number of tokens in the loss. hidden is [b, s, h] or,
    with sequence parallelism, this rank's [b, s/t, h]; weight is [v/t, h].
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
        # The user's function computes in fp32, whatever the format of the products.
        logits = logits[..., : vocabulary.width].float()
        if (softcap := config.final_logit_softcapping) is not None:
            logits = softcap * torch.tanh(logits / softcap)
        if not function.takes_vocabulary:
            logits = vocabulary.gather(logits)
        total = function(logits, batch, vocabulary)
    if denominator is None:
        denominator = batch.mask.sum().clamp(min=1)
    return total / denominator
