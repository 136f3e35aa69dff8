"""Checks whether one tokenizer extends another, that is, has all of its tokens with the same ids."""

from pathlib import Path

from nbtrain.base.workspace import display
from nbtrain.corpus.tokenizer.exported import entries_of
from nbtrain.corpus.tokenizer.folder import ONE_FILE


def ids_differ(known: Path, folder: Path) -> str:
    """Return a clause on the first token of `known` that differs in `folder`; "" if all ids are the same.

    `known` and `folder` are the folders of two tokenizers. A token differs if the tokenizer in `folder` lacks
    it or has it under another id. Raises DataError for a damaged tokenizer.json.
    """
    before, now = entries_of(known), entries_of(folder)
    for token, number in sorted(before.items(), key=lambda entry: entry[1]):
        if now.get(token) != number:
            found = f"has the id {now[token]:,} in" if token in now else "is missing from"
            return (
                f"the token {token!r} has the id {number:,} in {display(known / ONE_FILE)}, but {found} "
                f"{display(folder)}"
            )
    return ""
