"""Document boundaries in the form that a run's attention kernel needs, for whole sequences or for chunks.

With context parallelism, a rank has two chunks of each sequence, and attention computes one after the other
(parallel/context.py). Each chunk has its own boundaries, which are built once for all layers.

If the kernel takes boundaries as lengths, every chunk except a sequence's first one has boundaries, even if
the sequence is a single document. Otherwise, torch's other GPU kernels would be used, which need a mask for
these chunks.

Shapes: b sequences, s tokens
"""

import torch

from nbtrain.model.attention import Documents, documents_of_chunk, takes_lengths, whole_sequences
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel import context
from nbtrain.parallel.groups import Group


def as_lengths(config: GPTConfig, device: torch.device, dtype: torch.dtype, training: bool) -> bool:
    """Return whether attention needs document boundaries as lengths instead of a mask.

    `dtype` is the format of the weights.
    """
    dtype = torch.bfloat16 if config.autocast else dtype
    dropout = config.attention_dropout if training else 0.0
    return config.attn_logit_softcapping is None and takes_lengths(
        device.type, dtype, config.head_size, dropout, config.attention_backend
    )


def bounds_of_chunks(
    documents: Documents | None,
    tokens: torch.Size,
    group: Group,
    in_lengths: bool,
    device: torch.device,
) -> tuple[Documents | None, ...]:
    """Return the document boundaries for each of this rank's chunks; None for a chunk that needs none.

    `tokens` is the size [b, s].
    """
    batch, length = tokens
    size, found = length // (context.CHUNKS * group.size), []
    for start in context.own_starts(length, group):
        whole = documents
        if whole is None and in_lengths and start:
            whole = whole_sequences(batch, length, device)
        found.append(documents_of_chunk(whole, length, range(start, start + size)))
    return tuple(found)
