"""What a tokenizer puts before a text, as transformers' default call does: <s> of Llama 2 and Mistral.

The tokens stand in tokenizer.json's post_processor. `add_bos_token` of tokenizer_config.json counts for a
vocabulary of two files alone: transformers 5 does not look at it if there is a tokenizer.json.
"""

from pathlib import Path
from typing import Any

from nbtrain.base import files

SAMPLE = "a"


def ids_before_text(tokenizer: Any) -> list[int]:
    """What a tokenizers.Tokenizer puts before a text; what it puts after one is left out."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        framed = tokenizer.encode(SAMPLE, add_special_tokens=True).ids
        alone = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    except Exception:  # Rust's, of whole words without this one and without an unknown token
        return []
    places = range(len(framed) - len(alone) + 1)
    start = next((place for place in places if framed[place : place + len(alone)] == alone), 0)
    return framed[:start] if alone else []


def ids_before_text_of_two_files(settings: Path, tokenizer: Any) -> list[int]:
    """The same of vocab.json and merges.txt, by the tokenizer_config.json beside them."""
    said = files.read_json(settings) or {}
    found = bos_id(settings, tokenizer) if said.get("add_bos_token") else None
    return [] if found is None else [found]


def bos_id(settings: Path, tokenizer: Any) -> int | None:
    """The id of the bos_token that a tokenizer_config.json names; None if there is none."""
    token = (files.read_json(settings) or {}).get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(token) if token else None
