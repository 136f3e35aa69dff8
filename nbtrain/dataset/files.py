"""The files of one dataset in the data home, and the manifest that says what they are.

data/dataset/<name>/
  <key>_document.bin, .idx              indexed.py; one pair a key of data.json_key and data.extra_json_keys
  <key>_sentence.bin, .idx              in its place where data.split_sentences cuts documents into sequences
  <key>_document_loss_mask.bin, .idx    uint8 beside each token: 1 where it is learnt; absent: everywhere
  manifest.json                         written last: without it the dataset does not count
  index-cache/                          gpt_dataset.py
  baselines.json                        baselines.py
  broken-records.jsonl                  broken_records.py; where a source has any
  .encode/                              shards of an encoding that has not ended
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.locks import locked_directory
from nbtrain.base.workspace import dataset_dir, display, resolve, valid_name
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.records import BROKEN_RECORDS
from nbtrain.dataset.indexed import IndexedDataset, bin_path, check_vocabulary, idx_path, missing

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
MASK_SUFFIX = "_loss_mask"
LEVELS = ("document", "sentence")


@dataclass(frozen=True)
class DatasetManifest:
    """manifest.json of a dataset."""

    json_key: str
    """The key whose pair is trained on; others may lie beside it."""
    sources: list[dict[str, Any]]
    """Each with its settings, name, licence, attribution, versions, documents, bytes, tokens, sha256 and the
    sequences [first, last) that hold it; empty: brought as it is."""
    counts: dict[str, Any]
    """Of json_key's pair: documents, tokens (EOD counted), bytes (of text; None where unknown), dropped {reason: count}."""
    vocab_size: int
    dtype: str
    eod_id: int | None
    tokenizer_sha256: str | None
    files: dict[str, dict[str, Any]]
    """{name: {bytes, sha256}}, of all pairs."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What decided the content; prepare compares it with the run's."""
    software: dict[str, str] = field(default_factory=dict)
    """Versions that made it."""
    schema_version: int = SCHEMA_VERSION

    @property
    def stem(self) -> str:
        """The pair that is trained on, without its ending."""
        known = [f"{self.json_key}_{level}" for level in LEVELS]
        return next((stem for stem in (*known, *self.stems) if f"{stem}.bin" in self.files), known[0])

    @property
    def stems(self) -> list[str]:
        """Every pair of token ids, without its ending; loss masks are not among them."""
        stems = sorted(Path(name).stem for name in self.files if name.endswith(".bin"))
        return [stem for stem in stems if not is_mask(stem, stems)]

    @property
    def dataset_sha256(self) -> str:
        """One hash for all .bin and .idx: what runs and checkpoints refer to."""
        lines = "".join(
            f"{Path(name).suffix} {entry['sha256']}\n" for name, entry in sorted(self.files.items())
        )
        return hashlib.sha256(lines.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """As manifest.json holds it, dataset_sha256 included."""
        return {**asdict(self), "dataset_sha256": self.dataset_sha256}


class DatasetFiles:
    """Owner of every path of one dataset."""

    def __init__(self, directory: str | os.PathLike, json_key: str = "text", stem: str | None = None):
        self.directory = Path(directory)
        self.stem = stem or f"{json_key}_document"

    @classmethod
    def named(cls, name: str, json_key: str = "text") -> "DatasetFiles":
        """The dataset `name` in the data home; it need not exist."""
        return cls(dataset_dir(name), json_key)

    @classmethod
    def of(cls, config: RunConfig) -> "DatasetFiles":
        """The pair that a run trains on; the datasets of its blend as one."""
        if config.data.blend:
            from nbtrain.dataset.blend import BlendFiles  # which is made of this class

            return BlendFiles.of(config)
        return cls(dataset_dir(config.data.name), stem=stem_of(config, config.data.json_key))

    @classmethod
    def find(cls, target: "str | os.PathLike | RunConfig") -> "DatasetFiles":
        """The dataset that a person means: a run's, a name in the data home, or the prefix of any .bin/.idx.

        Raises DataError where there is no such dataset.
        """
        if isinstance(target, RunConfig):
            if target.data.blend:
                names = ", ".join(entry.name or entry.prefix or "" for entry in target.data.blend)
                raise DataError(
                    f"{target.name}: data.blend mixes {len(target.data.blend)} datasets and has no .bin/.idx of its own. "
                    f"Name one of them: {names}."
                )
            return cls.of(target)
        text = os.fspath(target)
        if valid_name(text) and dataset_dir(text).is_dir():
            return cls.in_folder(dataset_dir(text))
        # As typed first, then below the workspace.
        for path in (Path(text).expanduser(), resolve(text)):
            if path.is_dir() and any(path.glob("[!.]*.idx")):
                return cls.in_folder(path.absolute())
            prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
            if idx_path(prefix).is_file() or bin_path(prefix).is_file():
                return cls(prefix.parent.absolute(), stem=prefix.name)
        root = dataset_dir("x").parent
        known = sorted({path.parent.name for path in root.glob("[!.]*/*.idx")})
        raise DataError(
            f"{text}: no dataset of this name in {display(root)} and no {text}.idx. "
            + (f"There are: {', '.join(known)}." if known else "Make one with `nbtrain prepare RUN.yaml`.")
        )

    @classmethod
    def in_folder(cls, directory: Path) -> "DatasetFiles":
        """The pair of a folder that its manifest trains on; without a manifest the first that is there."""
        manifest = cls(directory).manifest()
        if manifest is not None:
            return cls(directory, stem=manifest.stem)
        stems = sorted(path.stem for path in directory.glob("[!.]*.idx"))
        return cls(directory, stem=next((stem for stem in stems if not is_mask(stem, stems)), None))

    def __repr__(self) -> str:
        return f"DatasetFiles({str(self.directory)!r}, stem={self.stem!r})"

    def pair(self, stem: str) -> "DatasetFiles":
        """Another pair of the same folder and manifest."""
        return DatasetFiles(self.directory, stem=stem)

    @property
    def loss_mask(self) -> "DatasetFiles":
        """The pair that says which tokens of this one are learnt; it need not exist."""
        return self.pair(self.stem + MASK_SUFFIX)

    @property
    def has_loss_mask(self) -> bool:
        """Whether a loss mask lies beside this pair; without one every token is learnt."""
        return self.loss_mask.bin.is_file() or self.loss_mask.idx.is_file()

    @property
    def work(self) -> Path:
        """Where an encoding keeps its shards until they are merged."""
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
        """The manifest, or None where there is none. Raises DataError where it cannot be read."""
        try:
            value = files.read_json(self.manifest_json)
        except ValueError as error:
            raise DataError(f"{error}. Make the dataset again: `nbtrain prepare RUN.yaml --force`.") from None
        if value is None:
            return None
        if not isinstance(value, dict):
            value = {}
        if value.get("schema_version") != SCHEMA_VERSION:
            raise DataError(
                f"{display(self.manifest_json)}: schema_version {value.get('schema_version')}, must be "
                f"{SCHEMA_VERSION}. Make the dataset again: `nbtrain prepare RUN.yaml --force`."
            )
        known = {entry.name for entry in fields(DatasetManifest)}
        try:
            manifest = DatasetManifest(**{key: entry for key, entry in value.items() if key in known})
            if not all({"bytes", "sha256"} <= entry.keys() for entry in manifest.files.values()):
                raise TypeError("files must hold bytes and sha256 of each")
            if not {"documents", "tokens", "bytes", "dropped"} <= manifest.counts.keys():
                raise TypeError("counts must hold documents, tokens, bytes and dropped")
            return manifest
        except (TypeError, AttributeError) as error:
            raise DataError(
                f"{display(self.manifest_json)}: not a whole manifest ({error}). Make the dataset again: "
                "`nbtrain prepare RUN.yaml --force`."
            ) from None

    def require(self, vocab_size: int | None = None) -> DatasetManifest:
        """The manifest of a dataset that is there, whole by its sizes, and fits a vocabulary. Reads no token.

        Raises DataError: not prepared, truncated, changed, or a vocabulary that the dtype cannot hold.
        """
        for path in (self.bin, self.idx, self.manifest_json):
            if not path.is_file():
                raise missing(path)
        dataset = IndexedDataset(self.prefix)
        manifest = self.manifest()
        assert manifest is not None
        if vocab_size is not None:
            check_vocabulary(dataset.dtype, vocab_size, display(self.bin))
            if manifest.vocab_size > vocab_size:
                raise DataError(
                    f"{display(self.bin)}: token ids go up to {manifest.vocab_size - 1:,} (a vocabulary of "
                    f"{manifest.vocab_size:,}), but tokenizer.vocab_size = {vocab_size:,}. Set it to at least "
                    f"{manifest.vocab_size}."
                )
        for name, entry in manifest.files.items():
            size = (self.directory / name).stat().st_size if (self.directory / name).is_file() else None
            if size != entry["bytes"]:
                found = "is missing" if size is None else f"has {size:,} bytes"
                raise DataError(
                    f"{display(self.directory / name)}: {found}, its manifest says {entry['bytes']:,}. Restore it, or "
                    "make the dataset again: `nbtrain prepare RUN.yaml --force`."
                )
        if self.has_loss_mask:
            self.open_loss_mask(dataset)
        return manifest

    def open_loss_mask(self, dataset: IndexedDataset) -> IndexedDataset:
        """The loss mask of this pair, token by token beside it. Raises DataError where it is of another pair."""
        mask = IndexedDataset(self.loss_mask.prefix)
        found = (mask.dtype.name, len(mask), mask.num_tokens)
        if found != ("uint8", len(dataset), dataset.num_tokens):
            raise DataError(
                f"{display(self.loss_mask.idx)}: {found[1]:,} sequences, {found[2]:,} {found[0]} entries; the mask of "
                f"{display(self.idx)} has {len(dataset):,} sequences, {dataset.num_tokens:,} uint8 entries. The two are "
                "not of one dataset: copy both again, or prepare it again."
            )
        return mask

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the dataset while it is made; a second prepare waits, a dead holder's lock is freed."""
        with locked_directory(self.directory):
            yield

    def remove_leftovers(self) -> None:
        """Remove temporary files of a prepare that was killed. Hold the lock."""
        for folder in (self.directory, self.index_cache):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)


def stem_of(config: RunConfig, json_key: str) -> str:
    """The stem of one key's pair, by Megatron's naming: documents, or sentences where a run cuts them."""
    return f"{json_key}_{'sentence' if config.data.split_sentences else 'document'}"


def is_mask(stem: str, stems: Container[str]) -> bool:
    """Whether a stem is the loss mask of another of `stems`."""
    return stem.endswith(MASK_SUFFIX) and stem.removesuffix(MASK_SUFFIX) in stems


def manifest_dtype(dtype: np.dtype) -> str:
    """The dtype's plain name, e.g. uint16."""
    return dtype.newbyteorder("=").name
