"""Finds the tokens that transformers puts before a text by default, such as <s> in Llama 2 and Mistral.

They are in the post_processor of tokenizer.json. `add_bos_token` in tokenizer_config.json counts only for
vocab.json and merges.txt, because transformers 5 ignores it if there is a tokenizer.json. When nbtrain builds
a tokenizer.json from these two files, it therefore puts the token into the post_processor.
"""

from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError

SETTINGS = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
SAMPLE = "a"


def ids_before_text(tokenizer: Any) -> list[int]:
    """Return the ids that a tokenizers.Tokenizer puts before a text, without those after the text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        framed = tokenizer.encode(SAMPLE, add_special_tokens=True).ids
        alone = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    except Exception:  # from Rust, if a word-level vocabulary has neither this word nor an unknown token
        return []
    places = range(len(framed) - len(alone) + 1)
    start = next((place for place in places if framed[place : place + len(alone)] == alone), 0)
    return framed[:start] if alone else []


def ids_before_text_of_two_files(folder: Path, tokenizer: Any) -> list[int]:
    """Return the ids that transformers puts before a text, for a folder with vocab.json and merges.txt.

    The result is the bos id if tokenizer_config.json sets add_bos_token, otherwise an empty list.
    """
    found = bos_id(folder, tokenizer) if settings_of(folder).get("add_bos_token") else None
    return [] if found is None else [found]


def beginning_with(document: dict[str, Any], token: str, number: int) -> dict[str, Any]:
    """Return a copy of a parsed tokenizer.json that puts a token before each text, as transformers does."""

    def piece(kind: str, name: str, type_id: int) -> dict[str, Any]:
        return {kind: {"id": name, "type_id": type_id}}

    first, second = (
        [piece("SpecialToken", token, type_id), piece("Sequence", name, type_id)]
        for type_id, name in enumerate("AB")
    )
    known = {token: {"id": token, "ids": [number], "tokens": [token]}}
    template = {"type": "TemplateProcessing", "single": first, "pair": [*first, *second]}
    return {**document, "post_processor": {**template, "special_tokens": known}}


def bos_id(folder: Path, tokenizer: Any) -> int | None:
    """Return the id of the bos_token in a folder's tokenizer_config.json; None without such a token."""
    token = own_token(folder, "bos_token")
    return tokenizer.token_to_id(token) if token else None


def own_token(folder: Path, name: str) -> str | None:
    """Return the text of a token (e.g. bos_token) in a folder's tokenizer_config.json; None if missing."""
    return _text_of(settings_of(folder).get(name))


def special_tokens(folder: Path) -> dict[str, str | list[str]]:
    """Return {name: text} of the special tokens in a folder's settings, as chat templates use them.

    The names are bos_token, eos_token, pad_token, unk_token and others; the value of
    additional_special_tokens is a list. As in transformers, tokens that are only in special_tokens_map.json
    count too.
    """
    found: dict[str, str | list[str]] = {}
    for name in (SPECIAL_TOKENS_MAP, SETTINGS):
        settings = _object_of(folder, name)
        extra = settings.get("extra_special_tokens")
        for key, value in {**settings, **(extra if isinstance(extra, dict) else {})}.items():
            if (text := _text_of(value)) is not None and key.endswith("_token"):
                found[key] = text
        if isinstance(more := settings.get("additional_special_tokens"), list):
            found["additional_special_tokens"] = [text for one in more if (text := _text_of(one)) is not None]
    return found


def _text_of(token: object) -> str | None:
    """Return the text of a token in a settings file, which is a string or an object with `content`."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def settings_of(folder: Path) -> dict[str, Any]:
    """Return a folder's tokenizer_config.json; {} without one. Raises RecordError if it is not an object."""
    return _object_of(folder, SETTINGS)


def _object_of(folder: Path, name: str) -> dict[str, Any]:
    found = files.read_json(folder / name)
    if found is not None and not isinstance(found, dict):
        raise RecordError(f"{folder / name}: must be a JSON object, but is a {type(found).__name__}.")
    return found or {}
