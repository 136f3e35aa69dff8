"""What a tokenizer makes of text that it cannot write: one unknown token, read off its tokenizer.json.

A byte-level BPE with all 256 bytes, and a model with ByteFallback and all 256 byte tokens, write any text. A
Unigram names its unknown token by number (`unk_id`), WordPiece, WordLevel and BPE by name (`unk_token`).
"""

from typing import Any

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


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


def _has_all_bytes(model: dict[str, Any], vocab: Any) -> bool:
    return bool(model.get("byte_fallback")) and all(token in vocab for token in BYTE_TOKENS)


def _is_whole_byte_level(document: dict[str, Any]) -> bool:
    from tokenizers.pre_tokenizers import ByteLevel

    words = document.get("pre_tokenizer") or {}
    kinds = [words.get("type"), *(part.get("type") for part in words.get("pretokenizers", []))]
    vocab = document["model"]["vocab"]
    return "ByteLevel" in kinds and all(letter in vocab for letter in ByteLevel.alphabet())
