"""Training a tokenizer is reproducible, equals the trainers' own results, and stays within memory."""

import hashlib
import json
import sys

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.base.hardware.cgroup import MemoryGroup
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, save
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.training import train

TRAINERS = ("tokenizers", "rustbpe")
MIXED = [
    "The cat sat on the mat; the cats sat on the mats, and that's that. It's the cat's mat, isn't it?",
    "aaaa aaaaa aaaaaa bbbb abab ababab aaab baaa aab",
    "    indented\n\n\n\ttabs\t\tand  blanks   \r\n 123 12345 67890 3.14159",
    "naïve café élève, “quotes” — dashes … ½ 中文中文文本文本 हिन्दी हिन्दी 👩‍👩‍👧👩‍👩‍👧",
] * 5


@pytest.fixture(params=TRAINERS)
def trainer(request):
    pytest.importorskip(request.param)
    return request.param


# --- both trainers ------------------------------------------------------------------------------------------


def test_training_is_reproducible(trainer, texts):
    """The same texts give the same vocabulary."""
    assert train(texts, 320, trainer).to_str() == train(iter(texts), 320, trainer).to_str()


def test_the_vocabulary_has_one_form(trainer, texts, workspace):
    """With both trainers a vocabulary is EOD, bytes and merges, in this order, and
    both engines agree on it.
    """
    built = train(texts + MIXED, 400, trainer, "<|stop|>")
    manifest = save(built, workspace / "made", {}, "<|stop|>")
    assert (manifest["vocab_size"], manifest["eod_id"], manifest["eod_token"]) == (400, 0, "<|stop|>")
    vocab = json.loads((workspace / "made" / "vocab.json").read_text())
    in_order = sorted(vocab, key=vocab.get)
    assert in_order[:257] == ["<|stop|>", *sorted(training.byte_letters())]
    merges = (workspace / "made" / "merges.txt").read_text().splitlines()[1:]
    assert [merge.replace(" ", "") for merge in merges] == in_order[257:]
    loaded = Tokenizer.load(workspace / "made")
    assert loaded.check_exact(MIXED) is None
    for text in (*MIXED, f"a <|stop|> b {EOD_TOKEN}"):
        assert loaded.decode(loaded.encode(text)) == text
        assert loaded.eod_id not in loaded.encode(text)
    assert loaded.decode([0]) == "<|stop|>"


def test_reading_ends_at_train_bytes(trainer, texts):
    """At most train_bytes are read; the last document is truncated there."""
    read = []

    def watched():
        for text in texts:
            read.append(text)
            yield text

    train(watched(), 300, trainer, train_bytes=500)
    assert sum(map(len, read[:-1])) <= 500 < sum(map(len, read))
    cut = train(["ab" * 400 + "cd" * 400], 258, trainer, train_bytes=800)
    assert set(cut.get_vocab()) - set(train(["x"], 258, trainer).get_vocab()) == {"ab"}


@pytest.mark.slow
def test_one_huge_word_does_not_stall_training(trainer):
    """A run of 300 kB without spaces is split, because training time is quadratic in the length of a word."""
    word = "".join(np.random.RandomState(0).choice(list("ABCDEFGHIJ+/"), 300_000))
    assert train(["some text " * 20, word], 300, trainer).get_vocab_size() == 300


def test_too_small_a_vocabulary(trainer):
    """Fewer than 257 entries are refused, because every byte and EOD need one."""
    with pytest.raises(DataError) as caught:
        train(["a"], 256, trainer)
    assert str(caught.value) == (
        "tokenizer.vocab_size = 256: must be at least 257, for 256 bytes and <|endoftext|>."
    )


def test_no_text(trainer):
    """A corpus without text is an error instead of a vocabulary of bytes."""
    with pytest.raises(DataError) as caught:
        train([], 300, trainer)
    assert str(caught.value) == (
        "the corpus is empty: there is no text to train a tokenizer on. Use other sources."
    )


def test_software(trainer):
    """The manifest records the trainer and the library that wrote the files, with their versions."""
    assert set(training.software(trainer)) == {"tokenizers", trainer}


# --- tokenizers ---------------------------------------------------------------------------------------------


def test_tokenizers_vocabulary_is_what_it_always_was(texts):
    """The trainer `tokenizers` still gives the same vocabulary, so existing runs keep their ids."""
    content = train(texts, 320).to_str()
    assert (
        hashlib.sha256(content.encode()).hexdigest()
        == "9b9bd5a09fe5c42e98759be98c489a1b055f36ba83b32e43bf7f9dda21a5e94f"
    )


# --- rustbpe ------------------------------------------------------------------------------------------------


def test_rustbpe_encodes_as_itself(workspace):
    """A vocabulary trained with rustbpe and exported gives the same ids as rustbpe itself."""
    rustbpe = pytest.importorskip("rustbpe")
    learnt = rustbpe.Tokenizer()
    learnt.train_from_iterator(iter(MIXED), 449, pattern=training.GPT2_PATTERN)
    built = train(MIXED, 450, "rustbpe")
    save(built, workspace / "made", {})
    bytes_of = {rank: bytes(token) for token, rank in learnt.get_mergeable_ranks()}
    letters = training.byte_letters()
    byte_of = {letter: byte for byte, letter in enumerate(letters)}
    entries = {number: entry for entry, number in built.get_vocab().items()}
    assert built.get_vocab_size() == learnt.vocab_size + 1 > 390
    chance = np.random.RandomState(4)
    pool = [*"aab  cdest'\n\t019é中हि👩\u0301", "the", " cat", "aaaa"]
    for engine in ("fastokens", "tokenizers"):
        loaded = Tokenizer.load(workspace / "made", engine)
        for text in (*MIXED[:4], *("".join(chance.choice(pool, 30)) for _ in range(100))):
            ours = [
                bytes(byte_of[letter] for letter in entries[token]) for token in loaded.encode(text).tolist()
            ]
            assert ours == [bytes_of[token] for token in learnt.encode(text)], text


def test_merges_from_ranks():
    """The two parts of a token are found from lower ranks; ranks of single bytes are bytes."""
    ranks = [(bytes([byte]), byte) for byte in range(256)]
    ranks += [
        (b"ab", 256),
        (b"aba", 257),
        (b"bab", 258),
        (b"abab", 259),
        (b" \xc3", 260),
        (b" \xc3\xa9", 261),
    ]
    vocab, merges = training.vocabulary_of(ranks, EOD_TOKEN)
    assert merges == [("a", "b"), ("ab", "a"), ("b", "ab"), ("ab", "ab"), ("Ġ", "Ã"), ("ĠÃ", "©")]
    assert [vocab[left + right] for left, right in merges] == list(range(257, 263))


@pytest.mark.slow
def test_merges_from_the_ranks_of_a_vocabulary(gpt2_files):
    """The 50,000 merges of GPT-2, and those of a generated vocabulary, are
    recovered from the entries alone.
    """
    vocab = json.loads((gpt2_files / "vocab.json").read_text(encoding="utf-8"))
    lines = (gpt2_files / "merges.txt").read_text(encoding="utf-8").splitlines()
    byte_of = {letter: byte for byte, letter in enumerate(training.byte_letters())}
    del vocab[EOD_TOKEN]
    ranks = [(bytes(byte_of[letter] for letter in entry), rank) for entry, rank in vocab.items()]
    _, merges = training.vocabulary_of(ranks, EOD_TOKEN)
    assert [" ".join(merge) for merge in merges] == [
        line for line in lines if not line.startswith("#version")
    ]


def test_rustbpe_missing(monkeypatch):
    """The error about a missing rustbpe gives the install command and the alternative."""
    monkeypatch.setitem(sys.modules, "rustbpe", None)
    with pytest.raises(DataError) as caught:
        train(["text"], 300, "rustbpe")
    assert str(caught.value) == (
        "tokenizer.trainer = rustbpe: needs the package rustbpe, which is not installed. Install it with "
        f"`{install_command('data')}`, or set tokenizer.trainer: tokenizers."
    )


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trainer", "train_bytes", "unspaced", "measured_mib"),
    [
        ("tokenizers", 20_000_000, 0.0, 140),
        ("tokenizers", 100_000_000, 0.0, 313),
        ("tokenizers", 4_000_000, 0.04, 213),
        ("tokenizers", 5_000_000, 0.9, 536),
        ("rustbpe", 20_000_000, 0.0, 125),
        ("rustbpe", 100_000_000, 0.0, 251),
        ("rustbpe", 4_000_000, 0.04, 138),
        ("rustbpe", 5_000_000, 0.9, 321),
    ],
)
def test_memory_estimate_covers_what_was_measured(trainer, train_bytes, unspaced, measured_mib):
    """The memory estimate is never below the measured peak and at most 0.25 GiB above it."""
    estimate = training.memory_estimate_bytes(train_bytes, trainer, unspaced) / 2**20
    assert measured_mib <= estimate <= measured_mib + 256


@pytest.mark.slow
def test_unspaced_fraction():
    """The fraction of text without spaces is measured in bytes, not characters, and ignores punctuation."""
    assert training.unspaced_fraction(["中文", "abcdef"]) == 0.5
    assert training.unspaced_fraction(["中a\u3002", "é"]) == 3 / 9
    assert training.unspaced_fraction([]) == 0


def test_peek():
    """peek() returns the first items, and an iterator over all items."""
    first, everything = training.peek(iter(["é" * 3, "b" * 5, "c"]), 8)
    assert first == ["é" * 3, "b" * 5]
    assert list(everything) == ["é" * 3, "b" * 5, "c"]
    assert [list(part) for part in training.peek([])] == [[], []]


def test_check_memory(monkeypatch):
    """Training that would not fit in memory is refused with the required and
    available size and what would fit.
    """
    monkeypatch.setattr(training, "available_memory_bytes", lambda: 2**30)
    assert training.check_memory(100_000_000, "tokenizers") == (
        "about 458.4 MiB of memory needed, 1.0 GiB available"
    )
    with pytest.raises(DataError) as caught:
        training.check_memory(1_000_000_000, "tokenizers", "run.yaml:9: tokenizer.train_bytes")
    assert str(caught.value) == (
        "run.yaml:9: tokenizer.train_bytes = 1,000,000,000: training with tokenizers needs about 2.5 GiB of "
        "memory, but only 1.0 GiB is available. Set the value to at most 337,222,041."
    )
    training.check_memory(337_000_000, "tokenizers")
    with pytest.raises(DataError, match=r"100,000,000: training with rustbpe needs about 5\.1 GiB"):
        training.check_memory(100_000_000, "rustbpe", first_texts=["中文"])
    monkeypatch.setattr(training, "available_memory_bytes", lambda: 10**6)
    with pytest.raises(DataError, match=r"available\. Free up memory\.$"):
        training.check_memory(1000, "rustbpe")
    monkeypatch.setattr(training, "available_memory_bytes", lambda: None)
    assert training.check_memory(1000, "rustbpe") == "about 140.0 MiB of memory needed"


def test_available_memory(monkeypatch, tmp_path):
    """Available memory is the minimum of the machine's and all cgroup limits, or None if unknown."""
    meminfo, groups = tmp_path / "meminfo", []
    monkeypatch.setattr(training, "MEMINFO", meminfo)
    monkeypatch.setattr(training, "memory_groups", lambda: groups)
    assert training.available_memory_bytes() is None
    meminfo.write_text("MemTotal:  900 kB\nMemAvailable:  800 kB\n")
    groups.append(MemoryGroup(1000, None, None))
    assert training.available_memory_bytes() == 800 * 1024
    groups.append(MemoryGroup(1000, 300, None))
    assert training.available_memory_bytes() == 700
    groups.append(MemoryGroup(400, 500, None))
    assert training.available_memory_bytes() == 0
