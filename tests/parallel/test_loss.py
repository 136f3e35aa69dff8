"""The fused linear layer and cross entropy, compared with torch's separate functions."""

import pytest
import torch
import torch.nn.functional as F

from nbtrain.parallel.cross_entropy import linear_cross_entropy

TOKENS, HIDDEN, VOCAB = 30, 16, 50


def tensors(dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(VOCAB, (TOKENS,), generator=generator)
    return hidden, weight, labels


@pytest.mark.parametrize("chunk_tokens", [0, 1, 7, 30, 1000])
def test_loss_and_gradients_are_those_of_cross_entropy(chunk_tokens):
    """With any chunk size, loss and gradients equal cross_entropy's up to fp32 rounding."""
    hidden, weight, labels = tensors()
    loss = linear_cross_entropy(hidden, weight, labels, chunk_tokens)
    expected = F.cross_entropy(hidden @ weight.T, labels)
    torch.testing.assert_close(loss, expected)
    # A factor, as from gradient accumulation and loss scaling.
    for ours, theirs in zip(
        torch.autograd.grad(loss * 8, (hidden, weight)), torch.autograd.grad(expected * 8, (hidden, weight))
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_is_fp32_with_16_bit_weights(dtype):
    """With 16-bit weights, the softmax is in fp32. Logits and gradients are rounded as the products are, to
    2^-8 or 2^-11.
    """
    hidden, weight, labels = tensors(dtype)
    loss = linear_cross_entropy(hidden, weight, labels, 7)
    assert loss.dtype == torch.float32
    exact = [tensor.detach().float().requires_grad_() for tensor in (hidden, weight)]
    expected = F.cross_entropy(exact[0] @ exact[1].T, labels)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, exact)):
        assert ours.dtype == dtype
        torch.testing.assert_close(
            ours.float(), theirs, rtol=0, atol=tolerance * float(theirs.abs().max()) * 4
        )


def test_small_gradients_do_not_underflow_in_fp16():
    """Small gradients do not underflow in fp16, because the division by the number of tokens comes after the
    products.
    """
    hidden, weight, labels = tensors(torch.float16)
    loss = linear_cross_entropy(hidden, weight, labels, 0)
    (gradient,) = torch.autograd.grad(loss * 2.0**11, hidden)
    assert torch.isfinite(gradient).all() and (gradient != 0).all()


def test_autocast_takes_the_products_in_bf16_and_keeps_fp32_gradients():
    hidden, weight, labels = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, labels, 7)
    rounded = F.cross_entropy((hidden.bfloat16() @ weight.bfloat16().T).float(), labels)
    torch.testing.assert_close(loss, rounded)
    loss.backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_no_gradient_is_computed_under_no_grad():
    hidden, weight, labels = tensors()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, labels, 7)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(hidden @ weight.T, labels).detach())


@pytest.mark.slow
def test_logits_of_one_chunk_only_exist_at_a_time():
    """At any time, logits exist for one chunk only: they are the largest tensor of a forward and backward
    pass.
    """
    hidden, weight, labels = tensors()
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Largest():
        linear_cross_entropy(hidden, weight, labels, 2).backward()
    assert largest == VOCAB * HIDDEN < TOKENS * VOCAB


@pytest.mark.parametrize("chunk_tokens", [0, 7])
def test_a_masked_loss_is_the_mean_over_learnt_tokens(chunk_tokens):
    """A masked loss and its gradients equal torch's with ignored labels; a mask of ones gives the same bits
    as no mask.
    """
    hidden, weight, labels = tensors()
    mask = (torch.arange(TOKENS) % 3 > 0).float()
    loss = linear_cross_entropy(hidden, weight, labels, chunk_tokens, mask)
    expected = F.cross_entropy(hidden @ weight.T, labels.masked_fill(mask == 0, -100))
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss * 8, (hidden, weight)), torch.autograd.grad(expected * 8, (hidden, weight))
    ):
        torch.testing.assert_close(ours, theirs)
    plain = linear_cross_entropy(hidden, weight, labels, chunk_tokens)
    ones = linear_cross_entropy(hidden, weight, labels, chunk_tokens, torch.ones(TOKENS))
    assert torch.equal(plain, ones)


def test_micro_batches_with_a_common_denominator_add_up():
    """With a common denominator, micro batches with few, all or no unmasked tokens add up to the mean over
    all tokens and its gradient.
    """
    hidden, weight, labels = tensors()
    mask = (torch.arange(TOKENS) < 13).float()
    mask[:8] = (torch.arange(8) % 3 == 0).float()
    whole = linear_cross_entropy(hidden, weight, labels, 7, mask)
    total = sum(
        linear_cross_entropy(hidden[part], weight, labels[part], 7, mask[part], mask.sum())
        for part in (slice(0, 8), slice(8, 13), slice(13, 30))
    )
    torch.testing.assert_close(total, whole)
    for ours, theirs in zip(
        torch.autograd.grad(total, (hidden, weight)), torch.autograd.grad(whole, (hidden, weight))
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_likeliest_token_is_left_where_it_is_asked_for():
    """If requested, the most likely token of each position is returned: of equal logits the smallest id, and
    never a padding row.
    """
    hidden, weight, _ = tensors()
    with torch.no_grad():
        weight[9] = weight[4]
    logits = hidden @ weight.T
    for vocabulary in (len(weight), 8):
        best = logits[:, :vocabulary].argmax(-1)
        labels = best.clone()
        labels[::3] = (labels[::3] + 1) % vocabulary
        hits = torch.full((TOKENS,), 7.0)
        linear_cross_entropy(hidden, weight, labels, 7, likeliest=hits, vocab_size=vocabulary)
        assert torch.equal(hits, (labels == best).float()) and 0 < hits.sum() < TOKENS


def test_nothing_learnt_is_a_loss_of_zero():
    hidden, weight, labels = tensors()
    loss = linear_cross_entropy(hidden, weight, labels, 7, torch.zeros(TOKENS))
    assert loss.item() == 0
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, (hidden, weight)))


def test_each_tokens_loss_is_left_where_it_is_asked_for():
    """If requested, the loss of each token is returned, masked or not, and the total loss does not change."""
    hidden, weight, labels = tensors()
    left = torch.full((TOKENS,), -1.0)
    mask = (torch.arange(TOKENS) < 5).float()
    loss = linear_cross_entropy(hidden, weight, labels, 7, mask, token_losses=left)
    torch.testing.assert_close(left, F.cross_entropy(hidden @ weight.T, labels, reduction="none").detach())
    assert torch.equal(loss, linear_cross_entropy(hidden, weight, labels, 7, mask))
