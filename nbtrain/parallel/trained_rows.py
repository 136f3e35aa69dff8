"""Trained rows of a frozen vocabulary: rows [n, h] that replace n rows of the matrix [v/t, h].

    embedding     a token with a trained row gets this row instead of the matrix's row
    output        the logit is the product with this row instead of the matrix's row (cross_entropy.py)

The frozen matrix is neither copied nor written, and has no gradient. Every tensor-parallel rank holds all n
rows, because there are few. The embedding's gradient is equal on all ranks; with sequence parallelism, each
rank has the gradient of its own tokens, and the gradients are summed. For the output, each rank has the
gradients of the rows in its part of the matrix, and these are summed too.

Shapes: b sequences, s tokens, h hidden, v padded vocabulary, n trained rows, t ranks in the group
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
    """Trained rows, [n, h]. Every tensor-parallel rank has all of them."""
    ids: tuple[int, ...]
    """Token ids of the trained rows, in ascending order."""


class OwnRows(NamedTuple):
    """The trained rows in one rank's part of the output matrix."""

    first: int
    """Index of the first of these rows among all trained rows."""
    rows: torch.Tensor
    """Trained rows in this rank's part, [m, h]."""
    columns: torch.Tensor
    """Columns in the rank's logits that these rows compute, int64 [m]."""


def embedded(
    found: torch.Tensor, tokens: torch.Tensor, trained: TrainedRows, group: Group, sequence_parallel: bool
) -> torch.Tensor:
    """Return the embeddings of `tokens` [b, s], with trained rows instead of frozen ones where they exist.

    `found` has the frozen embeddings, [b, s, h]. With sequence_parallel, `found` and the result have only
    this rank's tokens, [b, s/t, h].
    """
    rows = trained.rows
    if sequence_parallel:
        tokens = mappings.own_part(tokens, TOKENS, group)
        (rows,) = mappings.copy_parameters_to_sequence_parallel_region(rows, group=group)
    ids = _tensor_of(trained.ids, tokens.device)
    place = torch.searchsorted(ids, tokens).clamp(max=len(ids) - 1)
    return torch.where((ids[place] == tokens).unsqueeze(-1), F.embedding(place, rows), found)


def own_rows(rows: torch.Tensor, ids: tuple[int, ...], first_id: int, count: int) -> OwnRows:
    """Return the trained rows in one rank's part of the matrix: tokens first_id .. first_id + count - 1."""
    first, end = (bisect.bisect_left(ids, bound) for bound in (first_id, first_id + count))
    return OwnRows(first, rows[first:end], _tensor_of(ids, rows.device)[first:end] - first_id)


@functools.lru_cache(maxsize=8)
def _tensor_of(ids: tuple[int, ...], device: torch.device) -> torch.Tensor:
    # Cached, so that steps do not copy the ids to the device. Autograd cannot save tensors from inference
    # mode.
    with torch.inference_mode(False):
        return torch.tensor(ids, dtype=torch.int64, device=device)
