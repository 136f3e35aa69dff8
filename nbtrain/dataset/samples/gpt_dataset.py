"""Samples of a prepared dataset: int64 arrays of seq_length + 1 tokens, by position in the run's order.

    .bin/.idx -> split (documents, contiguous) -> GPTIndex of each split, cached in index-cache/ -> GPTDataset
    several datasets -> BlendedDataset (gpt_blend.py)
    whole documents, packed -> PackedDataset (packed_dataset.py)

Training reads positions 0 to index_samples - 1, and possibly further. A run that is later given more tokens
first reads the remaining samples of its epochs, then makes another pass over the same documents with
seed + 1, and so on, so earlier positions never change. With shuffle per_epoch, each pass is one epoch,
whatever the length of the run: the index takes the memory of one epoch, and the order does not depend on
train_tokens. Validation and test hold the samples of eval_iters global batches, the same samples every time.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from nbtrain.dataset.files import in_loss
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.samples.gpt_index import Allocate, GPTIndex, build_gpt_index
from nbtrain.dataset.samples.index_files import cached_arrays, opened_pass, store
from nbtrain.dataset.samples.sample import Sample

logger = logging.getLogger(__name__)

INDEX_VERSION = 1
ARRAYS = ("document_index", "sample_index", "shuffle_index")


class SampleDataset(Protocol):
    num_samples: int

    def __len__(self) -> int: ...

    def sample(self, position: int) -> Sample: ...

    @property
    def num_documents(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_epochs(self) -> float: ...


class SampleOptions(NamedTuple):
    """Options that determine a sample's arrays other than tokens and labels."""

    reset_position_ids: bool = False
    inter_document_masking: bool = False
    eod_mask_loss: bool = False
    eod_id: int | None = None


PLAIN = SampleOptions()


class GPTDataset:
    """One split, whose `dataset[i]` is int64 [seq_length + 1].

    The first seq_length entries are the tokens, the last seq_length entries the labels.
    """

    def __init__(
        self,
        indexed: IndexedDataset,
        index_cache: Path,
        dataset_sha256: str,
        bounds: tuple[int, int],
        seq_length: int,
        index_samples: int,
        num_samples: int,
        seed: int,
        shuffle: str = "megatron",
        options: SampleOptions = PLAIN,
        mask: IndexedDataset | None = None,
    ):
        """Read or build the split's index.

        `mask` holds the loss mask (see in_loss()); None puts all tokens in the loss.
        """
        self.indexed = indexed
        self.index_cache = index_cache
        self.dataset_sha256 = dataset_sha256
        self.bounds = bounds
        self.seq_length = seq_length
        # 1 requests the fewest epochs that provide one sample, which is nearly always a single epoch.
        self.index_samples = index_samples if shuffle == "megatron" else 1
        self.num_samples = max(num_samples, index_samples)
        self.seed = seed
        self.options = options
        self.mask = mask
        self._open: OrderedDict[int, GPTIndex] = OrderedDict()
        self.samples_per_pass = len(self._pass(0))
        self.num_passes = max(1, -(-self.num_samples // self.samples_per_pass))
        for number in range(1, self.num_passes):
            store(self.index_cache, self._description(number), ARRAYS, self._builder(number))

    def __len__(self) -> int:
        """Return the number of readable positions, at least num_samples."""
        return self.samples_per_pass * self.num_passes

    def __getstate__(self) -> dict[str, Any]:
        # A worker process maps the index itself; a pickled memmap would carry the whole array.
        return {**self.__dict__, "_open": OrderedDict()}

    @property
    def num_documents(self) -> int:
        return self.bounds[1] - self.bounds[0]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the split, each counted once."""
        return int(self.indexed.lengths[self.bounds[0] : self.bounds[1]].sum(dtype=np.int64))

    @property
    def num_epochs(self) -> float:
        """Number of epochs over the split's tokens that num_samples samples amount to."""
        return self.num_samples * self.seq_length / self.num_tokens

    def __getitem__(self, position: int) -> np.ndarray:
        return self._gather(self.indexed, self.parts(position))

    def parts(self, position: int) -> list[tuple[int, int, int]]:
        """Return (sequence, first token, number of tokens) for each document in a sample.

        Together they cover seq_length + 1 tokens.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} is out of range for {len(self)} positions")
        number, entry = divmod(int(position), self.samples_per_pass)
        index = self._pass(number)
        row = int(index.shuffle_index[entry])
        (place, offset), (last_place, last_offset) = index.sample_index[row : row + 2].tolist()
        if place == last_place:
            return [(int(index.document_index[place]), offset, last_offset + 1 - offset)]
        found = []
        lengths = self.indexed.lengths
        for sequence in index.document_index[place:last_place].tolist():
            found.append((sequence, offset, int(lengths[sequence]) - offset))
            offset = 0
        found.append((int(index.document_index[last_place]), 0, last_offset + 1))
        return found

    def sample(self, position: int) -> Sample:
        """Return a sample, with data.reset_position_ids, inter_document_masking and eod_mask_loss applied."""
        parts = self.parts(position)
        sequence = self._gather(self.indexed, parts)
        tokens, labels = sequence[:-1], sequence[1:]
        options, length = self.options, self.seq_length
        loss_mask = position_ids = cu_seqlens = None
        if self.mask is not None:
            loss_mask = in_loss(self._gather(self.mask, parts)[1:]).astype(np.float32)
        if options.eod_mask_loss:
            learnt = (tokens != options.eod_id).astype(np.float32)
            loss_mask = learnt if loss_mask is None else loss_mask * learnt
        if options.reset_position_ids or options.inter_document_masking:
            # Computed from the parts, because a text may contain the EOD id and a document may lack it.
            own = np.array([size for _, _, size in parts if size])
            starts = np.cumsum(own) - own
            starts = starts[starts < length]
            if options.reset_position_ids:
                sizes = np.diff(starts, append=length)
                position_ids = np.arange(length) - np.repeat(starts, sizes)
            if options.inter_document_masking:
                cu_seqlens = np.full(length + 1, length, np.int32)
                cu_seqlens[: len(starts)] = starts
        return Sample(tokens, labels, loss_mask, position_ids, cu_seqlens)

    def _gather(self, indexed: IndexedDataset, parts: list[tuple[int, int, int]]) -> np.ndarray:
        gathered = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for sequence, offset, size in parts:
            gathered[filled : filled + size] = indexed.get(sequence, offset, size)
            filled += size
        return gathered

    def _pass(self, number: int) -> GPTIndex:
        def open_index(number: int) -> GPTIndex:
            description, build = self._description(number), self._builder(number)
            return GPTIndex(**cached_arrays(self.index_cache, description, ARRAYS, build))

        return opened_pass(self._open, number, open_index)

    def _description(self, number: int) -> dict[str, Any]:
        return {
            "index_version": INDEX_VERSION,
            "dataset_sha256": self.dataset_sha256,
            "sequences": list(self.bounds),
            "seq_length": self.seq_length,
            "samples": self.index_samples,
            "seed": (self.seed + number) % 2**32,
        }

    def _builder(self, number: int) -> Callable[[Allocate], GPTIndex]:
        def build(allocate: Allocate) -> GPTIndex:
            # All lengths determine the index, so they must all be valid.
            self.indexed.check()
            seed = self._description(number)["seed"]
            return build_gpt_index(
                self.indexed.lengths, *self.bounds, self.seq_length, self.index_samples, seed, allocate
            )

        return build
