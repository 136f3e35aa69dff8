"""One token after another, with a key-value cache.

When the text passes the model's positions, the newest half of the window is read again from position 0
and decoding goes on after it: learned positions cannot be shifted in the cache.
"""

from collections.abc import Iterator, Sequence

import torch

from nbtrain.inference.sampling import Sampling
from nbtrain.model.gpt import GPT


@torch.inference_mode()
def generate_tokens(
    model: GPT,
    prompt: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int,
    vocab_size: int,
    eod_id: int,
    generator: torch.Generator | None = None,
) -> Iterator[int]:
    """New tokens after `prompt` (at least one id), until max_new_tokens or the end of document.

    Ids from vocab_size on are padding of the embedding and are never chosen.
    """
    model.eval()
    device = model.word_embeddings.weight.device
    limit = model.config.max_position_embeddings
    cache = model.new_cache(1)
    context = list(prompt)
    pending = context[-limit:]
    for _ in range(max_new_tokens):
        if cache.length + len(pending) > limit:
            cache.lengths[0] = 0
            pending = context[-max(1, limit // 2) :]
        logits = model(torch.tensor([pending], device=device), cache=cache, last_token_only=True)
        token = sampling.choose(logits[0, -1, :vocab_size].float(), generator)
        if token == eod_id:
            return
        yield token
        context.append(token)
        pending = [token]
