"""Sampling of the next tokens from logits, for several sequences with the same settings.

The order is the same as in transformers: penalties, temperature, top_k, top_p, min_p. Each sequence passes a
random number from its own generator, so that its choice does not depend on the other sequences.

Shapes: r sequences, v vocabulary, k tokens to choose among
"""

from collections.abc import Mapping

import torch

from nbtrain.config.generation import Generation

# Sorting a whole vocabulary takes ten times as long as finding this many of the likeliest tokens.
LIKELIEST = 512
# Logits divided by a smaller temperature may be infinite in fp32, and their softmax NaN. This temperature
# chooses the likeliest token as well.
LEAST_TEMPERATURE = 1e-6


def how(generation: Generation) -> tuple[float, int, float, float]:
    """Return the settings that choose a token; sequences with equal settings are sampled together."""
    return generation.temperature, generation.top_k, generation.top_p, generation.min_p


def choose(logits: torch.Tensor, generation: Generation, drawn: torch.Tensor | None) -> torch.Tensor:
    """Choose token ids [r] from logits [r, v]; `drawn` [r] is uniform in [0, 1), fp64, and unused if
    greedy.
    """
    if generation.is_greedy or drawn is None:
        return logits.argmax(-1)
    probabilities, ids = distribution(logits, generation)
    reached = probabilities.double().cumsum(-1)
    # The first token at which the sum exceeds the drawn number, so a token without probability is never
    # chosen.
    place = torch.searchsorted(reached, (drawn.to(reached.device) * reached[:, -1]).unsqueeze(-1), right=True)
    place = place.clamp_(max=reached.shape[-1] - 1)
    return (place if ids is None else ids.gather(-1, place)).squeeze(-1)


def distribution(logits: torch.Tensor, generation: Generation) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return (probabilities [r, k] in fp32, likeliest first; their ids [r, k], or None for all ids in
    order).
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
        # A token stays while the share before it has not reached top_p: the likeliest always stays.
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    if generation.min_p > 0:
        least = generation.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), ids


def _likeliest(probabilities: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return descending probabilities with their ids: enough of them to sum to `share` in every row."""
    if probabilities.device.type == "cpu" and probabilities.shape[-1] > LIKELIEST:
        few, ids = probabilities.topk(LIKELIEST)
        if bool((few.sum(-1) >= share).all()):
            return few, ids
    return probabilities.sort(descending=True)


def penalized(
    logits: torch.Tensor, generation: Generation, present: torch.Tensor, counts: Mapping[int, int]
) -> torch.Tensor:
    """Return a copy of logits [v] with the penalties applied.

    `present` are the ids in prompt and new text, each once; `counts` counts the ids in the new text.
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
