"""Checks whether the documents of a .bin made by another program end in the end-of-document token."""

import numpy as np

from nbtrain.base.workspace import display
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.pair_paths import bin_path

LOOKED_AT_DOCUMENTS = 10_000
"""Number of documents whose last token is checked, spread over the whole dataset."""


def last_tokens(indexed: IndexedDataset) -> np.ndarray:
    """Return the last tokens of up to LOOKED_AT_DOCUMENTS non-empty documents."""
    bounds = indexed.document_bounds()
    filled = np.flatnonzero(bounds[1:] > bounds[:-1])
    count = min(len(filled), LOOKED_AT_DOCUMENTS)
    chosen = filled[np.linspace(0, len(filled) - 1, count, dtype=np.int64)]
    return indexed.tokens[bounds[chosen + 1] - 1]


def doubtful_ends(indexed: IndexedDataset, eod_id: int | None) -> str | None:
    """Return a warning about documents that do not end in `eod_id`; None if all checked documents do.

    If `eod_id` is None (unknown), documents that end in different tokens are reported.
    """
    ends = last_tokens(indexed)
    name = display(bin_path(indexed.prefix))
    harm = "A model trained on these documents does not learn where a text ends."
    if eod_id is None:
        if len(np.unique(ends)) <= 1:
            return None
        return (
            f"{name}: the documents end in different tokens, so no token marks the end of a document. {harm} "
            "Encode the documents again with an end-of-document token (Megatron's --append-eod)."
        )
    without = int(np.count_nonzero(ends != eod_id))
    if not without:
        return None
    return (
        f"{name}: {without:,} of the {len(ends):,} checked documents do not end in the end-of-document token "
        f"{eod_id}. {harm} Encode the documents again with that token at the end of each (Megatron's "
        "--append-eod), or set tokenizer.eod_token to the token that ends them."
    )
