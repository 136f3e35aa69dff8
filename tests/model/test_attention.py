"""Attention kernels compared with torch's math kernel."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from nbtrain.model import attention
from nbtrain.model.attention import (
    backend_problem,
    causal_attention,
    documents_of,
    keeps_weights,
    takes_lengths,
)


def gradients(dtype: torch.dtype, tokens: int, backend: str):
    """Return the output and the gradient of one packed query-key-value tensor, laid out as in the attention
    layer.
    """
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, tokens, 3, 48, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
    upstream = torch.randn(2, 3, tokens, 16, generator=generator).to(dtype)
    output = causal_attention(*packed.split(16, dim=-1), backend=backend)
    (gradient,) = torch.autograd.grad(output, packed, upstream)
    return output.detach(), gradient


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
def test_bf16_on_cpu_has_the_gradients_of_fp32(tokens):
    """In bf16 on a CPU, output and gradients are close to fp32: the root mean square error is at most 1.5
    times as large as with torch's bf16 kernel.
    """
    output, gradient = gradients(torch.bfloat16, tokens, "auto")
    assert output.dtype == gradient.dtype == torch.bfloat16
    exact = [tensor.double() for tensor in gradients(torch.float32, tokens, "math")]
    torchs = [tensor.double() for tensor in gradients(torch.bfloat16, tokens, "math")]
    for ours, theirs, truth in zip((output, gradient), torchs, exact):
        allowed = 1.5 * float((theirs - truth).square().mean().sqrt()) + 1e-3
        assert float((ours.double() - truth).square().mean().sqrt()) < allowed


def test_the_blocked_backward_is_used_where_it_serves():
    """The blocked backward pass is used for bf16 on a CPU, unless another backend is requested explicitly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention._BlockedAttention, "apply", None)
        gradients(torch.float32, 8, "auto")
        gradients(torch.bfloat16, 8, "flash")
        with pytest.raises(TypeError):
            gradients(torch.bfloat16, 8, "auto")


@pytest.mark.parametrize("queries, keys", [(1, 7), (3, 7), (7, 7)])
def test_queries_stand_at_the_end_of_the_keys(queries, keys):
    """The last query is aligned with the last key: it attends to every key, and the query before it to all
    keys but the last.
    """
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 1, 2, keys, 8, generator=generator)
    query = torch.randn(1, 2, queries, 8, generator=generator)
    scores = query @ key.mT * 8**-0.5
    behind = torch.ones(queries, keys).tril(keys - queries) == 0
    expected = scores.masked_fill(behind, float("-inf")).softmax(-1) @ value
    torch.testing.assert_close(causal_attention(query, key, value), expected)


def plain(query, key, value, window=None, softcap=None, documents=None):
    """Compute attention step by step; query head i uses key head i // (n / g)."""
    group = torch.arange(query.shape[1]) // (query.shape[1] // key.shape[1])
    scores = query @ key[:, group].mT * query.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(key.shape[2])
    distance = place[-query.shape[2] :, None] - place
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    seen = seen if documents is None else seen & documents.mask
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value[:, group]


def heads_of(queries: int, keys: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return queries, keys, values and an upstream gradient for two sequences, with six query heads in two
    groups and heads of size 16.
    """
    generator = torch.Generator().manual_seed(6)
    shapes = ((6, queries), (2, keys), (2, keys), (6, queries))
    drawn = [torch.randn(2, *shape, 16, generator=generator) for shape in shapes]
    return [*(tensor.to(dtype).requires_grad_() for tensor in drawn[:3]), drawn[3].to(dtype)]


WINDOWS = (1, 2, 5, 127, 128, 129, 200, 299, None)


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_and_caps_are_their_formulas(window, softcap, monkeypatch):
    """Output and gradients with a window or a logit cap equal the formula, for blocks inside and outside the
    window and a short last block.
    """
    for backend, tokens, block in (("auto", 300, 128), ("auto", 70, 32), ("math", 130, 128)):
        if backend == "math" and softcap is not None:
            continue
        monkeypatch.setattr(attention, "BLOCK_ROWS", block)
        *inputs, upstream = heads_of(tokens, tokens)
        found = []
        for attend in (causal_attention, plain):
            named = {"backend": backend} if attend is causal_attention else {}
            output = attend(*inputs, window=window, softcap=softcap, **named)
            found.append([output, *torch.autograd.grad(output, inputs, upstream)])
        for ours, theirs in zip(*found):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("how", [{"window": 4}, {"softcap": 0.7}, {"window": 3, "softcap": 2.0}])
@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_windows_and_caps_within_documents(how, backend):
    documents = documents_of(CU_SEQLENS, 8, 2, 12, as_lengths=False)
    if "softcap" in how:
        backend = "auto"
    *inputs, upstream = heads_of(12, 12)
    output = causal_attention(*inputs, backend=backend, documents=documents, **how)
    expected = plain(*inputs, documents=documents, **how)
    for ours, theirs in zip(
        (output, *torch.autograd.grad(output, inputs, upstream)),
        (expected, *torch.autograd.grad(expected, inputs, upstream)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("queries", [1, 3, 20])
@pytest.mark.parametrize(
    "how", [{"window": 4}, {"window": 19}, {"softcap": 0.7}, {"window": 3, "softcap": 2.0}]
)
def test_a_cache_is_seen_through_the_window(how, queries):
    with torch.no_grad():
        *inputs, _ = heads_of(queries, 20)
        torch.testing.assert_close(
            causal_attention(*inputs, **how), plain(*inputs, **how), rtol=1e-4, atol=2e-5
        )


@pytest.mark.parametrize("how", [{}, {"window": 40}, {"softcap": 1.5}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_groups_in_16_bits_have_the_gradients_of_fp32(how, dtype):
    """Grouped attention in 16 bits has the gradients of fp32 up to rounding, because the sum over a group's
    queries is not computed in 16 bits.
    """
    found = []
    for of_type in (dtype, torch.float32):
        *inputs, upstream = heads_of(150, 150, of_type)
        output = causal_attention(*inputs, **how)
        results = output.detach(), *torch.autograd.grad(output, inputs, upstream)
        found.append([one.double() for one in results])
    repeated = [tensor.detach() for tensor in heads_of(150, 150, dtype)]
    repeated[1:3] = [tensor.repeat_interleave(3, dim=1) for tensor in repeated[1:3]]
    alone = [tensor.requires_grad_() for tensor in repeated[:3]]
    output = causal_attention(*alone, **how)
    query, key, value = torch.autograd.grad(output, alone, repeated[3])
    sums = [tensor.double().unflatten(1, (2, 3)).sum(2) for tensor in (key, value)]
    for ours, theirs, truth in zip(found[0], (output.detach().double(), query.double(), *sums), found[1]):
        allowed = 1.5 * float((theirs - truth).square().mean().sqrt()) + 1e-4
        assert float((ours - truth).square().mean().sqrt()) < allowed


def test_a_capped_score_has_no_dropout():
    *inputs, _ = heads_of(8, 8)
    with pytest.raises(ValueError, match=r"a softcap does not support dropout, but dropout is 0\.1"):
        causal_attention(*inputs, dropout=0.1, softcap=1.0)


def test_a_window_with_dropout_keeps_its_weights_and_draws():
    """With dropout, the window is applied as a mask to the math kernel, and positions outside the window get
    no weight.
    """
    query, key, value = (torch.ones(1, 2, 12, 12) for _ in range(3))
    value = torch.eye(12).expand(1, 2, 12, 12)
    torch.manual_seed(0)
    weights = causal_attention(query.requires_grad_(), key, value, dropout=0.5, window=3)
    assert keeps_weights(query, key, value, 0.5, window=3) and not keeps_weights(query, key, value, window=3)
    weights = weights.detach()
    seen = torch.ones(12, 12).tril().triu(-2) > 0
    assert (
        float(weights[..., ~seen].abs().max()) == 0 and float((weights[..., seen] == 0).float().mean()) > 0.2
    )


CU_SEQLENS = torch.tensor([0, 5, 6, 12, 12, 20, 24], dtype=torch.int32)


def test_a_mask_of_documents_is_causal_and_block_diagonal():
    """The mask of documents is causal and block-diagonal, for two sequences of 12 tokens with an empty
    document and padding entries.
    """
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
    """For each document, output and gradients are the same as in attention over that document alone."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "can"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"backend": "flash"}, True),
        ({"head_size": 256}, True),
        ({"device": "cpu"}, False),
        ({"dtype": torch.float32}, False),
        ({"dropout": 0.1}, False),
        ({"backend": "math"}, False),
        ({"backend": "efficient"}, False),
        # The kernel refuses what scaled_dot_product_attention would pad.
        ({"head_size": 100}, False),
        ({"head_size": 320}, False),
    ],
)
def test_lengths_are_for_what_the_kernel_can_do(change, can, monkeypatch):
    """Document lengths are passed only to a kernel that supports them (16 bits on CUDA without dropout); in
    every other case a mask is used.
    """
    monkeypatch.setattr(attention, "_has_flash", lambda: True)
    how = {"device": "cuda", "dtype": torch.bfloat16, "head_size": 64, "dropout": 0.0, "backend": "auto"}
    assert takes_lengths(**how | change) == can
    monkeypatch.setattr(attention, "_has_flash", lambda: False)
    assert not takes_lengths(**how | change), "a GPU before Ampere"


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_flash_is_there_from_ampere_on(capability, has, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert attention._has_flash.__wrapped__() == has


class OnCuda:
    """A stand-in for a CUDA tensor, with the properties that are read to choose a kernel."""

    is_cuda = True

    def __init__(self, heads):
        self.shape = (2, heads, 16, 64)


@pytest.mark.parametrize(
    ("backend", "groups", "choice", "repeats"),
    [
        # Torch's efficient kernel supports no groups, and no other kernel is allowed, so it is not even
        # tried.
        ("efficient", 2, None, True),
        ("efficient", 4, None, False),
        ("auto", 2, SDPBackend.MATH, True),
        ("auto", 2, SDPBackend.FLASH_ATTENTION, False),
        ("flash", 2, SDPBackend.FLASH_ATTENTION, False),
    ],
)
def test_keys_of_groups_are_repeated_for_kernels_without_groups(
    backend, groups, choice, repeats, monkeypatch
):
    def chosen(*_, enable_gqa):
        assert enable_gqa and choice is not None
        return choice.value

    monkeypatch.setattr(torch, "_fused_sdp_choice", chosen)
    key = OnCuda(groups)
    assert attention._repeats(OnCuda(4), key, key, None, 0.0, True, backend) == repeats


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_lengths_give_what_the_mask_gives():
    """In bf16 on CUDA, torch's variable-length kernel gives the same output and gradients as a mask."""
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
@pytest.mark.parametrize("others", [{}, {"grouped": True, "window": 512}])
def test_a_backend_that_can_serve_has_no_problem(backend, dropout, documents, others):
    state = torch.get_rng_state()
    assert backend_problem("cpu", torch.float32, backend, dropout, documents, **others) is None
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("backend", "dropout"), [("efficient", 0.0), ("flash", 0.1)])
def test_a_backend_that_cannot_serve_is_told_before_training(backend, dropout):
    """An unsupported backend is rejected before training: a CPU has no efficient kernel, and its flash kernel
    has no dropout.
    """
    assert "kernel" in backend_problem("cpu", torch.bfloat16, backend, dropout).lower()


@pytest.mark.parametrize(("backend", "dropout"), [("auto", 0.0), ("auto", 0.1), ("math", 0.0)])
def test_only_the_math_kernel_keeps_the_weights(backend, dropout):
    query = torch.zeros(1, 2, 8, 16, requires_grad=True)
    assert keeps_weights(query, query, query, dropout, backend) == (dropout > 0 or backend == "math")
