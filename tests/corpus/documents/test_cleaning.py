"""The cleaning rules: every threshold at its limit, in Latin and other scripts, code and tables."""

# ruff: noqa: RUF001  (the tests need characters of other scripts)

import pickle
import sys

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.corpus import characters
from nbtrain.corpus.documents import cleaning
from nbtrain.corpus.documents.cleaning import Cleaner

ENGLISH = "The quick brown fox jumps over the lazy dog, and nobody minds; so it goes.\n" * 3 + "An end.\n"
CHINESE = "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。\n" * 20
ARABIC = "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا.\n"
HINDI = "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।\n"
THAI = "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิต่างมีเหตุผลและมโนธรรม" * 20
CODE = (
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n"
)
TABLE = "| year | sum |\n|------|-----|\n| 2019 | 3,4 |\n| 2020 | 5,6 |\n| 2021 | 7,8 |\n"
BASE64 = "SGVsbG8gd29ybGQh" * 80
ALL_TEXTS = {
    "english": ENGLISH,
    "chinese": CHINESE,
    "arabic": ARABIC,
    "hindi": HINDI,
    "thai": THAI,
    "code": CODE,
    "table": TABLE,
}


def reason(text, **settings):
    cleaned, why = Cleaner(CleaningConfig(**settings))(text)
    assert cleaned == text
    return why


@pytest.mark.parametrize("settings", [{}, {"min_bytes": 1}])
def test_empty_documents_always_go(settings):
    """Empty documents, and documents of whitespace in any script, are always dropped."""
    for text in ("", " \n\t", "\u3000\u00a0\u2003"):
        assert reason(text, **settings) == "empty"
    assert reason(".", **settings) is None


def test_trivial():
    """Cleaning that drops only empty documents is trivial, with or without exact
    deduplication; any other is not.
    """
    assert Cleaner(CleaningConfig()).is_trivial
    assert Cleaner(CleaningConfig(exact_dedup=False)).is_trivial
    for settings in (
        {"ftfy": True},
        {"min_bytes": 1},
        {"max_bytes": 10},
        {"max_symbol_fraction": 1},
        {"max_digit_fraction": 1},
        {"max_duplicate_line_fraction": 1},
        {"max_top_word_fraction": 1},
        {"max_word_chars": 10},
    ):
        assert not Cleaner(CleaningConfig(**settings)).is_trivial, settings


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("abcdef", 6), ("éé", 4), ("中文", 6), ("\U0001f600", 4), ("\ud800a", 4)]
)
def test_lengths_are_utf8_bytes(text, num_bytes):
    """Both length limits are inclusive and in UTF-8 bytes; a lone surrogate counts
    as 3 and raises no error.
    """
    assert reason(text, min_bytes=num_bytes) is None
    assert reason(text, min_bytes=num_bytes + 1) == "too_short"
    assert reason(text, max_bytes=num_bytes) is None
    assert reason(text, max_bytes=num_bytes - 1) == "too_long"


def test_symbols():
    """A text is dropped if its share of symbols exceeds the limit; punctuation does not count."""
    assert reason("ab+=", max_symbol_fraction=0.5) is None
    assert reason("ab+=<", max_symbol_fraction=0.5) == "symbols"
    assert reason("中文\U0001f600\ufffd\u2500", max_symbol_fraction=0.5) == "symbols"
    assert reason("؟؟،।。！、「」", max_symbol_fraction=0) is None


def test_digits():
    """The share of digits counts digits of every script, but not Roman numerals and fractions."""
    assert reason("ab12", max_digit_fraction=0.5) is None
    assert reason("ab123", max_digit_fraction=0.5) == "digits"
    assert reason("क१२३", max_digit_fraction=0.5) == "digits"
    assert reason("م١٢٣", max_digit_fraction=0.5) == "digits"
    assert reason("½Ⅷ²", max_digit_fraction=0) is None


def test_duplicate_lines():
    """The share of duplicate lines counts lines equal to an earlier line, except
    empty lines: 1 of 2 is a half.
    """
    assert reason("a\nb\n\n\n", max_duplicate_line_fraction=0) is None
    assert reason("a\n\n  a \n", max_duplicate_line_fraction=0.5) is None
    assert reason("a\na\r\na\u2028b", max_duplicate_line_fraction=0.49) == "duplicate_lines"
    assert cleaning.duplicate_line_fraction("a\na\na\nb") == 0.5
    assert reason("同じ\n同じ\n同じ", max_duplicate_line_fraction=0.6) == "duplicate_lines"


def test_top_word():
    """The share of the most frequent word ignores case; in Chinese, words are characters.

    Words that occur only once have no share.
    """
    assert cleaning.top_word_fraction("Spam spam SPAM eggs") == 0.75
    assert cleaning.top_word_fraction("哈哈哈好") == 0.75
    assert cleaning.top_word_fraction("हिन्दी हिन्दी है है।") == 0.5
    assert cleaning.top_word_fraction("title") == cleaning.top_word_fraction("...") == 0
    assert reason("spam spam eggs", max_top_word_fraction=0.66) == "top_word"
    assert reason("spam spam eggs", max_top_word_fraction=0.67) is None


def test_long_words():
    """A text is dropped if a run without spaces exceeds the limit; characters of
    unspaced scripts end a run.
    """

    def longest_word(text: str) -> int:
        return cleaning.longest_word(characters.kinds_of(text))

    assert longest_word("") == 0
    assert longest_word("ab cde\nf") == 3
    assert longest_word(" abcd") == longest_word("abcd ") == 4
    assert longest_word("中文abc中文") == 3
    assert longest_word("हिन्दी में") == 6
    assert reason("x " + "y" * 10, max_word_chars=10) is None
    assert reason("x " + "y" * 11, max_word_chars=10) == "long_word"
    assert reason(CHINESE + BASE64 + THAI, max_word_chars=1000) == "long_word"


@pytest.mark.parametrize("name", ALL_TEXTS)
def test_ordinary_text_of_every_script_stays(name):
    """Even strict limits drop no ordinary prose, code or small table in any script."""
    text = ALL_TEXTS[name]
    settings = {
        "max_symbol_fraction": 0.25,
        "max_digit_fraction": 0.3,
        "max_top_word_fraction": 0.2,
        "max_word_chars": 100,
        "min_bytes": 50,
        "max_bytes": 100_000,
    }
    assert reason(text, **settings) is None


def test_tables_are_what_the_character_limits_are_for():
    """A table of numbers is a fifth digits and nearly a fifth rules, while code has few of both."""
    assert reason(TABLE, max_digit_fraction=0.2) == "digits"
    assert reason(TABLE, max_symbol_fraction=0.15) == "symbols"
    assert reason(CODE, max_symbol_fraction=0.05) is None


def test_the_first_rule_that_is_broken_names_the_drop():
    """A drop is counted under the first broken rule, in the order length, characters, lines, words."""
    text = "1+1\n1+1\n1+1"
    rules = {
        "max_bytes": (5, "too_long"),
        "max_symbol_fraction": (0, "symbols"),
        "max_digit_fraction": (0, "digits"),
        "max_word_chars": (2, "long_word"),
        "max_duplicate_line_fraction": (0, "duplicate_lines"),
        "max_top_word_fraction": (0, "top_word"),
    }
    while rules:
        settings = {key: value for key, (value, _) in rules.items()}
        first = next(iter(rules))
        assert reason(text, **settings) == rules.pop(first)[1]
    assert {
        "empty",
        "too_short",
        "too_long",
        "symbols",
        "digits",
        "duplicate_lines",
        "top_word",
        "long_word",
    } == set(cleaning.REASONS)


def test_ftfy_mends_the_encoding_and_nothing_else():
    """ftfy repairs mojibake and entities only; quotes, ligatures, wide letters,
    newlines and controls stay.
    """
    pytest.importorskip("ftfy")
    cleaner = Cleaner(CleaningConfig(ftfy=True))
    assert cleaner("cafÃ© &amp; thÃ© â€œquotedâ€\x9d") == ("café & thé “quoted”", None)
    right = "“q” ﬁ ，ＡＢ e\u0301 a\r\nb\x0c\x1b[1m 中文 हिन्दी"
    assert cleaner(right) == (right, None)
    assert cleaner("<p>&amp;</p>") == ("<p>&amp;</p>", None)  # markup keeps its entities
    # The rules judge the fixed text.
    assert Cleaner(CleaningConfig(ftfy=True, min_bytes=3))("Ã©") == ("é", "too_short")


def test_ftfy_missing(monkeypatch):
    """A missing ftfy is an error with the pip command before any work starts."""
    monkeypatch.setattr(cleaning, "find_spec", lambda name: None)
    with pytest.raises(DataError) as caught:
        Cleaner(CleaningConfig(ftfy=True))
    assert str(caught.value) == (
        "data.cleaning.ftfy needs the package ftfy, which is not installed. Install it with "
        f"`{install_command('data')}`, or set data.cleaning.ftfy: false."
    )
    assert Cleaner(CleaningConfig())("text") == ("text", None)


def test_a_cleaner_can_be_sent_to_a_worker():
    """A pickled cleaner behaves the same, and ftfy is imported only when text is fixed."""
    cleaner = pickle.loads(pickle.dumps(Cleaner(CleaningConfig(max_digit_fraction=0.5))))
    assert cleaner("12") == ("12", "digits")
    sys.modules.pop("ftfy", None)
    Cleaner(CleaningConfig(ftfy=True)) if cleaning.find_spec("ftfy") else None
    assert "ftfy" not in sys.modules
