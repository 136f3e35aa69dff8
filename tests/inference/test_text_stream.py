"""Text from a stream of tokens: it has only complete characters, keeps the spaces between words, and returns
each piece once.
"""

import pytest

from nbtrain.config.generation import Generation
from nbtrain.inference.choice import Request
from nbtrain.inference.text_stream import TextStream
from tests.corpus.tokenizer.byte_fallback import byte_fallback_tokenizer

TEXT = "hello \u4e2d\u6587 hello hello \U0001f600\U0001f469\u200d\U0001f469o \u00e9"


@pytest.fixture
def tokenizer(tmp_path):
    return byte_fallback_tokenizer(tmp_path / "small")


def test_the_pieces_are_the_text(tokenizer):
    """The pieces join to the text of all tokens, and no piece ends within a character."""
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in tokenizer.encode(TEXT).tolist()]
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces.count("\u4e2d") == pieces.count("\u6587") == pieces.count("\U0001f600") == 1


@pytest.mark.parametrize("count", range(1, 12))
def test_the_pieces_follow_the_prompt(tokenizer, count):
    """The space before the first new word is kept, at whichever token the prompt ends."""
    ids = tokenizer.encode(TEXT).tolist()
    stream = TextStream(tokenizer, ids[:count])
    prompt = tokenizer.decode_finished(ids[:count])[0]
    assert prompt + "".join(stream.add(token) for token in ids[count:]) == TEXT


def test_what_is_never_finished_does_not_come_out(tokenizer):
    """If the tokens end within a character, the incomplete character is dropped."""
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("hello \u4e2d\U0001f600").tolist()
    assert "".join(stream.add(token) for token in ids[:-1]) == "hello \u4e2d"


def test_where_the_tokens_of_an_echoed_prompt_begin(tokenizer):
    """Each token of an echoed prompt has the character offset at which it starts; the tokens of a multi-byte
    character share one offset.
    """
    text = "hello \U0001f600 hello"
    ids = tokenizer.encode(text).tolist()
    generation = Generation(echo=True, logprobs=0)
    shown = Request("a", [tokenizer.eod_id, *ids], generation, False, before_text=1).shown_prompt(tokenizer)
    assert shown["text"] == text and len(shown["offsets"]) == len(ids) + 1
    assert shown["offsets"][:2] == [0, 0] and shown["offsets"][-1] == text.rindex(" hello")
    parts = [
        offset for offset, token in zip(shown["offsets"][1:], ids) if len(tokenizer.bytes_of(token)) == 1
    ]
    assert parts.count(text.index("\U0001f600")) == 4
    plain = Request("a", ids, Generation(echo=True), False).shown_prompt(tokenizer)
    assert "offsets" not in plain


def test_wrong_bytes_cost_themselves_alone(tokenizer):
    """Each byte that is not valid UTF-8 becomes U+FFFD, and the text around it is unchanged."""
    stream = TextStream(tokenizer)
    lead, middle, last = tokenizer.encode("\u4e2d").tolist()[-3:]
    hello = tokenizer.encode("hello").tolist()
    tokens = [*hello, lead, middle, last, middle, lead, middle, last, lead, *hello]
    pieces = [stream.add(token) for token in tokens]
    text = "".join(pieces)
    assert text.startswith("hello\u4e2d\ufffd")
    assert "\u4e2d" in text[7:]
    assert text.endswith("hello")
    assert text.replace("\ufffd", "").replace(" ", "") == "hello\u4e2d\u4e2dhello"
