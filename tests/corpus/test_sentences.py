"""Splitting documents into sentences."""

# ruff: noqa: RUF001  (the tests need characters of other scripts)

import sys

import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.corpus import sentences


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Dr. Smith went home.  It was 3.5 km.\n\n"
            "Then he slept. ", ["Dr. Smith went home.", "It was 3.5 km.", "Then he slept."]),
        ("zh", "今天很好。明天也好！", ["今天很好。", "明天也好！"]),
        ("hi", "यह है। वह है।", ["यह है।", "वह है।"]),
        ("de", "Das ist z.B. ein Satz. Noch einer.", ["Das ist z.B. ein Satz.", "Noch einer."]),
        ("en", "", []),
        ("en", " \n ", []),
    ],
)  # fmt: skip
def test_sentences(language, text, expected):
    """Sentences follow the language's rules; only the whitespace between them is lost."""
    pytest.importorskip("sentencex")
    assert sentences.sentences(text, language) == expected
    assert "".join(expected).replace(" ", "") == "".join(text.split())


def test_sentencex_missing(monkeypatch):
    """A missing sentencex is an error with the command that installs it."""
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(DataError) as caught:
        sentences.check_dependencies()
    assert str(caught.value) == (
        "data.split_sentences needs the package sentencex, which is not installed. Install it with "
        f"`{install_command('data')}`, or remove split_sentences."
    )
