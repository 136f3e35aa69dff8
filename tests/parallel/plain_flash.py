"""Plain attention with the signatures of flash-attn 2.7's kernels, for tests of FPDT without flash-attn.

In shapes, b is the number of sequences, s of tokens, n of heads, and d the size of a head. Everything is
computed in fp32 at once, so sequences must be small.
"""

import torch


def scores(query: torch.Tensor, key: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    """Return the attention scores [b, n, s, s] of queries and keys [b, s, n, d]."""
    products = torch.einsum("bqnd,bknd->bnqk", query.float(), key.float()) * scale
    later = torch.ones(products.shape[-2:], dtype=torch.bool, device=query.device).triu_(1)
    return products.masked_fill(later, -torch.inf) if causal else products


def forward(query, key, value, dropout, scale, causal, **_):
    """Return (output [b, s, n, d], log of the softmax denominators [b, n, s], ...) like flash-attn 2.7."""
    products = scores(query, key, scale, causal)
    output = torch.einsum("bnqk,bknd->bqnd", products.softmax(-1), value.float())
    return output.to(query.dtype), products.logsumexp(-1), None, None


def backward(grad, query, key, value, output, log_sums, dq, dk, dv, dropout, scale, causal, *_, **__):
    """Write the gradients to dq, dk and dv."""
    grad = grad.float()
    weights = (scores(query, key, scale, causal) - log_sums.unsqueeze(-1)).exp()
    dv.copy_(torch.einsum("bnqk,bqnd->bknd", weights, grad))
    of_weights = torch.einsum("bqnd,bknd->bnqk", grad, value.float())
    mean = (grad * output.float()).sum(-1).transpose(1, 2).unsqueeze(-1)
    of_scores = weights * (of_weights - mean) * scale
    dq.copy_(torch.einsum("bnqk,bknd->bqnd", of_scores, key.float()))
    dk.copy_(torch.einsum("bnqk,bqnd->bknd", of_scores, query.float()))
