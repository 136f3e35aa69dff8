"""DPO's loss equals a plain implementation of the formula that reads each answer alone."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nbtrain.dataset.samples.sample import Sample
from nbtrain.model.gpt import GPT, GPTConfig
from nbtrain.train.engine.batches import _stack

SEQ, VOCABULARY = 40, 64
DPO = SimpleNamespace(beta=0.3, label_smoothing=0.1)


def made_pairs(generator, count):
    """Return random pairs (prompt, chosen, rejected) of token lists."""
    found = []
    for _ in range(count):
        sizes = generator.randint(1, 5), *(2 + generator.randint(0, 4, 2))
        found.append([generator.randint(1, VOCABULARY, size=size) for size in sizes])
    return found


def sample_of(pairs, reference):
    """Return a padded sample in the format of preference_dataset.py."""
    tokens, labels, mask, answers, starts = [], [], [], [], []
    for number, (prompt, *both) in enumerate(pairs):
        for side, answer in enumerate(both):
            ids = [*prompt, *answer]
            starts.append(len(tokens))
            tokens += ids[:-1]
            labels += ids[1:]
            mask += [0] * (len(prompt) - 1) + [1] * len(answer)
            answers += [2 * number + side] * (len(ids) - 1)
    room = SEQ - len(tokens)
    bounds = np.full(SEQ + 1, SEQ, np.int32)
    bounds[: len(starts) + 1] = [*starts, len(tokens)]
    positions = np.concatenate([np.arange(last - first) for first, last in itertools.pairwise(bounds)])
    padded = [np.array([*row, *[0] * room]) for row in (tokens, labels, mask, answers)]
    return Sample(
        padded[0], padded[1], padded[2].astype(np.float32), positions, bounds, answers=padded[3],
        pairs=np.arange(len(pairs)), reference=reference,
    )  # fmt: skip


def plain_loss(model, pairs, reference):
    """Compute equation 7 of arXiv:2305.18290 with cDPO's smoothed labels; return the loss and the
    log-probabilities.
    """
    losses, found = [], []
    for (prompt, *both), known in zip(pairs, reference, strict=True):
        logps = []
        for answer in both:
            ids = torch.tensor([*prompt, *answer])[None]
            scores = F.log_softmax(model(ids[:, :-1]), dim=-1).gather(2, ids[:, 1:, None])[0, :, 0]
            logps.append(scores[len(prompt) - 1 :].sum())
        margin = DPO.beta * ((logps[0] - known[0]) - (logps[1] - known[1]))
        own = (1 - DPO.label_smoothing) * F.logsigmoid(margin)
        losses.append(-own - DPO.label_smoothing * F.logsigmoid(-margin))
        found.append(torch.stack(logps))
    return torch.stack(losses).mean(), torch.stack(found)


@pytest.fixture
def case():
    """Return (the model, five pairs, their reference log-probabilities, a batch of two samples with these
    pairs).
    """
    torch.manual_seed(1)
    generator = np.random.RandomState(2)
    pairs, reference = made_pairs(generator, 5), generator.normal(-9, 2, (5, 2)).astype(np.float32)
    config = GPTConfig(
        2, 32, 4, 128, VOCABULARY, SEQ, init_method_std=0.2, dpo=DPO, cross_entropy_chunk_tokens=7
    )
    batch = _stack([sample_of(pairs[:2], reference[:2]), sample_of(pairs[2:], reference[2:])], True, False)
    return GPT(config), pairs, reference, batch


def ours(model, batch, **more):
    return model(
        batch.tokens, batch.labels, loss_mask=batch.loss_mask, answers=batch.answers,
        reference=batch.reference, **more, **batch.bounds,
    )  # fmt: skip


def test_loss_and_gradients_are_those_of_the_formula(case):
    """Loss and gradients equal the formula's for a batch of two samples, each with several packed pairs, one
    of them padded.
    """
    model, pairs, reference, batch = case
    assert batch.pairs.tolist() == [0, 1, 0, 1, 2] and int(batch.answers.max()) == 9
    loss = ours(model, batch)
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected, _ = plain_loss(model, pairs, reference)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7)
    # The mean over all pairs of a step rather than of a micro batch.
    half = ours(model, batch, loss_denominator=torch.tensor(10.0))
    torch.testing.assert_close(half, expected.detach() / 2, rtol=1e-6, atol=1e-6)


def test_the_losses_of_tokens_give_the_log_probabilities(case):
    """The per-token losses give each answer's log-probability, and the loss is the same without gradients."""
    from nbtrain.model.preference import Pairs, answer_log_probabilities

    model, pairs, reference, batch = case
    token_losses = torch.zeros(batch.tokens.shape)
    with torch.no_grad():
        loss = ours(model, batch, token_losses=token_losses)
        expected, logps = plain_loss(model, pairs, reference)
    found = answer_log_probabilities(token_losses, batch.loss_mask, Pairs(batch.answers, batch.reference))
    torch.testing.assert_close(found.float(), logps, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
