"""Classifies characters and finds words, in any script and without a word list.

    letter      letters, marks, and the invisible joiners that spell words in Persian and Hindi
    unspaced    letters in scripts without spaces between words (Han, Kana, Thai, Tibetan, Khmer, ...)
    digit       decimal digits of any script
    number      other numbers: Roman, fractions, superscripts
    space       characters that str.isspace accepts
    punctuation
    symbol      all others: + = < > | $ ^ `, emoji, drawing, control, private, unassigned, U+FFFD

A word is a run of letters, digits and numbers; in scripts without spaces, each character is a word.
The kinds follow the Unicode version of the running Python; a later version includes more letters.
"""

import functools
import re
import unicodedata

import numpy as np

LETTER, UNSPACED, DIGIT, NUMBER, SPACE, PUNCTUATION, SYMBOL = range(7)

# First and last code point of blocks whose languages put no space between words.
UNSPACED_BLOCKS = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x1AAF),  # Tai Le, New Tai Lue, Buginese, Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x312F),  # Han marks, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo, Katakana extensions
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),  # Han
    (0xA980, 0xA9FF),  # Javanese, Myanmar
    (0xAA60, 0xAA7F),  # Myanmar
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFF9F),  # Katakana of half width
    (0x1AFF0, 0x1B16F),  # Kana
    (0x20000, 0x323AF),  # Han
)
ASCII_WORD = re.compile(r"[0-9A-Za-z]+")


@functools.cache
def kinds() -> np.ndarray:
    """Return the kind of every code point, uint8 [0x110000]. Computed once per process, in 0.2 s."""
    of_category = dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Cf"), LETTER)
    of_category |= {"Nd": DIGIT, "Nl": NUMBER, "No": NUMBER}
    of_category |= dict.fromkeys(("Zs", "Zl", "Zp"), SPACE)
    of_category |= dict.fromkeys(("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"), PUNCTUATION)
    of_category |= dict.fromkeys(("Sm", "Sc", "Sk", "So", "Cc", "Cn", "Co", "Cs"), SYMBOL)
    categories = map(unicodedata.category, map(chr, range(0x110000)))
    table = np.fromiter((of_category[category] for category in categories), np.uint8, 0x110000)
    for control in range(0x100):
        if chr(control).isspace():
            table[control] = SPACE
    for first, last in UNSPACED_BLOCKS:
        block = table[first : last + 1]
        block[(block == LETTER) | (block == NUMBER)] = UNSPACED
    return table


def kinds_of(text: str) -> np.ndarray:
    """Return the kind of each character of a text, uint8 [characters]."""
    if text.isascii():
        return kinds()[np.frombuffer(text.encode("ascii"), np.uint8)]
    return kinds()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")]


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script that puts no space between words."""
    return bool(kinds()[ord(character)] == UNSPACED)


def words(text: str) -> list[str]:
    """Return the words of a text in order, as they are written."""
    return (ASCII_WORD if text.isascii() else _any_word()).findall(text)


@functools.cache
def _any_word() -> re.Pattern[str]:
    """Return a regular expression for a word: an unspaced character, or a run of letters, digits and numbers.

    It does not use \\w, which does not match the vowel signs of Hindi.
    """
    table = kinds()
    spaced = _ranges((table == LETTER) | (table == DIGIT) | (table == NUMBER))
    return re.compile(f"[{_ranges(table == UNSPACED)}]|[{spaced}]+")


def _ranges(chosen: np.ndarray) -> str:
    """Return the inside of a regex character class, e.g. "a-zA-Z", that matches the chosen code points.

    `chosen` is bool [code points], True for each code point to match.
    """
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    return "".join(f"\\U{first:08x}-\\U{stop - 1:08x}" for first, stop in edges.reshape(-1, 2).tolist())
