"""The loss over a vocabulary sharded across ranks, compared with torch's loss and with one process."""

import pytest
import torch
import torch.nn.functional as F

from nbtrain.parallel import mappings
from nbtrain.parallel.cross_entropy import linear_cross_entropy
from nbtrain.parallel.groups import ALONE
from nbtrain.parallel.mappings import own_part
from tests.parallel import ranks
from tests.parallel.cut import assert_close, draw, world
from tests.parallel.rounding import ONE_SUM

B, S, H = 2, 16, 16
VOCAB, PADDED = 50, 64


def inputs(dtype: torch.dtype = torch.float32):
    """Return the hidden states, a weight with padding rows, and labels from the first and last row of every
    rank's shard.
    """
    hidden, weight = draw(B, S, H, seed=1).to(dtype), draw(PADDED, H, seed=2).to(dtype)
    labels = torch.randint(VOCAB, (B, S), generator=torch.Generator().manual_seed(3))
    labels[0, :6] = torch.tensor([0, 15, 16, 31, 32, VOCAB - 1])
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def on_this_rank(hidden, weight, labels, chunk_tokens=5, sequence_parallel=False, **keywords):
    """Return (loss, gradient of this rank's hidden states, gradient of its rows) of 8 times the loss."""
    group = world()
    own = own_part(hidden.detach(), 1, group) if sequence_parallel else hidden.detach()
    hidden, weight = (
        own.clone().requires_grad_(),
        own_part(weight.detach(), 0, group).clone().requires_grad_(),
    )
    loss = linear_cross_entropy(
        hidden, weight, labels, chunk_tokens, group=group, sequence_parallel=sequence_parallel, **keywords
    )
    # A factor, as from gradient accumulation and loss scaling.
    return loss, *torch.autograd.grad(loss * 8, (hidden, weight))


def assert_as(expected, hidden, weight, ours, sequence_parallel=False, relative=ONE_SUM):
    group = world()
    loss, hidden_gradient, weight_gradient = ours
    whole_hidden, whole_weight = torch.autograd.grad(expected * 8, (hidden, weight))
    assert loss.dtype == torch.float32
    assert_close(loss, expected.float(), relative)
    expected_hidden = own_part(whole_hidden, 1, group) if sequence_parallel else whole_hidden
    assert_close(hidden_gradient.float(), expected_hidden.float(), relative)
    # Relative to the whole weight's largest number, because a rank may hold only small ones.
    tolerance = relative * float(whole_weight.abs().max())
    torch.testing.assert_close(
        weight_gradient.float(), own_part(whole_weight, 0, group).float(), rtol=relative, atol=tolerance
    )


def check_loss_and_gradients_are_those_of_cross_entropy():
    for sequence_parallel in (False, True):
        for chunk_tokens in (0, 1, 7, B * S, 1000):
            hidden, weight, labels = inputs()
            expected = F.cross_entropy((hidden @ weight.T).flatten(0, 1), labels.flatten())
            ours = on_this_rank(hidden, weight, labels, chunk_tokens, sequence_parallel)
            assert_as(expected, hidden, weight, ours, sequence_parallel)


def check_padding_takes_no_part():
    """Padding rows are excluded from the softmax and get no gradient, even on ranks that have only padding
    rows.
    """
    for sequence_parallel in (False, True):
        for vocabulary in (VOCAB, PADDED // world().size, PADDED):
            hidden, weight, labels = inputs()
            labels = labels.clamp(max=vocabulary - 1)
            expected = F.cross_entropy((hidden @ weight[:vocabulary].T).flatten(0, 1), labels.flatten())
            ours = on_this_rank(
                hidden, weight, labels, sequence_parallel=sequence_parallel, vocab_size=vocabulary
            )
            assert_as(expected, hidden, weight, ours, sequence_parallel)


def check_masks_denominators_and_token_losses_are_as_of_one_process():
    mask = (draw(B, S, seed=5) > 0).float()
    for keywords in (
        {"loss_mask": mask},
        {"loss_mask": mask, "denominator": torch.tensor(7.0)},
        {"loss_mask": torch.zeros(B, S)},
        {"denominator": torch.tensor(7.0)},
    ):
        hidden, weight, labels = inputs()
        flat = {key: value.flatten() if value.dim() else value for key, value in keywords.items()}
        theirs = torch.empty(B * S)
        expected = linear_cross_entropy(
            hidden.flatten(0, 1), weight, labels.flatten(), 5, **flat, token_losses=theirs
        )
        losses = torch.empty(B, S)
        ours = on_this_rank(hidden, weight, labels, **keywords, token_losses=losses)
        assert_as(expected, hidden, weight, ours)
        assert_close(losses.flatten(), theirs)


def check_every_rank_has_the_same_bits():
    """All ranks compute the same loss bit for bit; otherwise ranks could take different decisions."""
    group = world()
    loss, hidden_gradient, _ = on_this_rank(*inputs())
    for one in (loss, hidden_gradient):
        everyone = mappings.all_gather(one.detach().reshape(1, -1), 0, group)
        assert torch.equal(everyone, everyone[:1].expand_as(everyone))


def check_large_logits_neither_overflow_nor_vanish():
    """Logits of several thousand that are far apart on different ranks neither overflow nor vanish."""
    hidden, weight, labels = inputs()
    hidden = (hidden.detach() * 1000).requires_grad_()
    expected = F.cross_entropy((hidden @ weight.T).flatten(0, 1), labels.flatten())
    ours = on_this_rank(hidden, weight, labels)
    assert all(torch.isfinite(one).all() for one in ours)
    assert_as(expected, hidden, weight, ours)


def check_the_softmax_is_in_fp32_with_16_bit_weights():
    """With 16-bit weights, the softmax is still in fp32: only products and gradients are rounded, to 2^-8 or
    2^-11.
    """
    for dtype in (torch.bfloat16, torch.float16):
        hidden, weight, labels = inputs(dtype)
        exact = [one.detach().float().requires_grad_() for one in (hidden, weight)]
        expected = F.cross_entropy((exact[0] @ exact[1].T).flatten(0, 1), labels.flatten())
        ours = on_this_rank(hidden, weight, labels)
        assert ours[1].dtype == ours[2].dtype == dtype
        logits = torch.cat([hidden.flatten(0, 1) @ part.T for part in weight.chunk(world().size)], dim=1)
        assert_close(ours[0], F.cross_entropy(logits.float(), labels.flatten()))
        assert_as(expected, *exact, ours, relative=4 * torch.finfo(dtype).eps)


def check_autocast_takes_products_in_bf16_and_keeps_fp32_gradients():
    hidden, weight, labels = inputs()
    expected = F.cross_entropy((hidden @ weight.T).flatten(0, 1), labels.flatten())
    with torch.autocast("cpu", torch.bfloat16):
        ours = on_this_rank(hidden, weight, labels)
    assert ours[1].dtype == ours[2].dtype == torch.float32
    assert not torch.equal(ours[0], expected)
    assert_as(expected, hidden, weight, ours, relative=4 * torch.finfo(torch.bfloat16).eps)


def check_no_logits_are_sent():
    """Logits are never sent between ranks. Only two numbers per token are sent, whatever the size of the
    vocabulary, also without gradients.
    """
    sent = []
    kept = mappings.Gathering.__init__

    def counted(self, x, dim, group):
        sent.append(x.numel())
        kept(self, x, dim, group)

    mappings.Gathering.__init__ = counted
    try:
        hidden, weight, labels = inputs()
        with torch.no_grad():
            linear_cross_entropy(hidden, own_part(weight, 0, world()), labels, 12, group=world())
    finally:
        mappings.Gathering.__init__ = kept
    assert sent == [24, 24, 16]


@pytest.mark.parametrize("chunk_tokens", [0, 7])
def test_alone_it_is_the_loss_of_one_process(chunk_tokens):
    hidden, weight, labels = inputs()
    expected = linear_cross_entropy(hidden.flatten(0, 1), weight, labels.flatten(), chunk_tokens)
    loss = linear_cross_entropy(hidden, weight, labels, chunk_tokens, group=ALONE, sequence_parallel=True)
    assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight))
    ):
        assert_close(ours, theirs)


CHECKS = dict.fromkeys((2, 4), ranks.names(globals()))


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
