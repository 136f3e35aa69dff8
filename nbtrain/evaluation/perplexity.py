"""Loss of a model on a prepared dataset: perplexity, and bits per byte for comparisons across tokenizers.

The tokens of a split are read in the order of the .bin file, in windows whose length is the model's sequence
length. Each token except the very first is predicted once, from the previous tokens in its window. If the run
separates documents (data.packing: best_fit, data.inter_document_masking or data.reset_position_ids), windows
end at document boundaries, and the first token of each document is not predicted. Windows without a token in
the training loss are skipped.

    loss           mean of -ln p(token) over the tokens in the training loss (loss mask, eod_mask_loss)
    perplexity     exp(loss); omitted if it is too large for a float
    bits_per_byte  sum of -log2 p(token) / number of bytes in the tokens' text. End-of-document tokens, which
                   have no text, are not counted in either sum (the formula of The Pile, arXiv:2101.00027)

Standard errors are computed over windows (estimates.py).
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.run_directory.evaluation_files import Estimate, file_name
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import dataset_dir, display
from nbtrain.config.arithmetic.splits import SPLIT_NAMES
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.blend import open_pair
from nbtrain.dataset.files import DatasetFiles, OpenDataset, in_loss
from nbtrain.dataset.samples.split_ranges import split_ranges
from nbtrain.dataset.tokenizer_problem import tokenizer_problem
from nbtrain.evaluation.estimates import perplexity_of, ratio
from nbtrain.evaluation.requests import Outcome, Scored, ScoreRequest

SPLITS = (*SPLIT_NAMES, "all")


class Perplexity:
    """The evaluation of one split of a dataset, for one run."""

    kind = "perplexity"
    unit = "tokens"

    def __init__(
        self,
        config: RunConfig,
        tokenizer: Tokenizer,
        dataset: DatasetFiles,
        split: str,
        is_own: bool,
        limit: int | None = None,
    ):
        """Open the dataset. `is_own` says whether the run was trained on this dataset.

        Raises DataError if the dataset does not fit the run, and ConfigError for an unknown split.
        """
        if split not in SPLITS:
            raise ConfigError(f"split = {split!r} must be one of {', '.join(SPLITS)}.")
        opened = open_pair(dataset, config.tokenizer.vocab_size)
        _check_tokenizer(opened, tokenizer, config)
        if any(source.get("kind") == "preference" for source in opened.manifest.sources):
            raise DataError(
                f"{display(dataset.manifest_json)}: the dataset has pairs of preferred and rejected answers, "
                "for which perplexity is not defined. Use another dataset (--data)."
            )
        self.source, names = _source(opened)
        self.source_sha256 = opened.manifest.dataset_sha256
        self.split: str | None = split
        self.name = file_name("perplexity", *names, split)
        self.limit = limit
        self._opened, self._tokenizer = opened, tokenizer
        data = config.data
        self._is_apart = data.isolates_documents or data.reset_position_ids
        self._masks_eod = data.eod_mask_loss
        every = [(0, len(opened.indexed))]
        self._ranges = every if split == "all" else split_ranges(config, opened, split, is_own)
        self._positions = config.model.seq_length
        self.total = sum(stop - start for start, stop in self._windows())
        if not self.total:
            raise DataError(
                f"{display(dataset.prefix)}: the split {split} has no tokens to predict (the dataset has "
                f"{counted(len(opened.indexed), 'sequence')}, and data.split is {data.split}). Use another "
                "split, or a larger dataset."
            )
        if opened.manifest.tokenizer_sha256 is None:
            self._check_ids()
        # For each scored window: nats, tokens in the loss, nats of the text, bytes of the text.
        self._sums: list[tuple[float, int, float, int]] = []
        self._asked: dict[int, tuple[int, int]] = {}
        self._bytes = np.full(tokenizer.vocab_size, -1, np.int64)
        self._has_unknown = False

    def requests(self) -> Iterator[ScoreRequest]:
        """Yield a request per window: the first token is the context, and the others are the continuation."""
        for number, (start, stop) in enumerate(self._windows()):
            self._asked[number] = (start, stop)
            tokens = self._opened.indexed.tokens[start : stop + 1].tolist()
            yield ScoreRequest(tokens[:1], [tokens[1:]])

    def take(self, number: int, scored: list[Scored]) -> int:
        """Add the losses of one window's tokens that are in the training loss.

        Return the number of predicted tokens in the window, including those that are not in the training
        loss.
        """
        start, stop = self._asked.pop(number)
        nats = -np.asarray(scored[0].logprobs, np.float64)
        labels = self._opened.indexed.tokens[start + 1 : stop + 1].astype(np.int64)
        learnt = self._learnt(start, stop)
        is_text = learnt & (labels != self._tokenizer.eod_id)
        length = int(self._lengths(labels[is_text]).sum())
        self._sums.append((float(nats[learnt].sum()), int(learnt.sum()), float(nats[is_text].sum()), length))
        return stop - start

    def outcome(self) -> Outcome:
        # Windows are scored in any order, and sums of floats depend on the order, so they are sorted.
        nats, tokens, text_nats, text_bytes = (np.array(column) for column in zip(*sorted(self._sums)))
        loss = ratio(nats, tokens)
        metrics = {"loss": loss}
        if (perplexity := perplexity_of(loss)) is not None:
            metrics = {"perplexity": perplexity, **metrics}
        if text_bytes.sum() and not self._has_unknown:
            bits = ratio(text_nats, text_bytes)
            stderr = None if bits.stderr is None else bits.stderr / math.log(2)
            metrics["bits_per_byte"] = Estimate(bits.value / math.log(2), stderr)
        counts = {"windows": len(nats), "tokens": int(tokens.sum()), "bytes": int(text_bytes.sum())}
        return Outcome(counts, metrics, {})

    def _check_ids(self) -> None:
        """Raise DataError if a token id is outside the tokenizer's vocabulary.

        This is possible for a dataset that does not record its tokenizer.
        """
        tokens, entries = self._opened.indexed.tokens, self._tokenizer.vocab_size
        largest = max(int(tokens[start : stop + 1].max()) for start, stop in self._windows())
        if largest >= entries:
            raise DataError(
                f"{display(self._opened.files.bin)} contains the token id {largest:,}, but the run's "
                f"tokenizer has {entries:,} entries, so the data was encoded with another tokenizer. Use "
                "data that was encoded with the run's tokenizer."
            )

    def _windows(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) for each of the first `limit` windows.

        The tokens from start + 1 to stop, counted from the beginning of the .bin file, are predicted.
        """
        return itertools.islice(self._all_windows(), self.limit)

    def _all_windows(self) -> Iterator[tuple[int, int]]:
        for first, last in self._texts():
            for start in range(first, last - 1, self._positions):
                stop = min(start + self._positions, last - 1)
                if self._learnt(start, stop).any():
                    yield start, stop

    def _texts(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of tokens that no window may cross, as (first token, last token + 1).

        They are the documents if the run separates documents, and otherwise the ranges of the split.
        """
        indexed = self._opened.indexed
        for first, last in self._ranges:
            if not self._is_apart:
                start = int(indexed.pointers[first]) // indexed.dtype.itemsize
                yield start, start + int(indexed.lengths[first:last].sum(dtype=np.int64))
                continue
            for sequence in range(first, last):
                start = int(indexed.pointers[sequence]) // indexed.dtype.itemsize
                yield start, start + int(indexed.lengths[sequence])

    def _learnt(self, start: int, stop: int) -> np.ndarray:
        """Return a mask that says which of the tokens from start + 1 to stop are in the training loss."""
        learnt = np.ones(stop - start, bool)
        if (mask := self._opened.loss_mask) is not None:
            learnt &= in_loss(mask.tokens[start + 1 : stop + 1])
        if self._masks_eod:
            learnt &= self._opened.indexed.tokens[start:stop] != self._tokenizer.eod_id
        return learnt

    def _lengths(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of UTF-8 bytes in the text of each token in `labels`."""
        for token in np.unique(labels[self._bytes[labels] < 0]):
            self._bytes[token] = len(self._tokenizer.bytes_of(int(token)))
            self._has_unknown |= token == self._tokenizer.unknown_id
        return self._bytes[labels]


def _source(opened: OpenDataset) -> tuple[str, list[str]]:
    """Return (the dataset's name in the record, the words from which the record's own name is formed).

    The words must be different for each .bin/.idx pair. For the pair in the data directory that a run trains
    on, the folder's name is enough. For other pairs, the words also contain the file's name and a hash,
    because several pairs may be in one folder, and several folders outside the data directory may have the
    same name.
    """
    files, manifest = opened.files, opened.files.own_manifest()
    folder = files.directory.name
    is_in_home = files.directory.parent == dataset_dir("x").parent
    if is_in_home and manifest is not None and manifest.stem == files.stem:
        return folder, [folder]
    return display(files.prefix), [folder, files.stem, opened.manifest.dataset_sha256[:8]]


def _check_tokenizer(opened: OpenDataset, tokenizer: Tokenizer, config: RunConfig) -> None:
    if found := tokenizer_problem(opened.manifest, tokenizer.directory, tokenizer.manifest):
        also = " To compare models with different tokenizers, use bits per byte." if found.of == "ids" else ""
        raise DataError(
            f"{display(opened.files.manifest_json)}: {found.what}. Prepare the dataset's text for "
            f"{config.name}, with tokenizer.name={config.tokenizer.name}.{also}"
        )
