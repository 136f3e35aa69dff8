"""Checks whether one tokenizer extends another: it has every token of the other one, with its id."""

from pathlib import Path

from nbtrain.base.workspace import display
from nbtrain.corpus.tokenizer.exported import entries_of
from nbtrain.corpus.tokenizer.folder import ONE_FILE


def ids_differ(known: Path, folder: Path) -> str:
    """Describe how the ids of the tokenizer in `folder` differ from those in `known`; "" if it has them all.

    Raises DataError for a damaged tokenizer.json.
    """
    before, now = entries_of(known), entries_of(folder)
    for token, number in sorted(before.items(), key=lambda entry: entry[1]):
        if now.get(token) != number:
            found = f"has the id {now[token]:,}" if token in now else "is not there"
            return f"{token!r}, which is {number:,} in {display(known / ONE_FILE)}, {found}"
    return ""
