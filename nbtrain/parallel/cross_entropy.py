"""Linear + cross entropy over a vocabulary that is cut over the tensor-parallel ranks; no logit leaves its rank.

Each rank computes the logits of its rows of the vocabulary, a chunk of tokens at a time, and tells the others two
fp32 numbers per token: the log of its sum of exponentials, and the logit of the label or 0. From those of all
ranks every rank has the same loss, bit by bit. Log-sums, unlike plain sums, need no agreed maximum first, so that
a chunk costs one collective. Loss and gradients are taken at once and the logits dropped, as model/loss.py does.

The vocabulary's padding depends on the number of ranks; `vocab_size` leaves it out of the softmax, and then the loss
does not depend on them.

Shapes: b sequences, s tokens, n = b s, c tokens of a chunk, h hidden, v padded vocabulary, t ranks of the group
"""

import torch

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import ALONE, Group

CPU_SOFTMAX_ROWS = 32
"""On a CPU the passes over a block stay in its cache; a GPU wants few, large kernels."""


def vocab_parallel_linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    chunk_tokens: int,
    loss_mask: torch.Tensor | None = None,
    denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
    *,
    group: Group = ALONE,
    sequence_parallel: bool = False,
    vocab_size: int | None = None,
) -> torch.Tensor:
    """Mean of -log softmax(hidden weight^T)[label] over all tokens, an fp32 scalar, the same on every rank.

    hidden [b, s, h], or this rank's [b, s/t, h] with sequence_parallel; weight [v/t, h]; labels [b, s] of the whole
    sequences. The rows of ids from `vocab_size` on are padding and take no part. chunk_tokens 0 takes all tokens at
    once; loss_mask, denominator and token_losses [b, s] are as in model/loss.py. Sums hidden's gradient over the
    ranks, so the caller must not.
    """
    if group.size > 1:
        enter = (
            mappings.gather_from_sequence_parallel_region
            if sequence_parallel
            else mappings.copy_to_tensor_model_parallel_region
        )
        hidden = enter(hidden, group)
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    if loss_mask is not None and denominator is None:
        # Nothing learnt is a loss of 0.
        denominator = loss_mask.sum().clamp(min=1)
    return _apply(
        hidden.flatten(0, -2),
        weight,
        labels.flatten(),
        chunk_tokens or labels.numel(),
        dtype,
        torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad),
        loss_mask.flatten() if loss_mask is not None else None,
        denominator,
        # A view: what is filled must be the caller's.
        token_losses.view(-1) if token_losses is not None else None,
        group,
        vocab_size,
    )


class _VocabParallelLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, *arguments):
        with torch.autocast(hidden.device.type, enabled=False):
            return _forward(ctx, hidden, *arguments)

    @staticmethod
    def backward(ctx, grad_loss):
        hidden_gradient, weight_gradient = ctx.saved_tensors
        # grad_loss carries 1 / accumulation steps and the fp16 loss scale; 1 / tokens was left for here too.
        scale = grad_loss * ctx.mean_factor
        return (
            hidden_gradient.mul_(scale.to(hidden_gradient.dtype)),
            weight_gradient.mul_(scale.to(weight_gradient.dtype)).to(ctx.weight_dtype),
            *[None] * 9,
        )


def _forward(
    ctx,
    hidden,
    weight,
    labels,
    chunk_tokens,
    dtype,
    needs_gradient,
    loss_mask,
    denominator,
    token_losses,
    group,
    vocab_size,
):
    tokens, rows_here = len(labels), len(weight)
    first_id = group.rank * rows_here
    true_rows = rows_here if vocab_size is None else min(max(vocab_size - first_id, 0), rows_here)
    product_weight = weight.detach().to(dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    hidden_gradient = weight_gradient = None
    if needs_gradient:
        hidden_gradient = torch.empty_like(hidden)
    for start in range(0, tokens, chunk_tokens):
        chunk = slice(start, min(start + chunk_tokens, tokens))
        product_hidden = hidden[chunk].to(dtype)
        logits = product_hidden @ product_weight.T
        logits[:, true_rows:] = float("-inf")
        label = labels[chunk] - first_id
        is_here = (label >= 0) & (label < rows_here)
        label = label.where(is_here, 0)
        log_sum, of_label = _statistics(logits, label, is_here, group)
        losses = log_sum - of_label
        if token_losses is not None:
            token_losses[chunk] = losses
        mask = loss_mask[chunk] if loss_mask is not None else None
        total += (losses if mask is None else losses * mask).sum()
        if hidden_gradient is not None:
            _logits_to_gradient(logits, label, is_here, log_sum, mask)
            hidden_gradient[chunk] = logits @ product_weight
            part = logits.T @ product_hidden
            # Chunks are summed in fp32 whatever the format of the products.
            weight_gradient = part.float() if weight_gradient is None else weight_gradient.add_(part)
    if needs_gradient:
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.mean_factor = 1.0 / (tokens if denominator is None else denominator)
        ctx.weight_dtype = weight.dtype
    return total / (tokens if denominator is None else denominator)


def _blocks(logits: torch.Tensor) -> list[slice]:
    rows = CPU_SOFTMAX_ROWS if logits.device.type == "cpu" else len(logits)
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]


def _statistics(
    logits: torch.Tensor, label: torch.Tensor, is_here: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """log sum exp over the whole vocabulary and the label's logit, fp32 [c] each."""
    own = torch.empty(2, len(logits), dtype=torch.float32, device=logits.device)
    for rows in _blocks(logits):
        torch.logsumexp(logits[rows].float(), dim=1, out=own[0, rows])
    # where, not a product: a masked row of padding is -inf, and 0 * -inf is no number.
    own[1] = logits.gather(1, label.unsqueeze(1)).squeeze(1).float().where(is_here, 0.0)
    if group.size == 1:
        return own[0], own[1]
    of_ranks = mappings.all_gather(own.unsqueeze(0), 0, group)
    return torch.logsumexp(of_ranks[:, 0], dim=0), of_ranks[:, 1].sum(0)


def _logits_to_gradient(
    logits: torch.Tensor,
    label: torch.Tensor,
    is_here: torch.Tensor,
    log_sum: torch.Tensor,
    mask: torch.Tensor | None,
) -> None:
    """d loss / d logits = softmax - onehot, in place. Not divided by n: in fp16 that would underflow."""
    for rows in _blocks(logits):
        gradient = torch.sub(logits[rows].float(), log_sum[rows].unsqueeze(1)).exp_()
        gradient.scatter_add_(1, label[rows].unsqueeze(1), -is_here[rows].float().unsqueeze(1))
        if mask is not None:
            gradient *= mask[rows].unsqueeze(1)
        logits[rows].copy_(gradient)


_apply = mappings.uncompiled(_VocabParallelLinearCrossEntropy.apply)
