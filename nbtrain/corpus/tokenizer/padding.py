"""Chooses the padding token of an exported tokenizer, which must never also end a text.

transformers' collators exclude every padding token from the loss. If the padding token also ends a text, a
model that is trained further never sees the end of a text in the loss, and does not learn to stop. An export
therefore uses the first of these tokens that the vocabulary has:

    the pad_token of the settings, if it does not end a text
    a special token for padding (<pad>, <|finetune_right_pad_id|>), or an unused one (<|reserved_...|>)
    the unknown token
    <|padding|>, as a new name for the entry of a byte that never occurs: 0xFF is not used in UTF-8, so the
        ids of texts stay the same, and the model's embedding has a row for it
"""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.corpus.tokenizer.beginning import SETTINGS, SPECIAL_TOKENS_MAP, special_tokens
from nbtrain.corpus.tokenizer.folder import ONE_FILE, VOCABULARY
from nbtrain.corpus.tokenizer.unfinished import byte_letters
from nbtrain.corpus.tokenizer.unknown import is_byte_level

PADDING = "<|padding|>"
# Patterns that match names of special tokens in public vocabularies: padding tokens, and unused tokens.
FOR_PADDING = re.compile(r"(?i)(^|[^a-z])(right_)?pad(ding)?([^a-z]|$)")
WITHOUT_USE = re.compile(r"(?i)(reserved|unused|dummy|placeholder|<\|?extra_?)")
# Bytes that do not occur in UTF-8.
UNUSED_BYTES = (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)


def give_padding(folder: Path, end_ids: Collection[int], vocab_size: int) -> str | None:
    """Set a padding token in an exported tokenizer's settings and return it; None if no token qualifies.

    If no token qualifies and pad_token is set to a token that ends a text, pad_token is set to null.

    If the settings already have a padding token that does not end a text, the files stay unchanged.
    `vocab_size` is the number of rows of the model's embedding; tokens with ids beyond it do not qualify.
    """
    document: dict[str, Any] = files.read_json(folder / ONE_FILE) or {}
    named = special_tokens(folder)
    ids = _entries(document)

    def fits(token: object) -> bool:
        number = ids.get(token) if isinstance(token, str) else None
        return number is not None and number < vocab_size and number not in end_ids

    if fits(named.get("pad_token")):
        return str(named["pad_token"])
    token = next(filter(fits, _offered(document, named)), None)
    if token is None:
        token = _of_an_unused_byte(folder, document, vocab_size)
    if token is None and "pad_token" not in named:
        return None
    for name in (SETTINGS, SPECIAL_TOKENS_MAP):
        settings = files.read_json(folder / name)
        if settings is not None and (name == SETTINGS or "pad_token" in settings):
            files.write_json(folder / name, {**settings, "pad_token": token})
    return token


def _offered(document: dict[str, Any], named: dict[str, Any]) -> Iterator[str]:
    added = document.get("added_tokens") or ()
    special = [entry["content"] for entry in added if entry.get("special")]
    taken = {
        token for key, token in named.items() if key not in ("unk_token", "pad_token") and token in special
    }
    for kind in (FOR_PADDING, WITHOUT_USE):
        yield from (token for token in special if kind.search(token) and token not in taken)
    for token in (named.get("unk_token"), document.get("model", {}).get("unk_token")):
        if isinstance(token, str):
            yield token


def _entries(document: dict[str, Any]) -> dict[str, int]:
    vocabulary = document.get("model", {}).get("vocab") or {}
    if isinstance(vocabulary, list):  # Unigram: pairs of a token and its score
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    return {**vocabulary, **{entry["content"]: entry["id"] for entry in document.get("added_tokens") or ()}}


def _of_an_unused_byte(folder: Path, document: dict[str, Any], vocab_size: int) -> str | None:
    """Rename the entry of a byte that never occurs to PADDING in all files of the vocabulary.

    Returns PADDING, or None if there is no such entry.
    """
    model = document.get("model", {})
    vocabulary, letters = model.get("vocab"), byte_letters()
    if not isinstance(vocabulary, dict) or not is_byte_level(document) or PADDING in _entries(document):
        return None
    used = {letter for merge in model.get("merges") or () for piece in merge for letter in piece}
    used |= {entry["content"] for entry in document.get("added_tokens") or ()}
    letter = next(
        (
            letters[byte]
            for byte in UNUSED_BYTES
            if vocabulary.get(letters[byte], vocab_size) < vocab_size and letters[byte] not in used
        ),
        None,
    )
    if letter is None:
        return None
    number = vocabulary[letter]
    model["vocab"] = _renamed(vocabulary, letter)
    entry = {"id": number, "content": PADDING, **dict.fromkeys(("single_word", "lstrip", "rstrip"), False)}
    entry |= {"normalized": False, "special": True}
    document["added_tokens"] = sorted(
        [*(document.get("added_tokens") or ()), entry], key=lambda one: one["id"]
    )
    files.write_json(folder / ONE_FILE, document)
    if (beside := files.read_json(folder / VOCABULARY)) is not None:
        files.write_json(folder / VOCABULARY, _renamed(beside, letter))
    return PADDING


def _renamed(vocabulary: dict[str, int], letter: str) -> dict[str, int]:
    return {PADDING if token == letter else token: number for token, number in vocabulary.items()}
