"""Packs complete examples into samples, isolated from each other, for data.packing: best_fit.

    .bin/.idx (+ _loss_mask)
        -> pieces of the split
        -> bins of each epoch, cached in index-cache/
        -> PackedDataset

Each example in a sample has positions from 0, a separate segment of cu_seqlens, and only its own tokens as
labels. The unused positions at the end form a segment of padding outside the loss. Samples are numbered
through the epochs. A pass is a fixed number of epochs and is stored as one index. Further passes never change
earlier positions, and no pass depends on how many samples a run requests.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import OpenDataset, in_loss
from nbtrain.dataset.samples.gpt_index import Allocate
from nbtrain.dataset.samples.index_files import cached_arrays, opened_pass
from nbtrain.dataset.samples.packed_index import (
    COUNTS,
    MixedSource,
    PackedIndex,
    Pieces,
    build_pass,
    build_pieces,
    epochs_per_pass,
)
from nbtrain.dataset.samples.sample import Sample
from nbtrain.dataset.samples.split_ranges import sources_of_split

logger = logging.getLogger(__name__)

INDEX_VERSION = 1
Index = TypeVar("Index", Pieces, PackedIndex)


class PackedDataset:
    """The packed samples of one split.

    Sample.dataset and dataset_ids are indices into `dataset_names`, the names of the sources.
    """

    def __init__(
        self,
        opened: OpenDataset,
        sources: list[MixedSource],
        seq_length: int,
        index_samples: int,
        num_samples: int,
        seed: int,
        split: str = "train",
    ):
        self.files = opened.files
        self.split = split
        self.dataset_sha256 = opened.manifest.dataset_sha256
        self.sources = sources
        self.seq_length = seq_length
        self.index_samples = index_samples
        self.num_samples = max(num_samples, index_samples)
        self.seed = seed
        self.pad_id = opened.manifest.eod_id or 0
        self.indexed, self.mask = opened.indexed, opened.loss_mask
        self.dataset_names = tuple(dict.fromkeys(source.name for source in sources))
        self._dataset_of_source = np.array(
            [self.dataset_names.index(source.name) for source in sources], np.int16
        )
        self.pieces = _cached(self.files.index_cache, self._description(), Pieces, self._build_pieces)
        self._weights = [source.weight for source in sources]
        self.epochs_per_pass = epochs_per_pass(self.pieces, self._weights, seq_length)
        self._open: OrderedDict[int, PackedIndex] = OrderedDict()
        ends = [0]
        while ends[-1] < self.num_samples or len(ends) == 1:
            ends.append(ends[-1] + len(self._pass(len(ends) - 1)))
        self._ends = np.array(ends, np.int64)

    def __len__(self) -> int:
        """Return the number of readable positions, at least num_samples."""
        return int(self._ends[-1])

    @property
    def num_documents(self) -> int:
        """Number of sequences in the split, including those without a label in the loss."""
        return sum(len(source) for source in self.sources)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the split, each counted once."""
        return sum(
            int(self.indexed.lengths[source.first : source.last].sum(dtype=np.int64))
            for source in self.sources
        )

    @property
    def samples_per_pass(self) -> int:
        """Number of samples in the first pass; other passes have about the same number."""
        return int(self._ends[1])

    @property
    def num_epochs(self) -> float:
        """Number of epochs in num_samples samples; the sources count by their weights."""
        number, row = self._locate(self.num_samples - 1)
        index = self._pass(number)
        epoch = int(np.searchsorted(index.epoch_ends, row, side="right"))
        first = int(index.epoch_ends[epoch - 1]) if epoch else 0
        part = (row + 1 - first) / (int(index.epoch_ends[epoch]) - first)
        return number * self.epochs_per_pass + epoch + part

    @property
    def counts(self) -> dict[str, int]:
        """Number of examples packed, cut, truncated and dropped; see packed_index.COUNTS."""
        return counts_of(self.pieces)

    @property
    def fill(self) -> float:
        """Fraction of the first pass that is not padding."""
        index = self._pass(0)
        slots = int(self.pieces.rows[index.items, 2].sum(dtype=np.int64))
        return slots / (len(index) * self.seq_length)

    def sample(self, position: int) -> Sample:
        """Return the sample at a position in the run's order. Raises IndexError past the end."""
        number, row = self._locate(position)
        index = self._pass(number)
        items = index.items[index.offsets[row] : index.offsets[row + 1]]
        length = self.seq_length
        tokens, labels = np.full(length, self.pad_id, np.int64), np.full(length, self.pad_id, np.int64)
        loss_mask = np.zeros(length, np.float32)
        position_ids = np.empty(length, np.int64)
        cu_seqlens = np.full(length + 1, length, np.int32)
        datasets = self._dataset_of_source[
            np.searchsorted(self.pieces.source_offsets, items, side="right") - 1
        ]
        dataset_ids = np.zeros(length, np.int16)
        start = 0
        for place, (sequence, offset, slots) in enumerate(self.pieces.rows[items].tolist()):
            stop = start + slots
            read = self.indexed.get(sequence, offset, slots + 1)
            tokens[start:stop], labels[start:stop] = read[:-1], read[1:]
            loss_mask[start:stop] = (
                1 if self.mask is None else in_loss(self.mask.get(sequence, offset + 1, slots))
            )
            position_ids[start:stop] = np.arange(slots)
            dataset_ids[start:stop] = datasets[place]
            cu_seqlens[place] = start
            start = stop
        position_ids[start:] = np.arange(length - start)
        cu_seqlens[len(items)] = start
        if len(self.dataset_names) == 1:
            return Sample(tokens, labels, loss_mask, position_ids, cu_seqlens)
        return Sample(tokens, labels, loss_mask, position_ids, cu_seqlens, dataset_ids=dataset_ids)

    def _locate(self, position: int) -> tuple[int, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is out of range for {len(self)} positions")
        number = int(np.searchsorted(self._ends, position, side="right")) - 1
        return number, int(position) - int(self._ends[number])

    def _description(self) -> dict:
        return {
            "packed_index_version": INDEX_VERSION,
            "dataset_sha256": self.dataset_sha256,
            "sources": [[source.first, source.last] for source in self.sources],
            "seq_length": self.seq_length,
        }

    @property
    def _without_it(self) -> str:
        """Return a clause that says how to run without this split; "" for the training split."""
        return "" if self.split == "train" else ", or set evaluation.eval_iters: 0 to skip this split"

    def _build_pieces(self) -> Pieces:
        # All lengths determine where examples are cut, so they must all be valid.
        self.indexed.check()
        pieces = build_pieces(self.indexed, self.mask, self.sources, self.seq_length)
        left_out = _left_out(counts_of(pieces), self.seq_length)
        if not len(pieces.rows):
            raise DataError(
                f"{display(self.files.prefix)}: the {self.split} split of "
                f"{' and '.join(self.dataset_names)} has no token in the loss: {left_out}. Raise "
                f"model.seq_length = {self.seq_length:,}, or fix the sources{self._without_it}."
            )
        if left_out:
            logger.warning("%s: %s.", printable(display(self.files.prefix)), left_out)
        return pieces

    def _pass(self, number: int) -> PackedIndex:
        return opened_pass(self._open, number, self._stored)

    def _stored(self, number: int) -> PackedIndex:
        first = number * self.epochs_per_pass
        description = {
            **self._description(),
            "weights": self._weights,
            "epochs": [first, first + self.epochs_per_pass],
            "seed": self.seed,
        }

        def build() -> PackedIndex:
            return build_pass(
                self.pieces, self._weights, self.seq_length, self.seed, first, self.epochs_per_pass
            )

        return _cached(self.files.index_cache, description, PackedIndex, build)


def counts_of(pieces: Pieces) -> dict[str, int]:
    return dict(zip(COUNTS, pieces.counts.tolist(), strict=True))


def _left_out(counts: dict[str, int], seq_length: int) -> str:
    limit = f"{seq_length + 1:,} tokens (seq_length + 1)"
    reasons = [
        (counts["truncated"], f"longer than {limit}: truncated"),
        (counts["nothing_learnt"], f"without a token in the loss among the first {limit}: skipped"),
        (counts["too_short"], "with fewer than 2 tokens: skipped"),
    ]
    return "; ".join(f"{counted(count, 'example')} {what}" for count, what in reasons if count)


def build_split(
    opened: OpenDataset, config: RunConfig, split: str, index_samples: int, num_samples: int
) -> PackedDataset | None:
    """Return a split's packed samples, or None if the split is empty in every source. Raises DataError."""
    own = sources_of_split(config, opened, split)
    if not any(len(source) for source in own):
        return None
    return PackedDataset(
        opened, own, config.model.seq_length, index_samples, num_samples, config.data.seed, split
    )


def _cached(folder: Path, description: dict, kind: type[Index], build: Callable[[], Index]) -> Index:
    """Return the arrays for `description` as the named tuple `kind`, memory-mapped from `folder`."""

    def fill(allocate: Allocate) -> None:
        for name, array in build()._asdict().items():
            allocate(name, array.shape, array.dtype)[...] = array

    return kind(**cached_arrays(folder, description, kind._fields, fill))
