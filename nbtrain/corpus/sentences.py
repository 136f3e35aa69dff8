"""Documents into sentences, by the rules of a language.

sentencex (MIT, the Wikimedia Foundation) knows the abbreviations and stops of some 240 languages and falls
back to a related one, in the end English.
"""

from typing import Any

from nbtrain.corpus.optional import optional


def check_dependencies() -> None:
    """Raises DataError, with the pip command, if sentencex is not installed."""
    _segment()


def sentences(text: str, language: str) -> list[str]:
    """The sentences of a text in order, without the blanks around them; none is empty.

    `language` is an ISO 639 code, e.g. "en". Raises DataError if sentencex is not installed.
    """
    return [sentence for piece in _segment()(language, text) if (sentence := piece.strip())]


def _segment() -> Any:
    return optional("sentencex", "data.split_sentences", "leave split_sentences out").segment
