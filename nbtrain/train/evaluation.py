"""Loss on the validation or test split: always its first samples, so that two evaluations can be compared.

The mean is taken in double precision over all micro batches of all ranks. No gradient, no dropout, and every
random generator is left as it was: training goes on as if nothing had happened.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from nbtrain.parallel.random import preserved
from nbtrain.train.batches import Batches


def evaluate(module: torch.nn.Module, batches: Batches, beat: Callable[[], None]) -> float:
    """Mean loss in nats over every micro batch of `batches`, on all ranks the same."""
    training = module.training
    module.eval()
    total = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad(), preserved():
        for tokens, labels in batches:
            total += torch.tensor([module(tokens, labels).item(), 1.0], dtype=torch.float64)
            beat()
    module.train(training)
    total = total.to(tokens.device)
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    loss, count = total.tolist()
    return loss / count
