"""Detects that a tokenizer was trained on text other than the dataset's, which costs additional tokens."""

from pathlib import Path
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.corpus.requested_settings import same_text
from nbtrain.corpus.tokenizer.folder import read_manifest

NAMED_SOURCES = 2


def other_text_of(directory: Path, wanted: dict[str, Any]) -> str:
    """Return a clause on a tokenizer's training text if it is not the dataset's text; otherwise "".

    `directory` is the tokenizer's folder. `wanted` holds the sources and the cleaning of the dataset, as
    corpus/requested_settings.py records them. Returns "" also if the tokenizer was imported, so that its
    training text is unknown, or does not exist.
    """
    manifest = read_manifest(directory)
    trained = manifest and manifest["trained"]
    if not trained or not wanted.get("sources") or same_text(trained, wanted):
        return ""
    names = [source.get("path") or source["kind"] for source in trained["sources"]]
    more = len(names) - NAMED_SOURCES
    listed = [*names[:NAMED_SOURCES], *([f"{amounts.counted(more, 'more source')}"] if more > 0 else [])]
    return f"{display(directory)} was trained on other text ({', '.join(listed)})"
