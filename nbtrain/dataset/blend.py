"""Presents the datasets of a blend as one dataset with one manifest, one tokenizer and one hash.

A blend stores no tokens; its folder data/dataset/<data.name>/ holds only index-cache/. Entries given by a
name in the data directory keep their indices in their own folders, where all runs find them. Entries given by
a prefix may be in a read-only folder, so their indices are kept in the blend's folder.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import dataset_dir, display, resolve, tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.data_section import BlendEntry
from nbtrain.corpus.tokenizer.folder import folder_of, read_manifest
from nbtrain.dataset.files import DatasetFiles, OpenDataset, manifest_of_files, stem_of
from nbtrain.dataset.manifest import DatasetManifest, added_counts
from nbtrain.dataset.tokenizer_problem import TokenizerProblem, tokenizer_problem

if TYPE_CHECKING:
    from nbtrain.dataset.indexed import IndexedDataset


@dataclass(frozen=True)
class BlendManifest(DatasetManifest):
    """Combined manifest of all entries, with their counts added up; never written to disk."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """Name, weight and dataset_sha256 of each entry."""

    @property
    def dataset_sha256(self) -> str:
        """SHA-256 of the entries' hashes and weights, in order, which determine the blend's samples."""
        lines = [[entry["dataset_sha256"], entry["weight"]] for entry in self.entries]
        return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One dataset of a blend."""

    name: str
    """Name under which the entry's loss is reported; unique within the blend."""
    files: DatasetFiles
    weight: float
    index_cache: Path
    is_named: bool
    """Whether the entry names a dataset in the data directory; otherwise it is a pair given by prefix."""

    def manifest(self) -> DatasetManifest | None:
        """Return the dataset's manifest, or None if the dataset is missing. Raises DataError.

        For a pair without a manifest, build one from the two files.
        """
        manifest = self.files.manifest() if self.is_named else self.files.own_manifest()
        if manifest or self.is_named or not self.files.idx.is_file():
            return manifest
        from nbtrain.dataset.indexed import IndexedDataset

        return _manifest_of_pair(self.files, IndexedDataset(self.files.prefix))

    def open(self, vocab_size: int | None) -> OpenDataset:
        """Memory-map the entry's .bin/.idx pair and check the file sizes. Raises DataError."""
        return self.files.open(vocab_size) if self.is_named else open_pair(self.files, vocab_size)


class BlendFiles(DatasetFiles):
    """The dataset files of a run that sets data.blend, with the interface of DatasetFiles.

    `entries` lists the datasets of the blend.
    """

    def __init__(
        self, directory: str | os.PathLike, stem: str, blend: list[BlendEntry], where: str = "data.blend"
    ):
        super().__init__(directory, stem=stem)
        self.where = where
        names: list[str] = []
        self.entries: list[Entry] = []
        for entry in blend:
            if entry.name is not None:
                target = DatasetFiles(dataset_dir(entry.name), stem=stem)
            else:
                prefix = resolve(entry.prefix or "")
                target = DatasetFiles(prefix.parent, stem=prefix.name)
            name = entry.name or _name_of(target)
            names.append(name)
            if names.count(name) > 1:
                name = f"{name}#{names.count(name)}"
            is_named = entry.name is not None
            cache = target.index_cache if is_named else self.index_cache
            self.entries.append(Entry(name, target, entry.weight, cache, is_named))

    @classmethod
    def of(cls, config: RunConfig) -> "BlendFiles":
        data = config.data
        stem = stem_of(config, data.json_key)
        return cls(dataset_dir(data.name), stem, data.blend, f"{config.where('data.blend')}: data.blend")

    def manifest(self) -> DatasetManifest | None:
        """Return the combined manifest; None if an entry is missing. Raises DataError if one is damaged."""
        manifests = [entry.manifest() for entry in self.entries]
        return self._together([manifest for manifest in manifests if manifest]) if all(manifests) else None

    def open_blend(self, vocab_size: int | None = None) -> "OpenBlend":
        """Open all entries.

        Raises DataError if a file has the wrong size, if the entries' tokenizers differ, or if the token ids
        do not fit the vocabulary.
        """
        entries = tuple(entry.open(vocab_size) for entry in self.entries)
        return OpenBlend(self, self._together([entry.manifest for entry in entries]), entries)

    def require(self, vocab_size: int | None = None) -> DatasetManifest:
        """Open the blend to check it, and return its manifest. Raises DataError."""
        return self.open_blend(vocab_size).manifest

    def check_tokenizer(self, config: RunConfig, manifest: DatasetManifest | None) -> None:
        """Raise DataError if the datasets were encoded with a tokenizer other than the run's.

        A different end-of-document token also raises. Nothing is checked if `manifest` is None or records no
        tokenizer.
        """
        own = tokenizer_dir(config.tokenizer.name)
        if manifest is None or manifest.tokenizer_sha256 is None:
            return
        theirs = folder_of(manifest.tokenizer_sha256, [own], manifest.eod_id)
        if ours := read_manifest(own):
            found = tokenizer_problem(manifest, own, ours)
        elif theirs:
            found = TokenizerProblem(
                "ids", f"the data was encoded with {display(theirs)}, but {display(own)} does not exist"
            )
        else:
            found = None
        if found is None:
            return
        if theirs not in (None, own):
            fix = f"Set tokenizer.name: {theirs.name}."
        elif found.of == "ids":
            fix = "Set tokenizer.name to the tokenizer that encoded the datasets."
        else:
            fix = (
                "Set tokenizer.name to a tokenizer with that end-of-document token, or encode the datasets "
                "again with this tokenizer."
            )
        raise DataError(f"{self.where}: {found.what}. {fix}")

    def _together(self, manifests: list[DatasetManifest]) -> BlendManifest:
        tokenizers: dict[str, str] = {}
        for entry, manifest in zip(self.entries, manifests, strict=True):
            if manifest.tokenizer_sha256:
                tokenizers.setdefault(manifest.tokenizer_sha256, entry.name)
        if len(tokenizers) > 1:
            listed = ", ".join(f"{name} {sha256[:12]}" for sha256, name in tokenizers.items())
            raise DataError(
                f"{self.where}: the datasets were encoded with different tokenizers (sha256: {listed}), so "
                "the same id would mean different text. Encode them with one tokenizer."
            )
        eods = {manifest.eod_id for manifest in manifests if manifest.eod_id is not None}
        if len(eods) > 1:
            raise DataError(
                f"{self.where}: the datasets end their documents in different tokens ({sorted(eods)}). "
                "Encode them with one tokenizer."
            )
        return BlendManifest(
            json_key=manifests[0].json_key,
            sources=[source for manifest in manifests for source in manifest.sources],
            counts=added_counts(manifests),
            vocab_size=max(manifest.vocab_size for manifest in manifests),
            dtype=", ".join(sorted({manifest.dtype for manifest in manifests})),
            eod_id=next(iter(eods), None),
            tokenizer_sha256=next(iter(tokenizers), None),
            files={},
            entries=[
                {"name": entry.name, "weight": entry.weight, "dataset_sha256": manifest.dataset_sha256}
                for entry, manifest in zip(self.entries, manifests, strict=True)
            ],
        )


class OpenBlend(NamedTuple):
    """An opened and checked blend, shared by all its readers."""

    files: BlendFiles
    manifest: DatasetManifest
    entries: tuple[OpenDataset, ...]
    """Opened datasets, in the order of files.entries."""


def open_pair(pair: DatasetFiles, vocab_size: int | None) -> OpenDataset:
    """Memory-map a pair, with or without a manifest, and check its file sizes. Raises DataError."""
    from nbtrain.dataset.indexed import IndexedDataset, check_vocabulary

    if manifest := pair.own_manifest():
        return pair.open(vocab_size, manifest)
    indexed = IndexedDataset(pair.prefix)
    if vocab_size is not None:
        check_vocabulary(indexed.dtype, vocab_size, display(pair.bin))
    return OpenDataset(pair, _manifest_of_pair(pair, indexed), indexed, pair.open_loss_mask(indexed))


def _name_of(target: DatasetFiles) -> str:
    # A stem such as text_document says nothing about the dataset; its folder's name does.
    return target.directory.name if target.stem.endswith(("_document", "_sentence")) else target.stem


def _manifest_of_pair(pair: DatasetFiles, indexed: "IndexedDataset") -> DatasetManifest:
    """Build a manifest for a pair that has none. Its hash covers the index and the size of the .bin."""
    bin_sha256 = f"{pair.bin.stat().st_size} bytes"
    unknown = {"vocab_size": 0, "eod_id": None, "tokenizer_sha256": None}
    return manifest_of_files(pair, indexed, bin_sha256, json_key=pair.stem, **unknown)
