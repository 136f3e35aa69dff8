"""The files of one dataset in the data home, and the manifest that says what they are.

data/dataset/<name>/
  <key>_document.bin, .idx    indexed.py
  manifest.json               written last: without it the dataset does not count
  index-cache/                gpt_dataset.py
  baselines.json              baselines.py
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain import files
from nbtrain.config.schema import RunConfig
from nbtrain.data.indexed import IndexedDataset, bin_path, check_vocabulary, idx_path, missing
from nbtrain.errors import DataError
from nbtrain.workspace import dataset_dir, display, resolve, valid_name

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class DatasetManifest:
    """manifest.json of a dataset."""

    json_key: str
    sources: list[dict[str, Any]]
    """Each with its settings, licence, attribution, versions, documents, bytes and sha256; empty: brought as it is."""
    counts: dict[str, Any]
    """documents, tokens (EOD counted), bytes (of text; None where unknown), dropped {reason: count}."""
    vocab_size: int
    dtype: str
    eod_id: int | None
    tokenizer_sha256: str | None
    files: dict[str, dict[str, Any]]
    """{name: {bytes, sha256}}."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What decided the content; prepare compares it with the run's."""
    software: dict[str, str] = field(default_factory=dict)
    """Versions that made it."""
    schema_version: int = SCHEMA_VERSION

    @property
    def dataset_sha256(self) -> str:
        """One hash for .bin and .idx: what runs and checkpoints refer to."""
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
        """The dataset of a run."""
        return cls.named(config.data.name, config.data.json_key)

    @classmethod
    def find(cls, target: "str | os.PathLike | RunConfig") -> "DatasetFiles":
        """The dataset that a person means: a run's, a name in the data home, or the prefix of any .bin/.idx.

        Raises DataError where there is no such dataset.
        """
        if isinstance(target, RunConfig):
            return cls.of(target)
        text = os.fspath(target)
        if valid_name(text) and dataset_dir(text).is_dir():
            indices = sorted(dataset_dir(text).glob("*.idx"))
            return cls(dataset_dir(text), stem=indices[0].stem) if indices else cls.named(text)
        # As typed first, then below the workspace.
        for path in (Path(text).expanduser(), resolve(text)):
            prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
            if idx_path(prefix).is_file() or bin_path(prefix).is_file():
                return cls(prefix.parent.absolute(), stem=prefix.name)
        root = dataset_dir("x").parent
        known = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
        raise DataError(
            f"{text}: no dataset of this name in {display(root)} and no {text}.idx. "
            + (f"There are: {', '.join(known)}." if known else "Make one with `nbtrain prepare RUN.yaml`.")
        )

    def __repr__(self) -> str:
        return f"DatasetFiles({str(self.directory)!r}, stem={self.stem!r})"

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
        if value.get("schema_version") != SCHEMA_VERSION:
            raise DataError(
                f"{display(self.manifest_json)}: schema_version {value.get('schema_version')}, must be "
                f"{SCHEMA_VERSION}. Make the dataset again: `nbtrain prepare RUN.yaml --force`."
            )
        known = {entry.name for entry in fields(DatasetManifest)}
        try:
            return DatasetManifest(**{key: entry for key, entry in value.items() if key in known})
        except TypeError as error:
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
        return manifest

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


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold a folder: flock on the folder itself, so that no lock file stays behind."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise DataError(
            f"{display(directory)}: cannot be made or opened: {error.strerror}. Set NBTRAIN_DATA to a folder that "
            "can be written."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def manifest_dtype(dtype: np.dtype) -> str:
    """The dtype's plain name, e.g. uint16."""
    return dtype.newbyteorder("=").name
