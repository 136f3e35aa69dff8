"""Splits documents into sentences with sentencex (MIT, Wikimedia): 240 languages, others by a related one."""

from typing import Any

from nbtrain.corpus.optional import optional


def check_dependencies() -> None:
    """Raises DataError, with the pip command, if sentencex is not installed."""
    _segment()


def sentences(text: str, language: str) -> list[str]:
    """Return a text's sentences, stripped, none empty; `language` is an ISO 639 code. Raises DataError."""
    return [sentence for piece in _segment()(language, text) if (sentence := piece.strip())]


def segments(language: str, text: str) -> list[str]:
    """Return the sentences with the spaces around them: joined they are the text. Raises DataError."""
    from sentencex import segment

    return list(segment(language, text))


def _segment() -> Any:
    return optional("sentencex", "data.split_sentences", "remove split_sentences").segment
