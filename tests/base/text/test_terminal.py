"""Text from documents and file names cannot control the terminal."""

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.text.terminal import folded, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, \u0436, \u4e2d\u3000\u6587, 5\u00a0%,\ttab\nline", None),
        ("\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f468\u200d\U0001f469", None),
        ("\x1b[31mred\x07\x9b", r"\x1b[31mred\x07\x9b"),
        ("a\u202eb\u2066c\u200ed\ufeff", r"a\u202eb\u2066c\u200ed\ufeff"),
        ("a\rb\x0bc\u2028d\u0085", r"a\rb\x0bc\u2028d\x85"),
        ("\udce9 \x00 \x7f \U000e0041", r"\udce9 \x00 \x7f \U000e0041"),
    ],
)
def test_printable(text, shown):
    """Control characters, text-direction characters and surrogates are escaped; spaces, joiners and newlines
    are kept.
    """
    assert printable(text) == (text if shown is None else shown)


def test_errors_are_printable():
    """Error messages are escaped, because they quote file names and keys that other people wrote."""
    assert str(DataError("a\x1b]0;x\x07.jsonl\n\u202eb")) == "a\\x1b]0;x\\x07.jsonl\n\\u202eb"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("short enough", ["short enough"]),
        ("A paragraph of words that is folded", ["A paragraph of words", "that is folded"]),
        ("  indented words are folded further", ["  indented words are", "    folded further"]),
        ("  - an item of a list of several", ["  - an item of a list", "    of several"]),
        ("rate  1,088 tokens a second here", ["rate  1,088 tokens a", "      second here"]),
        ("rate  中文中文 中文中文 中文", ["rate  中文中文", "      中文中文 中文"]),
        ("a title too long to hang  words of it", ["a title too long to", "hang  words of it"]),
        ("see /a/path/that/no/terminal/can/break now", ["see", "/a/path/that/no/terminal/can/break", "now"]),
        ("type `nbtrain logs -f a` now", ["type", "`nbtrain logs -f a`", "now"]),
        ("  | a quoted line of a document", ["  | a quoted line of a document"]),
        ("one\n\ntwo words and more of them", ["one", "", "two words and more of", "them"]),
    ],
)
def test_folded(text, lines):
    """A folded line is indented below the text after its label; commands and paths are not broken."""
    assert folded(text, 21).split("\n") == lines
    assert folded(text, None) == text
