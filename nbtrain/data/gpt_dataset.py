"""Samples of a prepared dataset: int64 arrays of seq_length + 1 tokens, by position in the run's order.

    .bin/.idx -> split (documents, contiguous) -> GPTIndex of each split, cached in index-cache/ -> GPTDataset

Training asks for positions 0 .. index_samples and possibly on: a run that is given more tokens later reads on
in the samples that its epochs hold, then in a further pass over the same documents with seed + 1, and so on. So
positions below never change. Validation and test hold eval_iters global batches, the same ones every time.
"""

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtrain import files
from nbtrain.config.schema import RunConfig
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest
from nbtrain.data.gpt_index import SPLIT_NAMES, GPTIndex, build_gpt_index, split_bounds, split_weights
from nbtrain.data.indexed import IndexedDataset
from nbtrain.data.state import DataState
from nbtrain.errors import DataError
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

INDEX_VERSION = 1
ARRAYS = ("document_index", "sample_index", "shuffle_index")


class GPTDataset:
    """One split. `dataset[i]` is int64 [seq_length + 1]; tokens are its first, labels its last seq_length."""

    def __init__(
        self,
        files_: DatasetFiles,
        manifest: DatasetManifest,
        bounds: tuple[int, int],
        seq_length: int,
        index_samples: int,
        num_samples: int,
        seed: int,
    ):
        self.files = files_
        self.dataset_sha256 = manifest.dataset_sha256
        self.bounds = bounds
        self.seq_length = seq_length
        self.index_samples = index_samples
        self.num_samples = max(num_samples, index_samples)
        self.seed = seed
        self.indexed = IndexedDataset(files_.prefix)
        first = self._pass(0)
        self.samples_per_pass = len(first)
        self._passes = {0: first}
        for number in range(1, -(-self.num_samples // self.samples_per_pass)):
            self._passes[number] = self._pass(number)

    def __len__(self) -> int:
        """Positions that may be asked for: at least num_samples."""
        return self.samples_per_pass * len(self._passes)

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
        if not 0 <= position < len(self):
            raise IndexError(f"position {position} of {len(self)}")
        number, entry = divmod(int(position), self.samples_per_pass)
        index = self._passes[number]
        row = int(index.shuffle_index[entry])
        (place, offset), (last_place, last_offset) = index.sample_index[row : row + 2].tolist()
        sample = np.empty(self.seq_length + 1, np.int64)
        filled = 0
        for current in range(place, last_place + 1):
            stop = last_offset + 1 if current == last_place else None
            length = None if stop is None else stop - offset
            part = self.indexed.get(int(index.document_index[current]), offset, length)
            sample[filled : filled + len(part)] = part
            filled += len(part)
            offset = 0
        return sample

    def batch(self, positions: np.ndarray) -> np.ndarray:
        """Samples of several positions, int64 [len(positions), seq_length + 1]."""
        return np.stack([self[position] for position in positions])

    def _pass(self, number: int) -> GPTIndex:
        seed = (self.seed + number) % 2**32
        description = {
            "index_version": INDEX_VERSION,
            "dataset_sha256": self.dataset_sha256,
            "sequences": list(self.bounds),
            "seq_length": self.seq_length,
            "samples": self.index_samples,
            "seed": seed,
        }
        return cached_index(self.files.index_cache, description, self.indexed.lengths)


@dataclass(frozen=True)
class GPTDatasets:
    """The three splits of a run; None where nothing is to be read or the split is empty."""

    train: GPTDataset
    valid: GPTDataset | None
    test: GPTDataset | None
    manifest: DatasetManifest
    state: DataState
    """Where a fresh run begins."""


def build(config: RunConfig, index_samples: int | None = None) -> GPTDatasets:
    """The datasets of a run, their indices taken from index-cache/ or put there.

    `index_samples` is the one of the run's data state when it is resumed; None takes data.index_samples, else
    what train_tokens needs. Raises DataError where the data is missing, damaged or does not fit the run.
    """
    files_ = DatasetFiles.of(config)
    manifest = files_.require(config.tokenizer.vocab_size)
    if index_samples is None:
        index_samples = config.data.index_samples or config.train_samples
    evaluation_samples = config.evaluation.eval_iters * config.batch.global_batch_size
    wanted = {
        "train": (index_samples, max(index_samples, config.batch_schedule.samples_after(config.train_steps))),
        "valid": (evaluation_samples, evaluation_samples),
        "test": (evaluation_samples, evaluation_samples),
    }
    num_sequences = IndexedDataset(files_.prefix).lengths.shape[0]
    weights = split_weights(config.data.split)
    splits: dict[str, GPTDataset | None] = {}
    for name, weight, bounds in zip(
        SPLIT_NAMES,
        weights,
        split_bounds(config.data.split, config.data.split_rule, num_sequences),
        strict=True,
    ):
        splits[name] = None
        if bounds[0] == bounds[1]:
            message = (
                f"{display(files_.prefix)}: split {config.data.split} ({config.data.split_rule}) of {num_sequences:,} "
                f"documents leaves none for {name}."
            )
            if name == "train":
                raise DataError(f"{message} Use more text or another data.split.")
            if weight and evaluation_samples:
                logger.warning("%s It is left out; use more text or another data.split.", message)
        elif wanted[name][0]:
            splits[name] = GPTDataset(
                files_, manifest, bounds, config.model.seq_length, *wanted[name], config.data.seed
            )
    train = splits["train"]
    assert train is not None
    state = DataState(
        seed=config.data.seed,
        split=config.data.split,
        split_rule=config.data.split_rule,
        dataset_sha256=manifest.dataset_sha256,
        index_samples=index_samples,
    )
    return GPTDatasets(train, splits["valid"], splits["test"], manifest, state)


def cached_index(folder: Path, description: dict, lengths: np.ndarray) -> GPTIndex:
    """The index that `description` decides, memory-mapped from `folder`; built and stored where it is not there.

    The description is stored last, so an index without one does not count. Two processes that build the same at
    one time write the same bytes, each by rename.
    """
    text = json.dumps(description, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    paths = {name: folder / f"{key}-{name}.npy" for name in ARRAYS}
    if files.read_json(folder / f"{key}.json") != description or not all(
        path.is_file() for path in paths.values()
    ):
        folder.mkdir(parents=True, exist_ok=True)
        first, last = description["sequences"]
        index = build_gpt_index(
            lengths, first, last, description["seq_length"], description["samples"], description["seed"]
        )
        for name, path in paths.items():
            with files.atomic_writer(path) as stream:
                np.save(stream, getattr(index, name), allow_pickle=False)
        files.write_json(folder / f"{key}.json", description)
    try:
        # asarray: the same memory as a plain array, without memmap's price at every row.
        arrays = {
            name: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for name, path in paths.items()
        }
        return GPTIndex(**arrays)
    except ValueError as error:
        raise DataError(
            f"{display(folder / key)}-*.npy: a cached index cannot be read ({error}). Remove {display(folder)}; it is "
            "built again by itself."
        ) from error
