"""Merges several .bin/.idx pairs into one, in the given order.

    .bin       concatenated
    lengths    concatenated; offsets are recomputed
    documents  each entry plus the number of sequences in the pairs before it; the leading 0 only once

The bytes equal those that megatron-core's IndexedDatasetBuilder.add_index writes. Files are copied in chunks
and hashed while they are copied, so memory does not grow with their size. Loss masks are merged along with
the tokens; in a pair without a mask, every token is in the loss.

A dataset's name refers to all its pairs (data.extra_json_keys). Each pair is merged with the pairs of the
same key, so that document k is the same record in all of them. A prefix refers only to its own pair.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Block, Record, Report, Result, Sentence, Table
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.text.amounts import size
from nbtrain.base.version import __version__
from nbtrain.base.workspace import NAME_RULE, dataset_dir, display, resolve, typed_path, valid_name
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import HEADER, IndexedDataset
from nbtrain.dataset.indexed_writer import FileEntry, pieces, write_index_chunks
from nbtrain.dataset.manifest import LEVELS, DatasetManifest, added_counts, is_mask, manifest_dtype
from nbtrain.dataset.of_run import find_dataset


@dataclass(frozen=True, repr=False)
class Merged(Result, Record):
    """Result of merge(), displayed as a table of the inputs and the merged pairs."""

    prefix: str
    inputs: list[dict[str, Any]]
    sequences: int
    documents: int
    tokens: int
    manifest: bool
    """Whether a manifest was written, which requires that every input has a manifest."""
    beside: list[dict[str, Any]] = field(default_factory=list)
    """Prefix, sequences, documents and tokens of each further pair, one per key in data.extra_json_keys."""
    left_out: list[str] = field(default_factory=list)
    """Prefixes of pairs that were not merged, because the input was given as another pair's prefix."""

    def as_report(self) -> Report:
        """Return a table of the inputs and the result, and what was not written or not merged."""
        names = ["prefix", "sequences", "documents", "tokens"]
        pairs = [*self.inputs, vars(self), *self.beside]
        blocks: list[Block] = [Table(["", *names[1:]], [[pair[name] for name in names] for pair in pairs])]
        if not self.manifest:
            words = (
                "No manifest was written, because not every input has a manifest. The first {} of a run that "
                "uses the dataset writes the manifest."
            )
            blocks.append(Sentence(words.format("`nbtrain prepare`"), words.format("`nb.prepare`")))
        if self.left_out:
            left_out = ", ".join(self.left_out)
            blocks.append(
                Sentence(
                    f"Not merged: {left_out}. An input given as a prefix stands for one pair; give a "
                    "dataset's name or folder to merge all its pairs."
                )
            )
        return Report("", blocks)


def merge(output: str | os.PathLike, targets: Sequence[str | os.PathLike | RunConfig]) -> Merged:
    """Merge the pairs of `targets`, in order, into the new pair `output`. The manifest is written last.

    `output` is the name of a new dataset in the data directory, or a prefix. Raises DataError, before
    anything is written, if an input is damaged, if inputs differ in level (documents, sentences), dtype or
    tokenizer, if only some inputs have a key, if the output exists, or if the disk has too little free space.
    """
    inputs = [find_dataset(target) for target in targets]
    _check_levels(inputs)
    is_whole = [_is_whole(target, dataset) for target, dataset in zip(targets, inputs)]
    others = [_other_stems(dataset) for dataset in inputs]
    _check_keys(inputs, [stems if whole else [] for stems, whole in zip(others, is_whole)])
    stems = others[0] if is_whole[0] else []
    groups = [_opened(inputs), *(_opened([dataset.pair(stem) for dataset in inputs]) for stem in stems)]
    pairs = groups[0].pairs
    manifests = [_manifest_of(dataset) for dataset in inputs]
    for group in groups:
        _check_dtypes(group)
        _check_documents(groups[0], group)
    _check_tokenizers(inputs, manifests)
    target = _output_files(output, inputs[0].stem, stems)
    outputs = [target, *(target.pair(stem) for stem in stems)]
    num_bytes = _check_space(target, groups)
    with locked_directory(target.directory):
        _check_free(outputs)
        try:
            with Progress(f"merge {target.stem}", num_bytes, "B") as progress:
                written: dict[str, FileEntry] = {}
                for place, group in zip(outputs, groups):
                    if group.is_masked:
                        chunks = _mask_chunks(group)
                        written |= _write(place.loss_mask, group.pairs, chunks, np.dtype("u1"), progress)
                    chunks = (chunk for pair in group.pairs for chunk in pair.chunks())
                    written |= _write(place, group.pairs, chunks, group.pairs[0].dtype, progress)
            known = [manifest for manifest in manifests if manifest is not None]
            if len(known) == len(manifests):
                manifest = _joined_manifest(target, inputs, pairs, known, written)
                files.write_json(target.manifest_json, manifest.to_dict())
        except BaseException as error:
            for path in _paths(outputs):
                path.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            why = f"{display(target.directory)}: {error.strerror or error}"
            raise DataError(f"{why}. Free up space, or merge to another disk.") from error
    return Merged(
        **_row(target, pairs),
        inputs=[_row(dataset, [pair]) for dataset, pair in zip(inputs, pairs)],
        manifest=len(known) == len(manifests),
        beside=[_row(place, group.pairs) for place, group in zip(outputs[1:], groups[1:])],
        left_out=_left_out([dataset for dataset, whole in zip(inputs, is_whole) if not whole]),
    )


@dataclass(frozen=True)
class _Group:
    """Pairs that are merged into a single pair, one from each input."""

    inputs: Sequence[DatasetFiles]
    pairs: list[IndexedDataset]
    masks: list[IndexedDataset | None]

    @property
    def is_masked(self) -> bool:
        return any(mask is not None for mask in self.masks)


def _opened(inputs: Sequence[DatasetFiles]) -> _Group:
    pairs = [IndexedDataset(dataset.prefix) for dataset in inputs]
    masks = [dataset.open_loss_mask(pair) for dataset, pair in zip(inputs, pairs)]
    for pair in (*pairs, *masks):
        if pair is not None:
            pair.check()
    return _Group(inputs, pairs, masks)


def _row(dataset: DatasetFiles, pairs: Sequence[IndexedDataset]) -> dict[str, Any]:
    return {
        "prefix": display(dataset.prefix),
        "sequences": sum(len(pair) for pair in pairs),
        "documents": sum(pair.num_documents for pair in pairs),
        "tokens": sum(pair.num_tokens for pair in pairs),
    }


def _is_whole(target: str | os.PathLike | RunConfig, dataset: DatasetFiles) -> bool:
    """Return whether `target` refers to all pairs of a dataset, as a run, a name or a folder does."""
    if isinstance(target, RunConfig):
        return True
    text = os.fspath(target)
    folders = [typed_path(text).absolute(), resolve(text).absolute()]
    return dataset.directory in ([*folders, dataset_dir(text)] if valid_name(text) else folders)


def _left_out(inputs: Sequence[DatasetFiles]) -> list[str]:
    """Return the pairs that the inputs' manifests list but that no input names.

    Each of `inputs` was given as the prefix of one pair.
    """
    described = [dataset for dataset in inputs if dataset.manifest() is not None]
    found = [dataset.pair(stem).prefix for dataset in described for stem in _other_stems(dataset)]
    named = {dataset.prefix for dataset in inputs}
    return [display(prefix) for prefix in dict.fromkeys(found) if prefix not in named]


def _other_stems(dataset: DatasetFiles) -> list[str]:
    """Return the stems of the folder's other pairs: those in the manifest, or all if it has no manifest."""
    found = sorted(path.stem for path in dataset.directory.glob("[!.]*.idx"))
    stems = [stem for stem in found if not is_mask(stem, found)]
    if (manifest := dataset.manifest()) is not None:
        stems = manifest.stems if dataset.stem in manifest.stems else []
    return [stem for stem in stems if stem != dataset.stem]


def _manifest_of(dataset: DatasetFiles) -> DatasetManifest | None:
    """Return the manifest if it describes this pair, otherwise None; a folder may hold several pairs."""
    manifest = dataset.manifest()
    return manifest if manifest is not None and manifest.stem == dataset.stem else None


def _check_levels(inputs: Sequence[DatasetFiles]) -> None:
    known = [(dataset, level) for dataset in inputs for level in LEVELS if dataset.stem.endswith(f"_{level}")]
    for dataset, level in known:
        first, wanted = known[0]
        if level != wanted:
            raise DataError(
                f"{display(dataset.prefix)}: the sequences are {level}s, but those of "
                f"{display(first.prefix)} are {wanted}s. The two datasets cannot be merged: encode one of "
                "them again with the data.split_sentences of the other."
            )


def _check_keys(inputs: Sequence[DatasetFiles], others: Sequence[list[str]]) -> None:
    """Check that every input has the same pairs in addition to the training pair."""
    for stem in sorted({stem for stems in others for stem in stems}):
        having = next(dataset for dataset, stems in zip(inputs, others) if stem in stems)
        lacking = [dataset for dataset, stems in zip(inputs, others) if stem not in stems]
        if lacking:
            raise DataError(
                f"{display(having.pair(stem).prefix)}: "
                f"{', '.join(display(dataset.prefix) for dataset in lacking)} "
                f"{'has' if len(lacking) == 1 else 'have'} no {stem} in the same folder. Every input must "
                "have the same pairs: encode the data again with the same data.extra_json_keys, or give the "
                f"prefix of one pair of each input, e.g. {display(having.prefix)}."
            )


def _check_documents(main: _Group, group: _Group) -> None:
    for dataset, pair, other, wanted in zip(group.inputs, group.pairs, main.inputs, main.pairs):
        if pair.num_documents != wanted.num_documents:
            raise DataError(
                f"{display(dataset.prefix)}: the pair has {pair.num_documents:,} documents, but "
                f"{display(other.prefix)} in the same folder has {wanted.num_documents:,}. Document k must "
                "be the same record in both: encode the data again, or merge only one pair of each input by "
                "giving its prefix."
            )


def _check_dtypes(group: _Group) -> None:
    first = group.pairs[0].dtype
    for dataset, pair in zip(group.inputs, group.pairs):
        if pair.dtype != first:
            raise DataError(
                f"{display(dataset.prefix)}: the dtype is {pair.dtype.name}, but that of "
                f"{display(group.inputs[0].prefix)} is {first.name}. Pairs of different dtypes cannot be "
                "merged: encode one of them again with the dtype of the other."
            )


def _check_tokenizers(inputs: Sequence[DatasetFiles], manifests: Sequence[DatasetManifest | None]) -> None:
    known = [(dataset, manifest) for dataset, manifest in zip(inputs, manifests) if manifest is not None]
    for dataset, manifest in known:
        first_dataset, first = known[0]
        for name in ("tokenizer_sha256", "eod_id"):
            here, there = getattr(manifest, name), getattr(first, name)
            if here != there:
                raise DataError(
                    f"{display(dataset.prefix)}: {name} is {str(here)[:12]}, but "
                    f"{display(first_dataset.prefix)} has {str(there)[:12]}, so the same ids would mean "
                    "different text. Encode one of them again with the tokenizer of the other."
                )


def _output_files(output: str | os.PathLike, stem: str, others: Sequence[str]) -> DatasetFiles:
    text = os.fspath(output)
    if valid_name(text):
        target = DatasetFiles(dataset_dir(text), stem=stem)
    elif os.sep not in text:
        raise DataError(
            f"{text}: the name of a new dataset {NAME_RULE}. To write files with another name, give a prefix "
            f"that includes a folder, e.g. ./{text}."
        )
    else:
        path = typed_path(text)
        if path.suffix in (".bin", ".idx"):
            path = path.with_suffix("")
        if not path.name or path.is_dir():
            raise DataError(
                f"{text}: this is a folder, but a prefix is needed, e.g. {path / 'text_document'}."
            )
        # The path as typed if its folder exists, otherwise below the workspace.
        path = path.absolute() if path.parent.is_dir() else resolve(path)
        target = DatasetFiles(path.parent, stem=path.name)
    if target.stem in others:
        raise DataError(
            f"{display(target.prefix)}: the inputs have another .bin/.idx pair with this name. Merge to "
            f"another prefix, e.g. {display(target.pair(stem).prefix)}."
        )
    _check_free([target, *(target.pair(other) for other in others)])
    return target


def _check_free(outputs: Sequence[DatasetFiles]) -> None:
    for path in _paths(outputs):
        if path.exists():
            raise DataError(
                f"{display(path)}: the file already exists. Merge to another name or folder, or move the "
                "file away."
            )


def _paths(outputs: Sequence[DatasetFiles]) -> list[Path]:
    places = [place for target in outputs for place in (target, target.loss_mask)]
    return [*(path for place in places for path in (place.bin, place.idx)), outputs[0].manifest_json]


def _check_space(target: DatasetFiles, groups: Sequence[_Group]) -> int:
    """Return the bytes of all tokens and masks. Raises DataError if the disk has too little free space."""
    num_bytes = needed = 0
    for group in groups:
        tokens = sum(pair.num_tokens for pair in group.pairs)
        index = HEADER.size + sum(12 * len(pair) + 8 * pair.num_documents for pair in group.pairs) + 8
        num_bytes += tokens * (group.pairs[0].dtype.itemsize + group.is_masked)
        needed += index * (1 + group.is_masked)
    needed += num_bytes
    folder = files.nearest_existing(target.directory)
    if not folder.is_dir():
        raise DataError(
            f"{display(folder)}: this is not a folder. Move it, or give another name for the merged dataset."
        )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{display(target.directory)}: merging needs {size(needed)}, but only {size(free)} is free. "
            f"Free up {size(needed - free)}, or merge to another disk."
        )
    return num_bytes


def _write(
    target: DatasetFiles,
    pairs: Sequence[IndexedDataset],
    chunks: Iterator[np.ndarray],
    dtype: np.dtype,
    progress: Progress,
) -> dict[str, FileEntry]:
    digest = hashlib.sha256()
    num_bytes = 0
    with files.atomic_writer(target.bin) as stream:
        for chunk in chunks:
            digest.update(chunk.data)
            stream.write(chunk.data)
            num_bytes += chunk.nbytes
            progress.update(chunk.nbytes)
    sha256 = write_index_chunks(
        target.idx,
        dtype,
        sum(len(pair) for pair in pairs),
        1 + sum(pair.num_documents for pair in pairs),
        lambda: (part for pair in pairs for part in pieces(pair.lengths)),
        lambda: _documents(pairs),
    )
    return {
        target.bin.name: {"bytes": num_bytes, "sha256": digest.hexdigest()},
        target.idx.name: {"bytes": target.idx.stat().st_size, "sha256": sha256},
    }


def _documents(pairs: Sequence[IndexedDataset]) -> Iterator[np.ndarray]:
    sequences = 0
    yield np.zeros(1, np.int64)
    for pair in pairs:
        yield from (part + sequences for part in pieces(pair.document_indices[1:]))
        sequences += len(pair)


def _mask_chunks(group: _Group) -> Iterator[np.ndarray]:
    for pair, mask in zip(group.pairs, group.masks):
        if mask is not None:
            yield from mask.chunks()
        else:
            yield from (np.ones(len(chunk), np.uint8) for chunk in pair.chunks())


def _joined_manifest(
    target: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    pairs: Sequence[IndexedDataset],
    manifests: Sequence[DatasetManifest],
    written: dict[str, FileEntry],
) -> DatasetManifest:
    sources: list[dict[str, Any]] = []
    sequences = 0
    for pair, manifest in zip(pairs, manifests):
        for source in manifest.sources:
            if "sequences" in source:
                source = {**source, "sequences": [sequences + end for end in source["sequences"]]}
            sources.append(source)
        sequences += len(pair)
    if not all(manifest.sources for manifest in manifests):
        # Adopted pairs have no sources, so their sequences would belong to no source's range. Omit all
        # ranges.
        sources = [{key: source[key] for key in source if key != "sequences"} for source in sources]
    merged = [
        {"prefix": display(dataset.prefix), "dataset_sha256": manifest.dataset_sha256}
        for dataset, manifest in zip(inputs, manifests)
    ]
    return DatasetManifest(
        json_key=target.stem.removesuffix("_document").removesuffix("_sentence"),
        sources=sources,
        counts={
            **added_counts(manifests),
            "documents": sum(pair.num_documents for pair in pairs),
            "tokens": sum(pair.num_tokens for pair in pairs),
        },
        vocab_size=max(manifest.vocab_size for manifest in manifests),
        dtype=manifest_dtype(pairs[0].dtype),
        eod_id=manifests[0].eod_id,
        tokenizer_sha256=manifests[0].tokenizer_sha256,
        files=written,
        settings={"merged": merged},
        software={"nbtrain": __version__, "numpy": np.__version__},
    )
