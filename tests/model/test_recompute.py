"""Recomputation changes no bit, and fewer activations are kept."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from nbtrain.model.gpt import GPT, GPTConfig

CONFIG = {
    "num_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "ffn_hidden_size": 128,
    "padded_vocab_size": 64,
    "max_position_embeddings": 16,
}
DROPOUT = {"hidden_dropout": 0.2, "attention_dropout": 0.2}
B, S, LAYERS, HEADS, FFN = 2, 16, 3, 4, 128
APART = {"cu_seqlens": torch.tensor([0, 6, 16, 32], dtype=torch.int32), "max_seqlen": 16}
WAYS = {
    "none": {},
    "selective": {"selective_recompute": True},
    "full": {"checkpoint_interval_layers": 1},
    "full in pairs": {"checkpoint_interval_layers": 2},
}


def text():
    return torch.randint(64, (2, B, S), generator=torch.Generator().manual_seed(3))


class Made(TorchDispatchMode):
    """A mode that records each new tensor storage; `kept` is the number of bytes that are still allocated."""

    def __init__(self):
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return result

    @property
    def kept(self) -> int:
        return sum(size for reference, size in self.storages.values() if not reference.expired())


def kept_bytes(model: GPT, **options) -> int:
    """Return the bytes that a forward pass allocates and keeps for the backward pass."""
    tokens, labels = text()
    with Made() as made:
        loss = model(tokens, labels, **options)
        kept = made.kept
    loss.backward()
    return kept


def step(model: GPT, **options):
    torch.manual_seed(7)
    loss = model(*text(), **options)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.slow
@pytest.mark.parametrize("way", list(WAYS)[1:])
@pytest.mark.parametrize("options", [{}, APART])
@pytest.mark.parametrize("changes", [{}, DROPOUT, {"autocast": True}, {"attention_backend": "math"}])
def test_not_a_bit_changes(way, options, changes):
    kept = step(GPT(GPTConfig(**CONFIG, **changes)), **options)
    again = step(GPT(GPTConfig(**CONFIG, **changes, **WAYS[way])), **options)
    assert all(torch.equal(*pair) for pair in zip(kept, again))


@pytest.mark.slow
def test_the_activations_output_is_not_kept():
    """Selective recomputation drops the activation's output [b, s, f] of each layer (fp32); without dropout,
    there are no attention weights to drop.
    """
    plain, selective = (kept_bytes(GPT(GPTConfig(**CONFIG, **WAYS[way]))) for way in ("none", "selective"))
    assert plain - selective == LAYERS * B * S * FFN * 4


@pytest.mark.slow
def test_attention_weights_are_not_kept():
    """With dropout, selective recomputation drops the attention weights before and after dropout and the
    mask, [b, n, s, s] each.
    """
    plain, selective = (
        kept_bytes(GPT(GPTConfig(**CONFIG, attention_dropout=0.2, **WAYS[way])))
        for way in ("none", "selective")
    )
    assert plain - selective - LAYERS * B * S * FFN * 4 >= LAYERS * 2 * B * HEADS * S * S * 4


@pytest.mark.slow
def test_whole_layers_keep_their_inputs_only():
    """Full recomputation in groups of layers keeps the fewest bytes, then full, selective, and no
    recomputation.
    """
    kept = {way: kept_bytes(GPT(GPTConfig(**CONFIG, **DROPOUT, **WAYS[way]))) for way in WAYS}
    assert kept["full in pairs"] < kept["full"] < kept["selective"] < kept["none"]


def test_nothing_is_recomputed_where_nothing_is_kept():
    """Evaluation recomputes nothing, because it keeps no activations; the result is the same as without
    recomputation.
    """
    model = GPT(GPTConfig(**CONFIG, **WAYS["selective"])).eval()
    with torch.no_grad():
        assert torch.equal(model(*text()), GPT(GPTConfig(**CONFIG)).eval()(*text()))
