"""The tokenizer: same ids from both engines, exact round trips, EOD never from text, damage noticed."""

import shutil

import numpy as np
import pytest

from nbtrain.data import tokenizer
from nbtrain.data.tokenizer import EOD_TOKEN, Tokenizer
from nbtrain.errors import DataError

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
    tokenizer.save(tokenizer.train(texts, 320, 10**6), folder, {"trained": None})
    return folder


def test_round_trip_of_any_text(folder):
    """Every text comes back to the letter: byte-level BPE knows no unknown token."""
    loaded = Tokenizer.load(folder)
    for text in HARD_TEXTS:
        assert loaded.decode(loaded.encode(text)) == text


def test_engines_agree(folder):
    """fastokens and HF tokenizers give the same flat ids, offsets and texts."""
    fast, reference = Tokenizer.load(folder, "fastokens"), Tokenizer.load(folder, "tokenizers")
    ids, offsets = fast.encode_batch([*HARD_TEXTS, ""])
    other_ids, other_offsets = reference.encode_batch([*HARD_TEXTS, ""])
    assert np.array_equal(ids, other_ids)
    assert np.array_equal(offsets, other_offsets)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert offsets[-1] == offsets[-2] == len(ids)
    # Half a character is shown as U+FFFD by both.
    for tokens in (ids[:50], [3, 200, loaded_id(fast, "中")[0], fast.eod_id]):
        assert fast.decode(tokens) == reference.decode(tokens)


def loaded_id(loaded, text):
    return loaded.encode(text).tolist()


def test_literal_end_of_text_is_text(folder):
    """<|endoftext|> written in a document never becomes the EOD token, with either engine."""
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(folder, engine)
        assert loaded.eod_id not in loaded.encode(f"{EOD_TOKEN} a{EOD_TOKEN}")
        assert loaded.decode([loaded.eod_id]) == EOD_TOKEN


def test_training_is_reproducible(texts):
    """The same texts give the same vocabulary; at most train_bytes of them are read."""
    assert tokenizer.train(texts, 320, 10**6).to_str() == tokenizer.train(iter(texts), 320, 10**6).to_str()
    read = []

    def watched():
        for text in texts:
            read.append(text)
            yield text

    tokenizer.train(watched(), 300, 500)
    assert sum(map(len, read[:-1])) <= 500 < sum(map(len, read))


def test_eod_is_an_entry_of_its_own(folder):
    """The vocabulary has at most the size asked for; EOD is 0 and every byte is in it."""
    loaded = Tokenizer.load(folder)
    assert loaded.vocab_size == 320
    assert loaded.eod_id == 0
    assert {path.name for path in folder.iterdir()} == {
        "vocab.json",
        "merges.txt",
        "tokenizer.json",
        "manifest.json",
    }


def test_too_small_a_vocabulary():
    """Fewer than 257 entries cannot hold every byte and EOD."""
    with pytest.raises(DataError) as caught:
        tokenizer.train(["a"], 256, 100)
    assert str(caught.value) == (
        "tokenizer.vocab_size = 256: must be at least 257: 256 bytes and <|endoftext|>."
    )


def test_changed_and_missing_files(folder):
    """A vocabulary that is not the manifest's is refused: ids would mean other text."""
    merges = folder / "merges.txt"
    merges.write_text(merges.read_text().replace("t h", "h t"))
    with pytest.raises(DataError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == (
        "tokenizer/merges.txt: has changed since its manifest was written. Token ids would no longer mean the same "
        "text: restore it, or remove tokenizer and run `nbtrain prepare RUN.yaml`."
    )
    merges.unlink()
    with pytest.raises(DataError, match=r"^tokenizer/merges\.txt: is missing\."):
        Tokenizer.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(DataError) as caught:
        Tokenizer.load(folder)
    assert str(caught.value) == (
        "tokenizer/manifest.json: no such file: the tokenizer is not ready. Make it with `nbtrain prepare RUN.yaml`."
    )


def test_files_that_are_no_vocabulary(workspace):
    """A damaged vocab.json is an error in words."""
    (workspace / "vocab.json").write_text("{")
    (workspace / "merges.txt").write_text("")
    with pytest.raises(DataError, match=r"^vocab\.json, merges\.txt: not a byte-level BPE: "):
        tokenizer.from_vocabulary(workspace / "vocab.json", workspace / "merges.txt")
    (workspace / "vocab.json").write_text('{"a": 0}')
    with pytest.raises(DataError) as caught:
        tokenizer.from_vocabulary(workspace / "vocab.json", workspace / "merges.txt")
    assert str(caught.value) == (
        "vocab.json: has no <|endoftext|>, which ends every document. Set tokenizer.eod_token to an entry that it has."
    )


def test_gpt2(workspace, shared_data):
    """GPT-2's own files: its ids for Hello world, EOD 50256, and both engines agree on many languages."""
    import gzip
    import json

    folder = workspace / "gpt2"
    shutil.copytree(shared_data / "gpt2", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    built = tokenizer.from_vocabulary(folder / "vocab.json", folder / "merges.txt")
    tokenizer.save(built, folder, {"trained": None})
    fast, reference = Tokenizer.load(folder, "fastokens"), Tokenizer.load(folder, "tokenizers")
    assert fast.encode("Hello world").tolist() == reference.encode("Hello world").tolist() == [15496, 995]
    assert (fast.vocab_size, fast.eod_id) == (50257, 50256)
    texts = list(HARD_TEXTS)
    for name in ("udhr-multilingual", "chinese-classics"):
        with gzip.open(shared_data / "text" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
            texts += [json.loads(line)["text"][:3000] for line, _ in zip(stream, range(120))]
    for ours, theirs in zip(fast.encode_batch(texts), reference.encode_batch(texts)):
        assert np.array_equal(ours, theirs)
    assert [fast.decode(fast.encode(text)) for text in texts[::9]] == texts[::9]


def test_one_huge_word_does_not_stall_training():
    """300 kB without a blank: cut for training (quadratic in a word's length), so it takes seconds, not minutes."""
    word = "".join(np.random.RandomState(0).choice(list("ABCDEFGHIJ+/"), 300_000))
    trained = tokenizer.train(["some text " * 20, word], 300, 1_000_000)
    assert trained.get_vocab_size() == 300


def test_the_last_text_is_cut_at_the_limit():
    """A single document longer than train_bytes is read up to there, and not passed over."""
    cut = tokenizer.train(["ab" * 400 + "cd" * 400], 258, 800)
    assert set(cut.get_vocab()) - set(tokenizer.train(["x"], 258, 1).get_vocab()) == {"ab"}
