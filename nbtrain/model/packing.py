"""Splits a packed matrix into queries, keys and values for an optimizer that works on whole matrices (Muon).

Applied to the packed matrix as a whole, Muon would mix the directions of queries, keys and values. names.py
describes the order of rows.
"""

import torch

from nbtrain.model.gpt_config import GPTConfig


def matrices_of(config: GPTConfig, name: str, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return views of the matrices in a block's unsharded matrix [o, i]: [queries, keys, values] or [weight].

    Each view is [.., i]; all leading dimensions are rows. `name` is the canonical name (names.py).
    """
    if not name.endswith("attention.query_key_value.weight"):
        return [weight]
    # [g, n/g + 2, d, i]
    packed = weight.unflatten(0, (config.query_groups, -1, config.head_size))
    return [packed[:, :-2], packed[:, -2], packed[:, -1]]
