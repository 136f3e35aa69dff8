"""Samples of a prepared dataset: int64 arrays of seq_length + 1 tokens, by position in the run's order.

    .bin/.idx -> split (documents, contiguous) -> GPTIndex of each split, cached in index-cache/ -> GPTDataset
    several of them -> BlendedDataset (gpt_blend.py); whole documents, packed -> PackedDataset (packed_dataset.py)

Training asks for positions 0 .. index_samples and possibly on: a run that is given more tokens later reads on
in the samples that its epochs hold, then in a further pass over the same documents with seed + 1, and so on. So
positions below never change. With shuffle per_epoch a pass is one epoch, whatever the run asks for: memory for one
epoch's index, and an order that does not depend on train_tokens. Validation and test hold eval_iters global
batches, the same ones every time.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from nbtrain.config.schema import RunConfig
from nbtrain.data.blend_files import BlendFiles, Entry
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest
from nbtrain.data.gpt_blend import BlendedDataset, BlendIndex, blend_sizes
from nbtrain.data.gpt_index import (
    SPLIT_NAMES,
    Allocate,
    GPTIndex,
    build_gpt_index,
    split_bounds,
    split_weights,
)
from nbtrain.data.index_files import cached_arrays, store
from nbtrain.data.indexed import IndexedDataset
from nbtrain.data.sample import Sample
from nbtrain.data.state import DataState
from nbtrain.errors import DataError
from nbtrain.terminal import printable
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

INDEX_VERSION = 1
ARRAYS = ("document_index", "sample_index", "shuffle_index")
# A step reads from one pass, or where one ends from two; a validation between steps has a dataset of its own.
OPEN_PASSES = 2


class SampleDataset(Protocol):
    """One split, however its samples are made."""

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
    """What a stream's samples carry besides tokens and labels."""

    reset_position_ids: bool = False
    inter_document_masking: bool = False
    eod_mask_loss: bool = False
    eod_id: int | None = None
    """Needed by eod_mask_loss."""


PLAIN = SampleOptions()


class GPTDataset:
    """One split. `dataset[i]` is int64 [seq_length + 1]; tokens are its first, labels its last seq_length."""

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
        """`mask`: 1 beside each token that is learnt; None learns all."""
        self.indexed = indexed
        self.index_cache = index_cache
        self.dataset_sha256 = dataset_sha256
        self.bounds = bounds
        self.seq_length = seq_length
        # The fewest epochs that give one sample: nearly always one.
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
        """Positions that may be asked for: at least num_samples."""
        return self.samples_per_pass * self.num_passes

    def __getstate__(self) -> dict[str, Any]:
        # A worker process maps the index itself; a pickled map would carry the whole array.
        return {**self.__dict__, "_open": OrderedDict()}

    @property
    def num_documents(self) -> int:
        return self.bounds[1] - self.bounds[0]

    @property
    def num_tokens(self) -> int:
        """Tokens of the split, once."""
        return int(self.indexed.lengths[self.bounds[0] : self.bounds[1]].sum(dtype=np.int64))

    @property
    def num_epochs(self) -> float:
        """How often num_samples go through the split's tokens."""
        return self.num_samples * self.seq_length / self.num_tokens

    def __getitem__(self, position: int) -> np.ndarray:
        return self._gather(self.indexed, self.parts(position))

    def parts(self, position: int) -> list[tuple[int, int, int]]:
        """(sequence, first token, tokens) of each document part of a sample; together seq_length + 1 tokens."""
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)}")
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
        """The sample with what data.reset_position_ids, inter_document_masking and eod_mask_loss ask for."""
        parts = self.parts(position)
        sequence = self._gather(self.indexed, parts)
        tokens, labels = sequence[:-1], sequence[1:]
        options, length = self.options, self.seq_length
        loss_mask = position_ids = cu_seqlens = None
        if self.mask is not None:
            loss_mask = self._gather(self.mask, parts)[1:].astype(np.float32)
        if options.eod_mask_loss:
            learnt = (tokens != options.eod_id).astype(np.float32)
            loss_mask = learnt if loss_mask is None else loss_mask * learnt
        if options.reset_position_ids or options.inter_document_masking:
            # From the parts, not from EOD tokens: a text may hold their id, a document may have none.
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

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """Samples of several positions, int64 [len(positions), seq_length + 1]."""
        return np.stack([self[position] for position in positions])

    def _gather(self, indexed: IndexedDataset, parts: list[tuple[int, int, int]]) -> np.ndarray:
        gathered = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for sequence, offset, size in parts:
            gathered[filled : filled + size] = indexed.get(sequence, offset, size)
            filled += size
        return gathered

    # --- passes -------------------------------------------------------------------------------------------------

    def _pass(self, number: int) -> GPTIndex:
        index = self._open.get(number)
        if index is None:
            index = GPTIndex(
                **cached_arrays(self.index_cache, self._description(number), ARRAYS, self._builder(number))
            )
            self._open[number] = index
            if len(self._open) > OPEN_PASSES:
                self._open.popitem(last=False)
        return index

    def _description(self, number: int) -> dict[str, Any]:
        return {
            "index_version": INDEX_VERSION,
            "dataset_sha256": self.dataset_sha256,
            "sequences": list(self.bounds),
            "seq_length": self.seq_length,
            "samples": self.index_samples,
            "seed": (self.seed + number) % 2**32,
        }

    def _builder(self, number: int) -> Any:
        seed = self._description(number)["seed"]

        def build(allocate: Allocate) -> GPTIndex:
            # All lengths decide an index: none may be damaged.
            self.indexed.check()
            first, last = self.bounds
            return build_gpt_index(
                self.indexed.lengths, first, last, self.seq_length, self.index_samples, seed, allocate
            )

        return build


@dataclass(frozen=True)
class GPTDatasets:
    """The three splits of a run; None where nothing is to be read or the split is empty."""

    train: Any
    """A SampleDataset, as the other two."""
    valid: Any | None
    test: Any | None
    manifest: DatasetManifest
    state: DataState
    """Where a fresh run begins."""
    names: tuple[str, ...] = ()
    """Of the datasets that samples number (Sample.dataset); empty where there is one only."""
    is_masked: bool = False
    """Whether samples have a loss_mask."""


def build(config: RunConfig, index_samples: int | None = None, skipped_samples: int = 0) -> GPTDatasets:
    """The datasets of a run, their indices taken from index-cache/ or put there.

    `index_samples` is the one of the run's data state when it is resumed; None takes data.index_samples, else
    what train_tokens needs. `skipped_samples` are passed over, so that the run reads so much further. Raises DataError where the data is missing, damaged or does not fit the run.
    """
    files_ = DatasetFiles.of(config)
    manifest = files_.require(config.tokenizer.vocab_size)
    if index_samples is None:
        index_samples = config.data.index_samples or config.train_samples
    train_samples = config.batch_schedule.samples_after(config.train_steps) + skipped_samples
    train_samples = max(index_samples, train_samples)
    evaluation_samples = config.evaluation.eval_iters * config.batch.global_batch_size
    wanted = {
        "train": (index_samples, train_samples),
        "valid": (evaluation_samples, evaluation_samples),
        "test": (evaluation_samples, evaluation_samples),
    }
    weights = dict(zip(SPLIT_NAMES, split_weights(config.data.split), strict=True))
    build_split = _builder_of(config, files_, manifest)
    splits: dict[str, Any] = {}
    for name, (own_index_samples, num_samples) in wanted.items():
        splits[name] = None
        if num_samples:
            splits[name] = build_split(name, own_index_samples, num_samples)
        if splits[name] is None and (name == "train" or (weights[name] and num_samples)):
            message = (
                f"{display(files_.prefix)}: split {config.data.split} ({config.data.split_rule}) of "
                f"{manifest.counts['documents']:,} documents leaves none for {name}."
            )
            if name == "train":
                raise DataError(f"{message} Use more text or another data.split.")
            logger.warning("%s It is left out; use more text or another data.split.", printable(message))
    state = DataState(
        seed=config.data.seed,
        split=config.data.split,
        split_rule=config.data.split_rule,
        dataset_sha256=manifest.dataset_sha256,
        index_samples=index_samples,
        shuffle=config.data.shuffle,
        packing=config.data.packing,
    )
    if (
        train_samples > index_samples
        and config.data.shuffle == "megatron"
        and config.data.packing == "stream"
    ):
        logger.info(
            "the order of training samples was fixed for %s; positions behind them are read on to %s, and none before "
            "them changes.",
            f"{index_samples:,}",
            f"{train_samples:,}",
        )
    if isinstance(files_, BlendFiles):
        names = tuple(entry.name for entry in files_.entries)
    else:
        names = tuple(getattr(splits["train"], "dataset_names", ()))
    return GPTDatasets(
        splits["train"],
        splits["valid"],
        splits["test"],
        manifest,
        state,
        names if len(names) > 1 else (),
        _is_masked(splits["train"]),
    )


def _is_masked(dataset: Any) -> bool:
    if isinstance(dataset, BlendedDataset):
        return any(_is_masked(part) for part in dataset.datasets)
    if isinstance(dataset, GPTDataset):
        return dataset.options.eod_mask_loss or dataset.mask is not None
    return True  # packed: padding is not learnt


class _Builder(Protocol):
    def __call__(self, split: str, index_samples: int, num_samples: int) -> SampleDataset | None: ...


def _builder_of(config: RunConfig, files_: DatasetFiles, manifest: DatasetManifest) -> _Builder:
    if config.data.packing == "best_fit":
        from nbtrain.data import packed_dataset  # which a stream does not need

        def packed(split: str, index_samples: int, num_samples: int) -> SampleDataset | None:
            return packed_dataset.build_split(files_, manifest, split, config, index_samples, num_samples)

        return packed
    if isinstance(files_, BlendFiles):
        return _BlendBuilder(config, files_, manifest)
    indexed = IndexedDataset(files_.prefix)

    def stream(split: str, index_samples: int, num_samples: int) -> SampleDataset | None:
        return _stream(
            config, files_, indexed, manifest, files_.index_cache, split, index_samples, num_samples
        )

    return stream


def _stream(
    config: RunConfig,
    files_: DatasetFiles,
    indexed: IndexedDataset,
    manifest: DatasetManifest,
    index_cache: Path,
    split: str,
    index_samples: int,
    num_samples: int,
) -> GPTDataset | None:
    data = config.data
    bounds = _bounds(config, split, len(indexed))
    if bounds[0] == bounds[1]:
        return None
    if data.eod_mask_loss and manifest.eod_id is None:
        raise DataError(
            f"{config.where('data.eod_mask_loss')}: data.eod_mask_loss needs the end-of-document token, and "
            f"{display(files_.directory)} does not say which it is. Set it to false, or prepare the dataset."
        )
    return GPTDataset(
        indexed,
        index_cache,
        manifest.dataset_sha256,
        bounds,
        config.model.seq_length,
        index_samples,
        num_samples,
        data.seed,
        data.shuffle,
        SampleOptions(
            data.reset_position_ids, data.inter_document_masking, data.eod_mask_loss, manifest.eod_id
        ),
        files_.open_loss_mask(indexed) if files_.has_loss_mask else None,
    )


def _bounds(config: RunConfig, split: str, num_sequences: int) -> tuple[int, int]:
    bounds = split_bounds(config.data.split, config.data.split_rule, num_sequences)
    return bounds[SPLIT_NAMES.index(split)]


class _BlendBuilder:
    """Splits of a blend: each dataset is cut by data.split, then they are mixed."""

    def __init__(self, config: RunConfig, files_: BlendFiles, manifest: DatasetManifest):
        self.config = config
        self.files = files_
        # What one dataset knows of the end-of-document token holds for all: they have one tokenizer.
        self.manifests = [replace(entry.require(None), eod_id=manifest.eod_id) for entry in files_.entries]
        self.indexed = [IndexedDataset(entry.files.prefix) for entry in files_.entries]

    def __call__(self, split: str, index_samples: int, num_samples: int) -> BlendedDataset | None:
        config, entries = self.config, self.files.entries
        empty = [
            number
            for number, indexed in enumerate(self.indexed)
            if len(set(_bounds(config, split, len(indexed)))) == 1
        ]
        present = [number for number in range(len(entries)) if number not in empty]
        if empty and (split == "train" or present):
            message = (
                f"{self.files.where}: split {config.data.split} ({config.data.split_rule}) leaves no document of "
                f"{', '.join(entries[number].name for number in empty)} for {split}."
            )
            if split == "train":
                raise DataError(f"{message} Use more text, or take it out of the blend.")
            logger.warning("%s %s blends the others.", printable(message), split)
        if not present:
            return None
        rule = config.data.split_rule
        sizes = blend_sizes(rule, [entries[number].weight for number in present], index_samples)
        # The choice of a sample does not depend on the size, so more samples go on in the same blend.
        index = BlendIndex(self.files.index_cache, rule, sizes.weights, max(sizes.blend, num_samples))
        asked, taken = index.counts(sizes.blend), index.counts(len(index.dataset_index))
        datasets = [
            self._dataset(number, split, own, most)
            for number, own, most in zip(present, sizes.samples, taken, strict=True)
        ]
        if rule == "megatron-core" and config.data.shuffle == "megatron":
            for number, dataset, needed in zip(present, datasets, asked, strict=True):
                self._check_size(entries[number], split, dataset, needed)
        return BlendedDataset(datasets, present, index, num_samples)

    def _dataset(self, number: int, split: str, index_samples: int, num_samples: int) -> GPTDataset:
        entry = self.files.entries[number]
        dataset = _stream(
            self.config,
            entry.files,
            self.indexed[number],
            self.manifests[number],
            entry.index_cache,
            split,
            index_samples,
            num_samples,
        )
        assert dataset is not None
        return dataset

    def _check_size(self, entry: Entry, split: str, dataset: GPTDataset, needed: int) -> None:
        if needed > dataset.samples_per_pass:
            raise DataError(
                f"{self.files.where}: the {split} blend takes {needed:,} samples of {entry.name}, which was asked for "
                f"{dataset.index_samples:,} and holds {dataset.samples_per_pass:,} in whole epochs; megatron-core refuses "
                "that. Ask for more samples, or use data.split_rule: megatron-deepspeed, which reads on."
            )
