"""Character classes and word boundaries, by the same rule for every script."""

# ruff: noqa: RUF001  (the tests need characters of other scripts)

import unicodedata

import numpy as np
import pytest

from nbtrain.corpus import characters
from nbtrain.corpus.characters import DIGIT, LETTER, NUMBER, PUNCTUATION, SPACE, SYMBOL, UNSPACED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("aZéßЖאع한ქ", LETTER),
        ("\u093f\u094d\u0301\u200c\u200d\u00ad", LETTER),  # marks of Hindi, an accent, joiners, a soft hyphen
        ("中あカไລམမខ\U00020000\u3005", UNSPACED),
        ("\u0e31\u103c", UNSPACED),  # vowel signs of Thai and Burmese
        ("07\u0661\u0967\u0e53\uff15", DIGIT),
        ("\u2167\u00bd\u00b2", NUMBER),
        (" \t\n\r\v\f\x1c\x1f\x85\xa0\u2028\u3000", SPACE),
        (".,;!?()[]{}-_/\\'\"*&#@%\u3002\uff0c\u060c\u0964\u2014", PUNCTUATION),
        ("+=<>|$^`~\u20ac\u00a9\u2500\U0001f600\ufffd\x00\x7f\ue000\U0010ffff", SYMBOL),
    ],
)
def test_kinds(text, kind):
    """Every character in a row of the table has the row's class."""
    assert characters.kinds_of(text).tolist() == [kind] * len(text)


def test_spaces_are_those_of_python():
    """A character is whitespace exactly if str.isspace says so."""
    spaces = np.flatnonzero(characters.kinds() == SPACE).tolist()
    assert spaces == [point for point in range(0x110000) if chr(point).isspace()]


def test_lone_surrogates_are_symbols():
    """Lone surrogates count as symbols and raise no error; encoding drops such a text later."""
    assert characters.kinds_of("a\ud800").tolist() == [LETTER, SYMBOL]


def test_ascii_takes_the_same_kinds_and_words():
    """The fast path for ASCII returns the same words and classes as the general path."""
    text = "".join(map(chr, range(128))) + " don't x_1 3.14"
    assert characters.kinds_of(text).tolist() == characters.kinds_of(text + "é")[:-1].tolist()
    assert characters.words(text) == characters._any_word().findall(text)


def test_words():
    """Words are runs of letters, marks and digits, or single characters in scripts without spaces."""
    assert characters.words("Don't x_1, 3.14 12½!") == ["Don", "t", "x", "1", "3", "14", "12½"]
    assert characters.words("हिन्दी में क्षत्रिय।") == ["हिन्दी", "में", "क्षत्रिय"]
    assert characters.words("الْعَرَبِيَّة می\u200cخواهم") == ["الْعَرَبِيَّة", "می\u200cخواهم"]
    assert characters.words("中文GPT2模型。") == ["中", "文", "GPT2", "模", "型"]
    assert characters.words(unicodedata.normalize("NFD", "één")) == [unicodedata.normalize("NFD", "één")]
    assert characters.words(" \n ---") == []
    assert characters.is_unspaced("中") and not characters.is_unspaced("a")
