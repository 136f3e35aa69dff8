"""Linear layer and cross entropy in one function, with the logits of one chunk of tokens at a time.

The logits, their softmax and their gradient have n x v numbers each, more than all other activations of a
small model. This function computes the fp32 loss and the gradients of a chunk directly from its logits and
then frees the logits; backward only scales the gradients. The price is that both gradients are computed even
if backward is never called, except under no_grad. The idea comes from Liger-Kernel (arXiv:2410.10989, section
3.2).

If the vocabulary is sharded across tensor-parallel ranks, logits are not exchanged. Each rank sends two fp32
numbers per token: the log of its sum of exponentials, and the logit of the label (0 if another rank has the
label). From these, all ranks compute the same loss, bit for bit. Log-sums do not need a common maximum first,
so a chunk needs one collective.

The padding of the vocabulary depends on the number of ranks; `vocab_size` excludes it from the softmax.
`softcap` replaces each logit by softcap * tanh(logit / softcap) (Gemma 2, arXiv:2408.00118, section 2).
`trained` has rows that are trained instead of the same rows of a frozen matrix (trained_rows.py).

Shapes: b sequences, s tokens, n = b s, c tokens of a chunk, h hidden, v padded vocabulary, t ranks
"""

import torch
import torch.nn.functional as F

from nbtrain.parallel import mappings
from nbtrain.parallel.compiler import uncompiled
from nbtrain.parallel.groups import ALONE, Group
from nbtrain.parallel.trained_rows import OwnRows, TrainedRows, own_rows

CPU_SOFTMAX_ROWS = 32
"""Rows per block on a CPU, so that a block stays in the cache; a GPU computes all rows at once."""


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    chunk_tokens: int,
    loss_mask: torch.Tensor | None = None,
    denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
    likeliest: torch.Tensor | None = None,
    *,
    group: Group = ALONE,
    sequence_parallel: bool = False,
    vocab_size: int | None = None,
    softcap: float | None = None,
    trained: TrainedRows | None = None,
) -> torch.Tensor:
    """Return the mean of -log softmax(hidden weight^T)[label] over all tokens, as an fp32 scalar.

    The result is equal on all ranks. hidden is [b, s, h] or [n, h]; with sequence_parallel, it is this rank's
    [b, s/t, h]. weight is [v/t, h]. labels must have valid ids for all tokens. Rows from `vocab_size` on are
    padding and are ignored. chunk_tokens 0 means all tokens at once. The gradient of hidden is summed over
    the ranks here, so the caller must not sum it again. Under autocast, the products are in the autocast
    dtype, as in nn.Linear.

    With loss_mask (fp32, 0 or 1), the result is the sum over the tokens with 1, divided by their number or by
    the scalar `denominator`. With a denominator, the mask may also contain weights of any sign. A step with
    several micro batches needs a denominator, because the mean over all unmasked tokens of the step is not
    the mean of the micro batches' means.

    If given, token_losses (fp32) is filled with each token's loss, regardless of the mask. likeliest (fp32)
    is filled with 1 where the label is the likeliest token (among equally likely tokens, the one with the
    smallest id) and with 0 elsewhere. Both have the shape of labels.
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
        # If there are no unmasked tokens, the loss is 0.
        denominator = loss_mask.sum().clamp(min=1)
    rows = trained.rows if trained is not None else None
    if rows is not None:
        # Each rank has only the gradients of the rows in its part of the vocabulary.
        (rows,) = mappings.copy_parameters_to_sequence_parallel_region(rows, group=group)
    learns = hidden.requires_grad or weight.requires_grad or (rows is not None and rows.requires_grad)
    apply = _LinearCrossEntropy.apply if group.size == 1 else _uncompiled_apply
    return apply(
        hidden.flatten(0, -2),
        weight,
        rows,
        labels.flatten(),
        chunk_tokens or labels.numel(),
        dtype,
        torch.is_grad_enabled() and learns,
        loss_mask.flatten() if loss_mask is not None else None,
        denominator,
        # Use a view, because the caller's tensor must be filled.
        token_losses.view(-1) if token_losses is not None else None,
        likeliest.view(-1) if likeliest is not None else None,
        group,
        vocab_size,
        softcap,
        trained.ids if trained is not None else (),
    )


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, *arguments):
        with torch.autocast(hidden.device.type, enabled=False):
            return _forward(ctx, hidden, *arguments)

    @staticmethod
    def backward(ctx, grad_loss):
        hidden_gradient, weight_gradient, rows_gradient = ctx.saved_tensors
        # grad_loss carries 1 / accumulation steps and the fp16 loss scale; 1 / tokens is applied here.
        scale = grad_loss * ctx.mean_factor
        if weight_gradient is not None:
            weight_gradient = weight_gradient.mul_(scale.to(weight_gradient.dtype)).to(ctx.weight_dtype)
        if rows_gradient is not None:
            rows_gradient = rows_gradient.mul_(scale.to(rows_gradient.dtype)).to(ctx.weight_dtype)
        hidden_gradient = hidden_gradient.mul_(scale.to(hidden_gradient.dtype))
        return hidden_gradient, weight_gradient, rows_gradient, *[None] * 12


def _forward(
    ctx,
    hidden,
    weight,
    rows,
    labels,
    chunk_tokens,
    dtype,
    needs_gradient,
    loss_mask,
    denominator,
    token_losses,
    likeliest,
    group,
    vocab_size,
    softcap,
    trained_ids,
):
    tokens, rows_here = len(labels), len(weight)
    first_id = group.rank * rows_here
    true_rows = rows_here if vocab_size is None else min(max(vocab_size - first_id, 0), rows_here)
    product_weight = weight.detach().to(dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    hidden_gradient = weight_gradient = rows_gradient = own = None
    if rows is not None:
        own = own_rows(rows.detach().to(dtype), trained_ids, first_id, rows_here)
    if needs_gradient:
        hidden_gradient = torch.empty_like(hidden)
        if rows is not None:
            rows_gradient = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
    for start in range(0, tokens, chunk_tokens):
        chunk = slice(start, min(start + chunk_tokens, tokens))
        product_hidden = hidden[chunk].to(dtype)
        logits = product_hidden @ product_weight.T
        if own is not None:
            logits.index_copy_(1, own.columns, product_hidden @ own.rows.T)
        if softcap is not None:
            slope = logits.div_(softcap).tanh_()
            logits = slope * softcap
        if true_rows < rows_here:
            logits[:, true_rows:] = float("-inf")
        mask = loss_mask[chunk] if loss_mask is not None else None
        if likeliest is not None:
            likeliest[chunk] = (_likeliest(logits, first_id, group) == labels[chunk]).float()
        softmax = _softmax if group.size == 1 else _softmax_over_ranks
        losses = softmax(logits, labels[chunk] - first_id, mask, needs_gradient, group)
        if token_losses is not None:
            token_losses[chunk] = losses
        total += (losses if mask is None else losses * mask).sum()
        if hidden_gradient is not None:
            if softcap is not None:
                # d cap(x) / d x = 1 - tanh(x / softcap)^2
                logits.addcmul_(logits, slope.square_(), value=-1)
            of_rows = None if own is None else _taken_out(logits, own)
            hidden_gradient[chunk] = logits @ product_weight
            if own is not None and of_rows is not None and rows_gradient is not None:
                hidden_gradient[chunk] += of_rows @ own.rows
                rows_gradient[own.first : own.first + len(own.rows)] += of_rows.T @ product_hidden
            if not ctx.needs_input_grad[1]:
                # The output matrix is frozen.
                continue
            part = logits.T @ product_hidden
            # Chunks are summed in fp32, whatever the format of the products.
            weight_gradient = part.float() if weight_gradient is None else weight_gradient.add_(part)
    if needs_gradient:
        ctx.save_for_backward(hidden_gradient, weight_gradient, rows_gradient)
        ctx.mean_factor = 1.0 / (tokens if denominator is None else denominator)
        ctx.weight_dtype = weight.dtype
    return total / (tokens if denominator is None else denominator)


def _taken_out(gradient: torch.Tensor, own: OwnRows) -> torch.Tensor:
    """Return the gradient of the trained rows' logits, [c, m], and set these columns of `gradient` to 0."""
    found = gradient.index_select(1, own.columns)
    gradient.index_fill_(1, own.columns, 0)
    return found


def _likeliest(logits: torch.Tensor, first_id: int, group: Group) -> torch.Tensor:
    """Return each token's likeliest id over all ranks, int64 [c]; among equally likely ids, the smallest."""
    largest, ids = logits.float().max(dim=1)
    if group.size == 1:
        return ids
    # Ids are exact in fp64.
    own = torch.stack([largest.double(), (ids + first_id).double()])
    of_ranks = mappings.all_gather(own.unsqueeze(0), 0, group)
    # Among equals, max returns the first: the rank with the smallest ids.
    rank = of_ranks[:, 0].max(dim=0).indices
    return of_ranks[:, 1].gather(0, rank.unsqueeze(0)).squeeze(0).long()


def _blocks(logits: torch.Tensor) -> list[slice]:
    rows = CPU_SOFTMAX_ROWS if logits.device.type == "cpu" else len(logits)
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]


def _softmax(
    logits: torch.Tensor, label: torch.Tensor, mask: torch.Tensor | None, needs_gradient: bool, _group: Group
) -> torch.Tensor:
    """Return the losses of a chunk, fp32 [c]. If needs_gradient, overwrite `logits` with their gradient.

    The gradient is (softmax - onehot) * mask. It is not divided by n here, because the quotient would
    underflow in fp16.
    """
    losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    for rows in _blocks(logits):
        target = label[rows].unsqueeze(1)
        log_probabilities = F.log_softmax(logits[rows], dim=-1, dtype=torch.float32)
        losses[rows] = -log_probabilities.gather(1, target).squeeze(1)
        if needs_gradient:
            gradient = log_probabilities.exp_()
            gradient.scatter_add_(1, target, torch.full_like(target, -1, dtype=torch.float32))
            if mask is not None:
                gradient *= mask[rows].unsqueeze(1)
            logits[rows].copy_(gradient)
    return losses


def _softmax_over_ranks(
    logits: torch.Tensor, label: torch.Tensor, mask: torch.Tensor | None, needs_gradient: bool, group: Group
) -> torch.Tensor:
    """Compute the results of _softmax() for a vocabulary that is sharded across ranks.

    `label` is relative to this rank's first id; labels of other ranks are negative or too large.
    """
    is_here = (label >= 0) & (label < logits.shape[1])
    label = label.where(is_here, 0)
    log_sum, of_label = _statistics(logits, label, is_here, group)
    if needs_gradient:
        for rows in _blocks(logits):
            gradient = torch.sub(logits[rows].float(), log_sum[rows].unsqueeze(1)).exp_()
            gradient.scatter_add_(1, label[rows].unsqueeze(1), -is_here[rows].float().unsqueeze(1))
            if mask is not None:
                gradient *= mask[rows].unsqueeze(1)
            logits[rows].copy_(gradient)
    return log_sum - of_label


def _statistics(
    logits: torch.Tensor, label: torch.Tensor, is_here: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (log of the sum of exponentials over the whole vocabulary, the label's logit), fp32 [c] each."""
    own = torch.empty(2, len(logits), dtype=torch.float32, device=logits.device)
    for rows in _blocks(logits):
        torch.logsumexp(logits[rows].float(), dim=1, out=own[0, rows])
    # Use torch.where instead of a product: logits of padding are -inf, and 0 * -inf is NaN.
    own[1] = logits.gather(1, label.unsqueeze(1)).squeeze(1).float().where(is_here, 0.0)
    of_ranks = mappings.all_gather(own.unsqueeze(0), 0, group)
    return torch.logsumexp(of_ranks[:, 0], dim=0), of_ranks[:, 1].sum(0)


_uncompiled_apply = uncompiled(_LinearCrossEntropy.apply)
