"""Decides whether a dataset fits a tokenizer: the same ids, and the same end-of-document token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nbtrain.base.workspace import display
from nbtrain.dataset.manifest import DatasetManifest


class TokenizerProblem(NamedTuple):
    """Reason why a dataset does not belong to a tokenizer."""

    of: Literal["ids", "ends"]
    """Difference: "ids" (another tokenizer encoded the dataset) or "ends" (the end-of-document token)."""
    what: str
    """Clause about the dataset, to follow its name and a colon."""


def tokenizer_problem(
    manifest: DatasetManifest, directory: Path, tokenizer: Mapping[str, Any]
) -> TokenizerProblem | None:
    """Return why a dataset does not belong to the tokenizer in `directory`, whose manifest is `tokenizer`.

    Returns None if the dataset belongs to the tokenizer, or if the dataset's tokenizer is unknown, as for
    pairs that another program wrote.
    """
    theirs, ours = manifest.tokenizer_sha256, tokenizer["sha256"]
    if theirs is None:
        return None
    if theirs != ours:
        return TokenizerProblem(
            "ids",
            f"the data was encoded with a tokenizer other than {display(directory)} (sha256 {theirs[:12]} "
            f"instead of {ours[:12]}), so its ids would mean different text",
        )
    if manifest.eod_id in (None, tokenizer["eod_id"]):
        return None
    return TokenizerProblem(
        "ends",
        f"the documents end in the token {manifest.eod_id}, but {display(directory)} ends documents in "
        f"{tokenizer['eod_id']} ({tokenizer['eod_token']}), so a model would not learn to end a document",
    )
