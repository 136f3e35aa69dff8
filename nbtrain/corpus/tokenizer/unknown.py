"""What a tokenizer makes of text that it cannot write: one unknown token, read off its tokenizer.json.

A byte-level BPE with all 256 bytes, and a model with ByteFallback and all 256 byte tokens, write any text. A
Unigram names its unknown token by number (`unk_id`), WordPiece, WordLevel and BPE by name (`unk_token`).
"""

from typing import Any

from nbtrain.corpus.tokenizer.unfinished import byte_letters

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
BYTES_OF_UTF8 = (*range(0xC0), *range(0xC2, 0xF5))


def unknown_id(document: dict[str, Any]) -> int | None:
    """The id of text without a token, by a parsed tokenizer.json; None if every text has tokens.

    Raises KeyError, TypeError or IndexError if the document is not a tokenizer.json.
    """
    model = document["model"]
    if model.get("type") == "Unigram":
        # A list of [token, score].
        if model.get("unk_id") is None or _has_all_bytes(model, {token for token, _ in model["vocab"]}):
            return None
        return int(model["unk_id"])
    token, vocab = model.get("unk_token"), model["vocab"]
    if token is None or _has_all_bytes(model, vocab) or _is_whole_byte_level(document):
        return None
    added = {entry["content"]: entry["id"] for entry in document.get("added_tokens", [])}
    return vocab.get(token, added.get(token))


def drops_text(document: dict[str, Any]) -> bool:
    """Whether a BPE leaves out what it has no entry for, without an unknown token that could be counted.

    Bytes that no UTF-8 has may be missing.
    """
    model = document["model"]
    if model.get("type") != "BPE" or model.get("unk_token") is not None:
        return False
    vocab = model["vocab"]
    if model.get("byte_fallback"):
        return not all(BYTE_TOKENS[byte] in vocab for byte in BYTES_OF_UTF8)
    letters = byte_letters()
    return not is_byte_level(document) or not all(letters[byte] in vocab for byte in BYTES_OF_UTF8)


def _has_all_bytes(model: dict[str, Any], vocab: Any) -> bool:
    return bool(model.get("byte_fallback")) and all(token in vocab for token in BYTE_TOKENS)


def _is_whole_byte_level(document: dict[str, Any]) -> bool:
    vocab = document["model"]["vocab"]
    return is_byte_level(document) and all(letter in vocab for letter in byte_letters())


def is_byte_level(document: dict[str, Any]) -> bool:
    """Whether a text becomes the letters of its bytes, as words are cut or before."""
    steps = [document.get("pre_tokenizer") or {}, document.get("normalizer") or {}]
    parts = [part for step in steps for key in ("pretokenizers", "normalizers") for part in step.get(key, ())]
    return "ByteLevel" in [step.get("type") for step in (*steps, *parts)]
