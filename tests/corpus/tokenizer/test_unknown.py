"""Text without tokens is handled as in HF tokenizers for every kind of model, and named in messages."""

import json

import pytest
import tokenizers

from nbtrain.base.errors import DataError
from nbtrain.corpus.tokenizer.folder import adopt
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import byte_letters
from nbtrain.corpus.tokenizer.unknown import BYTE_TOKENS, UnknownText, unknown_text

EOD = "<eod>"
WORDS = {EOD: 0, "a": 1, "b": 2, "ab": 3}
UNKNOWN = {**WORDS, "<unk>": 4}
BYTES = {**WORDS, **{token: 4 + number for number, token in enumerate(BYTE_TOKENS)}}
LETTERS = {EOD: 0, **{letter: 1 + number for number, letter in enumerate(byte_letters())}}
SUFFIXED = {**LETTERS, **{f"{letter}</w>": 257 + number for number, letter in enumerate(byte_letters())}}
PIECES = [[EOD, 0.0], ["a", -1.0], ["b", -1.0], ["<unk>", -9.0]]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLIT = {"type": "WhitespaceSplit"}


def document(model: dict, words: dict = SPLIT) -> dict:
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": [], **parts, "pre_tokenizer": words, "model": model}


def word_piece(vocab: dict, unk_token: str) -> dict:
    limits = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    return {"type": "WordPiece", "unk_token": unk_token, "vocab": vocab, **limits}


MODELS = {
    "BPE with an unknown token": (
        document({"type": "BPE", "vocab": UNKNOWN, "merges": ["a b"], "unk_token": "<unk>"}),
        UnknownText("unknown", 4),
    ),
    "BPE whose unknown token is not an entry": (
        document({"type": "BPE", "vocab": WORDS, "merges": ["a b"], "unk_token": "<unk>"}),
        UnknownText("error"),
    ),
    "BPE without one": (
        document({"type": "BPE", "vocab": WORDS, "merges": ["a b"]}),
        UnknownText("nothing"),
    ),
    "BPE with bytes": (
        document({"type": "BPE", "vocab": BYTES, "merges": [["a", "b"]], "byte_fallback": True}),
        UnknownText("tokens"),
    ),
    "BPE with bytes that it does not fall back to": (
        document({"type": "BPE", "vocab": BYTES, "merges": []}),
        UnknownText("nothing"),
    ),
    "byte-level BPE": (
        document({"type": "BPE", "vocab": LETTERS, "merges": []}, BYTE_LEVEL),
        UnknownText("tokens"),
    ),
    "byte-level BPE with half of the bytes": (
        document({"type": "BPE", "vocab": dict(list(LETTERS.items())[:120]), "merges": []}, BYTE_LEVEL),
        UnknownText("nothing"),
    ),
    "byte-level BPE that marks the ends of words": (
        document({"type": "BPE", "vocab": SUFFIXED, "merges": [], "end_of_word_suffix": "</w>"}, BYTE_LEVEL),
        UnknownText("tokens"),
    ),
    "byte-level BPE without bytes at the ends of words": (
        document({"type": "BPE", "vocab": LETTERS, "merges": [], "end_of_word_suffix": "</w>"}, BYTE_LEVEL),
        UnknownText("nothing"),
    ),
    "WordLevel": (
        document({"type": "WordLevel", "vocab": UNKNOWN, "unk_token": "<unk>"}),
        UnknownText("unknown", 4),
    ),
    "WordLevel without an unknown token": (
        document({"type": "WordLevel", "vocab": WORDS, "unk_token": "<unk>"}),
        UnknownText("error"),
    ),
    "WordPiece": (document(word_piece(UNKNOWN, "<unk>")), UnknownText("unknown", 4)),
    "WordPiece without an unknown token": (document(word_piece(WORDS, "[UNK]")), UnknownText("error")),
    "Unigram": (document({"type": "Unigram", "vocab": PIECES, "unk_id": 3}), UnknownText("unknown", 3)),
    "Unigram without an unknown token": (
        document({"type": "Unigram", "vocab": PIECES[:3], "unk_id": None}),
        UnknownText("error"),
    ),
    "Unigram with bytes": (
        document(
            {
                "type": "Unigram",
                "vocab": [*PIECES, *([token, -20.0] for token in BYTE_TOKENS)],
                "unk_id": 3,
                "byte_fallback": True,
            }
        ),
        UnknownText("tokens"),
    ),
}


def as_tokenizers_does(document: dict) -> UnknownText:
    """Return what HF tokenizers does with a word that is not in the vocabulary."""
    built = tokenizers.Tokenizer.from_str(json.dumps(document))
    try:
        ids = built.encode("a \u4e2d", add_special_tokens=False).ids[1:]
    except Exception:  # Rust's exception has no separate class
        return UnknownText("error")
    unknown = built.token_to_id("<unk>")
    # Without merges, each byte with an entry is one token: four bytes here, including the space.
    lacks_bytes = document["pre_tokenizer"] == BYTE_LEVEL and len(ids) < 4
    if not ids or lacks_bytes:
        return UnknownText("nothing")
    return UnknownText("unknown", unknown) if unknown in ids else UnknownText("tokens")


@pytest.mark.parametrize("name", MODELS)
def test_every_kind(name):
    """The handling of unknown text that is derived from the file is what HF tokenizers does."""
    described, expected = MODELS[name]
    assert unknown_text(described) == expected
    assert as_tokenizers_does(described) == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_typed", [True, False])
def test_taking_over(name, is_typed, tmp_path):
    """An import gives the same result with and without the model type, which old files lack."""
    described, expected = MODELS[name]
    model = dict(described["model"])
    kind = model.pop("type")
    if is_typed:
        model["type"] = kind
    (tmp_path / "tokenizer.json").write_text(json.dumps({**described, "model": model}))
    if expected.becomes == "nothing":
        with pytest.raises(DataError, match="text would be lost silently"):
            adopt(tmp_path / "tokenizer.json", EOD, tmp_path / "own")
        return
    manifest = adopt(tmp_path / "tokenizer.json", EOD, tmp_path / "own")
    assert manifest["unknown_id"] == expected.unknown_id
    assert json.loads((tmp_path / "own" / "tokenizer.json").read_text())["model"]["type"] == kind
    own = Tokenizer.load(tmp_path / "own")
    if expected.becomes == "error":
        # Text with tokens is encoded; other text is refused with the document that contains it.
        assert own.encode("a b").tolist() == [1, 2]
        with pytest.raises(DataError, match=r"cannot encode the document 'a b \u4e2d': .*U\+4E2D"):
            own.encode_batch(["a", "a b \u4e2d", "b"])
    else:
        reference = tokenizers.Tokenizer.from_str(json.dumps(described))
        text = "a \u4e2d b \U0001f600"
        assert own.encode(text).tolist() == reference.encode(text, add_special_tokens=False).ids


def test_what_is_named(tmp_path):
    """The message gives the first unknown character or word, and only the beginning of a long text."""
    for name, text, named in (
        ("WordLevel without an unknown token", "ab xyz", "has neither a token for 'xyz' nor"),
        ("Unigram without an unknown token", "ab axb", "token for the character 'x' (U+0078) nor"),
        ("BPE whose unknown token is not an entry", "a " * 99 + "\n", "cannot encode the document 'a a a"),
    ):
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        described = MODELS[name][0] | ({"pre_tokenizer": None} if "BPE" in name else {})
        (folder / "tokenizer.json").write_text(json.dumps(described))
        adopt(folder, EOD, folder / "own")
        with pytest.raises(DataError) as caught:
            Tokenizer.load(folder / "own").encode(text)
        assert named in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("number", [4, -1])
def test_an_unknown_token_out_of_range(number, tmp_path):
    """If the id of the unknown token is out of range, the message names the file."""
    described = document({"type": "Unigram", "vocab": PIECES, "unk_id": number})
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer\.json of HF tokenizers"):
        adopt(tmp_path / "tokenizer.json", EOD, tmp_path / "own")
