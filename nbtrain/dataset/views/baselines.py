"""Computes losses that a model should beat, from token counts alone, on the run's validation tokens.

    plain     H = -sum_v p(v) ln p(v), p the validation tokens' own frequencies: no unigram model is better
    unigram   -mean ln (c(b) + k) / (N + k V), counts c of the training split
    bigram    -mean ln (c(a, b) + k) / (c(a) + k V), a the token before b

The unit is nats per token. The samples are the run's validation samples, and only labels in the loss count,
so that the baselines and the trained model's validation loss cover the same tokens. V is the vocabulary size.
For each model, k is the value from a fixed grid with the lowest loss, which favours the baseline, never the
trained model. A pair of tokens for the bigram counts may span two documents, as samples do. Counts cover at
most 20 million training tokens, taken from the beginning of each source (`train_tokens` says how many
tokens).
"""

import logging
from dataclasses import asdict, dataclass
from typing import Any, Literal, overload

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.printing.report import Report, Result, Sentence
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.requested_settings import place_of_setting
from nbtrain.dataset.files import DatasetFiles, OpenDataset
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.dataset.samples.split_ranges import split_ranges

logger = logging.getLogger(__name__)

VERSION = 4
MAX_TRAIN_TOKENS = 20_000_000
MAX_VALIDATION_TOKENS = 5_000_000
K_GRID = tuple(float(k) for k in 10.0 ** np.arange(-4, 3.25, 0.25))


@dataclass(frozen=True, repr=False)
class Baselines(Result):
    """Losses in nats per token on the run's validation samples, and the token counts behind them."""

    unigram_entropy_nats: float
    """Unigram entropy of the validation tokens."""
    unigram_nats: float
    """Cross entropy under a unigram model of the training split."""
    unigram_k: float
    bigram_nats: float
    """Cross entropy under a bigram model of the training split."""
    bigram_k: float
    train_tokens: int
    validation_tokens: int

    def as_report(self) -> Report:
        """Return the losses and the numbers of tokens that they were computed from."""
        words = (
            f"validation samples, nats/token: unigram entropy {self.unigram_entropy_nats:.4f}, "
            f"unigram of training counts {self.unigram_nats:.4f} (add-{self.unigram_k:.3g}), "
            f"bigram {self.bigram_nats:.4f} (add-{self.bigram_k:.3g}); "
            f"{self.train_tokens:,} training and {self.validation_tokens:,} validation tokens"
        )
        return Report("", [Sentence(words)])


@dataclass(frozen=True, repr=False)
class NoBaselines(Result):
    """Result for data without baselines. In a notebook, it displays the reason."""

    reason: str
    """Why the data has no baselines."""

    def as_report(self) -> Report:
        return Report("", [Sentence(f"no baselines: {self.reason}")])


@overload
def baselines(config: RunConfig, too_small: Literal["refuse"] = "refuse") -> Baselines: ...


@overload
def baselines(config: RunConfig, too_small: str) -> Baselines | NoBaselines: ...


def baselines(config: RunConfig, too_small: str = "refuse") -> Baselines | NoBaselines:
    """Return the baselines of a run's data, computed once and then read from the dataset's folder.

    Raises DataError if the data is not prepared, if the training or validation split is too short, if the run
    blends datasets, or if it trains on preference pairs. With too_small="explain", the last three cases
    return a NoBaselines instead, so that a notebook continues.
    """
    if too_small not in ("refuse", "explain"):
        raise ConfigError(f'too_small = {too_small!r}: must be "refuse" or "explain".')
    found = _baselines(config)
    if isinstance(found, NoBaselines) and too_small == "refuse":
        raise DataError(found.reason)
    return found


def _baselines(config: RunConfig) -> Baselines | NoBaselines:
    if config.data.blend:
        return NoBaselines(
            f"{place_of_setting(config, 'data.blend')}: baselines describe one dataset, but the blend has "
            f"{len(config.data.blend)}. Request the baselines of one entry with a run that sets data.name to "
            "this entry and has no data.blend."
        )
    if config.dpo is not None:
        return NoBaselines(
            f"{place_of_setting(config, 'dpo')}: the loss of preference pairs is not a loss per token, so "
            f"baselines do not apply."
        )
    dataset = dataset_of(config)
    opened = dataset.open(config.tokenizer.vocab_size)
    manifest, indexed = opened.manifest, opened.indexed
    key = {
        "version": VERSION,
        "dataset_sha256": manifest.dataset_sha256,
        "split": config.data.split,
        "split_rule": config.data.split_rule,
        "seed": config.data.seed,
        "seq_length": config.model.seq_length,
        "shuffle": config.data.shuffle,
        "packing": config.data.resolved_packing,
        "weights": [source.weight for source in config.data.sources if hasattr(source, "weight")],
        "eod_mask_loss": config.data.eod_mask_loss,
        "validation_samples": config.evaluation_samples,
        "max_train_tokens": MAX_TRAIN_TOKENS,
    }
    stored = _stored(dataset)
    for entry in stored:
        if entry["key"] == key:
            return Baselines(**entry["value"])
    train, valid = (split_ranges(config, opened, name) for name in ("train", "valid"))
    train_tokens = _tokens(indexed, train, MAX_TRAIN_TOKENS)
    num_validation = sum(last - first for first, last in valid)
    if len(train_tokens) < 2 or not num_validation:
        return NoBaselines(
            f"{display(dataset.prefix)}: split {config.data.split} leaves {len(train_tokens):,} training "
            f"tokens and {num_validation:,} validation documents; baselines need at least 2 training tokens "
            "and 1 validation document. Use more text or another data.split."
        )
    context, target = _validation_labels(config, opened, valid)
    if not len(target):
        return NoBaselines(
            f"{display(indexed.prefix)}: no label in the {config.evaluation_samples:,} validation samples is "
            f"in the loss. Use more text or another data.split."
        )
    result = compute(train_tokens, context, target, manifest.vocab_size)
    try:
        files.write_json(dataset.baselines_json, [*stored, {"key": key, "value": asdict(result)}])
    except OSError as error:  # a read-only data directory: the results are correct nevertheless
        logger.info(
            "%s: the baselines cannot be saved (%s) and will be computed again next time.",
            dataset.baselines_json,
            error.strerror,
        )
    return result


def _validation_labels(
    config: RunConfig, opened: OpenDataset, parts: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the token before each label, the labels): all validation labels that are in the loss.

    If the run never validates, the labels come from up to MAX_VALIDATION_TOKENS tokens of the validation
    split, in the loss or not.
    """
    samples = build_datasets(config, opened=opened).valid
    if samples is None or not config.evaluation_samples:
        tokens = _tokens(opened.indexed, parts, MAX_VALIDATION_TOKENS)
        return tokens[:-1], tokens[1:]
    contexts, targets = [], []
    for number in range(config.evaluation_samples):
        sample = samples.sample(number)
        learnt = slice(None) if sample.loss_mask is None else sample.loss_mask > 0
        contexts.append(sample.tokens[learnt])
        targets.append(sample.labels[learnt])
    return np.concatenate(contexts), np.concatenate(targets)


def compute(train: np.ndarray, context: np.ndarray, target: np.ndarray, vocab_size: int) -> Baselines:
    """Compute baselines from training tokens, for the labels `target` that follow the tokens `context`."""
    counts = np.bincount(train, minlength=vocab_size)
    unigram_nats, unigram_k = _best(counts[target], np.full(len(target), len(train)), vocab_size)

    pairs, pair_counts = np.unique(train[:-1] * vocab_size + train[1:], return_counts=True)
    wanted = context * vocab_size + target
    places = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[places] == wanted, pair_counts[places], 0)
    contexts = np.bincount(train[:-1], minlength=vocab_size)[context]
    bigram_nats, bigram_k = _best(seen, contexts, vocab_size)

    frequencies = np.bincount(target) / len(target)
    frequencies = frequencies[frequencies > 0]
    entropy = float(-(frequencies * np.log(frequencies)).sum())
    return Baselines(entropy, unigram_nats, unigram_k, bigram_nats, bigram_k, len(train), len(target))


def _best(counts: np.ndarray, totals: np.ndarray, vocab_size: int) -> tuple[float, float]:
    """Return the lowest cross entropy over the grid, and its k, for tokens with these counts and totals."""
    return min((float(np.mean(np.log(totals + k * vocab_size) - np.log(counts + k))), k) for k in K_GRID)


def _tokens(indexed: IndexedDataset, parts: list[tuple[int, int]], limit: int) -> np.ndarray:
    """Return all tokens in the given ranges, as int64.

    If they hold more than `limit` tokens, only the beginning of each range is returned, in proportion to its
    length.
    """
    lengths = [int(indexed.lengths[first:last].sum(dtype=np.int64)) for first, last in parts]
    share = min(limit / max(sum(lengths), 1), 1.0)
    found = [np.empty(0, np.int64)]
    for (first, _), length in zip(parts, lengths, strict=True):
        if length:
            start = int(indexed.pointers[first]) // indexed.dtype.itemsize
            found.append(indexed.tokens[start : start + int(share * length)].astype(np.int64))
    return np.concatenate(found)


def _stored(dataset: DatasetFiles) -> list[dict[str, Any]]:
    try:
        return files.read_json(dataset.baselines_json) or []
    except ValueError as error:
        raise DataError(f"{error}. Remove the file; it will be computed again.") from None
