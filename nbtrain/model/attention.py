"""Causal self-attention through torch's scaled_dot_product_attention, with a key-value cache for decoding.

Documents of one sequence are kept apart by a boolean mask [b, 1, s, s], causal and block-diagonal; on CUDA,
in 16-bit formats without dropout, by torch's kernel for sequences of varying lengths.

Shapes: b sequences, s tokens of this call, p tokens in the cache before it, n heads, d head size, m documents
"""

import contextlib
import inspect
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nbtrain.parallel.random import preserved

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

# Fastest of 64, 128 and 256 at 512 tokens and heads of 64.
BLOCK_ROWS = 128


class Documents(NamedTuple):
    """Where documents begin and end in b sequences, in one of the two forms that attention takes."""

    mask: torch.Tensor | None
    """bool [b, 1, s, s]: which keys a query sees."""
    cu_seqlens: torch.Tensor | None = None
    """int32 [m + 1], if there is no mask: cumulative lengths of the documents of all sequences."""
    max_seqlen: int = 0
    """Tokens of the longest document."""


def documents_of(
    cu_seqlens: torch.Tensor, max_seqlen: int, batch: int, tokens: int, as_lengths: bool
) -> Documents:
    """Documents from cumulative lengths over the b * s tokens, int32 [m + 1].

    Each sequence begins a document. Equal entries, such as padding at the end, are documents without a token.
    """
    if as_lengths:
        return Documents(None, cu_seqlens, max_seqlen)
    return Documents(mask_of(document_numbers(cu_seqlens, batch, tokens)))


def document_numbers(cu_seqlens: torch.Tensor, batch: int, tokens: int) -> torch.Tensor:
    """The number of each token's document, int32 [b, s], from the cumulative lengths of documents_of."""
    begins = torch.zeros(batch * tokens + 1, dtype=torch.int32, device=cu_seqlens.device)
    begins.index_fill_(0, cu_seqlens.long(), 1)
    return begins[:-1].cumsum(0, dtype=torch.int32).view(batch, tokens)


def mask_of(numbers: torch.Tensor) -> torch.Tensor:
    """Causal and within a document: bool [b, 1, s, s] from document_numbers."""
    return (numbers[:, :, None] == numbers[:, None, :]).tril_().unsqueeze(1)


def takes_lengths(device: str, dtype: torch.dtype, dropout: float, backend: str) -> bool:
    """Whether torch's kernel for varying lengths can be used; otherwise a mask has to be made."""
    return (
        device == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and dropout == 0
        and backend == "auto"
        and _varlen_kernel() is not None
    )


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
) -> torch.Tensor:
    """softmax(q k^T / sqrt(d), causal) v.

    query [b, n, s, d], key and value [b, n, p + s, d] -> [b, n, s, d].

    `backend` is auto, flash, efficient or math. torch raises RuntimeError if a named kernel does not support
    the device, the dtype, a mask or the dropout (on CPU only math has dropout).
    """
    queries, keys = query.shape[-2], key.shape[-2]
    if documents is not None and documents.cu_seqlens is not None:
        return _varlen_attention(query, key, value, documents.cu_seqlens, documents.max_seqlen)
    plain = documents is None and backend == "auto" and dropout == 0 and queries == keys
    if plain and _cpu_bf16_training(query):
        return _BlockedBackward.apply(query, key, value)
    # A single query sees the whole cache; several queries after a cache need the offset triangle.
    mask = documents.mask if documents is not None else None
    if mask is None and 1 < queries < keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    is_causal = mask is None and queries == keys and queries > 1
    with _kernels(backend):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
        )


def keeps_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    backend: str = "auto",
    documents: Documents | None = None,
) -> bool:
    """Whether causal_attention keeps the weights [b, n, s, s] for its backward pass, as the math kernel does.

    False inside a compiled layer, in which the compiler decides.
    """
    mask = documents.mask if documents is not None else None
    if torch.compiler.is_compiling() or (documents is not None and mask is None):
        return False
    with _kernels(backend):
        # The kernel that torch's function itself would choose.
        choice = torch._fused_sdp_choice(query, key, value, mask, dropout, mask is None)
    return choice == SDPBackend.MATH.value


def backend_problem(
    device: torch.device | str,
    dtype: torch.dtype,
    backend: str,
    dropout: float = 0.0,
    documents: bool = False,
    head_size: int = 64,
) -> str | None:
    """Why attention `backend` cannot be used, in torch's words, or None if a tiny trial succeeds.

    dtype is the products' format: bf16 under autocast. Random generators are left unchanged.
    """
    if backend == "auto":
        return None
    query = torch.zeros(1, 1, 16, head_size, dtype=dtype, device=device, requires_grad=True)
    numbers = torch.zeros(1, 16, dtype=torch.int32, device=device)
    bounds = Documents(mask_of(numbers)) if documents else None
    with preserved(), warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            causal_attention(query, query, query, dropout, backend, bounds).sum().backward()
        except RuntimeError as error:
            words = [str(reason.message) for reason in reasons] or [str(error)]
            return " ".join(word.splitlines()[0] for word in words)
    return None


def _kernels(backend: str) -> contextlib.AbstractContextManager:
    return contextlib.nullcontext() if backend == "auto" else sdpa_kernel(BACKENDS[backend])


def _varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int
) -> torch.Tensor:
    batch, _, tokens, _ = query.shape
    # [b, n, s, d] -> [b s, n, d]
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    kernel = _varlen_kernel()
    assert kernel is not None
    attended = kernel(query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, window_size=(-1, 0))
    return attended.unflatten(0, (batch, tokens)).transpose(1, 2)


def _cpu_bf16_training(query: torch.Tensor) -> bool:
    return (
        query.device.type == "cpu"
        and query.dtype == torch.bfloat16
        and query.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


class _BlockedBackward(torch.autograd.Function):
    """torch's flash kernel forward, our own backward: for bf16 on CPU it takes half the time of torch's.

    Each block of rows is multiplied with the keys up to its own end, so that memory grows with s, not s^2.
    Softmax and its gradient are torch's fused kernels. As in torch's math kernel, scores are rounded to bf16.
    """

    @staticmethod
    def forward(ctx, query, key, value):
        ctx.save_for_backward(query, key, value)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    @staticmethod
    def backward(ctx, grad_output):
        shape = grad_output.shape
        scale = shape[-1] ** -0.5
        query, key, value = (tensor.reshape(-1, *shape[2:]) for tensor in ctx.saved_tensors)
        query, grad_output = query * scale, grad_output.reshape(-1, *shape[2:])
        grad_query = torch.empty_like(query)
        # Sums over the blocks, in fp32.
        grad_key, grad_value = torch.zeros(2, *key.shape, dtype=torch.float32)
        later = torch.full((BLOCK_ROWS, BLOCK_ROWS), float("-inf"), dtype=query.dtype).triu_(1)
        for start in range(0, shape[-2], BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, shape[-2])
            rows, columns = slice(start, end), slice(0, end)
            scores = torch.bmm(query[:, rows], key[:, columns].mT)
            scores[:, :, start:end] += later[: end - start, : end - start]
            weights = torch.softmax(scores, dim=-1)
            grad_weights = torch.bmm(grad_output[:, rows], value[:, columns].mT)
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_value[:, columns] += torch.bmm(weights.mT, grad_output[:, rows])
            grad_key[:, columns] += torch.bmm(grad_scores.mT, query[:, rows])
            grad_query[:, rows] = torch.bmm(grad_scores, key[:, columns])
        gradients = (grad_query.mul_(scale), grad_key, grad_value)
        return tuple(gradient.to(query.dtype).view(shape) for gradient in gradients)


@dataclass
class LayerCache:
    """Keys and values of one layer, [b, n, positions, d] each, filled up to the cache's length."""

    keys: torch.Tensor
    values: torch.Tensor

    def extended(
        self, key: torch.Tensor, value: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [b, n, s, d] at `start`; returns views of everything up to its end."""
        end = start + key.shape[-2]
        self.keys[:, :, start:end] = key
        self.values[:, :, start:end] = value
        return self.keys[:, :, :end], self.values[:, :, :end]


@dataclass
class KVCache:
    """Keys and values of every layer; made by GPT.new_cache.

    forward(tokens, cache=cache) appends the tokens and moves `length`. Lower `length` to forget the newest.
    """

    layers: list[LayerCache]
    length: int = 0
