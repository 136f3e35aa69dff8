"""Trainable rows on top of a frozen matrix give the same results as if the matrix contained them."""

import pytest
import torch
import torch.nn.functional as F

from nbtrain.parallel import mappings
from nbtrain.parallel.cross_entropy import linear_cross_entropy
from nbtrain.parallel.groups import ALONE
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.trained_rows import TrainedRows, embedded, own_rows
from tests.parallel import ranks
from tests.parallel.cut import assert_close, draw, world
from tests.parallel.rounding import ONE_SUM

B, S, H, VOCAB, PADDED = 2, 16, 16, 50, 64
# Rows at both ends of the shards of two ranks; 49 is the last row before the padding.
IDS = (0, 3, 31, 32, 49)


def inputs():
    rows, weight = draw(len(IDS), H, seed=1), draw(PADDED, H, seed=2)
    tokens = torch.randint(VOCAB, (B, S), generator=torch.Generator().manual_seed(3))
    tokens[0, :7] = torch.tensor([0, 0, 3, 31, 32, 49, 48])
    return rows.requires_grad_(), weight, tokens


def with_rows(weight, rows):
    return weight.index_copy(0, torch.tensor(IDS), rows)


def expected_loss(hidden, weight, rows, tokens, softcap=None):
    logits = F.linear(hidden, with_rows(weight, rows)[:VOCAB])
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("chunk_tokens", [0, 7])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_loss_is_that_of_a_matrix_with_the_rows(chunk_tokens, softcap):
    rows, weight, tokens = inputs()
    hidden = draw(B, S, H, seed=4).requires_grad_()
    expected = expected_loss(hidden, weight, rows, tokens, softcap)
    before = weight.clone()
    found = linear_cross_entropy(
        hidden,
        weight,
        tokens,
        chunk_tokens,
        vocab_size=VOCAB,
        softcap=softcap,
        trained=TrainedRows(rows, IDS),
    )
    assert_close(found, expected, ONE_SUM)
    for ours, theirs in zip(*(torch.autograd.grad(one * 8, (hidden, rows)) for one in (found, expected))):
        assert_close(ours, theirs, ONE_SUM)
    assert torch.equal(weight, before)


def test_rows_of_a_trained_matrix_have_no_gradient_there():
    rows, weight, tokens = inputs()
    hidden = draw(B, S, H, seed=4)
    weight.requires_grad_()
    losses = (
        linear_cross_entropy(hidden, weight, tokens, 7, vocab_size=VOCAB, trained=TrainedRows(rows, IDS)),
        expected_loss(hidden, weight, rows, tokens),
    )
    found, expected = (torch.autograd.grad(loss, (weight, rows)) for loss in losses)
    assert not found[0][list(IDS)].any()
    for ours, theirs in zip(found, expected):
        assert_close(ours, theirs, ONE_SUM)


def test_a_token_has_its_row():
    rows, weight, tokens = inputs()
    found = embedded(F.embedding(tokens, weight), tokens, TrainedRows(rows, IDS), ALONE, False)
    expected = F.embedding(tokens, with_rows(weight, rows))
    assert torch.equal(found, expected)
    scale = draw(B, S, H, seed=5)
    ours, theirs = (torch.autograd.grad((one * scale).sum(), rows)[0] for one in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_rank_has_the_rows_of_its_part():
    rows, _, _ = inputs()
    parts = [own_rows(rows, IDS, 16 * rank, 16) for rank in range(4)]
    assert [len(part.rows) for part in parts] == [2, 1, 1, 1]
    assert [part.columns.tolist() for part in parts] == [[0, 3], [15], [0], [1]]
    assert torch.equal(torch.cat([part.rows for part in parts]), rows)
    nothing = own_rows(rows, IDS, 4, 16)
    assert nothing.rows.shape == (0, H) and nothing.columns.tolist() == []


def check_ranks_have_the_gradient_of_one_process():
    """Every rank has the same gradient as one process, with and without sequence parallelism, for rows used
    in the embedding and the output.
    """
    group = world()
    for sequence_parallel in (False, True):
        rows, weight, tokens = inputs()
        whole = draw(B, S, H, seed=4)
        stream = whole + F.embedding(tokens, with_rows(weight, rows))
        expected = torch.autograd.grad(expected_loss(stream, weight, rows, tokens.roll(-1, 1)), rows)[0]
        own = rows.detach().clone().requires_grad_()
        trained = TrainedRows(own, IDS)
        here = own_part(tokens, 1, group) if sequence_parallel else tokens
        given = own_part(whole, 1, group) if sequence_parallel else whole
        found = embedded(F.embedding(here, weight), tokens, trained, group, sequence_parallel)
        loss = linear_cross_entropy(
            given + found, own_part(weight, 0, group), tokens.roll(-1, 1), 5, group=group,
            sequence_parallel=sequence_parallel, vocab_size=VOCAB, trained=trained,
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(loss, own)
        assert_close(gradient, expected, 4 * ONE_SUM)
        of_ranks = mappings.all_gather(gradient.unsqueeze(0), 0, group)
        assert all(torch.equal(one, of_ranks[0]) for one in of_ranks)


CHECKS = dict.fromkeys((2, 4), ranks.names(globals()))


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
