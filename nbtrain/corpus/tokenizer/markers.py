"""Finds special tokens in a run's conversation templates, which training encodes as plain text.

A pretrained model knows these markers as single tokens, so they are reported before data is prepared. The
setting tokenizer.added_tokens makes them single tokens in training too (folder.py).
"""

from pathlib import Path

import orjson

from nbtrain.base.workspace import resolve, tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.sources.chat_jinja import text_of_template
from nbtrain.corpus.tokenizer.folder import ONE_FILE, read_manifest


def markers_as_letters(config: RunConfig) -> list[str]:
    """Return the special tokens that a template in data.sources contains as text, ordered by id.

    The special tokens come from the run's tokenizer, or from the tokenizer that it will import. The list is
    empty if there is no tokenizer yet.
    """
    text = "\n".join(text_of_template(source) for source in config.data.sources)
    if not text.strip():
        return []
    try:
        document = orjson.loads((_folder(config) / ONE_FILE).read_bytes())
        special = [one["content"] for one in document.get("added_tokens") or () if one["special"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []  # a missing or damaged file is reported when the tokenizer is loaded
    return [token for token in special if token in text and token not in config.tokenizer.added_tokens]


def markers_sentence(config: RunConfig) -> tuple[str, str] | None:
    """Return (the problem, the fix) if a template contains special tokens as text; None otherwise."""
    if not (found := markers_as_letters(config)):
        return None
    kind = "is a special token" if len(found) == 1 else "are special tokens"
    said = (
        f"the conversation template contains {', '.join(found)}, which {kind} of the tokenizer. Training "
        "encodes the template as plain characters, so the model does not see these tokens, which it may "
        "know from pretraining."
    )
    fix = (
        "List such markers in tokenizer.added_tokens, with a separate tokenizer for this run; their ids stay "
        "the same (docs/finetuning.md)."
    )
    if config.tokenizer.eod_token in found:
        fix += (
            f" {config.tokenizer.eod_token} is tokenizer.eod_token, which no text may contain as a token: "
            "set tokenizer.eod_token to another token."
        )
    return said, fix


def _folder(config: RunConfig) -> Path:
    directory = tokenizer_dir(config.tokenizer.name)
    if config.tokenizer.path is None or read_manifest(directory) is not None:
        return directory
    path = resolve(config.tokenizer.path)
    return path.parent if path.is_file() else path
