"""Decides whether a dataset belongs to a tokenizer: its ids mean the same text, its documents end in the same
token.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nbtrain.base.workspace import display
from nbtrain.dataset.manifest import DatasetManifest


class TokenizerProblem(NamedTuple):
    """The reason why a dataset does not belong to a tokenizer."""

    of: Literal["ids", "ends"]
    """ids: another tokenizer encoded the dataset. ends: its documents end in another token."""
    what: str
    """A clause about the dataset, to follow its name and a colon."""


def tokenizer_problem(
    manifest: DatasetManifest, directory: Path, tokenizer: Mapping[str, Any]
) -> TokenizerProblem | None:
    """Return why a dataset does not belong to the tokenizer in `directory`, whose manifest is `tokenizer`.

    None if it does, or if the dataset's tokenizer is unknown, as for pairs that another program wrote.
    """
    theirs, ours = manifest.tokenizer_sha256, tokenizer["sha256"]
    if theirs is None:
        return None
    if theirs != ours:
        return TokenizerProblem(
            "ids",
            f"encoded with another tokenizer than {display(directory)} (sha256 {theirs[:12]} there, "
            f"{ours[:12]} here): ids would mean other text",
        )
    if manifest.eod_id in (None, tokenizer["eod_id"]):
        return None
    return TokenizerProblem(
        "ends",
        f"documents end in the token {manifest.eod_id}, and {display(directory)} ends them in "
        f"{tokenizer['eod_id']} ({tokenizer['eod_token']}), which a model would not learn",
    )
