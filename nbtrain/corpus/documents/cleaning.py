"""Cleans text before encoding: fixes text, and drops documents by rules that work for every language.

    text -> ftfy, if enabled -> length -> characters -> lines -> words -> (text, None), or (text, reason)

Rules run from the cheapest to the most expensive, and the first rule that a document breaks is the reason for
dropping it. characters.py defines words and symbols; the limits are Gopher's rules (arXiv:2112.11446, table
A1), adapted so that they do not depend on English.
"""

from collections import Counter
from importlib.util import find_spec

import numpy as np

from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.corpus import characters
from nbtrain.corpus.optional import missing

EMPTY = "empty"
TOO_SHORT = "too_short"
TOO_LONG = "too_long"
SYMBOLS = "symbols"
DIGITS = "digits"
DUPLICATE_LINES = "duplicate_lines"
TOP_WORD = "top_word"
LONG_WORD = "long_word"
REASONS = (EMPTY, TOO_SHORT, TOO_LONG, SYMBOLS, DIGITS, DUPLICATE_LINES, TOP_WORD, LONG_WORD)


class Cleaner:
    """Applies a run's cleaning rules to one document at a time; picklable.

    Raises DataError if ftfy is enabled but not installed.
    """

    def __init__(self, config: CleaningConfig):
        self.config = config
        if config.ftfy and find_spec("ftfy") is None:
            raise missing("ftfy", "data.cleaning.ftfy", "set data.cleaning.ftfy: false")
        of_kinds = (config.max_symbol_fraction, config.max_digit_fraction, config.max_word_chars)
        others = (config.max_bytes, config.max_duplicate_line_fraction, config.max_top_word_fraction)
        self._looks_at_kinds = any(limit is not None for limit in of_kinds)
        has_limit = self._looks_at_kinds or any(limit is not None for limit in others)
        self.is_trivial = not (config.ftfy or config.min_bytes or has_limit)
        """Whether the rules only drop empty documents and fix nothing."""

    def __call__(self, text: str) -> tuple[str, str | None]:
        """Return (text, None) for a document that is kept, (text, one of REASONS) for one that is dropped."""
        if self.is_trivial:
            return text, EMPTY if not text or text.isspace() else None
        if self.config.ftfy:
            text = fixed(text)
        return text, self._reason(text)

    def _reason(self, text: str) -> str | None:
        config = self.config
        if not text or text.isspace():
            return EMPTY
        if config.min_bytes and not _has_bytes(text, config.min_bytes):
            return TOO_SHORT
        if config.max_bytes is not None and _has_bytes(text, config.max_bytes + 1):
            return TOO_LONG
        if self._looks_at_kinds:
            kinds = characters.kinds_of(text)
            symbols, digits = config.max_symbol_fraction, config.max_digit_fraction
            limits = ((characters.SYMBOL, symbols, SYMBOLS), (characters.DIGIT, digits, DIGITS))
            for kind, share, reason in limits:
                if share is not None and np.count_nonzero(kinds == kind) > share * len(text):
                    return reason
            if config.max_word_chars is not None and longest_word(kinds) > config.max_word_chars:
                return LONG_WORD
        lines, words = config.max_duplicate_line_fraction, config.max_top_word_fraction
        if lines is not None and duplicate_line_fraction(text) > lines:
            return DUPLICATE_LINES
        if words is not None and top_word_fraction(text) > words:
            return TOP_WORD
        return None


def fixed(text: str) -> str:
    """Fix wrongly decoded characters and HTML entities; ftfy's other fixes would change correct text."""
    import ftfy

    config = ftfy.TextFixerConfig(
        unescape_html="auto",
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization=None,
        explain=False,
    )
    return ftfy.fix_text(text, config)


def _has_bytes(text: str, num_bytes: int) -> bool:
    """Return whether a text has at least `num_bytes` UTF-8 bytes, encoding it only if necessary."""
    if len(text) >= num_bytes:
        return True
    if text.isascii() or 4 * len(text) < num_bytes:
        return False
    return len(text.encode("utf-8", "surrogatepass")) >= num_bytes


def duplicate_line_fraction(text: str) -> float:
    """Return the share of lines that repeat an earlier line, ignoring empty lines and surrounding spaces."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return 1 - len(set(lines)) / len(lines) if lines else 0.0


def top_word_fraction(text: str) -> float:
    """Return the most frequent word's share of all words, ignoring case; 0 if no word repeats."""
    words = characters.words(text.lower())
    most = max(Counter(words).values(), default=0)
    return most / len(words) if most > 1 else 0.0


def longest_word(kinds: np.ndarray) -> int:
    """Return the length of a text's longest word in characters; `kinds` is kinds_of(text).

    A word is a run of characters that are neither SPACE nor UNSPACED.
    """
    ends = np.flatnonzero((kinds == characters.SPACE) | (kinds == characters.UNSPACED))
    return int(np.diff(ends, prepend=-1, append=len(kinds)).max()) - 1
