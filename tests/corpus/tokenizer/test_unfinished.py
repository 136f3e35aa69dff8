"""Token sequences that end inside a character, with ByteFallback and with byte-level BPE."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtrain.corpus.tokenizer.folder import save
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.training import train
from nbtrain.corpus.tokenizer.unfinished import unfinished_bytes
from tests.corpus.tokenizer.byte_fallback import byte_fallback_tokenizer

TEXT = "hello \u4e2d\u6587\uff0c\U0001f469\u200d\U0001f469 hello \u00e9\U0001f600"


def byte_level_tokenizer(folder):
    """Return a tokenizer whose vocabulary is the 256 bytes and EOD."""
    save(train(["hello"], 257, train_bytes=1 << 20), folder, None)
    return Tokenizer.load(folder)


@pytest.mark.parametrize("make", [byte_fallback_tokenizer, byte_level_tokenizer])
def test_every_cut_shows_whole_characters(make, tmp_path):
    """Decoding the first tokens gives a prefix of the text that lacks at most one unfinished character."""
    tokenizer = make(tmp_path / "small")
    ids = tokenizer.encode(TEXT).tolist()
    assert tokenizer.decode_finished(ids) == (TEXT, False)
    cut_inside = 0
    for count in range(len(ids) + 1):
        text, is_unfinished = tokenizer.decode_finished(ids[:count])
        assert TEXT.startswith(text), (count, text)
        cut_inside += is_unfinished
        more, _ = tokenizer.decode_finished(ids[: count + 1])
        assert len(more) - len(text) <= len(" hello")
    assert cut_inside == sum(len(letter.encode()) - 1 for letter in TEXT)


@pytest.mark.parametrize("make", [byte_fallback_tokenizer, byte_level_tokenizer])
def test_bytes_that_begin_no_character_stay(make, tmp_path):
    """An invalid byte at the end is shown as U+FFFD at once, because no later token can complete it."""
    tokenizer = make(tmp_path / "small")
    lead, *rest = tokenizer.encode("\u4e2d").tolist()[-3:]
    hello = tokenizer.encode("hello").tolist()
    for wrong in ([rest[0]], [lead, rest[0], rest[1], rest[1]]):
        text, is_unfinished = tokenizer.decode_finished([*hello, *wrong])
        assert text.startswith("hello")
        assert text.endswith("\ufffd")
        assert not is_unfinished
    assert tokenizer.decode_finished([*hello, lead]) == ("hello", True)


@given(st.text(max_size=6), st.integers(0, 24))
def test_unfinished_bytes(text, count):
    """Without its unfinished bytes, a truncated text is valid UTF-8."""
    cut = text.encode()[:count]
    missing = unfinished_bytes(cut)
    whole = cut[: len(cut) - missing].decode()
    assert text.startswith(whole)
    assert (missing > 0) == (whole.encode() != cut)


@pytest.mark.parametrize(
    ("tail", "missing"),
    [
        (b"", 0),
        (b"a", 0),
        (b"\xc3", 1),
        (b"\xc3\xa9", 0),
        (b"\xc1", 0),
        (b"\xe4", 1),
        (b"\xe4\xb8", 2),
        (b"\xe4\xb8\xad", 0),
        (b"\xf0\x9f\x98", 3),
        (b"\xf0\x9f\x98\x80", 0),
        (b"\xf5\x9f", 0),
        (b"\x80\x80\x80", 0),
        (b"a\x80", 0),
        (b"\xe4a", 0),
    ],
)
def test_lead_bytes(tail, missing):
    """The first byte of a character gives its length; C0, C1 and bytes from F5 start no character."""
    assert unfinished_bytes(tail) == missing
