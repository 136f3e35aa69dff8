"""Sequences of different lengths in one cache give the same logits as each sequence alone."""

import pytest
import torch

from nbtrain.model.gpt import GPT
from nbtrain.model.kv_cache import Singles
from tests.parallel.small import KINDS, VOCAB, gpt_config

LENGTH = 10


def model_of(kind: dict) -> GPT:
    return GPT(gpt_config(**kind)).eval()


def sequences(count: int) -> torch.Tensor:
    return torch.randint(VOCAB, (count, LENGTH), generator=torch.Generator().manual_seed(6))


def read(model: GPT, cache, tokens: torch.Tensor, parts: dict[int, tuple[int, int]]) -> list[torch.Tensor]:
    """Read tokens[slot, start:end] for each slot in one forward pass, and return the logits of each slot."""
    counts = [end - start for start, end in parts.values()]
    cache.place(list(parts), counts)
    placed = torch.cat([tokens[slot, start:end] for slot, (start, end) in parts.items()])
    return list(model(placed.unsqueeze(0), cache=cache)[0].split(counts))


MODELS = {
    "gpt": {},
    "llama": KINDS[0] | {"num_query_groups": 2},
    "windows": {"windows": (3, None)},
    "softcap": {"windows": (3, None), "attn_logit_softcapping": 5.0},
}

# Each pass reads a part of some slots, those with a single token first.
PASSES = {
    "prompts of unequal length at once": [{0: (0, 4), 2: (0, 7), 3: (0, 2)}],
    "single tokens of nearly one length, together": [
        {0: (0, 8), 1: (0, 8), 2: (0, 7)},
        {0: (8, 9), 1: (8, 9), 2: (7, 8)},
        {0: (9, 10), 1: (9, 10), 2: (8, 9)},
    ],
    "single tokens of one length": [{1: (0, 5), 2: (0, 5)}, {1: (5, 6), 2: (5, 6)}],
    "single tokens of other lengths, each alone": [{0: (0, 9), 1: (0, 2)}, {0: (9, 10), 1: (2, 3)}],
    "single tokens out of order": [{0: (0, 4), 3: (0, 4)}, {3: (4, 5), 0: (4, 5)}],
    "single tokens, the rest of a prompt, and a new one": [
        {1: (0, 4), 0: (0, 4), 3: (0, 6)},
        {0: (4, 5), 1: (4, 5), 3: (6, 9), 2: (0, 3)},
        {1: (5, 6), 0: (5, 6), 2: (3, 10)},
    ],
}


@pytest.mark.parametrize("passes", PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_each_sequence_alone(passes, kind):
    model, tokens = model_of(kind), sequences(4)
    cache, reached = model.new_cache(4), [0] * 4
    # Uninitialized memory may hold any value.
    cache.tensor.fill_(torch.nan)
    with torch.no_grad():
        whole = model(tokens)
        for parts in passes:
            for (slot, (start, end)), logits in zip(parts.items(), read(model, cache, tokens, parts)):
                torch.testing.assert_close(logits, whole[slot, start:end], rtol=1e-4, atol=1e-4)
                reached[slot] = end
            assert cache.lengths == reached


def test_the_check_above_bites(monkeypatch):
    """Without the mask for unequal lengths, the comparison above fails, because a sequence attends to keys of
    other sequences.
    """
    monkeypatch.setattr(Singles, "mask", lambda self, window: None)
    model, tokens = model_of({}), sequences(4)
    cache = model.new_cache(4)
    cache.tensor.normal_(generator=torch.Generator().manual_seed(1))
    first, second, _ = PASSES["single tokens of nearly one length, together"]
    with torch.no_grad():
        read(model, cache, tokens, first)
        logits = read(model, cache, tokens, second)
        alone = model(tokens)
    torch.testing.assert_close(logits[0][0], alone[0, 8], rtol=1e-4, atol=1e-4)
    assert float((logits[2][0] - alone[2, 7])[:VOCAB].abs().max()) > 1e-2


def test_slots_are_copied_and_exchanged():
    """Slots can be copied and swapped: all sources are read before any slot is written, and a text continues
    in its new slot.
    """
    model, tokens = model_of({}), sequences(2)
    cache = model.new_cache(3)
    with torch.no_grad():
        whole = model(tokens)
        read(model, cache, tokens, {0: (0, 6), 1: (0, 4)})
        cache.reorder([0, 1, 2], [1, 0, 0], [4, 6, 5])
        assert cache.lengths == [4, 6, 5]
        cache.place([0, 1, 2], [1, 1, 1])
        placed = torch.stack([tokens[1, 4], tokens[0, 6], tokens[0, 5]]).unsqueeze(0)
        logits = model(placed, cache=cache, logits_at=torch.tensor([0, 2]))
    torch.testing.assert_close(logits[0, 0], whole[1, 4], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits[0, 1], whole[0, 5], rtol=1e-4, atol=1e-4)


def test_what_cannot_be_read_on_alike_is_refused():
    """A pass over slots of unequal length needs explicit positions, and more tokens than the model has
    positions are rejected.
    """
    model, tokens = model_of({}), sequences(2)
    cache = model.new_cache(2)
    with torch.no_grad():
        read(model, cache, tokens, {0: (0, 3)})
        with pytest.raises(ValueError, match=r"slots hold different numbers of tokens: \[0, 3\]"):
            model(tokens[:, :2], cache=cache)
        with pytest.raises(ValueError, match="13 tokens are more than the 10 positions of the model"):
            read(model, cache, tokens, {0: (0, 10)})
