"""Linear + cross entropy in one function: the logits of a chunk of tokens at a time, the loss in fp32.

With vocabulary v and n tokens the logits are n x v numbers, more than all other activations of a small model
together, three times over (logits, softmax, gradient). Here a chunk's logits become loss and gradients at
once and are dropped; backward only scales. The price: the gradients of hidden state and weight are computed
even where backward is never called (not under no_grad). Idea: Liger-Kernel (arXiv:2410.10989, section 3.2).

Shapes: n tokens, c tokens of a chunk, h hidden, v vocabulary (padded)
"""

import torch
import torch.nn.functional as F


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    chunk_tokens: int,
    loss_mask: torch.Tensor | None = None,
    denominator: torch.Tensor | None = None,
    token_losses: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean of -log softmax(hidden weight^T)[label] over all tokens, an fp32 scalar.

    hidden [n, h], weight [v, h], labels [n] (all valid). chunk_tokens 0 takes all tokens at once.
    Under autocast the products are in the autocast dtype, as those of nn.Linear are.

    With loss_mask, fp32 [n] of 0 and 1, the sum over the tokens of 1, divided by their number or by the scalar
    `denominator`: where a step has several micro batches, the mean over all of its learnt tokens is not the mean
    of theirs. token_losses, fp32 [n], is filled with each token's own loss, whatever the mask.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    if loss_mask is not None and denominator is None:
        # Nothing learnt is a loss of 0.
        denominator = loss_mask.sum().clamp(min=1)
    return _LinearCrossEntropy.apply(
        hidden,
        weight,
        labels,
        chunk_tokens or len(labels),
        dtype,
        needs_gradient,
        loss_mask,
        denominator,
        token_losses,
    )


class _LinearCrossEntropy(torch.autograd.Function):
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
            *[None] * 7,
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
):
    tokens = len(labels)
    product_weight = weight.detach().to(dtype)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    hidden_gradient = weight_gradient = None
    if needs_gradient:
        hidden_gradient = torch.empty_like(hidden)
    # On a CPU the passes over a block stay in its cache; a GPU wants few, large kernels.
    softmax_rows = 32 if hidden.device.type == "cpu" else chunk_tokens
    for start in range(0, tokens, chunk_tokens):
        chunk = slice(start, min(start + chunk_tokens, tokens))
        product_hidden = hidden[chunk].to(dtype)
        logits = product_hidden @ product_weight.T
        for rows in range(0, len(logits), softmax_rows):
            block = logits[rows : rows + softmax_rows]
            here = slice(start + rows, start + rows + len(block))
            target = labels[here].unsqueeze(1)
            log_probabilities = F.log_softmax(block, dim=-1, dtype=torch.float32)
            of_labels = log_probabilities.gather(1, target)
            if token_losses is not None:
                token_losses[here] = -of_labels.squeeze(1)
            if loss_mask is not None:
                of_labels = of_labels * loss_mask[here].unsqueeze(1)
            total -= of_labels.sum()
            if needs_gradient:
                # d loss / d logits = softmax - onehot. Not divided by n: in fp16 that would underflow.
                gradient = log_probabilities.exp_()
                gradient.scatter_add_(1, target, torch.full_like(target, -1, dtype=torch.float32))
                if loss_mask is not None:
                    gradient *= loss_mask[here].unsqueeze(1)
                block.copy_(gradient)
        if hidden_gradient is not None:
            hidden_gradient[chunk] = logits @ product_weight
            part = logits.T @ product_hidden
            # Chunks are summed in fp32 whatever the format of the products.
            weight_gradient = part.float() if weight_gradient is None else weight_gradient.add_(part)
    if needs_gradient:
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.mean_factor = 1.0 / (tokens if denominator is None else denominator)
        ctx.weight_dtype = weight.dtype
    return total / (tokens if denominator is None else denominator)
