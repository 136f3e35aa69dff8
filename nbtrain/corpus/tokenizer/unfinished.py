"""Decodes token sequences that may end inside a character whose bytes are several tokens.

Decoders show the bytes of an incomplete character, or a whole run of byte tokens, as U+FFFD. Here they are
omitted, because the following tokens may complete the character.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
NUM_BYTES = 256
BLANK = "\u2581"  # SentencePiece's character for a space
MOST_BYTES = 4  # maximum number of bytes in a UTF-8 character


def decode_finished(
    decode: Callable[[Sequence[int]], str], token_of: Callable[[int], str | None], ids: Sequence[int]
) -> tuple[str, bool]:
    """Return (the text of `ids`, whether its last character is incomplete and therefore omitted).

    `token_of` returns the vocabulary entry of an id. Bytes that cannot begin a character become U+FFFD.
    """
    text = decode(ids)
    if not text.endswith(REPLACEMENT):
        return text, False
    tokens = [token_of(token) or "" for token in ids[-MOST_BYTES:]]
    fallback = [BYTE_TOKEN.fullmatch(token) for token in tokens]
    if fallback[-1]:
        start = next((place for place in range(len(fallback), 0, -1) if not fallback[place - 1]), 0)
        tail = bytes(int(match[1], 16) for match in fallback[start:] if match)
        missing = unfinished_bytes(tail)
        return (decode(ids[:-missing]), True) if missing else (text, False)
    byte_of = letter_bytes()
    tail = bytes(byte_of[letter] for token in tokens for letter in token if letter in byte_of)
    return (text[:-1], True) if unfinished_bytes(tail) else (text, False)


def bytes_of_token(entry: str, is_byte_level: bool) -> bytes:
    """Return the bytes that a vocabulary entry stands for.

    An entry consists of characters that represent bytes (in a byte-level tokenizer), or it is <0x..> for a
    byte, or plain text.
    """
    if is_byte_level:
        byte_of = letter_bytes()
        if all(letter in byte_of for letter in entry):
            return bytes(byte_of[letter] for letter in entry)
        return entry.encode()
    if matched := BYTE_TOKEN.fullmatch(entry):
        return bytes([int(matched[1], 16)])
    return entry.replace(BLANK, " ").encode()


def unfinished_bytes(tail: bytes) -> int:
    """Return how many bytes at the end begin a UTF-8 character without completing it."""
    for count in range(1, min(MOST_BYTES, len(tail) + 1)):
        lead = tail[-count]
        if 0x80 <= lead < 0xC0:  # a continuation byte
            continue
        size = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 1
        return count if count < size else 0
    return 0


@cache
def byte_letters() -> list[str]:
    """Return the character that represents each byte in GPT-2's files.

    A byte whose own character is visible keeps it; the others have characters from U+0100 on.
    """
    visible = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte) if byte in visible else chr(next(others)) for byte in range(NUM_BYTES)]


@cache
def letter_bytes() -> dict[str, int]:
    """Return the inverse of byte_letters(), as {character: byte}."""
    return {letter: byte for byte, letter in enumerate(byte_letters())}
