"""Trains a byte-level BPE on a sample of the corpus.

    text_sample.py's texts -> words longer than 1,000 characters cut -> tokenizers or rustbpe -> folder.save

In the vocabularies of both trainers, entry 0 is the end-of-document token, followed by the 256 bytes in the
order of GPT-2's alphabet and by the merges in the order of training. The trainers break ties between equally
frequent pairs differently, so their ids differ; the manifest records which trainer was used.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

from nbtrain.base.errors import DataError
from nbtrain.base.hardware.cgroup import memory_groups, text_of
from nbtrain.base.text import amounts
from nbtrain.corpus import characters
from nbtrain.corpus.optional import optional
from nbtrain.corpus.tokenizer.folder import EOD_TOKEN, byte_level
from nbtrain.corpus.tokenizer.unfinished import NUM_BYTES, byte_letters

Trainer = Literal["tokenizers", "rustbpe"]

LONG_WORD = re.compile(r"\S{1000}")
TRAIN_BATCH = 256
# GPT-2's word rule: https://github.com/openai/gpt-2, encoder.py. tokenizers has it built in.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train(
    texts: Iterable[str],
    vocab_size: int,
    trainer: Trainer = "tokenizers",
    eod_token: str = EOD_TOKEN,
    train_bytes: int | None = None,
) -> Any:
    """Train a byte-level BPE with at most `vocab_size` entries and return it as a tokenizers.Tokenizer.

    `eod_token` is entry 0. The texts are read up to `train_bytes`, where the last text is cut. Raises
    DataError if the vocabulary is too small for all bytes, if there is no text, or if rustbpe is requested
    and not installed. folder.save() writes the result.
    """
    if vocab_size < NUM_BYTES + 1:
        raise DataError(
            f"tokenizer.vocab_size = {vocab_size}: must be at least {NUM_BYTES + 1}, for {NUM_BYTES} bytes "
            f"and {eod_token}."
        )
    batches = _batches(texts, train_bytes)
    if (first := next(batches, None)) is None:
        raise DataError("the corpus is empty: there is no text to train a tokenizer on. Use other sources.")
    trained_by = _train_rustbpe if trainer == "rustbpe" else _train_tokenizers
    return trained_by(chain([first], batches), vocab_size, eod_token)


def software(trainer: Trainer) -> dict[str, str]:
    """Return {package: version} of the trainer, for the manifest."""
    names = ("tokenizers",) if trainer == "tokenizers" else ("tokenizers", "rustbpe")
    return {name: importlib.metadata.version(name) for name in names}


def _train_tokenizers(batches: Iterator[list[str]], vocab_size: int, eod_token: str) -> Any:
    import tokenizers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    trained = byte_level(tokenizers.Tokenizer(BPE()))
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eod_token],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(batches, trainer)
    return trained


def _train_rustbpe(batches: Iterator[list[str]], vocab_size: int, eod_token: str) -> Any:
    import tokenizers
    from tokenizers.models import BPE

    rustbpe = optional("rustbpe", "tokenizer.trainer = rustbpe:", "set tokenizer.trainer: tokenizers")
    learnt = rustbpe.Tokenizer()
    texts = (text for batch in batches for text in batch)
    learnt.train_from_iterator(texts, vocab_size - 1, pattern=GPT2_PATTERN)
    vocab, merges = vocabulary_of(learnt.get_mergeable_ranks(), eod_token)
    built = byte_level(tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges)))
    built.add_special_tokens([eod_token])
    return built


def vocabulary_of(
    ranks: Iterable[tuple[bytes, int]], eod_token: str
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Convert pairs (bytes of a token, rank), as in rustbpe and tiktoken, to vocab.json and merges.txt.

    Returns ({entry: id}, merges as pairs of entries, in the order of training).

    These pairs do not list merges. The merge of a token is the pair that remains when only merges with lower
    ranks are applied to its bytes.
    """
    letters = byte_letters()
    vocab = {entry: number for number, entry in enumerate([eod_token, *sorted(letters)])}
    merges = []
    rank_of: dict[bytes, int] = {}
    for raw, rank in sorted(ranks, key=lambda entry: entry[1]):
        token = bytes(raw)
        if len(token) > 1:
            left, right = ("".join(letters[byte] for byte in piece) for piece in _two_pieces(token, rank_of))
            merges.append((left, right))
            vocab[left + right] = len(vocab)
        rank_of[token] = rank
    return vocab, merges


def _two_pieces(token: bytes, rank_of: dict[bytes, int]) -> list[bytes]:
    pieces = [token[place : place + 1] for place in range(len(token))]
    while len(pieces) > 2:
        ranks = [rank_of.get(left + right, len(rank_of)) for left, right in pairwise(pieces)]
        best = ranks.index(min(ranks))
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces


def _batches(texts: Iterable[str], train_bytes: int | None) -> Iterator[list[str]]:
    """Yield lists of texts, `train_bytes` in total, cutting the last text; split long words to save time."""
    batch: list[str] = []
    left = float("inf") if train_bytes is None else train_bytes
    for text in texts:
        encoded = text.encode()
        if len(encoded) > left:
            text = encoded[: int(left)].decode(errors="ignore")
        left -= len(encoded)
        batch.append(LONG_WORD.sub(r"\g<0> ", text))
        if left <= 0 or len(batch) == TRAIN_BATCH:
            yield batch
            batch = []
        if left <= 0:
            return
    if batch:
        yield batch


MEMINFO = Path("/proc/meminfo")
# Peak resident memory of training 52,000 entries: (bytes without any text, additional bytes per byte of text
# with spaces between words, additional bytes per byte of text without them). Measured peaks in MiB:
#     text            size of the text in MB     tokenizers 0.23.3          rustbpe 0.1.0
#     books           5, 10, 20, 29, 100         104, 127, 140, 149, 313    100, 110, 125, 138, 251
#     388 languages   4                          213                        138
#     Chinese         1.25, 2.5, 5               192, 313, 536              126, 191, 316
MEMORY_FIT = {"tokenizers": (220 << 20, 2.5, 97.0), "rustbpe": (140 << 20, 1.7, 53.0)}


def memory_estimate_bytes(train_bytes: int, trainer: Trainer, unspaced_fraction: float = 0.0) -> int:
    """Estimate the peak resident memory of the training process in bytes.

    The estimate is an upper bound for all measurements, which go up to 100 MB of text. A trainer keeps every
    distinct word in memory. In scripts without spaces, whole clauses count as words.
    """
    base, spaced, unspaced = MEMORY_FIT[trainer]
    return int(base + train_bytes * (spaced + (unspaced - spaced) * unspaced_fraction))


def unspaced_fraction(texts: Iterable[str]) -> float:
    """Return the share of some texts' UTF-8 bytes that is in scripts without spaces between words."""
    num_bytes = num_unspaced = 0
    for text in texts:
        size = len(text.encode())
        num_bytes += size
        if size > len(text):
            of_text = "".join(word for word in characters.words(text) if characters.is_unspaced(word[0]))
            num_unspaced += len(of_text.encode())
    return num_unspaced / max(1, num_bytes)


def peek(texts: Iterable[str], num_bytes: int = 1 << 20) -> tuple[list[str], Iterator[str]]:
    """Return a list of the first texts, with about `num_bytes` in total, and an iterator over all texts."""
    rest = iter(texts)
    first: list[str] = []
    while num_bytes > 0 and (text := next(rest, None)) is not None:
        first.append(text)
        num_bytes -= len(text.encode())
    return first, chain(first, rest)


def check_memory(
    train_bytes: int, trainer: Trainer, where: str = "tokenizer.train_bytes", first_texts: Iterable[str] = ()
) -> str:
    """Return a clause on the memory that training needs and the memory that is available.

    `first_texts` is the beginning of the sample, from peek(), which shows in which scripts the text is
    written. `where` names the setting in messages. Raises DataError if too little memory is available.
    """
    fraction = unspaced_fraction(first_texts)
    needed = memory_estimate_bytes(train_bytes, trainer, fraction)
    available = available_memory_bytes()
    if available is None:
        return f"about {amounts.size(needed)} of memory needed"
    if needed > available:
        base = memory_estimate_bytes(0, trainer)
        fits = int((available - base) * train_bytes / (needed - base))
        advice = f"Set the value to at most {fits:,}" if fits > 0 else "Free up memory"
        raise DataError(
            f"{where} = {train_bytes:,}: training with {trainer} needs about {amounts.size(needed)} of "
            f"memory, but only {amounts.size(available)} is available. {advice}."
        )
    return f"about {amounts.size(needed)} of memory needed, {amounts.size(available)} available"


def available_memory_bytes() -> int | None:
    """Return how many bytes this process can still allocate on the machine and within its control groups.

    Returns None if no limit is known.
    """
    free = re.search(r"^MemAvailable:\s+(\d+) kB$", text_of(MEMINFO), flags=re.M)
    found = [int(free[1]) * 1024] if free else []
    found += [
        max(0, group.limit_bytes - group.in_use_bytes)
        for group in memory_groups()
        if group.in_use_bytes is not None
    ]
    return min(found, default=None)
