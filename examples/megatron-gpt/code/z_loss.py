"""Cross entropy with the z-loss of PaLM (arXiv:2204.02311, section 5) and smoothed labels.

The z-loss keeps the logits from drifting: it adds 1e-4 * log(Z)^2 for each token, where Z is the sum of the
exponentials of its logits. With smoothed labels, the target has 0.1 of its mass spread over the vocabulary.
Both need sums over the whole vocabulary, of which a tensor-parallel rank has a part.
"""

import torch

from nbtrain.model.custom_loss import LossBatch
from nbtrain.parallel.vocabulary import Vocabulary

Z_LOSS = 1e-4
SMOOTHING = 0.1


def loss(
    logits: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor, batch: LossBatch, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor, dict]:
    log_z = vocabulary.logsumexp(logits)
    of_label = log_z - vocabulary.of_labels(logits, labels)
    of_all = log_z - vocabulary.sum(logits.sum(-1)) / vocabulary.size
    z_loss = Z_LOSS * log_z.square()
    losses = (1 - SMOOTHING) * of_label + SMOOTHING * of_all + z_loss
    count = mask.sum()
    scalars = {"cross-entropy": ((of_label * mask).sum(), count), "z-loss": ((z_loss * mask).sum(), count)}
    return (losses * mask).sum(), count, scalars
