"""Inspects a .bin/.idx pair: shows what its header says, and checks that all of it is correct."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.findings import Finding
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Facts, Findings, Record, Report, Result
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import DatasetFiles, in_loss
from nbtrain.dataset.indexed import BLOCK, IndexedDataset
from nbtrain.dataset.manifest import MASK_SUFFIX, DatasetManifest
from nbtrain.dataset.of_run import find_dataset
from nbtrain.dataset.tables import sources_table, unread_table
from nbtrain.dataset.views.browser import Browser, Documents
from nbtrain.dataset.views.sequences import Sequences, sequences_of

SAMPLE_TOKENS = 80
PROGRESS_BYTES = 64 << 20
"""Size in bytes from which reading files shows a progress bar."""


@dataclass(frozen=True, repr=False)
class Inspection(Result, Record):
    """Properties of a pair, and the results of the checks that verify() made."""

    prefix: str
    facts: dict[str, Any]
    """Properties by name; those from the manifest are None without a manifest."""
    checks: list[str]
    sources: list[dict[str, Any]] = field(default_factory=list)
    """Name, documents, bytes and tokens of each source in the manifest."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """First, middle and last document: number, tokens and text (token ids if no tokenizer is known)."""
    training_sequences: list[dict[str, Any]] = field(default_factory=list)
    """The first training sequences (sequences.py), if a run was inspected."""

    def as_report(self) -> Report:
        """Return the properties, the sources, some documents, the first training sequences and the checks."""
        blocks = [
            Facts({name: _shown(value) for name, value in self.facts.items()}),
            sources_table(self.sources),
            unread_table(self.sources),
            Documents(self.samples),
            Sequences(self.training_sequences),
            Findings([Finding("ok", "verify", "", "", check) for check in self.checks]),
        ]
        return Report(self.prefix, blocks)


def inspect(target: str | os.PathLike | RunConfig, tokenizer: str | None = None) -> Inspection:
    """Return what a dataset's header and manifest say, and its first, middle and last document as text.

    For a run, the result also has its first training sequences: the tokens in the loss, the beginnings of
    documents, and the padding. `tokenizer` is a name or a path; None uses the tokenizer with the manifest's
    hash. Raises DataError if the dataset is missing, truncated, or written by Megatron-DeepSpeed with
    uncounted EOD tokens.
    """
    browser = Browser(target, tokenizer)
    last = browser.num_documents - 1
    numbers = sorted({0, last // 2, last}) if last >= 0 else []
    samples = [browser.document(number, SAMPLE_TOKENS).to_dict() for number in numbers]
    facts = _facts(browser.dataset, browser.indexed, browser.manifest, browser.tokenizer)
    names = ("name", "kind", "documents", "bytes", "tokens", "unread_keys")
    sources = [{name: source[name] for name in names} for source in browser.sources]
    sequences, problem = sequences_of(target, browser)
    if problem:
        facts["training sequences"] = f"none: {problem}"
    return Inspection(display(browser.dataset.prefix), facts, [], sources, samples, sequences)


def _facts(
    dataset: DatasetFiles, indexed: IndexedDataset, manifest: DatasetManifest | None, tokenizer: str | None
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "sequences": len(indexed),
        "documents": indexed.num_documents,
        "tokens": indexed.num_tokens,
        "dtype": indexed.dtype.name,
        ".bin bytes": dataset.bin.stat().st_size,
        ".idx bytes": dataset.idx.stat().st_size,
        "vocabulary": manifest.vocab_size if manifest else None,
        "EOD id": manifest.eod_id if manifest else None,
        "dataset sha256": manifest.dataset_sha256 if manifest else None,
        "tokenizer sha256": manifest.tokenizer_sha256 if manifest else None,
    }
    if empty := indexed.num_documents - indexed.num_filled_documents():
        facts["empty documents"] = empty
    if tokenizer is not None:
        facts["tokenizer"] = tokenizer
    if dataset.has_loss_mask:
        facts["loss mask"] = dataset.loss_mask.stem
        if manifest is not None and manifest.loss_tokens is not None:
            facts["tokens in the loss"] = (
                f"{manifest.loss_tokens:,} ({manifest.loss_tokens / max(1, indexed.num_tokens):.1%})"
            )
    if others := [stem for stem in manifest.stems if stem != dataset.stem] if manifest else []:
        facts["beside it"] = ", ".join(others)
    return facts


def verify(target: str | os.PathLike | RunConfig) -> Inspection:
    """Check every byte: offsets, ids, EOD at the end of each document, loss masks, and the files' SHA-256.

    Shows a progress bar if the files are large. Raises DataError at the first error; a wrong SHA-256 is
    reported before the errors that follow from it.
    """
    dataset = find_dataset(target)
    indexed = IndexedDataset(dataset.prefix)
    manifest = dataset.own_manifest()
    stems = manifest.stems if manifest is not None else []
    pairs = [(dataset, False), *((dataset.pair(stem), False) for stem in stems if stem != dataset.stem)]
    pairs += [(pair.loss_mask, True) for pair, _ in pairs if pair.has_loss_mask]
    digests: dict[str, str] = {}
    checks: list[str] = []
    paths = [path for pair, _ in pairs for path in ((pair.bin, pair.idx) if manifest else (pair.bin,))]
    total = sum(path.stat().st_size for path in paths if path.is_file())
    is_long = total > PROGRESS_BYTES
    with Progress(f"verify {dataset.stem}", total, "B") if is_long else contextlib.nullcontext() as bar:
        advance = bar.update if bar else lambda amount: None
        for pair, of_mask in pairs:
            try:
                found = _verify_pair(pair, of_mask, manifest, digests, advance)
            except DataError:
                # If bytes have changed since they were written, that is the cause, so check the hashes first.
                if manifest is not None:
                    _check_sha256(dataset, manifest, digests, lambda amount: None)
                raise
            checks += found if pair is dataset else [f"{pair.stem}: {check}" for check in found]
        if manifest is not None:
            checks.append(_check_sha256(dataset, manifest, digests, advance))
    return Inspection(display(dataset.prefix), _facts(dataset, indexed, manifest, None), checks)


def _verify_pair(
    pair: DatasetFiles,
    of_mask: bool,
    manifest: DatasetManifest | None,
    digests: dict[str, str],
    advance: Callable[[float], object],
) -> list[str]:
    indexed = IndexedDataset(pair.prefix)
    vocab_size = manifest.vocab_size if manifest and not of_mask else None
    digest = hashlib.sha256()
    learnt = 0

    def seen(chunk: np.ndarray) -> None:
        nonlocal learnt
        digest.update(chunk.data)
        if of_mask:
            learnt += int(np.count_nonzero(in_loss(chunk)))
        advance(chunk.nbytes)

    largest = indexed.verify(vocab_size, seen)
    digests[pair.bin.name] = digest.hexdigest()
    if of_mask:
        # In another program's mask, any number but 0 puts a token in the loss; prepare writes 0 and 1.
        if manifest is not None and largest > 1:
            raise DataError(
                f"{display(pair.bin)}: the file holds the value {largest}, but a loss mask may hold only 0 "
                "and 1. Encode the data again."
            )
        main = pair.pair(pair.stem.removesuffix(MASK_SUFFIX))
        tokens = IndexedDataset(main.prefix)
        main.open_loss_mask(tokens)
        _check_same_lengths(main, tokens, indexed)
        return [f"{learnt:,} of {indexed.num_tokens:,} tokens are in the loss"]
    checks = [
        "header, sizes, offsets and document array agree",
        f"largest token id {largest:,}" if largest >= 0 else "no tokens",
    ]
    if manifest:
        checks[-1] += f", vocabulary {manifest.vocab_size:,}"
        if any(source.get("append_eod") is False for source in manifest.sources):
            checks.append("documents end as in the source (append_eod: false)")
        elif manifest.eod_id is not None:
            checks.append(_check_eod(pair, indexed, manifest.eod_id))
    return checks


def _check_same_lengths(main: DatasetFiles, tokens: IndexedDataset, mask: IndexedDataset) -> None:
    for first in range(0, len(tokens), BLOCK):
        differ = np.flatnonzero(tokens.lengths[first : first + BLOCK] != mask.lengths[first : first + BLOCK])
        if differ.size:
            at = first + int(differ[0])
            raise DataError(
                f"{display(main.loss_mask.idx)}: sequence {at:,} has {int(mask.lengths[at]):,} entries, but "
                f"in {display(main.idx)} this sequence has {int(tokens.lengths[at]):,} tokens. The two files "
                f"belong to different datasets: copy both again, or prepare the dataset again."
            )


def _check_eod(dataset: DatasetFiles, indexed: IndexedDataset, eod_id: int) -> str:
    bounds = indexed.document_bounds()
    without = found = 0
    for first in range(0, len(bounds) - 1, BLOCK):
        part = bounds[first : first + BLOCK + 1]
        ends = part[1:][part[1:] > part[:-1]] - 1
        found += len(ends)
        without += int((indexed.tokens[ends] != eod_id).sum())
    if without:
        raise DataError(
            f"{display(dataset.bin)}: {without:,} of {found:,} documents do not end in EOD (id {eod_id}). "
            "Encode the data again with EOD: a model that never sees the end of a document cannot end one."
        )
    return f"every document ends in EOD (id {eod_id})"


def _check_sha256(
    dataset: DatasetFiles,
    manifest: DatasetManifest,
    digests: dict[str, str],
    advance: Callable[[float], object],
) -> str:
    for name, entry in manifest.files.items():
        path = dataset.directory / name
        if not path.is_file():
            raise DataError(
                f"{display(path)}: the file is missing, but the manifest lists it. Restore it, or run "
                "`nbtrain prepare RUN.yaml --force` to make the dataset again."
            )
        found = digests.get(name)
        if found is None:
            found = files.sha256_of(path)
            advance(path.stat().st_size)
        if found != entry["sha256"]:
            raise DataError(
                f"{display(path)}: the file's sha256 is {found[:16]}, but the manifest records "
                f"{entry['sha256'][:16]}: the content has changed. Restore the file, or run "
                "`nbtrain prepare RUN.yaml --force` to make the dataset again."
            )
    return f"sha256 of all {len(manifest.files)} files matches the manifest"


def _shown(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{value:,}" if isinstance(value, int) else str(value)
