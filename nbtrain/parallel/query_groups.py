"""Grouped-query attention (arXiv:2305.13245) if the query heads of a group are on several ranks.

Queries, keys and values are packed by group, [n/g queries | key | value], with d rows each. Ranks that hold
complete groups do not need this module. Otherwise:

    tensor ranks     shard the packed rows evenly, as for any other matrix, and gather the outputs.
                     Each rank uses its own queries with the key and value of their group, as in Megatron-LM.
                     Copies of a group's rows on each rank would save this collective. Then, however, the
                     copies' gradients would have to be summed, and norm, optimizer and checkpoints would have
                     to count the copies only once.
    Ulysses ranks    repeat keys and values before they exchange tokens for heads, as in DeepSpeed's ALST
                     (arXiv:2506.13996).

Shapes: b sequences, s tokens, n query heads, g groups, d head size, t ranks in the group
"""

import math

import torch

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import COLUMNS


def own_queries(packed: torch.Tensor, heads: int, groups: int, head_size: int, group: Group) -> torch.Tensor:
    """Return this rank's n/t queries with their key and value.

    [b, s, (n + 2 g) d/t] -> [b, s, (n/t + 2) d]; g must divide t, and t must divide n.
    """
    return mappings.region(packed, group, _own_queries, _given_back, heads, groups, head_size)


def repeated_for(packed: torch.Tensor, head_size: int, ranks: int) -> torch.Tensor:
    """Split groups, repeating their keys and values, until `ranks` divides the number of groups.

    [b, s, g, (n/g + 2) d] -> [b, s, lcm(g, ranks), ..]; `ranks` must divide n.
    """
    groups = packed.shape[2]
    times = ranks // math.gcd(groups, ranks)
    if times == 1:
        return packed
    query, key_value = packed.split([packed.shape[3] - 2 * head_size, 2 * head_size], dim=-1)
    return torch.cat(
        [query.unflatten(3, (times, -1)).flatten(2, 3), key_value.repeat_interleave(times, dim=2)], dim=-1
    )


def _parts(whole: torch.Tensor, heads: int, groups: int, head_size: int, group: Group) -> list[torch.Tensor]:
    """Return [view of this rank's queries, view of the key and value of their group]."""
    sharing = group.size // groups
    mine, place = divmod(group.rank, sharing)
    of_group, own = heads // groups, heads // group.size
    first = mine * (of_group + 2)
    return [
        whole.narrow(COLUMNS, at * head_size, count * head_size)
        for at, count in ((first + place * own, own), (first + of_group, 2))
    ]


def _own_queries(x: torch.Tensor, heads: int, groups: int, head_size: int, group: Group) -> torch.Tensor:
    return torch.cat(_parts(mappings.all_gather(x, COLUMNS, group), heads, groups, head_size, group), COLUMNS)


def _given_back(grad: torch.Tensor, heads: int, groups: int, head_size: int, group: Group) -> torch.Tensor:
    whole = grad.new_zeros(*grad.shape[:-1], (heads + 2 * groups) * head_size)
    own = heads // group.size * head_size
    for part, gradient in zip(
        _parts(whole, heads, groups, head_size, group), grad.split([own, 2 * head_size], dim=-1)
    ):
        part.copy_(gradient)
    return mappings.reduce_scatter(whole, COLUMNS, group)
