"""FPDT (DeepSpeed's chunked attention) in our layers, with plain attention instead of flash-attn's
kernels.
"""

import pytest
import torch
import torch.distributed as dist
from packaging import version

from nbtrain.model.gpt import GPT
from nbtrain.parallel import fpdt
from nbtrain.parallel.layout import ModelParallel
from nbtrain.parallel.ulysses import own_tokens, set_own_tokens
from tests.parallel import plain_flash, ranks
from tests.parallel.cut import assert_close, world
from tests.parallel.rounding import FORWARD, GRADIENT
from tests.parallel.small import HEADS, LLAMA, H, S, gpt_config, text


def check_a_gpt_in_chunks_is_that_of_one_process():
    """A GPT that runs in chunks of two or four tokens, shared by several ranks, has the losses, gradients and
    token order of one process.
    """
    import deepspeed
    from deepspeed.sequence import fpdt_layer

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    fpdt_layer._flash_attn_forward = plain_flash.forward
    fpdt_layer._flash_attn_backward = plain_flash.backward
    fpdt_layer.flash_attn_version = version.parse("2.7.0")
    fpdt.problem = lambda device: None
    tokens, labels = text()
    for kind in ({}, LLAMA):
        _assert_those_of_one_process(tokens, labels, kind)


def _assert_those_of_one_process(tokens, labels, kind):
    one = GPT(gpt_config(**kind))
    expected_losses = torch.empty(2, S)
    expected = one(tokens, labels, token_losses=expected_losses)
    expected.backward()
    group = world()
    for chunk in (2, 4):
        model = GPT(gpt_config(fpdt_chunk_tokens=chunk, **kind), ModelParallel(ulysses=group))
        losses = torch.empty(2, S)
        loss = model(tokens, labels, token_losses=losses)
        loss.backward()
        mean = loss.detach() / group.size
        dist.all_reduce(mean), dist.all_reduce(losses)
        assert_close(mean, expected.detach(), FORWARD)
        assert_close(losses, expected_losses, FORWARD)
        for ours, theirs in zip(model.parameters(), one.parameters()):
            dist.all_reduce(ours.grad)
            assert_close(ours.grad / group.size, theirs.grad, GRADIENT)


def check_of_every_chunk_each_rank_has_a_piece():
    group = world()
    whole = torch.arange(2 * S).view(2, S)
    size = 4 // group.size
    expected = [chunk * 4 + group.rank * size + place for chunk in range(2) for place in range(size)]
    own = own_tokens(whole, group, 4)
    assert own[0].tolist() == expected
    back = torch.full_like(whole, -1)
    set_own_tokens(back, group, own, 4)
    assert (back[0] != 0).sum() >= len(expected) - 1 and torch.equal(own_tokens(back, group, 4), own)


def test_what_is_missing_is_said():
    assert "the device is cpu" in fpdt.problem("cpu")
    assert "attention_dropout must be 0, not 0.1" in fpdt.problem("cuda", 0.1)
    with pytest.raises(RuntimeError, match=r"the device is cpu\. Set parallel\.fpdt_chunk_tokens: 0\."):
        GPT(gpt_config(fpdt_chunk_tokens=4))(*text())


def test_documents_are_refused():
    apart = {"cu_seqlens": torch.tensor([0, 3, 8, 16], dtype=torch.int32), "max_seqlen": 8}
    with pytest.raises(ValueError, match="FPDT cannot separate documents"):
        GPT(gpt_config(fpdt_chunk_tokens=4))(*text(), **apart)


@pytest.mark.slow
def test_the_mlp_of_a_chunk_at_a_time_is_the_same():
    """An MLP that runs chunk by chunk gives the same results, up to the order of additions in the weights'
    gradients.
    """
    mlps = [GPT(gpt_config(fpdt_chunk_tokens=chunk)).layers[0].mlp for chunk in (0, 2)]
    x = torch.randn(2, S, H, generator=torch.Generator().manual_seed(0))
    outputs = [mlp(x) for mlp in mlps]
    torch.testing.assert_close(outputs[1], outputs[0])
    gradients = [
        torch.autograd.grad(output.square().sum(), list(mlp.parameters()))
        for output, mlp in zip(outputs, mlps)
    ]
    for plain, chunked in zip(*gradients):
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-5)


def test_generation_goes_by_its_cache():
    """A model that was trained with FPDT generates text with an ordinary key-value cache, on any machine."""
    model = GPT(gpt_config(fpdt_chunk_tokens=4)).eval()
    with torch.no_grad():
        logits = model(text()[0], cache=model.new_cache(2))
        torch.testing.assert_close(logits, GPT(gpt_config()).eval()(text()[0]))
    assert model.new_cache(1).layers[0].keys.shape[1] == HEADS


CHECKS = {2: ranks.names(globals())}


@pytest.mark.slow
@ranks.each(CHECKS)
def test_on_ranks(outcome, size, check):
    assert not outcome(size, check), outcome(size, check)
