"""Determines from tokenizer.json what a tokenizer does with text that its vocabulary cannot represent.

    every text has tokens    a byte-level BPE with all bytes; BPE and Unigram with a token for each byte
    one unknown token        given by `unk_token` in BPE, WordPiece and WordLevel, by `unk_id` in Unigram
    nothing                  BPE without an unknown token: the text is lost and not counted
    an error                 WordPiece, WordLevel and Unigram without an unknown token; a BPE whose unknown
                             token is not in its vocabulary

tokenizers looks for an unknown token only among the entries of the model, not among the added tokens.
"""

from collections.abc import Container
from typing import Any, Literal, NamedTuple

from nbtrain.corpus.tokenizer.unfinished import byte_letters

BYTES_OF_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in BYTES_OF_UTF8)


class UnknownText(NamedTuple):
    """Treatment of text for which a tokenizer has no token."""

    becomes: Literal["tokens", "unknown", "nothing", "error"]
    """Result for text without a token; "tokens" means that no such text exists."""
    unknown_id: int | None = None
    """Id of the unknown token, if `becomes` is "unknown"."""


def unknown_text(document: dict[str, Any]) -> UnknownText:
    """Return what a tokenizer does with text for which it has no token.

    `document` is its parsed tokenizer.json, in which the model must name its type. Raises KeyError, TypeError
    or IndexError if the document is not a tokenizer.json.
    """
    model = document["model"]
    if model["type"] == "Unigram":
        # A list of [token, score].
        if _has_byte_tokens(model, {token for token, _ in model["vocab"]}):
            return UnknownText("tokens")
        number = model.get("unk_id")
        return UnknownText("error") if number is None else UnknownText("unknown", int(number))
    token, vocab = model.get("unk_token"), model["vocab"]
    if model["type"] == "BPE":
        if _has_byte_tokens(model, vocab) or is_whole_byte_level(document):
            return UnknownText("tokens")
        if token is None:
            return UnknownText("nothing")
    number = vocab.get(token)
    return UnknownText("error") if number is None else UnknownText("unknown", number)


def _has_byte_tokens(model: dict[str, Any], vocab: Container[str]) -> bool:
    return bool(model.get("byte_fallback")) and all(token in vocab for token in BYTE_TOKENS)


def is_whole_byte_level(document: dict[str, Any]) -> bool:
    """Return whether a BPE encodes text as bytes and has an entry for every byte that can occur.

    Each byte must have an entry for every prefix and suffix with which it is looked up. Bytes that never
    occur in UTF-8 may be missing.
    """
    model = document["model"]
    prefix, suffix = (model.get(key) or "" for key in ("continuing_subword_prefix", "end_of_word_suffix"))
    forms = {start + "{}" + end for start in ("", prefix) for end in ("", suffix)}
    letters = byte_letters()
    return is_byte_level(document) and all(
        form.format(letters[byte]) in model["vocab"] for form in forms for byte in BYTES_OF_UTF8
    )


def is_byte_level(document: dict[str, Any]) -> bool:
    """Return whether a tokenizer converts text to characters that represent its bytes."""
    steps = [document.get("pre_tokenizer") or {}, document.get("normalizer") or {}]
    parts = [part for step in steps for key in ("pretokenizers", "normalizers") for part in step.get(key, ())]
    return "ByteLevel" in [step.get("type") for step in (*steps, *parts)]


def unwritable_piece(tokenizer: Any, text: str) -> str | None:
    """Return the first character of a text for which a tokenizers.Tokenizer has no token, otherwise None.

    For WordLevel and WordPiece, whose tokens are words, return the first word without a token.
    """
    normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
    words = [normalized]
    if tokenizer.pre_tokenizer:
        words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]
    word = next((word for word in words if not _is_writable(tokenizer.model, word)), None)
    if word is None or type(tokenizer.model).__name__ in ("WordLevel", "WordPiece"):
        return word
    return next((char for char in word if not _is_writable(tokenizer.model, char)), word)


def _is_writable(model: Any, word: str) -> bool:
    try:
        model.tokenize(word)
    except Exception:  # the Rust library raises plain Exception
        return False
    return True
