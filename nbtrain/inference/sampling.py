"""Samples next tokens from logits, for several sequences with the same settings.

The settings apply in the same order as in transformers: penalties, temperature, top_k, top_p, min_p. Each
sequence has a random number from its own generator, so that its token does not depend on the other sequences.

Shapes: r sequences, v vocabulary, k tokens to choose from
"""

from collections.abc import Mapping

import torch

from nbtrain.config.generation import Generation

# Number of likeliest tokens to try first: sorting the whole vocabulary takes ten times as long.
LIKELIEST = 512
# With a smaller temperature, the logits may become infinite in fp32, and their softmax NaN. This temperature
# already chooses the likeliest token practically always.
LEAST_TEMPERATURE = 1e-6


def how(generation: Generation) -> tuple[float, int, float, float]:
    """Return the settings that affect sampling; sequences with equal settings can be sampled together."""
    return generation.temperature, generation.top_k, generation.top_p, generation.min_p


def choose(logits: torch.Tensor, generation: Generation, drawn: torch.Tensor | None) -> torch.Tensor:
    """Return token ids [r] chosen from logits [r, v].

    `drawn` [r] are fp64 random numbers, uniform in [0, 1); greedy decoding does not use them.
    """
    if generation.is_greedy or drawn is None:
        return logits.argmax(-1)
    probabilities, ids = distribution(logits, generation)
    reached = probabilities.double().cumsum(-1)
    # Choose the first token at which the cumulative sum exceeds the drawn number, so that a token with
    # probability 0 is never chosen.
    place = torch.searchsorted(reached, (drawn.to(reached.device) * reached[:, -1]).unsqueeze(-1), right=True)
    place = place.clamp_(max=reached.shape[-1] - 1)
    return (place if ids is None else ids.gather(-1, place)).squeeze(-1)


def distribution(logits: torch.Tensor, generation: Generation) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the distribution to sample from: (probabilities [r, k] in fp32, token ids [r, k] or None).

    With ids, probabilities are in descending order; None means that k is the whole vocabulary, in order.
    """
    temperature, vocabulary = max(generation.temperature, LEAST_TEMPERATURE), logits.shape[-1]
    scaled = logits.float() / temperature
    top_k, top_p, ids = generation.top_k, generation.top_p, None
    if 0 < top_k < vocabulary:
        scaled, ids = scaled.topk(top_k)
        probabilities = scaled.softmax(-1)
    else:
        probabilities = scaled.softmax(-1)
        if top_p < 1:
            probabilities, ids = _likeliest(probabilities, top_p)
    if top_p < 1:
        # Keep a token if the tokens before it sum to less than top_p, so the likeliest token is always kept.
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    if generation.min_p > 0:
        least = generation.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), ids


def _likeliest(probabilities: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest probabilities, descending, and their ids: enough to sum to `share`."""
    if probabilities.device.type == "cpu" and probabilities.shape[-1] > LIKELIEST:
        few, ids = probabilities.topk(LIKELIEST)
        if bool((few.sum(-1) >= share).all()):
            return few, ids
    return probabilities.sort(descending=True)


def penalized(
    logits: torch.Tensor, generation: Generation, present: torch.Tensor, counts: Mapping[int, int]
) -> torch.Tensor:
    """Return a copy of logits [v] with the penalties and logit_bias applied.

    `present` has the distinct token ids in the prompt and the new text. `counts` is {token id: number of its
    occurrences in the new text}.
    """
    logits = logits.clone()
    if (penalty := generation.repetition_penalty) != 1:
        there = logits[present]
        logits[present] = torch.where(there < 0, there * penalty, there / penalty)
    if counts and (generation.presence_penalty or generation.frequency_penalty):
        ids = torch.tensor(list(counts), device=logits.device)
        often = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= generation.presence_penalty + generation.frequency_penalty * often
    if generation.logit_bias:
        biased, biases = zip(*generation.logit_bias)
        logits[torch.tensor(biased, device=logits.device)] += torch.tensor(biases, device=logits.device)
    return logits
