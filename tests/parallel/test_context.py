"""Context-parallel ranks train like one process: the mean of their gradients is the gradient of the whole
sequence.
"""

import pytest
import torch

from nbtrain.model.attention import Documents, causal_attention, document_numbers, documents_of_chunk, mask_of
from nbtrain.model.gpt import GPT
from nbtrain.parallel import context
from nbtrain.parallel.groups import Group
from nbtrain.parallel.layout import ModelParallel
from tests.parallel import ranks
from tests.parallel.cut import draw, world
from tests.parallel.shared_sequences import (
    assert_losses_and_gradients,
    assert_other_layers,
    assert_recomputed,
    mean,
)
from tests.parallel.small import gpt_config, text


def layout() -> ModelParallel:
    return ModelParallel(context=world())


def test_ranks_have_equal_shares_of_the_causal_triangle():
    """Each rank has an early and a late chunk, so that its queries see as many keys as on any other rank."""
    tokens = torch.arange(1, 25)
    parts = [context.own_tokens(tokens, Group((0, 1, 2), rank)) for rank in range(3)]
    assert [part.tolist() for part in parts] == [
        [1, 2, 3, 4, 21, 22, 23, 24],
        [5, 6, 7, 8, 17, 18, 19, 20],
        [9, 10, 11, 12, 13, 14, 15, 16],
    ]
    assert len({int(part.sum()) for part in parts}) == 1
    starts = [context.own_starts(24, Group((0, 1, 2), rank)) for rank in range(3)]
    assert starts == [(0, 20), (4, 16), (8, 12)]


def test_sequences_of_odd_chunks_are_refused():
    with pytest.raises(ValueError, match=r"10 tokens .* a multiple of 4"):
        context.own_tokens(torch.zeros(2, 10), Group((0, 1), 0))


@pytest.mark.parametrize("window", [None, 3])
def test_a_chunk_has_the_bounds_of_its_sequence(window):
    """Queries of a chunk attend as they do in the whole sequence, and lengths say the same as the mask."""
    batch, tokens = 2, 12
    ends = torch.tensor([0, 2, 7, 12, 20, 24], dtype=torch.int32)
    numbers = document_numbers(ends, batch, tokens)
    whole = Documents(mask_of(numbers))
    query, key, value = (draw(batch, 2, tokens, 8, seed=seed) for seed in range(3))
    expected = causal_attention(query, key, value, documents=whole, window=window)
    for start in range(0, tokens, 3):
        chunk = range(start, start + 3)
        rows = slice(chunk.start, chunk.stop)
        bounds = documents_of_chunk(whole, tokens, chunk)
        seen = (query[:, :, rows], key[:, :, : chunk.stop], value[:, :, : chunk.stop])
        found = causal_attention(*seen, documents=bounds, window=window)
        torch.testing.assert_close(found, expected[:, :, rows])
        lengths = documents_of_chunk(Documents(None, ends, 8), tokens, chunk)
        assert torch.equal(_seen(lengths, batch, chunk), bounds.mask[:, 0].sum(-1))


def _seen(lengths: Documents, batch: int, chunk: range) -> torch.Tensor:
    """Return how many keys each query of a chunk sees, [b, tokens of the chunk].

    The kernel aligns the last query of a document with its last key (torch.nn.attention.varlen).
    """
    found: list[int] = []
    for queries, keys in zip(lengths.cu_seqlens.diff().tolist(), lengths.key_cu_seqlens.diff().tolist()):
        found += [keys - queries + number + 1 for number in range(queries)]
    return torch.tensor(found).view(batch, len(chunk))


def check_keys_are_gathered_in_order():
    """Each chunk sees the keys of all tokens up to its end in their order, and each rank receives the sum of
    the gradients of its keys and values.
    """
    group, (batch, heads, tokens, size) = world(), (2, 3, 16, 6)
    whole = draw(2, batch, heads, tokens, size)
    key, value = (context.own_tokens(each.mT, group).mT.clone().requires_grad_() for each in whole)
    expected = torch.zeros_like(whole)
    starts, seen = context.own_starts(tokens, group), context.seen_keys(key, value, group)
    losses = []
    for number, (start, chunk) in enumerate(zip(starts, seen, strict=True)):
        end = start + tokens // (2 * group.size)
        grads = draw(2, batch, heads, tokens, size, seed=1 + 2 * group.rank + number)[:, :, :, :end]
        for each, of_all, grad, total in zip(chunk, whole, grads, expected):
            assert torch.equal(each, of_all[:, :, :end])
            losses.append((each * grad).sum())
            total[:, :, :end] += grad
    sum(losses).backward()
    for each, total in zip((key, value), expected):
        torch.testing.assert_close(each.grad, context.own_tokens((mean(total) * group.size).mT, group).mT)


def check_losses_and_gradients_are_those_of_one_process():
    assert_losses_and_gradients(layout())


def check_other_layers_are_those_of_one_process():
    assert_other_layers(layout())


def check_ranks_drop_apart_and_recomputation_changes_no_bit():
    assert_recomputed(layout())


def check_bf16_kernels_are_those_of_one_process():
    """In bf16, where a CPU has nbtrain's own kernel, with and without a window."""
    for window in (None, 3):
        config = gpt_config(windows=(window,) * gpt_config().num_layers if window else ())
        one, model = GPT(config).bfloat16(), GPT(config, layout()).bfloat16()
        expected, loss = one(*text()), model(*text())
        expected.backward(), loss.backward()
        torch.testing.assert_close(mean(loss.float()), expected.detach().float(), rtol=1e-2, atol=1e-2)
        for ours, theirs in zip(model.parameters(), one.parameters()):
            difference = (mean(ours.grad.float()) - theirs.grad.float()).norm()
            assert difference <= 0.05 * theirs.grad.float().norm()


def check_logits_are_refused():
    with pytest.raises(ValueError, match="logits need whole sequences"):
        GPT(gpt_config(), layout())(text()[0])


CHECKS = {
    2: ranks.names(globals()),
    # A chunk is one token.
    4: [name for name in ranks.names(globals()) if "one_process" in name or "gathered" in name],
}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
