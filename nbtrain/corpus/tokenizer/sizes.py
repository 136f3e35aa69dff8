"""Compares vocabulary sizes on a text: the number of tokens, and how often the vocabulary's entries occur.

A single BPE is trained on a sample. Its first merges form a smaller vocabulary, so one training is enough for
all sizes.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbtrain.base.printing.progress import Progress
from nbtrain.config.arithmetic.vocabulary import VocabularyFit
from nbtrain.corpus.documents.text_sample import cut
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.folder import byte_level
from nbtrain.corpus.tokenizer.unfinished import NUM_BYTES

SIZES = (512, 1024, 2048, 4096)
TRAIN_BYTES = 4 << 20
# A trainer keeps every distinct word in memory; in scripts without spaces, whole clauses count as words.
UNSPACED_TRAIN_BYTES = 1 << 20
ENCODED_BYTES = 1 << 20
BASE_ENTRIES = NUM_BYTES + 1
"""Number of entries for the end-of-document token and the bytes; most texts use about half of them."""
COUNTED_SHARE = 0.95


def fits_of(texts: Sequence[str]) -> list[VocabularyFit]:
    """Measure a vocabulary of each size in SIZES on some texts, and return the results by size.

    If the texts do not have enough merges for the larger sizes, the last result is for the largest
    vocabulary that they allow.
    """
    unspaced = training.unspaced_fraction(training.peek(texts)[0]) > 0.5
    train_bytes = UNSPACED_TRAIN_BYTES if unspaced else TRAIN_BYTES
    with Progress("measuring vocabularies", len(SIZES) + 1, "") as progress:
        state = json.loads(training.train(texts, SIZES[-1], train_bytes=train_bytes).to_str())["model"]
        progress.update(1)
        encoded = _up_to(texts, ENCODED_BYTES)
        num_bytes = sum(len(text.encode()) for text in encoded)
        found = []
        for size in sorted({min(size, len(state["vocab"])) for size in SIZES}):
            counts = _counts(state, size, encoded)
            tokens = int(counts.sum()) + len(encoded)
            merged = np.sort(counts[BASE_ENTRIES:])[::-1]
            rarest = int(merged[int(COUNTED_SHARE * len(merged))]) if len(merged) else 0
            found.append(VocabularyFit(size, num_bytes / tokens, rarest, tokens))
            progress.update(1)
    return found


def _up_to(texts: Sequence[str], num_bytes: int) -> list[str]:
    found = []
    for text in texts:
        if num_bytes <= 0:
            break
        found.append(cut(text, num_bytes))
        num_bytes -= len(found[-1].encode())
    return found


def _counts(state: dict[str, Any], size: int, texts: Sequence[str]) -> np.ndarray:
    """Return how often each of the first `size` entries occurs in some texts, int64 [size].

    The texts are encoded with these entries only.
    """
    import tokenizers
    from tokenizers.models import BPE

    vocab = {entry: number for entry, number in state["vocab"].items() if number < size}
    merges = [tuple(merge) for merge in state["merges"][: size - BASE_ENTRIES]]
    smaller = byte_level(tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges)))
    ids = [encoding.ids for encoding in smaller.encode_batch_fast(list(texts), add_special_tokens=False)]
    return np.bincount(np.concatenate([np.asarray(one, np.int64) for one in ids]), minlength=size)
