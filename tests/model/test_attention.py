"""Attention kernels against torch's math kernel."""

import pytest
import torch

from nbtrain.model import attention
from nbtrain.model.attention import (
    backend_problem,
    causal_attention,
    documents_of,
    keeps_weights,
    takes_lengths,
)


def gradients(dtype: torch.dtype, tokens: int, backend: str):
    """Output and gradient of one packed query-key-value tensor, as the layer has it."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, tokens, 3, 48, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
    upstream = torch.randn(2, 3, tokens, 16, generator=generator).to(dtype)
    output = causal_attention(*packed.split(16, dim=-1), backend=backend)
    (gradient,) = torch.autograd.grad(output, packed, upstream)
    return output.detach(), gradient


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
def test_bf16_on_cpu_has_the_gradients_of_fp32(tokens):
    """Within the rounding of bf16: the root mean square error of torch's own bf16 kernel, and a half more."""
    output, gradient = gradients(torch.bfloat16, tokens, "auto")
    assert output.dtype == gradient.dtype == torch.bfloat16
    exact = [tensor.double() for tensor in gradients(torch.float32, tokens, "math")]
    torchs = [tensor.double() for tensor in gradients(torch.bfloat16, tokens, "math")]
    for ours, theirs, truth in zip((output, gradient), torchs, exact):
        allowed = 1.5 * float((theirs - truth).square().mean().sqrt()) + 1e-3
        assert float((ours.double() - truth).square().mean().sqrt()) < allowed


def test_the_blocked_backward_is_used_where_it_serves():
    """bf16 training on CPU; a named backend is what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention._BlockedBackward, "apply", None)
        gradients(torch.float32, 8, "auto")
        gradients(torch.bfloat16, 8, "flash")
        with pytest.raises(TypeError):
            gradients(torch.bfloat16, 8, "auto")


@pytest.mark.parametrize("queries, keys", [(1, 7), (3, 7), (7, 7)])
def test_queries_stand_at_the_end_of_the_keys(queries, keys):
    """The last query sees every key, the one before it all but one, and so on."""
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, 2, keys, 8, generator=generator)
    query = torch.randn(1, 2, queries, 8, generator=generator)
    scores = query @ key.mT * 8**-0.5
    behind = torch.ones(queries, keys).tril(keys - queries) == 0
    expected = scores.masked_fill(behind, float("-inf")).softmax(-1) @ value
    torch.testing.assert_close(causal_attention(query, key, value), expected)


CU_SEQLENS = torch.tensor([0, 5, 6, 12, 12, 20, 24], dtype=torch.int32)


def test_a_mask_of_documents_is_causal_and_block_diagonal():
    """Two sequences of 12; a document without tokens; equal entries at the end are padding."""
    documents = documents_of(CU_SEQLENS, 8, 2, 12, as_lengths=False)
    expected = torch.zeros(2, 1, 12, 12, dtype=torch.bool)
    for first, last in [(0, 5), (5, 6), (6, 12)]:
        expected[0, 0, first:last, first:last] = True
    for first, last in [(0, 8), (8, 12)]:
        expected[1, 0, first:last, first:last] = True
    assert torch.equal(documents.mask, expected.tril())
    padded = torch.cat([CU_SEQLENS, CU_SEQLENS[-1:]])
    assert torch.equal(documents_of(padded, 8, 2, 12, as_lengths=False).mask, expected.tril())


@pytest.mark.parametrize("backend", ["auto", "math"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_documents_attend_as_if_alone(backend, dtype):
    """Output and gradients of each document are those of attention over that document by itself."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, 12, 16, generator=generator).to(dtype).requires_grad_() for _ in range(3)
    )
    documents = documents_of(CU_SEQLENS, 8, 2, 12, as_lengths=False)
    together = causal_attention(query, key, value, backend=backend, documents=documents)
    upstream = torch.randn(2, 3, 12, 16, generator=generator).to(dtype)
    gradients_together = torch.autograd.grad(together, (query, key, value), upstream)
    for row, first, last in [(0, 0, 5), (0, 5, 6), (0, 6, 12), (1, 0, 8), (1, 8, 12)]:
        part = (slice(row, row + 1), slice(None), slice(first, last))
        inputs = [tensor[part].detach().requires_grad_() for tensor in (query, key, value)]
        alone = causal_attention(*inputs, backend=backend)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(together[part], alone, **tolerance)
        for ours, theirs in zip(gradients_together, torch.autograd.grad(alone, inputs, upstream[part])):
            torch.testing.assert_close(ours[part], theirs, **tolerance)


def test_lengths_are_for_what_the_kernel_can_do():
    """16 bits on CUDA without dropout; everything else has a mask."""
    assert takes_lengths("cuda", torch.bfloat16, 0.0, "auto")
    assert takes_lengths("cuda", torch.float16, 0.0, "auto")
    assert not takes_lengths("cpu", torch.bfloat16, 0.0, "auto")
    assert not takes_lengths("cuda", torch.float32, 0.0, "auto")
    assert not takes_lengths("cuda", torch.bfloat16, 0.1, "auto")
    assert not takes_lengths("cuda", torch.bfloat16, 0.0, "math")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_lengths_give_what_the_mask_gives():
    """torch's kernel for varying lengths against the mask, forward and backward, in bf16 on CUDA."""
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [
        torch.randn(2, 3, 12, 64, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for _ in range(3)
    ]
    upstream = torch.randn(2, 3, 12, 64, generator=generator, device="cuda", dtype=torch.bfloat16)
    results = []
    for as_lengths in (True, False):
        documents = documents_of(CU_SEQLENS.cuda(), 8, 2, 12, as_lengths)
        output = causal_attention(*inputs, documents=documents)
        results.append((output, *torch.autograd.grad(output, inputs, upstream)))
    for lengths, mask in zip(*results):
        torch.testing.assert_close(lengths, mask, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("backend", "dropout"), [("auto", 0.1), ("flash", 0.0), ("math", 0.1), ("math", 0.0)]
)
@pytest.mark.parametrize("documents", [False, True])
def test_a_backend_that_can_serve_has_no_problem(backend, dropout, documents):
    state = torch.get_rng_state()
    assert backend_problem("cpu", torch.float32, backend, dropout, documents) is None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("backend", "dropout"), [("efficient", 0.0), ("flash", 0.1)])
def test_a_backend_that_cannot_serve_is_told_before_training(backend, dropout):
    """A CPU has no efficient kernel, and its flash kernel has no dropout; auto would take math."""
    assert "kernel" in backend_problem("cpu", torch.bfloat16, backend, dropout).lower()


@pytest.mark.parametrize(("backend", "dropout"), [("auto", 0.0), ("auto", 0.1), ("math", 0.0)])
def test_only_the_math_kernel_keeps_the_weights(backend, dropout):
    query = torch.zeros(1, 2, 8, 16, requires_grad=True)
    assert keeps_weights(query, query, query, dropout, backend) == (dropout > 0 or backend == "math")
