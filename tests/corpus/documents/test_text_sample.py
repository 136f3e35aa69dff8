"""The tokenizer's sample is all of a small corpus, or a seeded sample spread over a large one."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from nbtrain.corpus.documents import text_sample
from nbtrain.corpus.documents.text_sample import sample_texts
from nbtrain.corpus.records import Example, Preference, SourcePart, Tally, Texts, TokenIds
from nbtrain.corpus.sources.base import SourceReader


def test_a_pair_of_answers_is_read_as_its_pieces():
    """The sampled text of a preference pair is its chunks joined without separators."""
    prompt = ("Ask. ", False)
    pair = Preference(Example((prompt, ("Yes.", True))), Example((prompt, ("No.", True))))
    assert text_sample.text_of(pair) == "Ask. Yes.Ask. No."


class Reader(SourceReader):
    """A reader of documents in memory, in equal parts, that counts the records read from each part."""

    kind = "mock"

    def __init__(self, documents, num_parts=1, compressed=False, size=True, byte_ratio=1.0):
        super().__init__(SimpleNamespace(name="memory", kind="mock"))
        step = -(-len(documents) // num_parts)
        self.documents_of = [documents[at : at + step] for at in range(0, len(documents), step)]
        self.compressed, self.has_size, self.byte_ratio = compressed, size, byte_ratio
        self.read_of = [0] * len(self.documents_of)

    def parts(self) -> Iterator[SourcePart]:
        for number, documents in enumerate(self.documents_of):
            size = int(sum(len(str(document)) for document in documents) * self.byte_ratio)
            yield SourcePart(str(number), size_bytes=size, content=documents if self.compressed else None)

    def read(self, part: SourcePart, tally: Tally):
        for document in self.documents_of[int(part.name)]:
            self.read_of[int(part.name)] += 1
            yield document

    def fingerprint(self):
        return {}

    def total_bytes(self):
        return sum(part.size_bytes for part in self.parts()) if self.has_size else None


def documents(name: str, count: int, size: int = 100) -> list[str]:
    """Return different texts of `size` bytes, each beginning with its number."""
    return [f"{name}:{number}:".ljust(size, "x") for number in range(count)]


def places(texts) -> list[int]:
    return [int(text.split(":")[1]) for text in texts]


def num_bytes(texts) -> int:
    return sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_small_corpus_is_taken_whole_and_in_order(compressed):
    """A corpus no larger than the requested size is returned completely and in order, for any seed."""
    first, second = documents("a", 30), documents("b", 50)
    readers = [Reader(first, 4, compressed), Reader(second, 1, compressed)]
    for seed in (1, 2):
        assert list(sample_texts(readers, 8000, seed)) == first + second
        assert list(sample_texts(readers, 10**9, seed)) == first + second


@pytest.mark.parametrize("compressed", [False, True])
def test_a_large_corpus_is_sampled_by_seed(compressed, monkeypatch):
    """A sample of a large corpus has the requested size and is spread over all
    sources in proportion, by seed.
    """
    monkeypatch.setattr(text_sample, "SMALLEST_PIECE_BYTES", 100)
    readers = [Reader(documents("a", 3000), 30, compressed), Reader(documents("b", 1000), 10, compressed)]
    texts = list(sample_texts(readers, 40_000, 7))
    assert texts == list(sample_texts(readers, 40_000, 7))
    assert texts != list(sample_texts(readers, 40_000, 8))
    of_first = [text for text in texts if text.startswith("a")]
    assert num_bytes(texts) == 40_000
    assert num_bytes(of_first) == 30_000
    spread = np.histogram(places(of_first), bins=10, range=(0, 3000))[0]
    assert spread.min() >= 10, spread


def test_parts_are_read_no_further_than_their_piece(monkeypatch):
    """A tenth of each of 100 parts is sampled, and little more than that is read."""
    monkeypatch.setattr(text_sample, "SMALLEST_PIECE_BYTES", 100)
    reader = Reader(documents("a", 10_000), 100)
    texts = list(sample_texts([reader], 100_000, 1))
    assert num_bytes(texts) == 100_000
    assert max(reader.read_of) <= 11
    assert min(reader.read_of) >= 9


def test_no_more_parts_than_pieces_are_worth_it(monkeypatch):
    """At most MAX_PARTS parts are read, or fewer if each would give too little; the seed selects them."""
    monkeypatch.setattr(text_sample, "MAX_PARTS", 7)
    reader = Reader(documents("a", 10_000), 100)
    list(sample_texts([reader], 900_000, 1))
    assert sum(count > 0 for count in reader.read_of) == 7
    other = Reader(documents("a", 10_000), 100)
    list(sample_texts([other], 2 * text_sample.SMALLEST_PIECE_BYTES, 1))
    assert sum(count > 0 for count in other.read_of) == 2


def test_compressed_sources_hold_more_text_than_bytes():
    """If a file has five bytes of text per stored byte, the sample is still spread over the whole file."""
    reader = Reader(documents("a", 4000), 20, compressed=True, byte_ratio=0.2)
    texts = list(sample_texts([reader], 100_000, 3))
    assert num_bytes(texts) == 100_000
    assert np.histogram(places(texts), bins=4, range=(0, 4000))[0].min() >= 150
    # 80 kB on disk hold 400 kB of text and 100 kB are requested, so the corpus is not small.
    one_part = Reader(documents("a", 4000), 1, compressed=True, byte_ratio=0.2)
    texts = list(sample_texts([one_part], 100_000, 3))
    assert num_bytes(texts) == 100_000
    assert max(places(texts)) > 3500


def test_a_source_of_unknown_size_counts_as_the_sample():
    """From a source of unknown size the beginning is sampled: as all of the sample, or
    half next to another source.
    """
    unknown = Reader(documents("a", 1000), 10, size=False)
    assert places(sample_texts([unknown], 10_000, 1)) == list(range(100))
    known = Reader(documents("b", 100))
    texts = list(sample_texts([unknown, known], 10_000, 1))
    assert places(text for text in texts if text.startswith("a")) == list(range(50))
    assert num_bytes(text for text in texts if text.startswith("b")) == 5000


def test_what_a_source_lacks_the_next_ones_give():
    """If half of the first source is empty, the second source fills the sample."""
    first = Reader([text if number % 2 else " " * 100 for number, text in enumerate(documents("a", 100))])
    texts = list(sample_texts([first, Reader(documents("b", 100))], 15_000, 1))
    assert num_bytes(text for text in texts if text.startswith("a")) == 5000
    assert num_bytes(text for text in texts if text.startswith("b")) == 10_000
    assert len(list(sample_texts([first, Reader(documents("b", 100))], 12_000, 1))) == 50 + 70


def test_a_long_document_is_cut():
    """A document of a megabyte is truncated, but never inside a character."""
    texts = list(sample_texts([Reader(["é" * 500_000])], 1001, 1))
    assert texts == ["é" * 500]


def test_what_encoding_drops_is_no_sample():
    """Empty, invalid, repeated and cleaned-out texts are not sampled; repaired
    texts are sampled as repaired.
    """
    given = ["one", "", " \n", "\ud800", "one", "two ", "three"]
    tally = Tally()
    assert list(sample_texts([Reader(given)], 10**6, 1, tally=tally)) == ["one", "two ", "three"]
    assert tally.dropped == {"empty": 2, "not_unicode": 1, "duplicate": 1}

    def clean(text):
        return text.strip(), "long" if len(text) > 4 else None

    tally = Tally()
    assert list(sample_texts([Reader(given), Reader(["two"])], 10**6, 1, clean, tally)) == ["one", "two"]
    assert tally.dropped == {"empty": 2, "not_unicode": 1, "duplicate": 2, "long": 1}


def test_every_kind_of_record():
    """Records with several keys and examples give their text; token ids give none."""
    records = [
        "plain",
        Texts("main", ("other",)),
        Example((("question ", False), ("answer", True))),
        TokenIds(np.arange(3)),
    ]
    assert list(sample_texts([Reader(records)], 10**6, 1)) == ["plain", "main", "question answer"]


def test_examples_are_not_cleaned():
    """Examples are not cleaned, as in encoding, while plain text and records with several keys are."""
    short = Example((("q ", False), ("a", True)))
    records = ["text", Texts("main", ("other",)), short, Preference(short, short)]

    def clean(text):
        return text, "too_short"

    tally = Tally()
    assert list(sample_texts([Reader(records)], 10**6, 1, clean, tally)) == ["q a", "q aq a"]
    assert tally.dropped == {"too_short": 2}


def test_cut():
    """cut() returns at most the given number of bytes, in complete characters."""
    assert text_sample.cut("aé中", 6) == "aé中"
    assert text_sample.cut("aé中", 5) == "aé"
    assert text_sample.cut("aé", 2) == "a"
