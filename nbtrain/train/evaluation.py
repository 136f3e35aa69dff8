"""Loss on the validation or test split: always its first samples, so that two evaluations can be compared.

The mean is taken in double precision over all micro batches of all ranks, or over all tokens that bear a loss where
not all do. No gradient, no dropout, and every
random generator is left as it was: training goes on as if nothing had happened.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from nbtrain.parallel.random import preserved
from nbtrain.train.batches import Batch, Batches


def evaluate(module: torch.nn.Module, batches: Batches, beat: Callable[[], None]) -> float:
    """Mean loss in nats over all of `batches`, on all ranks the same."""
    training = module.training
    module.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad(), preserved():
        for batch in batches:
            total += torch.tensor(_loss_and_count(module, batch), dtype=torch.float64)
            beat()
    module.train(training)
    total = total.to(batch.tokens.device)
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    loss, count = total.tolist()
    return loss / max(count, 1.0)


def _loss_and_count(module: torch.nn.Module, batch: Batch) -> tuple[float, float]:
    """What is added up: means of micro batches, or where there is a loss mask sums over learnt tokens."""
    if batch.loss_mask is None:
        return module(batch.tokens, batch.labels, **batch.bounds).item(), 1.0
    total = module(
        batch.tokens,
        batch.labels,
        loss_mask=batch.loss_mask,
        loss_denominator=batch.loss_mask.new_ones(()),
        **batch.bounds,
    )
    return total.item(), batch.loss_mask.sum(dtype=torch.float64).item()
