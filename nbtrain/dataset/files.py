"""Paths of one dataset's files in the data directory, and functions that open them.

data/dataset/<name>/
    <key>_document.bin, .idx            indexed.py: a pair for each key in data.json_key and
                                        data.extra_json_keys
    <key>_sentence.bin, .idx            instead, if data.split_sentences splits documents into sequences
    <key>_document_loss_mask.bin, .idx  uint8 per token: 0 if it is not in the loss; absent if all are
    manifest.json                       manifest.py; written last; a dataset without it is incomplete
    index-cache/                        samples/index_files.py
    baselines.json                      views/baselines.py
    broken-records.jsonl                corpus/documents/broken_records.py; only if there are any
    .encode/                            encode/shard.py: shards of an unfinished encoding
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import dataset_dir, display
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.records import BROKEN_RECORDS
from nbtrain.dataset.manifest import MASK_SUFFIX, DatasetManifest, manifest_dtype, read_manifest
from nbtrain.dataset.pair_paths import bin_path, idx_path, missing

if TYPE_CHECKING:
    # Imported on use, because planning a run without data needs no NumPy.
    import numpy as np

    from nbtrain.dataset.indexed import IndexedDataset


class DatasetFiles:
    """Paths of one dataset's files, which need not exist."""

    def __init__(self, directory: str | os.PathLike, json_key: str = "text", stem: str | None = None):
        self.directory = Path(directory)
        self.stem = stem or f"{json_key}_document"

    @classmethod
    def named(cls, name: str, json_key: str = "text") -> "DatasetFiles":
        """Return the files of the dataset `name` in the data directory, which need not exist."""
        return cls(dataset_dir(name), json_key)

    def __repr__(self) -> str:
        return f"DatasetFiles({str(self.directory)!r}, stem={self.stem!r})"

    def pair(self, stem: str) -> "DatasetFiles":
        return DatasetFiles(self.directory, stem=stem)

    @property
    def loss_mask(self) -> "DatasetFiles":
        """Pair that marks which of this pair's tokens are in the loss. It need not exist."""
        return self.pair(self.stem + MASK_SUFFIX)

    @property
    def has_loss_mask(self) -> bool:
        """Whether this pair has a loss mask. Without a mask, every token is in the loss."""
        return self.loss_mask.bin.is_file() or self.loss_mask.idx.is_file()

    @property
    def work(self) -> Path:
        """Folder that holds an encoding's shards until they are joined."""
        return self.directory / ".encode"

    @property
    def prefix(self) -> Path:
        return self.directory / self.stem

    @property
    def bin(self) -> Path:
        return bin_path(self.prefix)

    @property
    def idx(self) -> Path:
        return idx_path(self.prefix)

    @property
    def manifest_json(self) -> Path:
        return self.directory / "manifest.json"

    @property
    def index_cache(self) -> Path:
        return self.directory / "index-cache"

    @property
    def broken_records(self) -> Path:
        return self.directory / BROKEN_RECORDS

    @property
    def baselines_json(self) -> Path:
        return self.directory / "baselines.json"

    def manifest(self) -> DatasetManifest | None:
        """Return the manifest, or None if it is missing. Raises DataError if it cannot be read."""
        return read_manifest(self.manifest_json)

    def own_manifest(self) -> DatasetManifest | None:
        """Return the folder's manifest, or None if it is missing or describes another pair."""
        manifest = self.manifest()
        return manifest if manifest is not None and self.bin.name in manifest.files else None

    def open(self, vocab_size: int | None = None, manifest: DatasetManifest | None = None) -> "OpenDataset":
        """Memory-map the pair, and check its file sizes and that its ids fit the vocabulary.

        Reads no tokens. Raises DataError if the dataset was not prepared, is truncated, has changed, or has a
        dtype that cannot hold the vocabulary.
        """
        for path in (self.bin, self.idx, self.manifest_json):
            if not path.is_file():
                raise missing(path)
        # Imported here because it needs NumPy, which reporting a missing dataset does not.
        from nbtrain.dataset.indexed import IndexedDataset, check_vocabulary

        indexed = IndexedDataset(self.prefix)
        manifest = manifest or self.manifest()
        assert manifest is not None
        if vocab_size is not None:
            check_vocabulary(indexed.dtype, vocab_size, display(self.bin))
            if manifest.vocab_size > vocab_size:
                raise DataError(
                    f"{display(self.bin)}: token ids go up to {manifest.vocab_size - 1:,} (a vocabulary of "
                    f"{manifest.vocab_size:,}), but tokenizer.vocab_size = {vocab_size:,}. Set "
                    f"tokenizer.vocab_size to at least {manifest.vocab_size}."
                )
        for name, entry in manifest.files.items():
            size = (self.directory / name).stat().st_size if (self.directory / name).is_file() else None
            if size != entry["bytes"]:
                found = "the file is missing" if size is None else f"the file has {size:,} bytes"
                raise DataError(
                    f"{display(self.directory / name)}: {found}, but its manifest records "
                    f"{entry['bytes']:,} bytes. Restore the file, or run `nbtrain prepare RUN.yaml --force` "
                    "to make the dataset again."
                )
        return OpenDataset(self, manifest, indexed, self.open_loss_mask(indexed))

    def require(self, vocab_size: int | None = None) -> DatasetManifest:
        """Open the dataset to check it, and return its manifest. Raises DataError."""
        return self.open(vocab_size).manifest

    def open_loss_mask(self, dataset: "IndexedDataset") -> "IndexedDataset | None":
        """Open the loss mask (one entry per token), or return None if the pair has none.

        Raises DataError if the mask does not match this pair.
        """
        from nbtrain.dataset.indexed import IndexedDataset

        if not self.has_loss_mask:
            return None
        mask = IndexedDataset(self.loss_mask.prefix)
        found = (mask.dtype.name, len(mask), mask.num_tokens)
        if found != ("uint8", len(dataset), dataset.num_tokens):
            raise DataError(
                f"{display(self.loss_mask.idx)}: the mask has {found[1]:,} sequences and {found[2]:,} "
                f"{found[0]} entries, but the mask of {display(self.idx)} must have {len(dataset):,} "
                f"sequences and {dataset.num_tokens:,} uint8 entries. The two files belong to different "
                "datasets: copy both again, or prepare the dataset again."
            )
        return mask

    def remove_leftovers(self) -> None:
        """Remove temporary files of an interrupted `nbtrain prepare`. The caller must hold the lock."""
        for folder in (self.directory, self.index_cache):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)


class OpenDataset(NamedTuple):
    """An opened and checked dataset, shared by all its readers."""

    files: DatasetFiles
    manifest: DatasetManifest
    indexed: "IndexedDataset"
    loss_mask: "IndexedDataset | None"
    """Loss mask, one entry per token; None if every token is in the loss."""


def in_loss(mask: "np.ndarray") -> "np.ndarray":
    """Return a bool for each entry of a loss mask: whether the token is in the loss.

    Any value except 0 puts a token in the loss, with weight 1. A mask of 0 and 255 equals one of 0 and 1.
    """
    return mask != 0


def manifest_of_files(
    pair: DatasetFiles, indexed: "IndexedDataset", bin_sha256: str, **known: Any
) -> DatasetManifest:
    """Build a pair's manifest from its two files. `known` holds the remaining fields."""
    documents, tokens = indexed.num_documents, indexed.num_tokens
    return DatasetManifest(
        sources=[],
        counts={"documents": documents, "tokens": tokens, "bytes": None, "dropped": {}},
        dtype=manifest_dtype(indexed.dtype),
        files={
            pair.bin.name: {"bytes": pair.bin.stat().st_size, "sha256": bin_sha256},
            pair.idx.name: {"bytes": pair.idx.stat().st_size, "sha256": files.sha256_of(pair.idx)},
        },
        **known,
    )


def stem_of(config: RunConfig, json_key: str) -> str:
    """Return the stem of a key's pair in Megatron's naming: <key>_document or <key>_sentence."""
    return f"{json_key}_{'sentence' if config.data.split_sentences else 'document'}"
