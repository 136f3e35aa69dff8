"""Checks of ranks that share sequences, by Ulysses or by context parallelism, against one process."""

import torch
import torch.distributed as dist

from nbtrain.model.gpt import GPT
from nbtrain.parallel.layout import ModelParallel
from tests.parallel.cut import assert_close, world
from tests.parallel.rounding import FORWARD, GRADIENT
from tests.parallel.small import KINDS, S, gpt_config, text

MASK = (torch.arange(2 * S).view(2, S) % 3 > 0).float()
DOCUMENTS = {
    "cu_seqlens": torch.tensor([0, 3, 8, 16], dtype=torch.int32),
    "max_seqlen": 8,
    "position_ids": torch.stack([torch.arange(S) - 3 * (torch.arange(S) >= 3), torch.arange(S)]),
}


def mean(tensor: torch.Tensor) -> torch.Tensor:
    """Return the mean over the ranks."""
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / world().size


def assert_losses_and_gradients(parallel: ModelParallel) -> None:
    """Losses and gradients equal one process's: for plain batches, with documents and positions, and with
    masks and a denominator that is computed or given.
    """
    tokens, labels = text()
    size = world().size
    # A given denominator divides one rank's sum: the mean over the ranks is then the sum over the whole.
    cases = [
        ({}, {}),
        (DOCUMENTS, DOCUMENTS),
        ({"loss_mask": MASK}, {"loss_mask": MASK}),
        (
            {"loss_mask": MASK, "loss_denominator": torch.tensor(6.0)},
            {"loss_mask": MASK, "loss_denominator": torch.tensor(6.0 / size)},
        ),
    ]
    for plain, shared in cases:
        one, model = GPT(gpt_config()), GPT(gpt_config(), parallel)
        expected_losses, losses = torch.empty(2, S), torch.full((2, S), 7.0)
        expected = one(tokens, labels, token_losses=expected_losses, **plain)
        loss = model(tokens, labels, token_losses=losses, **shared)
        expected.backward(), loss.backward()
        assert_close(mean(loss), expected.detach(), FORWARD)
        assert_close(mean(losses) * size, expected_losses, FORWARD)
        assert (losses == 0).sum() == (size - 1) * losses.numel() // size
        for (name, ours), theirs in zip(model.named_parameters(), one.parameters()):
            try:
                assert_close(mean(ours.grad), theirs.grad, GRADIENT)
            except AssertionError as error:
                raise AssertionError(f"{name}, {sorted(plain)}: {error}") from error


def assert_other_layers(parallel: ModelParallel) -> None:
    """Models with other kinds of layers equal one process: few key-value groups, windows, caps and rotary
    positions.
    """
    for kind in KINDS:
        one, model = GPT(gpt_config(**kind)), GPT(gpt_config(**kind), parallel)
        expected, loss = one(*text(), **DOCUMENTS), model(*text(), **DOCUMENTS)
        expected.backward(), loss.backward()
        assert_close(mean(loss), expected.detach(), FORWARD)
        for (name, ours), theirs in zip(model.named_parameters(), one.parameters()):
            try:
                assert_close(mean(ours.grad), theirs.grad, GRADIENT)
            except AssertionError as error:
                raise AssertionError(f"{name}, {kind}: {error}") from error


def assert_recomputed(parallel: ModelParallel) -> None:
    """Each rank draws the dropout of its heads and tokens with a separate seed, and recomputation changes no
    bit.
    """
    results = []
    for interval in (0, 1):
        torch.manual_seed(world().rank)
        settings = gpt_config(attention_dropout=0.3, hidden_dropout=0.2, checkpoint_interval_layers=interval)
        model = GPT(settings, parallel)
        loss = model(*text())
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(*pair) for pair in zip(*results))
