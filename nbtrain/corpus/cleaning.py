"""What is fixed and what is dropped before encoding: rules that need to know no language.

    text -> ftfy, when asked -> length -> characters -> lines -> words -> (text, None), or the reason of its
    drop

Rules run from the cheapest to the dearest, and the first that a document breaks names its drop. What a word
and a symbol are says characters.py; the shares are those of Gopher's rules (arXiv:2112.11446, table A1), made
independent of English.
"""

from collections import Counter
from importlib.util import find_spec

import numpy as np

from nbtrain.config.data_section import CleaningConfig
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
    """The rules of one run, applied document by document; picklable, and without memory of earlier documents.

    Raises DataError if ftfy is asked for but not installed.
    """

    def __init__(self, config: CleaningConfig):
        self.config = config
        if config.ftfy and find_spec("ftfy") is None:
            raise missing("ftfy", "data.cleaning.ftfy", "leave ftfy out")
        self._looks_at_kinds = (
            config.max_symbol_fraction is not None
            or config.max_digit_fraction is not None
            or config.max_word_chars is not None
        )
        self.is_trivial = not (
            config.ftfy
            or config.min_bytes
            or config.max_bytes is not None
            or self._looks_at_kinds
            or config.max_duplicate_line_fraction is not None
            or config.max_top_word_fraction is not None
        )
        """Whether only empty documents are dropped and nothing is fixed."""

    def __call__(self, text: str) -> tuple[str, str | None]:
        """(text, None) for a document that stays; (text, reason) for one that goes, reason one of REASONS."""
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
            if config.max_symbol_fraction is not None and (
                np.count_nonzero(kinds == characters.SYMBOL) > config.max_symbol_fraction * len(text)
            ):
                return SYMBOLS
            if config.max_digit_fraction is not None and (
                np.count_nonzero(kinds == characters.DIGIT) > config.max_digit_fraction * len(text)
            ):
                return DIGITS
            if config.max_word_chars is not None and _longest_word(kinds) > config.max_word_chars:
                return LONG_WORD
        if (
            config.max_duplicate_line_fraction is not None
            and duplicate_line_fraction(text) > config.max_duplicate_line_fraction
        ):
            return DUPLICATE_LINES
        if config.max_top_word_fraction is not None and (
            top_word_fraction(text) > config.max_top_word_fraction
        ):
            return TOP_WORD
        return None


def fixed(text: str) -> str:
    """The text with wrongly decoded characters and HTML entities fixed, and nothing else changed.

    ftfy's further habits (straight quotes, ligatures, full width letters, line ends, Unicode normalization,
    control characters) are off: they change text that is right, and Chinese punctuation with it.
    """
    import ftfy

    return ftfy.fix_text(text, _mending())


def _mending():
    import ftfy

    return ftfy.TextFixerConfig(
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


def _has_bytes(text: str, num_bytes: int) -> bool:
    """Whether a text has at least so many UTF-8 bytes; encodes the text only if its length leaves that
    open."""
    if len(text) >= num_bytes:
        return True
    if text.isascii() or 4 * len(text) < num_bytes:
        return False
    return len(text.encode("utf-8", "surrogatepass")) >= num_bytes


def duplicate_line_fraction(text: str) -> float:
    """The share of lines that repeat an earlier one; blank lines do not count, nor blanks at either end."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return 1 - len(set(lines)) / len(lines) if lines else 0.0


def top_word_fraction(text: str) -> float:
    """The share of the most frequent word, upper and lower case alike.

    A word that occurs once is no repetition, so a document of one word has 0.
    """
    words = characters.words(text.lower())
    most = max(Counter(words).values(), default=0)
    return most / len(words) if most > 1 else 0.0


def longest_word(text: str) -> int:
    """Characters of the longest run without a blank; a character of an unspaced script ends a run, too.

    So a Chinese paragraph has no long word, and the base64 inside it has.
    """
    return _longest_word(characters.kinds_of(text))


def _longest_word(kinds: np.ndarray) -> int:
    ends = np.flatnonzero((kinds == characters.SPACE) | (kinds == characters.UNSPACED))
    return int(np.diff(ends, prepend=-1, append=len(kinds)).max()) - 1
