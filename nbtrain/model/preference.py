"""The loss of direct preference optimization (DPO, arXiv:2305.18290, eq. 7; label smoothing: cDPO).

    log p(y)    sum of the log-probabilities of an answer's tokens in the loss
    margin      beta ((log p(chosen) - reference) - (log p(rejected) - reference))
    loss        -(1 - e) log sigmoid(margin) - e log sigmoid(-margin), the mean over pairs

The output layer's loss function (parallel/cross_entropy.py) computes gradients in its forward pass and needs
each token's weight at that time, so it runs twice. The first pass computes only log-probabilities. Each
token's weight, the derivative of the loss with respect to the token's log-probability, is computed from them.
The second pass computes the gradients. Only the output layer is computed twice, and no additional activations
are kept.

Shapes: b sequences, s tokens, P pairs in the batch
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from nbtrain.model.gpt_config import Dpo


class Pairs(NamedTuple):
    """The answer that each token belongs to, and the reference model's log-probabilities.

    They come from Batch in train/engine/batches.py.
    """

    answers: torch.Tensor
    """int64 [b, s]: 2 p for tokens of pair p's chosen answer, 2 p + 1 for those of its rejected answer."""
    reference: torch.Tensor
    """fp32 [P, 2]: the reference model's log-probability of each answer."""


def preference_loss(
    token_losses_of: Callable[..., torch.Tensor],
    pairs: Pairs,
    dpo: Dpo,
    loss_mask: torch.Tensor,
    denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean loss over pairs, or the sum of their losses divided by `denominator`, in fp32.

    token_losses_of(loss_mask, denominator, token_losses) must return linear_cross_entropy() for this batch.
    loss_mask [b, s] selects the tokens in the loss. If given, token_losses (fp32 [b, s]) is filled with each
    token's loss.
    """
    if token_losses is None:
        token_losses = torch.empty(loss_mask.shape, device=loss_mask.device)
    with torch.no_grad():
        token_losses_of(None, None, token_losses)
        margins = _margins(answer_log_probabilities(token_losses, loss_mask, pairs), pairs, dpo)
        smoothed = dpo.label_smoothing
        losses = -(1 - smoothed) * F.logsigmoid(margins) - smoothed * F.logsigmoid(-margins)
        if denominator is None:
            denominator = loss_mask.new_tensor(float(max(len(losses), 1)))
        loss = losses.sum().float() / denominator
        slope = dpo.beta * (smoothed * margins.sigmoid() - (1 - smoothed) * (-margins).sigmoid())
        # A token's loss is its negative log-probability.
        of_answers = torch.stack([-slope, slope], dim=1).flatten().float()
        weights = loss_mask * of_answers[pairs.answers]
    if not torch.is_grad_enabled():
        return loss
    # `weighted` has the gradient of the loss but not its value.
    weighted = token_losses_of(weights, denominator, None)
    return loss + (weighted - weighted.detach())


def answer_log_probabilities(
    token_losses: torch.Tensor, loss_mask: torch.Tensor, pairs: Pairs
) -> torch.Tensor:
    """Return each answer's log-probability, float64 [P, 2]: the sum over its tokens in the loss.

    The tokens are always added in the same order.
    """
    learnt = (token_losses * loss_mask).flatten()
    number = torch.arange(2 * len(pairs.reference), device=learnt.device)
    of_answer = pairs.answers.flatten() == number[:, None]
    return -torch.where(of_answer, learnt, 0.0).sum(1, dtype=torch.float64).view(-1, 2)


def rewards(log_probabilities: torch.Tensor, pairs: Pairs, dpo: Dpo) -> torch.Tensor:
    """Return each answer's reward, float64 [P, 2]: beta * (log-probability - reference log-probability)."""
    return dpo.beta * (log_probabilities - pairs.reference)


def _margins(log_probabilities: torch.Tensor, pairs: Pairs, dpo: Dpo) -> torch.Tensor:
    chosen, rejected = rewards(log_probabilities, pairs, dpo).unbind(1)
    return chosen - rejected
