"""Matrices that are packed in one parameter: queries, keys and values, group after group.

An optimizer that works on whole matrices (Muon) separates them: in a packed matrix it would mix the
directions of queries, keys and values.
"""

import torch

from nbtrain.model.gpt_config import GPTConfig


def matrices_of(config: GPTConfig, name: str, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return views of a block's whole matrix [o, i] as matrices [.., i]; all leading dimensions are rows.

    `name` is canonical (names.py).
    """
    if not name.endswith("attention.query_key_value.weight"):
        return [weight]
    # [g, n/g + 2, d, i]
    packed = weight.unflatten(0, (config.query_groups, -1, config.head_size))
    return [packed[:, :-2], packed[:, -2], packed[:, -1]]
