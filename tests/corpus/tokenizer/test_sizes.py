"""Vocabularies of several sizes from one training run equal those of separate training runs."""

import numpy as np
import pytest

from nbtrain.corpus.tokenizer import sizes, training
from nbtrain.corpus.tokenizer.sizes import BASE_ENTRIES, fits_of

WORDS = ["whale", "captain", "harpoon", "ocean", "ship", "crew", "storm", "sail", "anchor", "lantern"]


@pytest.fixture
def texts():
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(WORDS, 60)) + f" {number}." for number in range(300)]


def test_each_size_is_that_of_its_own_training(texts, monkeypatch):
    """The token counts at each size equal those of a vocabulary trained at that size."""
    monkeypatch.setattr(sizes, "SIZES", (280, 320, 4096))
    small, large, most = fits_of(texts)
    assert (small.size, large.size) == (280, 320)
    # So few words allow no further merges.
    assert 320 < most.size < 4096
    num_bytes = sum(map(len, texts))
    for fit in (small, large):
        trained = training.train(texts, fit.size)
        ids = [trained.encode(text).ids for text in texts]
        tokens = sum(map(len, ids)) + len(texts)
        assert fit.sample_tokens == tokens
        assert fit.bytes_per_token == pytest.approx(num_bytes / tokens)
        counts = np.bincount(np.concatenate(ids), minlength=fit.size)[BASE_ENTRIES:]
        assert (counts >= fit.occurrences).mean() >= 0.95
        assert (counts > fit.occurrences).mean() < 0.96


def test_only_so_much_is_encoded(texts, monkeypatch):
    """The statistics are computed on a sample of limited size."""
    monkeypatch.setattr(sizes, "SIZES", (300,))
    monkeypatch.setattr(sizes, "ENCODED_BYTES", 2000)
    (fit,) = fits_of(texts)
    assert fit.bytes_per_token * fit.sample_tokens == pytest.approx(2000, abs=10)
