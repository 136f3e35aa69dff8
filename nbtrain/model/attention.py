"""Causal self-attention with torch's scaled_dot_product_attention or nbtrain's own kernel.

Tokens attend only within their document. A boolean mask [b, 1, s, s], causal and block-diagonal, separates
the documents of a sequence. On CUDA, in 16-bit formats without dropout, torch's kernel for sequences of
varying lengths is used instead of a mask.

    groups     each key and value head serves n/g consecutive query heads (arXiv:2305.13245)
    window     a query sees itself and the window - 1 tokens before it (arXiv:2004.05150). On CUDA, torch's
               kernel for varying lengths is used; on a CPU, nbtrain's own, which skips hidden positions
    softcap    scores are softcap * tanh(scores / softcap) (Gemma 2, arXiv:2408.00118). Torch has no kernel
               for this, so nbtrain's own is used

Shapes: b sequences, s tokens of this call, p cached tokens before them, n heads, g groups, d head size, m
documents
"""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.random import preserved

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

# Requirements of torch's kernel for varying lengths (aten/native/transformers/cuda/flash_attn/flash_api.cpp,
# mha_varlen_fwd): Ampere or newer, and a head size that is a multiple of 8 and at most 256.
LENGTHS_CAPABILITY, LENGTHS_HEAD_MULTIPLE, LENGTHS_HEAD_SIZE = (8, 0), 8, 256

# The fastest of 64, 128 and 256 for 512 tokens and a head size of 64.
BLOCK_ROWS = 128
# A GPU prefers larger products. This value was not measured.
GPU_BLOCK_ROWS = 256
# Number of tokens in the trial of backend_problem().
TRIAL_TOKENS = 16


class Documents(NamedTuple):
    """The boundaries of the documents in b sequences, as a mask or as cumulative lengths."""

    mask: torch.Tensor | None
    """bool [b, 1, s, s]: the keys that each query sees; None if lengths are used."""
    cu_seqlens: torch.Tensor | None = None
    """int32 [m + 1]: cumulative lengths of the documents in all sequences, used instead of a mask."""
    max_seqlen: int = 0
    """Number of tokens in the longest document."""
    key_cu_seqlens: torch.Tensor | None = None
    """int32 [m + 1]: cumulative lengths of the documents among the keys, if the queries are only a chunk of
    each sequence. In each document, the last query and the last key have the same position.
    """
    key_max_seqlen: int = 0


Bounds = Documents | None | tuple[Documents | None, ...]
"""Document boundaries in whole sequences or, with context parallelism, in each of a rank's chunks."""


def documents_of(
    cu_seqlens: torch.Tensor, max_seqlen: int, batch: int, tokens: int, as_lengths: bool
) -> Documents:
    """Build Documents from cumulative lengths over the b * s tokens, int32 [m + 1].

    Each sequence begins a new document. Equal entries, such as padding at the end, are empty documents.
    """
    if as_lengths:
        return Documents(None, cu_seqlens, max_seqlen)
    return Documents(mask_of(document_numbers(cu_seqlens, batch, tokens)))


def document_numbers(cu_seqlens: torch.Tensor, batch: int, tokens: int) -> torch.Tensor:
    """Return each token's document number, int32 [b, s], from cumulative lengths as in documents_of()."""
    begins = torch.zeros(batch * tokens + 1, dtype=torch.int32, device=cu_seqlens.device)
    begins.index_fill_(0, cu_seqlens.long(), 1)
    return begins[:-1].cumsum(0, dtype=torch.int32).view(batch, tokens)


def mask_of(numbers: torch.Tensor) -> torch.Tensor:
    """Return a causal mask that separates documents, bool [b, 1, s, s], from document_numbers()."""
    return (numbers[:, :, None] == numbers[:, None, :]).tril_().unsqueeze(1)


def documents_of_chunk(documents: Documents | None, tokens: int, chunk: range) -> Documents | None:
    """Return the document boundaries for a chunk of queries, in sequences of `tokens` tokens.

    The queries are at the positions `chunk`; the keys reach from the sequence's beginning to the chunk's end.
    """
    if documents is None:
        return None
    if documents.cu_seqlens is None:
        assert documents.mask is not None
        return documents._replace(mask=documents.mask[:, :, chunk.start : chunk.stop, : chunk.stop])
    # A document that ends before the chunk has no queries. Of a document that ends after the chunk, only the
    # first keys are included.
    row = documents.cu_seqlens // tokens
    position = documents.cu_seqlens - row * tokens
    return Documents(
        None,
        row * len(chunk) + (position - chunk.start).clamp(0, len(chunk)),
        min(documents.max_seqlen, len(chunk)),
        row * chunk.stop + position.clamp(max=chunk.stop),
        min(documents.max_seqlen, chunk.stop),
    )


def whole_sequences(batch: int, tokens: int, device: torch.device) -> Documents:
    """Return Documents as lengths in which every sequence of `tokens` tokens is one document."""
    ends = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=device)
    return Documents(None, ends, tokens)


def takes_lengths(device: str, dtype: torch.dtype, head_size: int, dropout: float, backend: str) -> bool:
    """Return whether torch's kernel for varying lengths can be used; otherwise, a mask is needed.

    The kernel is flash attention, called directly. Unlike scaled_dot_product_attention, it does not pad
    heads.
    """
    return (
        device == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and head_size % LENGTHS_HEAD_MULTIPLE == 0
        and head_size <= LENGTHS_HEAD_SIZE
        and dropout == 0
        and backend in ("auto", "flash")
        and _has_flash()
        and _varlen_kernel() is not None
    )


@functools.cache
def _has_flash() -> bool:
    return torch.cuda.get_device_capability() >= LENGTHS_CAPABILITY


def _varlen_kernel():
    try:
        from torch.nn.attention.varlen import varlen_attn  # since torch 2.10
    except ImportError:
        return None
    return varlen_attn if "window_size" in inspect.signature(varlen_attn).parameters else None


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    backend: str = "auto",
    documents: Documents | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Compute causal attention: softmax(q k^T / sqrt(d), causal) v.

    query [b, n, s, d], key and value [b, g, p + s, d] -> [b, n, s, d].

    `backend` is auto, flash, efficient or math. Torch raises RuntimeError if the requested kernel does not
    support the device, dtype, mask or dropout (on a CPU, only math supports dropout). Raises ValueError for a
    softcap with dropout.
    """
    queries = query.shape[-2]
    window, key, value = _in_sight(window, queries, key, value, documents)
    keys = key.shape[-2]
    kernel = _kernel_of(query, keys, dropout, backend, documents, window, softcap)
    if kernel == "lengths":
        return _varlen_attention(query, key, value, documents, window)
    mask = documents.mask[..., -keys:] if documents is not None and documents.mask is not None else None
    if kernel == "blocked":
        if dropout:
            raise ValueError(f"attention with a softcap does not support dropout, but dropout is {dropout:g}")
        # The compiler would unroll the loop over blocks, so the function stays out of compiled graphs.
        apply = _uncompiled_blocks if torch.compiler.is_compiling() else _BlockedAttention.apply
        return apply(query, key, value, mask, window, softcap)
    mask = _with_band(mask, queries, keys, window, query.device)
    is_causal = mask is None and queries == keys and queries > 1
    with _kernels(backend):
        if _repeats(query, key, value, mask, dropout, is_causal, backend):
            key, value = (repeated(tensor, query.shape[1]) for tensor in (key, value))
        grouped = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped
        )


def _repeats(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    backend: str,
) -> bool:
    """Return whether keys and values must be repeated for the queries of their group.

    Of torch's fused CUDA kernels, only flash supports groups. If flash cannot be used, only math would remain
    or, if only efficient is allowed, no kernel at all.
    """
    if query.shape[1] == key.shape[1] or not query.is_cuda:
        return False
    if backend == "efficient" or torch.compiler.is_compiling():
        return backend == "efficient"
    choice = torch._fused_sdp_choice(query, key, value, mask, dropout, is_causal, enable_gqa=True)
    return choice == SDPBackend.MATH.value


def repeated(x: torch.Tensor, heads: int, dim: int = 1) -> torch.Tensor:
    """Repeat each key or value head for the queries of its group: [.., g, ..] -> [.., heads, ..]."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)


def keeps_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    backend: str = "auto",
    documents: Documents | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> bool:
    """Return whether causal_attention() would keep the attention weights [b, n, s, s] for its backward pass.

    The math kernel does. Inside a compiled layer the compiler decides, and the result is False.
    """
    if torch.compiler.is_compiling():
        return False
    window, key, value = _in_sight(window, query.shape[-2], key, value, documents)
    keys = key.shape[-2]
    if _kernel_of(query, keys, dropout, backend, documents, window, softcap) != "torch":
        return False
    mask = documents.mask[..., -keys:] if documents is not None and documents.mask is not None else None
    mask = _with_band(mask, query.shape[-2], keys, window, query.device)
    with _kernels(backend):
        if _repeats(query, key, value, mask, dropout, mask is None, backend):
            # Only the sizes matter here, so expand instead of copying.
            key = value = query[:, :, :1].expand(-1, -1, keys, -1)
        # Ask for the kernel that scaled_dot_product_attention would choose.
        choice = torch._fused_sdp_choice(
            query, key, value, mask, dropout, mask is None, enable_gqa=query.shape[1] != key.shape[1]
        )
    return choice == SDPBackend.MATH.value


def _in_sight(
    window: int | None, queries: int, key: torch.Tensor, value: torch.Tensor, documents: Documents | None
) -> tuple[int | None, torch.Tensor, torch.Tensor]:
    """Return (window, key, value) after removing the keys that no query sees.

    The window becomes None if it hides none of the remaining keys.
    """
    if window is None:
        return None, key, value
    seen = queries + window - 1
    in_lengths = documents is not None and documents.cu_seqlens is not None
    if seen < key.shape[-2] and not in_lengths:
        key, value = key[..., -seen:, :], value[..., -seen:, :]
    # A single query sees all of the remaining keys.
    return (None if window >= key.shape[-2] else window), key, value


def _kernel_of(
    query: torch.Tensor,
    keys: int,
    dropout: float,
    backend: str,
    documents: Documents | None,
    window: int | None,
    softcap: float | None,
) -> Literal["lengths", "blocked", "torch"]:
    """Return the kernel to use: "lengths" is torch's kernel for varying lengths, "blocked" is nbtrain's own,
    and "torch" is scaled_dot_product_attention.
    """
    if softcap is not None:
        return "blocked"
    if documents is not None and documents.cu_seqlens is not None:
        return "lengths"
    if torch.compiler.is_compiling():
        return "torch"
    own = backend == "auto" and dropout == 0 and query.device.type == "cpu"
    if window is None:
        plain = documents is None and query.shape[-2] > 1
        return "blocked" if own and plain and _bf16_training(query) else "torch"
    if own:
        return "blocked"
    # Torch's other kernels would need a mask for the window; flash does not.
    whole, size = documents is None and query.shape[-2] == keys, query.shape[-1]
    lengths = whole and takes_lengths(query.device.type, query.dtype, size, dropout, backend)
    return "lengths" if lengths else "torch"


def _band(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return the causal mask for the last `queries` of `keys` positions: bool [queries, keys]."""
    band = torch.ones(queries, keys, dtype=torch.bool, device=device).tril_(keys - queries)
    return band if window is None else band.triu_(keys - queries - window + 1)


def _with_band(
    mask: torch.Tensor | None, queries: int, keys: int, window: int | None, device: torch.device
) -> torch.Tensor | None:
    """Return the mask that torch's kernels need for the last `queries` of `keys` positions.

    Returns None if they do not need a mask.
    """
    # A single query sees all keys. Several queries that follow other keys need a triangle with an offset.
    if window is None and (mask is not None or not 1 < queries < keys):
        return mask
    band = _band(queries, keys, window, device)
    return band if mask is None else mask & band


def backend_problem(
    device: torch.device | str,
    dtype: torch.dtype,
    backend: str,
    dropout: float = 0.0,
    documents: bool = False,
    head_size: int = 64,
    grouped: bool = False,
    window: int | None = None,
    later: bool = False,
) -> str | None:
    """Return torch's reason why a backend cannot be used here; None if a tiny trial succeeds.

    `dtype` is the format of the products: bf16 under autocast. With `grouped`, several queries share a key;
    with `later`, the queries are only the second half of the sequence. Random generators are left unchanged.
    """
    if backend == "auto":
        return None
    query, key = (
        torch.zeros(1, heads, TRIAL_TOKENS, head_size, dtype=dtype, device=device, requires_grad=True)
        for heads in (1 + grouped, 1)
    )
    ends = torch.tensor([0, TRIAL_TOKENS], dtype=torch.int32, device=device)
    as_lengths = takes_lengths(query.device.type, dtype, head_size, dropout, backend)
    bounds, queries = None, query
    if documents or (later and as_lengths):
        bounds = documents_of(ends, TRIAL_TOKENS, 1, TRIAL_TOKENS, as_lengths)
    if later:
        half = TRIAL_TOKENS // 2
        queries = query[:, :, half:]
        bounds = documents_of_chunk(bounds, TRIAL_TOKENS, range(half, TRIAL_TOKENS))
    # The window must hide some of the trial's tokens.
    window = None if window is None else min(window, TRIAL_TOKENS // 2)
    with preserved(), warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            causal_attention(queries, key, key, dropout, backend, bounds, window).sum().backward()
        except RuntimeError as error:
            words = [str(reason.message) for reason in reasons] or [str(error)]
            return " ".join(word.splitlines()[0] for word in words)
    return None


def _kernels(backend: str) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if backend == "auto" else sdpa_kernel(BACKENDS[backend])


def _varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    documents: Documents | None,
    window: int | None,
) -> torch.Tensor:
    batch, heads, tokens, _ = query.shape
    if documents is None or documents.cu_seqlens is None:
        documents = whole_sequences(batch, tokens, query.device)
    ends, longest = documents.cu_seqlens, documents.max_seqlen
    key_ends, longest_keys = ends, longest
    if documents.key_cu_seqlens is not None:
        key_ends, longest_keys = documents.key_cu_seqlens, documents.key_max_seqlen
    grouped = heads != key.shape[1]
    # [b, n, s, d] -> [b s, n, d]
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    kernel = _varlen_kernel()
    assert kernel is not None
    # The kernel expects the number of tokens before the query.
    sight = (-1 if window is None else window - 1, 0)
    arguments: dict[str, Any] = {"window_size": sight}
    if grouped and "enable_gqa" in inspect.signature(kernel).parameters:
        arguments["enable_gqa"] = True
    elif grouped:
        # The kernel of torch 2.11 needs a key and a value for each query head.
        key, value = (tensor.repeat_interleave(heads // tensor.shape[1], dim=1) for tensor in (key, value))
    attended = kernel(query, key, value, ends, key_ends, longest, longest_keys, **arguments)
    return attended.unflatten(0, (batch, tokens)).transpose(1, 2)


def _bf16_training(query: torch.Tensor) -> bool:
    return query.dtype == torch.bfloat16 and query.requires_grad and torch.is_grad_enabled()


class _BlockedAttention(torch.autograd.Function):
    """Attention that computes one block of queries at a time and keeps only query, key and value.

    Each block is multiplied with the keys from the beginning of its window to its own end. Memory therefore
    grows with s instead of s^2, and the number of products with the window. Softmax and its gradient use
    torch's fused kernels. As in torch's math kernel, scores are rounded to the format of the queries. The
    query heads of a group are rows of one product.

    Without mask, window and softcap, the forward pass of whole sequences uses torch's flash kernel. The
    backward pass below takes half as long as torch's for bf16 on a CPU.
    """

    @staticmethod
    def forward(ctx, query, key, value, mask, window, softcap):
        ctx.save_for_backward(query, key, value, mask)
        ctx.window, ctx.softcap = window, softcap
        if mask is None and window is None and softcap is None and query.shape[2] == key.shape[2]:
            grouped = query.shape[1] != key.shape[1]
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        blocks = _Blocks(query, key, value, mask, window, softcap)
        output = torch.empty_like(blocks.query)
        for block in blocks:
            weights, _ = blocks.weights(block)
            attended = torch.bmm(weights, blocks.value[:, block.columns])
            output[:, :, block.rows] = attended.unflatten(1, (blocks.shared, -1))
        return output.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        query, key, value, mask = ctx.saved_tensors
        blocks = _Blocks(query, key, value, mask, ctx.window, ctx.softcap)
        grad_output = grad_output.reshape(blocks.query.shape)
        grad_query = torch.empty_like(blocks.query)
        # The gradients of keys and values are summed over blocks in fp32.
        grad_key, grad_value = torch.zeros(2, *blocks.key.shape, dtype=torch.float32, device=query.device)
        for block in blocks:
            weights, capped = blocks.weights(block)
            columns = block.columns
            rows, upstream = (
                tensor[:, :, block.rows].flatten(1, 2) for tensor in (blocks.query, grad_output)
            )
            grad_weights = torch.bmm(upstream, blocks.value[:, columns].mT)
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            if capped is not None:
                # d cap(x) / d x = 1 - tanh(x / softcap)^2
                grad_scores = grad_scores.addcmul_(grad_scores, capped.square_(), value=-1)
            grad_value[:, columns] += torch.bmm(weights.mT, upstream)
            grad_key[:, columns] += torch.bmm(grad_scores.mT, rows)
            of_rows = torch.bmm(grad_scores, blocks.key[:, columns])
            grad_query[:, :, block.rows] = of_rows.unflatten(1, (blocks.shared, -1))
        gradients = (grad_query.mul_(blocks.scale), grad_key, grad_value)
        sources = (query, key, value)
        found = (gradient.to(query.dtype).view(one.shape) for gradient, one in zip(gradients, sources))
        return *found, None, None, None


_uncompiled_blocks = uncompiled(_BlockedAttention.apply)


class _Block(NamedTuple):
    rows: slice
    """Positions of the queries in the block."""
    columns: slice
    """Positions of the keys that these queries attend to."""


class _Blocks:
    """The blocks of _BlockedAttention: scaled query [b g, n/g, s, d]; key and value [b g, p + s, d]."""

    def __init__(self, query, key, value, mask, window, softcap):
        batch, heads, self.queries, size = query.shape
        self.groups, self.keys = key.shape[1], key.shape[2]
        self.shared, self.scale = heads // self.groups, size**-0.5
        self.query = query.reshape(batch * self.groups, self.shared, self.queries, size) * self.scale
        self.key, self.value = (tensor.reshape(-1, self.keys, size) for tensor in (key, value))
        self.mask, self.window, self.softcap = mask, window, softcap
        self.size = BLOCK_ROWS if query.device.type == "cpu" else GPU_BLOCK_ROWS
        hidden = torch.full((self.size, self.size), float("-inf"), dtype=query.dtype, device=query.device)
        self.later = hidden.triu(1)
        self.hidden = hidden if window is not None else None

    def __iter__(self) -> Iterator[_Block]:
        before = self.keys - self.queries
        for start in range(0, self.queries, self.size):
            end = min(start + self.size, self.queries)
            first = 0 if self.window is None else max(start + before - self.window + 1, 0)
            yield _Block(slice(start, end), slice(first, end + before))

    def weights(self, block: _Block) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (attention weights of a block, [b g, n/g rows, columns]; tanh(scores / softcap) or None)."""
        rows, columns = block
        size, capped = rows.stop - rows.start, None
        scores = torch.bmm(self.query[:, :, rows].flatten(1, 2), self.key[:, columns].mT)
        if self.softcap is not None:
            capped = scores.div_(self.softcap).tanh_()
            scores = capped * self.softcap
        of_rows = scores.unflatten(1, (self.shared, size))
        of_rows[..., -size:] += self.later[:size, :size]
        if self.hidden is not None:
            # The later rows no longer see the first columns.
            lost = rows.start + self.keys - self.queries - self.window - columns.start
            of_rows[..., :size] += self.hidden[:size, :size].tril(lost)
        if self.mask is not None:
            apart = ~self.mask[:, :, None, rows, columns]
            of_rows.unflatten(0, (-1, self.groups)).masked_fill_(apart, float("-inf"))
        return torch.softmax(scores, dim=-1), capped
