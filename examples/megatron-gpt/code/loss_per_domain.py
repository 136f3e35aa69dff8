"""Megatron's loss_func, with the loss of each domain of a blend as a scalar.

Megatron-LM's pretrain_gpt.py returns (sum of losses, number of tokens, {"lm loss": (sum, number)}) from the
losses of the tokens. Here loss() computes these losses itself, and adds a pair for each dataset. Use it in a
run with data.blend: `code: loss_per_domain.py`.
"""

import torch

from nbtrain.model.custom_loss import LossBatch
from nbtrain.parallel.vocabulary import Vocabulary


def loss(
    logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    losses = vocabulary.cross_entropy(logits, labels)
    total, count = (losses * mask).sum(), mask.sum()
    scalars = {"lm-loss": (total, count)}
    for number, name in enumerate(batch.dataset_names):
        own = mask * (batch.dataset_ids == number)
        scalars[f"lm-loss.{name}"] = ((losses * own).sum(), own.sum())
    return total, count, scalars
