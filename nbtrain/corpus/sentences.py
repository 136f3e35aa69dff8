"""Splits documents into sentences with sentencex (MIT, Wikimedia).

sentencex has rules for 240 languages and uses a related language's rules for the others.
"""

from typing import Any

from nbtrain.corpus.optional import optional


def check_dependencies() -> None:
    """Raise DataError, with the pip command, if sentencex is not installed."""
    _segment()


def sentences(text: str, language: str) -> list[str]:
    """Return the sentences of a text without surrounding spaces; `language` is an ISO 639 code.

    Raises DataError if sentencex is not installed.
    """
    return [sentence for piece in _segment()(language, text) if (sentence := piece.strip())]


def segments(language: str, text: str) -> list[str]:
    """Return the sentences including the spaces between them, so that joining them gives back the text."""
    from sentencex import segment

    return list(segment(language, text))


def _segment() -> Any:
    return optional("sentencex", "data.split_sentences", "remove split_sentences").segment
