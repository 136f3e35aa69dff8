"""Trained rows of a frozen vocabulary: [n, h], which replace n rows of the matrix [v/t, h].

    embedding     a token with a trained row gets this row instead of the matrix's
    output        its logit is the product with this row instead of the matrix's; see cross_entropy.py

The frozen matrix is not copied, not written, and has no gradient. Every tensor-parallel rank holds all n
rows, because they are few. The embedding's gradient is equal on all ranks; with sequence parallelism, each
rank has the gradient of its own tokens, and they are summed. For the output, each rank has the gradient of
the rows in its part of the matrix, and these are summed too.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary, n trained rows, t ranks of the group
"""

import bisect
import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from nbtrain.parallel import mappings
from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import TOKENS


class TrainedRows(NamedTuple):
    """Trained rows and the tokens that they belong to."""

    rows: torch.Tensor
    """[n, h], whole on every tensor-parallel rank."""
    ids: tuple[int, ...]
    """Token ids of the trained rows, ascending."""


class OwnRows(NamedTuple):
    """The trained rows in one rank's part of the output matrix."""

    first: int
    """Index of the first of these rows among all trained rows."""
    rows: torch.Tensor
    """[m, h]"""
    columns: torch.Tensor
    """int64 [m]: columns of the rank's logits that belong to these rows."""


def embedded(
    found: torch.Tensor, tokens: torch.Tensor, trained: TrainedRows, group: Group, sequence_parallel: bool
) -> torch.Tensor:
    """Replace the frozen embeddings of tokens that have a trained row by this row.

    `found` are the frozen matrix's embeddings of `tokens` [b, s]: [b, s, h], with sequence_parallel this
    rank's [b, s/t, h].
    """
    rows = trained.rows
    if sequence_parallel:
        tokens = mappings.own_part(tokens, TOKENS, group)
        (rows,) = mappings.copy_parameters_to_sequence_parallel_region(rows, group=group)
    ids = _tensor_of(trained.ids, tokens.device)
    place = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where((ids[place] == tokens).unsqueeze(-1), F.embedding(place, rows), found)


def own_rows(rows: torch.Tensor, ids: tuple[int, ...], first_id: int, count: int) -> OwnRows:
    """Return the trained rows of tokens first_id .. first_id + count - 1, the tokens of one rank's part of
    the matrix.
    """
    first, end = (bisect.bisect_left(ids, bound) for bound in (first_id, first_id + count))
    return OwnRows(first, rows[first:end], _tensor_of(ids, rows.device)[first:end] - first_id)


@functools.lru_cache(maxsize=8)
def _tensor_of(ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    # Kept, so that no step copies them to the device. Autograd saves no tensor of the inference mode.
    with torch.inference_mode(False):
        return torch.tensor(ids, dtype=torch.int64, device=device)
