"""Deduplication keeps the first document, in any batching; near duplicates are estimated accurately."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.config.sections.data_section import NearDedupConfig
from nbtrain.corpus.documents import dedup
from nbtrain.corpus.documents.dedup import ExactIndex, NearIndex, SortedRuns

NEAR = NearDedupConfig(enabled=True)


def test_digest():
    """The digest is XXH3-128; for no bytes it equals the authors' first test value."""
    assert dedup.digest(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert len(dedup.digest(b"text")) == dedup.DIGEST_BYTES


# --- exact --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_exact_index_is_a_set_in_order(batch):
    """The exact index gives the same answers as a Python set, for any batching."""
    numbers = np.random.RandomState(1).randint(0, 500, 1000)
    digests = [dedup.digest(str(number).encode()) for number in numbers]
    expected, seen = [], set()
    for one in digests:
        expected.append(one not in seen)
        seen.add(one)
    index = ExactIndex()
    rows = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    mask = np.concatenate([index.add_all(rows[at : at + batch]) for at in range(0, 1000, batch)])
    assert mask.tolist() == expected
    assert index.num_bytes == 16 * len(seen)


def test_exact_index_takes_many_digests_or_none():
    """Digests are added as uint64 [n, 2]; an empty batch adds no document."""
    rows = np.frombuffer(dedup.digests([b"a", b"b", b"a"]), "<u8").reshape(-1, 2)
    assert ExactIndex().add_all(rows).tolist() == [True, True, False]
    assert ExactIndex().add_all(rows[:0]).tolist() == []


def test_half_a_digest_is_not_enough():
    """Digests that share only their first 8 bytes are different documents, also across batches."""
    digests = np.array([[5, 1], [5, 2], [5, 1], [6, 1]], np.uint64)
    index = ExactIndex()
    assert index.add_all(digests).tolist() == [True, True, False, True]
    assert index.add_all(digests[::-1]).tolist() == [False] * 4
    assert index.add_all(np.array([[5, 3]], np.uint64)).tolist() == [True]


def test_runs_stay_few_and_short(monkeypatch):
    """The index is a few sorted runs of limited size, so a merge never copies all of it."""
    monkeypatch.setattr(dedup, "RUN_ENTRIES", 4096)
    runs = SortedRuns(np.uint32)
    rng = np.random.default_rng(2)
    keys = rng.integers(0, 2**64, 40_000, dtype=np.uint64)
    for at in range(0, 40_000, 100):
        runs.add(keys[at : at + 100], np.arange(at, at + 100))
        sizes = [len(run) for run, _ in runs._runs]
        assert max(sizes) <= 4096
        assert len(sizes) <= 3 + at // 2048 + 12
    assert runs.num_bytes == 12 * 40_000
    which, values = runs.find(keys[::7])
    assert np.array_equal(keys[::7][which], keys[values])
    assert len(which) == len(keys[::7])


def test_runs_give_every_value_of_a_key():
    """A lookup returns all values of a key from several runs, and none for an unknown key."""
    runs = SortedRuns(np.uint32)
    assert [len(found) for found in runs.find(np.array([1], np.uint64))] == [0, 0]
    runs.add(np.array([7, 7, 9, 7] + [1] * 20, np.uint64), np.arange(24))
    runs.add(np.array([9, 7], np.uint64), np.array([50, 51]))
    assert len(runs._runs) == 2
    which, values = runs.find(np.array([9, 2**64 - 1, 7], np.uint64))
    found = sorted(zip(which.tolist(), values.tolist()))
    assert found == [(0, 2), (0, 50), (2, 0), (2, 1), (2, 3), (2, 51)]


# --- near ---------------------------------------------------------------------------------------------------


def pair(similarity: float, num_words: int = 400, seed: int = 0) -> tuple[str, str]:
    """Return two texts with about this Jaccard similarity; they differ in their last words."""
    chance = random.Random(seed)
    words = [f"w{chance.randrange(10**6)}" for _ in range(num_words)]
    keep = round(2 * num_words * similarity / (1 + similarity))
    other = words[:keep] + [f"v{chance.randrange(10**6)}" for _ in range(num_words - keep)]
    return " ".join(words), " ".join(other)


def signatures(texts, config=NEAR):
    return np.stack([dedup.signature(text, config) for text in texts])


def test_shingles():
    """Shingles are lower-case words without punctuation, or characters in scripts without spaces."""
    assert dedup.shingles("A b, C d. E F", 5) == ["a b c d e", "b c d e f"]
    assert dedup.shingles("中文模型。", 3) == ["中 文 模", "文 模 型"]
    assert dedup.shingles("Two words", 5) == ["two words"]
    assert dedup.shingles("... !", 5) == []


def test_the_estimate_is_the_similarity():
    """The share of equal hashes estimates the Jaccard similarity: mean error within 4 standard errors."""
    pytest.importorskip("rensa")
    errors = []
    for seed in range(40):
        one, other = pair(0.8, seed=seed)
        sets = [set(dedup.shingles(text, 5)) for text in (one, other)]
        truth = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
        some, others = signatures([one, other])
        errors.append((some == others).mean() - truth)
    assert abs(np.mean(errors)) < 4 * 0.0354 / np.sqrt(40)
    assert 0.02 < np.std(errors) < 0.055


@pytest.mark.slow
def test_near_duplicates_go_and_others_stay():
    """All of 40 pairs with similarity 0.95 are found, nearly all with 0.9, and none with 0.6 or 0."""
    pytest.importorskip("rensa")
    dropped = {}
    for similarity in (0.0, 0.6, 0.9, 0.95):
        found = 0
        for seed in range(40):
            index = NearIndex(NEAR)
            found += int((~index.add(signatures(pair(similarity, seed=seed)))).sum())
        dropped[similarity] = found
    assert dropped[0.0] == dropped[0.6] == 0
    assert dropped[0.9] >= 38
    assert dropped[0.95] == 40


@pytest.mark.parametrize("batch", [1, 3, 50, 200])
def test_near_index_does_not_care_for_batches(batch):
    """The first document of each group is kept, and the result does not depend on batching."""
    pytest.importorskip("rensa")
    chance = random.Random(5)
    texts = []
    for family in range(40):
        words = [f"w{family}x{place}" for place in range(400)]
        for _ in range(5):
            copy = list(words)
            copy[chance.randrange(400)] = "changed"
            texts.append(" ".join(copy))
    order = list(range(200))
    chance.shuffle(order)
    rows = signatures([texts[number] for number in order])
    index = NearIndex(NEAR)
    mask = np.concatenate([index.add(rows[at : at + batch]) for at in range(0, 200, batch)])
    first_of_family = [
        number // 5 not in {other // 5 for other in order[:at]} for at, number in enumerate(order)
    ]
    assert mask.tolist() == first_of_family
    # 17 bands of 12 bytes and 128 bytes of minima for each document, and room to grow.
    assert 40 * 332 <= index.num_bytes <= 40 * (17 * 12 + 128 * 1.5)


def test_a_dropped_document_drops_no_other():
    """Documents are compared only with kept ones, so a chain of small changes is not dropped completely."""
    rows = np.arange(128, dtype=np.uint32)[None].repeat(3, axis=0)
    rows[1, 112:] += 1000  # 0.875 to the first
    rows[2, 96:] += 5000  # 0.75 to the first, 0.75 to the second
    assert NearIndex(NEAR).add(rows).tolist() == [True, False, True]
    rows[2, 112:] = rows[1, 112:]
    rows[2, 96:112] += 7  # 0.75 to the first, 0.875 to the second, which was dropped
    assert NearIndex(NEAR).add(rows).tolist() == [True, False, True]
    index = NearIndex(NEAR)
    assert [index.add(row[None]).item() for row in rows] == [True, False, True]


def test_texts_without_words_are_never_near_duplicates():
    """Texts without words, whose signatures are equal, are duplicates only if they are exactly equal."""
    pytest.importorskip("rensa")
    index = NearIndex(NEAR)
    assert index.add(signatures(["...", "!!!", "short", "short!", "???"])).tolist() == [
        True,
        True,
        True,
        False,
        True,
    ]
    assert index.add(signatures(["---", "Short"])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("threshold", "num_permutations", "expected"),
    [
        (0.8, 128, (17, 7)),
        (0.5, 128, (30, 3)),
        (0.9, 128, (11, 11)),
        (1.0, 128, (1, 128)),
        (0.01, 16, (16, 1)),
    ],
)
def test_bands(threshold, num_permutations, expected):
    """At most one in 50 pairs at the threshold is missed, given enough hash functions."""
    count, rows = dedup.bands(threshold, num_permutations)
    assert (count, rows) == expected
    assert count * rows <= num_permutations
    if threshold > 0.01:
        assert (1 - threshold**rows) ** count <= 0.02


def test_more_documents_than_have_numbers(monkeypatch):
    """More documents than 4-byte numbers allow are refused; the numbers do not wrap around."""
    monkeypatch.setattr(dedup, "LARGEST_NUMBER", 2)
    index = NearIndex(NEAR)
    index.add(np.stack([index.signature(f"one {word} two three four five six") for word in ("a", "b")]))
    with pytest.raises(DataError, match=r"data\.cleaning\.near_dedup can compare at most 2 documents"):
        index.add(index.signature("another text of several other words")[None])


def test_many_candidates_are_compared_in_pieces(monkeypatch):
    """Comparing many candidates in chunks gives the same result as comparing them at once."""
    rows = np.arange(128, dtype=np.uint32)[None].repeat(60, axis=0)
    rows[:, 7:] += (
        np.arange(60, dtype=np.uint32)[:, None] * 1001 + 1001
    )  # one band shared by all, else different
    rows[59] = rows[3]
    first = NearIndex(NEAR)
    masks = [first.add(rows[:30]), first.add(rows[30:])]
    monkeypatch.setattr(dedup, "PAIRS", 7)
    second = NearIndex(NEAR)
    for mask, part in zip(masks, (rows[:30], rows[30:])):
        assert np.array_equal(second.add(part), mask)
    assert np.concatenate(masks).sum() == 59


@pytest.mark.slow
def test_signatures_are_the_same_in_every_process():
    """Signatures depend on the rule's seed and not on PYTHONHASHSEED."""
    pytest.importorskip("rensa")
    text = "The same text in every process, 中文 too, and once more for good measure."
    program = (
        "import sys, json; from nbtrain.corpus.documents import dedup;"
        "from nbtrain.config.sections.data_section import NearDedupConfig;"
        f"print(json.dumps(dedup.signature({text!r}, NearDedupConfig()).tolist()))"
    )
    ours = dedup.signature(text, NEAR)
    for seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        theirs = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert json.loads(theirs.stdout) == ours.tolist()
    assert ours.dtype == np.uint32 and ours.shape == (128,)
    assert not np.array_equal(ours, dedup.signature(text, NearDedupConfig(seed=43)))


def test_rensa_and_its_version(monkeypatch):
    """The version of rensa is recorded; without rensa, the message includes the pip command."""
    pytest.importorskip("rensa")
    assert NearIndex(NEAR).rensa_version == dedup.rensa_version()
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(DataError) as caught:
        NearIndex(NEAR)
    assert str(caught.value) == (
        "data.cleaning.near_dedup needs the package rensa, which is not installed. Install it with "
        f"`{install_command('data')}`, or set near_dedup.enabled: false."
    )
