"""The tokenizer folder: engines agree, round trips are exact, text never gives EOD, edits are detected."""

import json
import pickle
import shutil
from importlib.metadata import version

import numpy as np
import pytest
import tokenizers

from nbtrain.base.errors import DataError
from nbtrain.corpus.tokenizer import exactness, tokenizer, training
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, save
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.pair_paths import MAKE_IT

HARD_TEXTS = [
    "Hello world",
    "  leading and trailing  \n\n\t x",
    "don't I'll WE'RE",
    "naïve café — “quotes” … ½",
    "中文文本\uff0c標點。 日本語のテキスト 한국어",
    "עברית العربية हिन्दी ไทย",
    "emoji 👩‍👩‍👧 \U0001f600 combining é",
    "a" * 300,
    " " * 200,
    "\u00a0\u2003\u3000\x00\x1f\r\n",
    f"literal {EOD_TOKEN}{EOD_TOKEN} in text",
    "x=1;y=[2,3]\n    return {'a': 0x7f}\n",
]


@pytest.fixture
def folder(workspace, texts):
    folder = workspace / "tokenizer"
    save(training.train(texts, 320), folder, None)
    return folder


def test_round_trip_of_any_text(folder):
    """Every text is decoded unchanged, because a byte-level BPE has no unknown token."""
    loaded = Tokenizer.load(folder)
    for text in HARD_TEXTS:
        assert loaded.decode(loaded.encode(text)) == text


def test_engines_agree(folder):
    """fastokens and HF tokenizers return the same flat ids, offsets and texts."""
    fast, reference = Tokenizer.load(folder, "fastokens"), Tokenizer.load(folder, "tokenizers")
    ids, offsets = fast.encode_batch([*HARD_TEXTS, ""])
    other_ids, other_offsets = reference.encode_batch([*HARD_TEXTS, ""])
    assert np.array_equal(ids, other_ids)
    assert np.array_equal(offsets, other_offsets)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert offsets[-1] == offsets[-2] == len(ids)
    # Both show half a character as U+FFFD.
    for tokens in (ids[:50], [3, 200, loaded_id(fast, "中")[0], fast.eod_id]):
        assert fast.decode(tokens) == reference.decode(tokens)


@pytest.mark.parametrize("engine", ["fastokens", "tokenizers"])
def test_long_texts_are_encoded_in_pieces(folder, monkeypatch, engine):
    """A long text that is split before spaces, after letters or digits, gives the ids of the whole text."""
    loaded = Tokenizer.load(folder, engine)
    generator = np.random.default_rng(5)
    parts = [
        "word",
        " ",
        "\n",
        "  ",
        "12",
        "'s",
        "中",
        "\uff0c",
        "\u3002",
        "ア",
        "\u309b",
        "é",
        "!",
        "\t",
        EOD_TOKEN,
        "\u3000",
        "_",
        "\r\n",
    ]
    texts = ["".join(generator.choice(parts, 300)) for _ in range(60)] + ["", " ", "x" * 100]
    expected = loaded.encode_batch(texts)
    assert loaded.cuts_safely
    monkeypatch.setattr(tokenizer, "LONG_TEXT_CHARS", 40)
    assert min(len(list(tokenizer.pieces_of_long(text))) for text in texts[:60]) > 5
    found = loaded.encode_batch(texts)
    assert found[0].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("run", ["x", "\n", " ", "xy!", "\u4e2d"])
def test_a_word_without_end_is_cut(folder, monkeypatch, run):
    """A word of unlimited length is split, which bounds memory; its tokens decode to the same text."""
    loaded = Tokenizer.load(folder)
    monkeypatch.setattr(tokenizer, "LONG_TEXT_CHARS", 40)
    monkeypatch.setattr(tokenizer, "LONG_WORD_CHARS", 20)
    text = f"A beginning {run * 500} and an end{run * 30}"
    pieces = list(tokenizer.pieces_of_long(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 60
    assert loaded.decode(loaded.encode(text)) == text


def loaded_id(loaded, text):
    return loaded.encode(text).tolist()


def test_literal_end_of_text_is_text(folder):
    """<|endoftext|> written in a document never becomes the EOD token, with either engine."""
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(folder, engine)
        assert loaded.eod_id not in loaded.encode(f"{EOD_TOKEN} a{EOD_TOKEN}")
        assert loaded.decode([loaded.eod_id]) == EOD_TOKEN


def test_eod_is_an_entry_of_its_own(folder):
    """The vocabulary has at most the configured size; EOD is 0, and every byte is an entry."""
    loaded = Tokenizer.load(folder)
    assert loaded.vocab_size == 320
    assert loaded.eod_id == 0
    assert {path.name for path in folder.iterdir()} == {
        "vocab.json",
        "merges.txt",
        "tokenizer.json",
        "manifest.json",
    }


def test_another_tokenizer_than_in_training_is_refused(folder):
    """A run's tokenizer must have the hash that its checkpoint has recorded, if it has one."""
    loaded = Tokenizer.load(folder)
    loaded.check_trained_with(None)
    loaded.check_trained_with(loaded.sha256)
    with pytest.raises(DataError) as caught:
        loaded.check_trained_with("a" * 64)
    assert str(caught.value) == (
        f"tokenizer has the hash {loaded.sha256[:12]}..., but this run was trained with aaaaaaaaaaaa..., so "
        "ids would mean different text. Restore the tokenizer that the run was trained with."
    )


def test_changed_and_missing_files(folder):
    """A vocabulary that differs from its manifest is refused, because the ids would mean another text."""
    merges = folder / "merges.txt"
    merges.write_text(merges.read_text().replace("t h", "h t"))
    with pytest.raises(DataError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == (
        "tokenizer/merges.txt: the file has changed since the manifest was written, so token ids would mean "
        "different text. Restore it, or remove tokenizer and run `nbtrain prepare RUN.yaml`."
    )
    merges.unlink()
    with pytest.raises(DataError, match=r"^tokenizer/merges\.txt: the file is missing\."):
        Tokenizer.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == (
        "tokenizer/manifest.json: no such file: the tokenizer is not ready. Make it with `nbtrain prepare "
        "RUN.yaml`."
    )
    # Preflight and the form replace this end with the command for their run.
    assert str(caught.value).endswith(MAKE_IT)


def test_a_tokenizer_can_be_sent_to_a_worker(folder):
    """A tokenizer can be pickled for workers, before and after its engine is loaded."""
    loaded = Tokenizer.load(folder, "tokenizers")
    ids = loaded.encode("the model").tolist()
    copy = pickle.loads(pickle.dumps(loaded))
    assert copy.engine == "tokenizers"
    assert copy.encode("the model").tolist() == ids


@pytest.mark.parametrize("kept", [slice(None, None, 2), slice(0)])
def test_a_manifest_without_a_key_is_refused(folder, kept):
    """The error about an incomplete manifest names the file, a missing key, and how to get a complete one."""
    path = folder / "manifest.json"
    entries = list(json.loads(path.read_text()).items())
    path.write_text(json.dumps(dict(entries[kept])))
    with pytest.raises(DataError) as refused:
        Tokenizer.load(folder)
    assert "tokenizer/manifest.json" in str(refused.value) and "is missing" in str(refused.value)
    assert "nbtrain prepare RUN.yaml" in str(refused.value)


def test_another_eod(workspace, texts):
    """If another EOD token is chosen, the manifest records it, and its characters in a text are text."""
    built = training.train(texts, 300, eod_token="</s>")
    save(built, workspace / "t", None, "</s>")
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(workspace / "t", engine)
        assert (loaded.eod_token, loaded.decode([loaded.eod_id])) == ("</s>", "</s>")
        assert loaded.eod_id not in loaded.encode("a</s></s>")


# --- the two engines ----------------------------------------------------------------------------------------


def test_check_exact_where_engines_agree(folder):
    """If the engines agree, check_exact reports nothing and fastokens is used."""
    loaded = Tokenizer.load(folder, "fastokens")
    assert loaded.check_exact(HARD_TEXTS * 30) is None
    assert loaded.engine == "fastokens"
    assert Tokenizer.load(folder, "tokenizers").check_exact(HARD_TEXTS) is None


def test_check_exact_where_they_differ(folder, monkeypatch):
    """If one id of the sample differs, tokenizers is used instead, and the text is reported."""
    loaded = Tokenizer.load(folder, "fastokens")
    encode = Tokenizer._encode

    def broken(self, texts):
        ids, offsets = encode(self, texts)
        if self.engine == "fastokens" and texts[-1] == "the odd one":
            ids = np.append(ids[:-1], np.uint32(5))
        return ids, offsets

    monkeypatch.setattr(Tokenizer, "_encode", broken)
    versions = f"fastokens {version('fastokens')} and tokenizers {version('tokenizers')}"
    assert loaded.check_exact(["the model", "the odd one"]) == (
        f"tokenizer: {versions} differ on 'the odd one'. Encoding with HF tokenizers, which is slower."
    )
    assert loaded.engine == "tokenizers"


def test_check_exact_where_fastokens_fails(folder, monkeypatch):
    """A failure of fastokens counts as a difference, even a panic, which is not a subclass of Exception."""

    class Panic(BaseException):
        pass

    class Failing:
        def encode_batch_flat(self, texts, split_special_tokens):
            raise Panic("index out of range")

    loaded = Tokenizer.load(folder, "fastokens")
    loaded.__dict__["_fast"] = Failing()
    message = loaded.check_exact()
    assert "fastokens failed (index out of range). Encoding with HF tokenizers" in message
    assert loaded.engine == "tokenizers"


def test_check_exact_looks_at_the_beginnings_only(folder, monkeypatch):
    """check_exact reads only the beginnings of at most SAMPLE_TEXTS texts, which bounds its time."""
    seen = []
    loaded = Tokenizer.load(folder, "fastokens")
    encode = Tokenizer._encode
    monkeypatch.setattr(Tokenizer, "_encode", lambda self, texts: seen.append(texts) or encode(self, texts))
    loaded.check_exact(["the model " * 100_000] * 300)
    assert [len(texts) - len(exactness.HARD_TEXTS) - 5 for texts in seen] == [exactness.SAMPLE_TEXTS] * 2
    assert max(len(text) for text in seen[0][-exactness.SAMPLE_TEXTS :]) == exactness.SAMPLE_CHARS


def test_what_was_found_is_kept(folder, monkeypatch):
    """The comparison runs once for a tokenizer and engine versions; later calls read no sample."""
    reference_loads = []
    from_file = tokenizers.Tokenizer.from_file
    monkeypatch.setattr(
        tokenizers.Tokenizer, "from_file", lambda path: reference_loads.append(path) or from_file(path)
    )

    def sample():
        pytest.fail("the sample was read again")
        yield ""

    assert Tokenizer.load(folder, "fastokens").check_exact(["the model"]) is None
    assert len(reference_loads) == 1
    assert Tokenizer.load(folder, "fastokens").check_exact(sample()) is None
    assert len(reference_loads) == 1
    kept = folder / exactness.REMEMBERED
    whole = json.loads(kept.read_text())
    assert sorted(whole["key"]) == ["fastokens", "texts", "tokenizer.json", "tokenizers"]
    for change in ("fastokens", "tokenizer.json", "texts", "tokenizers"):
        kept.write_text(json.dumps({**whole, "key": {**whole["key"], change: "another"}}))
        assert Tokenizer.load(folder, "fastokens").check_exact() is None
    kept.write_text("{torn")
    assert Tokenizer.load(folder, "fastokens").check_exact() is None
    assert len(reference_loads) == 6
    assert json.loads(kept.read_text()) == whole
    kept.write_text(json.dumps({**whole, "difference": "they differ on 'x'"}))
    loaded = Tokenizer.load(folder, "fastokens")
    assert loaded.check_exact(sample()) == (
        "tokenizer: they differ on 'x'. Encoding with HF tokenizers, which is slower."
    )
    assert loaded.engine == "tokenizers"


def test_what_was_found_decides_the_engine_of_all_that_load_it(folder):
    """Serving, evaluation and generation use the engine that prepare selected, without another comparison."""
    assert Tokenizer.load(folder).check_exact() is None
    assert Tokenizer.load(folder).engine == "fastokens"
    kept = folder / exactness.REMEMBERED
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "difference": "they differ on 'x'"}))
    loaded = Tokenizer.load(folder)
    assert loaded.engine == pickle.loads(pickle.dumps(loaded)).engine == "tokenizers"
    assert loaded.check_exact() == (
        "tokenizer: they differ on 'x'. Encoding with HF tokenizers, which is slower."
    )
    assert Tokenizer.load(folder, "fastokens").engine == "fastokens"


@pytest.mark.parametrize("how", ["encode", "encode_long", "encode_prompt"])
def test_a_text_on_which_fastokens_fails(folder, caplog, how):
    """If fastokens fails on a text, HF tokenizers encodes this and all later texts,
    and the server continues.
    """

    class Failing:
        def encode_batch_flat(self, texts, split_special_tokens):
            raise ValueError("model error: byte 0xc3 has no token in vocabulary")

    loaded = Tokenizer.load(folder, "fastokens")
    loaded.__dict__["_fast"] = Failing()
    found = getattr(loaded, how)("hello é")
    found = np.concatenate(list(found)) if how == "encode_long" else np.asarray(found)
    assert found.tolist() == Tokenizer.load(folder, "tokenizers").encode("hello é").tolist()
    assert loaded.engine == "tokenizers"
    assert caplog.messages == [
        "tokenizer: fastokens failed (model error: byte 0xc3 has no token in vocabulary). Encoding with HF "
        "tokenizers, which is slower."
    ]


@pytest.mark.parametrize("engine", ["fastokens", "tokenizers"])
def test_a_text_that_is_no_unicode(folder, engine):
    """A text that is not valid Unicode is refused with a message, and the engine is kept."""
    loaded = Tokenizer.load(folder, engine)
    with pytest.raises(DataError, match=r"^a text to encode is not valid Unicode: surrogates not allowed\.$"):
        loaded.encode("\ud800")
    assert loaded.engine == engine


def test_a_folder_that_cannot_be_written_is_compared_each_time(folder, monkeypatch):
    """If the folder is read-only, for example another user's, the comparison runs at every load."""

    def refused(path, value):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(exactness.files, "write_json", refused)
    for _ in range(2):
        assert Tokenizer.load(folder, "fastokens").check_exact() is None
    assert not (folder / exactness.REMEMBERED).exists()


@pytest.mark.parametrize("text", ["", "x" * 3])
def test_nothing_and_little(folder, text):
    """No texts, and an empty text, give no tokens with either engine."""
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(folder, engine)
        ids, offsets = loaded.encode_batch([])
        assert (len(ids), offsets.tolist()) == (0, [0])
        ids, offsets = loaded.encode_batch([text, "", text])
        assert offsets.tolist() == [0, len(text), len(text), 2 * len(text)]
