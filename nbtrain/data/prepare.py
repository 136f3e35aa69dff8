"""From the sources of a run to samples it can train on, doing only what is not done yet.

    corpus -> tokenizer -> encode (.bin/.idx) -> index (document, sample and shuffle index of each split)

A step is skipped because the manifest of what is there names the same inputs, never because a file exists. What
was made for other inputs is refused, since runs refer to it by hash: another name, or force=True. Whatever a
killed prepare leaves has no manifest, so it does not count and is made again.
"""

import logging
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import nbtrain
from nbtrain import files
from nbtrain.config.schema import RunConfig
from nbtrain.data import gpt_dataset, tokenizer
from nbtrain.data.corpus import Corpus
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest, locked_directory, manifest_dtype
from nbtrain.data.indexed import IndexedDataset, missing
from nbtrain.data.indexed_writer import IndexedWriter
from nbtrain.data.inputs import FORCE, check_same_inputs, origin, place, settings
from nbtrain.data.prepare_report import PrepareReport, Step, split_rows
from nbtrain.data.tokenizer import Tokenizer
from nbtrain.errors import DataError
from nbtrain.progress import Progress
from nbtrain.workspace import display, tokenizer_dir

logger = logging.getLogger(__name__)

ENCODE_BYTES = 1 << 20


def prepare(config: RunConfig, force: bool = False) -> PrepareReport:
    """Make what the run's data lacks: tokenizer, .bin/.idx, indices.

    `force` makes all of it again, also for other settings; only a tokenizer that somebody brought stays. Runs that
    refer to the old dataset by its hash will then refuse to resume.

    Raises DataError: a source that cannot be read, an empty corpus, data made for other settings, damaged files.
    """
    report = PrepareReport(config.name)
    dataset = DatasetFiles.of(config)
    corpus = Corpus(config.data.sources, place(config, "data.sources"))
    try:
        with dataset.locked():
            dataset.remove_leftovers()
            with _step(report, "tokenizer") as say:
                loaded = _prepare_tokenizer(config, dataset, corpus, force, say)
            with _step(report, "encode") as say:
                report.manifest = _prepare_tokens(config, dataset, corpus, loaded, force, say)
            report.dataset = dataset.directory
            with _step(report, "index") as say:
                report.splits = _prepare_indices(config, dataset, say)
    except OSError as error:
        raise DataError(
            f"{display(Path(error.filename or dataset.directory))}: {error.strerror or error}. Free space, or set NBTRAIN_DATA "
            "to a folder that can be written."
        ) from error
    return report


@contextmanager
def _step(report: PrepareReport, name: str) -> Iterator[Any]:
    """Time one step; the body calls say(action, reason) once."""
    begun = time.perf_counter()
    said: list[str] = []
    yield lambda action, reason: said.extend((action, reason))
    action, reason = said
    report.steps.append(Step(name, action, reason, time.perf_counter() - begun))
    logger.info("%s: %s: %s", name, action, reason)


# --- tokenizer ----------------------------------------------------------------------------------------------


def _prepare_tokenizer(
    config: RunConfig, dataset: DatasetFiles, corpus: Corpus, force: bool, say: Any
) -> Tokenizer | None:
    directory = tokenizer_dir(config.tokenizer.name)
    wanted = {"vocab_size": config.tokenizer.vocab_size, "train_bytes": config.tokenizer.train_bytes}
    with locked_directory(directory.parent):
        for leftover in directory.parent.glob(f".{directory.name}.*.tmp"):
            shutil.rmtree(leftover)
        manifest = tokenizer.read_manifest(directory)
        if manifest is None and any((directory / name).is_file() for name in tokenizer.CONTENT_FILES):
            loaded = _adopt_tokenizer(directory)
            say(
                "used",
                f"vocab.json and merges.txt were in {display(directory)}: {loaded.vocab_size:,} entries",
            )
        elif manifest is not None and not (force and manifest["trained"] and config.data.sources):
            loaded = Tokenizer.load(directory)
            _check_trained_for(config, manifest, wanted, directory)
            trained = manifest["trained"]
            how = "brought"
            if trained:
                same = trained["sources"] == settings(config)["sources"]
                how = f"trained on {'these' if same else 'other'} sources"
            say("kept" if trained else "used", f"{display(directory)}: {loaded.vocab_size:,} entries, {how}")
        elif not config.data.sources:
            say(
                "used",
                f"none: data.sources is empty and {display(directory)} is not there; text cannot be shown",
            )
            return None
        else:
            why = "force" if manifest else f"{display(directory)} is not there"
            _train_tokenizer(config, directory, corpus, wanted)
            loaded = Tokenizer.load(directory)
            say("made", f"{why}: {loaded.vocab_size:,} entries")
    if loaded.vocab_size > config.tokenizer.vocab_size:
        raise DataError(
            f"{display(directory)}: {loaded.vocab_size:,} entries, but {origin(config, 'tokenizer.vocab_size')} sets "
            f"tokenizer.vocab_size = {config.tokenizer.vocab_size:,}, for which the model is built. Set it to "
            f"{loaded.vocab_size}, or name another tokenizer."
        )
    return loaded


def _check_trained_for(
    config: RunConfig, manifest: dict[str, Any], wanted: dict[str, int], directory: Path
) -> None:
    trained = manifest["trained"]
    if not trained:
        return
    changed = [
        f"{key} = {trained[key]:,} there, {value:,} in {origin(config, f'tokenizer.{key}')}"
        for key, value in wanted.items()
        if trained[key] != value
    ]
    if changed:
        raise DataError(
            f"{display(directory)}: trained with other settings: {'; '.join(changed)}. Datasets and runs may "
            f"refer to it: give tokenizer.name another value, or {FORCE}."
        )


def _adopt_tokenizer(directory: Path) -> Tokenizer:
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    for path in (vocab, merges):
        if not path.is_file():
            raise DataError(
                f"{display(path)}: no such file. A brought tokenizer is vocab.json and merges.txt; put both there, or "
                "remove the folder to have one trained."
            )
    tokenizer.save(tokenizer.from_vocabulary(vocab, merges), directory, {"trained": None})
    return Tokenizer.load(directory)


def _train_tokenizer(config: RunConfig, directory: Path, corpus: Corpus, wanted: dict[str, int]) -> None:
    total = corpus.total_bytes()
    total = min(total, wanted["train_bytes"]) if total else wanted["train_bytes"]
    with Progress(f"tokenizer {config.tokenizer.name}", total, "B") as progress:
        texts = _counted(corpus.documents(), progress)
        trained = tokenizer.train(texts, wanted["vocab_size"], wanted["train_bytes"])
    sources = settings(config)["sources"]
    made = directory.with_name(f".{directory.name}.new.tmp")
    tokenizer.save(
        trained, made, {"trained": {**wanted, "sources": sources, "software": _software("tokenizers")}}
    )
    if directory.is_dir():
        # A folder cannot be renamed over one that holds files.
        old = directory.with_name(f".{directory.name}.old.tmp")
        directory.rename(old)
        made.rename(directory)
        shutil.rmtree(old)
    else:
        made.rename(directory)
    files.fsync_directory(directory.parent)


def _counted(texts: Iterator[str], progress: Progress) -> Iterator[str]:
    for text in texts:
        progress.update(len(text))
        yield text


# --- .bin/.idx ----------------------------------------------------------------------------------------------


def _prepare_tokens(
    config: RunConfig, dataset: DatasetFiles, corpus: Corpus, loaded: Tokenizer | None, force: bool, say: Any
) -> DatasetManifest:
    # The mark tells files that a killed prepare left from files that somebody brought.
    mark = dataset.directory / ".preparing"
    manifest = dataset.manifest()
    found = dataset.bin.is_file() or dataset.idx.is_file()
    if not config.data.sources:
        if manifest is None:
            manifest = _adopt_tokens(config, dataset, loaded)
            say(
                "used",
                f"{display(dataset.bin)} was there and data.sources is empty: {manifest.counts['tokens']:,} tokens",
            )
        else:
            say("kept", "data.sources is empty: the dataset is used as it is")
        _check_tokenizer(manifest, loaded, dataset)
        return dataset.require(config.tokenizer.vocab_size)
    assert loaded is not None
    if manifest is not None and not force:
        note = check_same_inputs(config, dataset, manifest, corpus)
        _check_tokenizer(manifest, loaded, dataset)
        dataset.require(config.tokenizer.vocab_size)
        mark.unlink(missing_ok=True)
        say("kept", note)
        return manifest
    if manifest is None and found and not mark.exists() and not force:
        raise DataError(
            f"{display(dataset.directory)}: holds {dataset.bin.name} without a manifest: nbtrain did not make it. To "
            f"use it, leave data.sources empty; to replace it, {FORCE}."
        )
    why = "the dataset is not there"
    if manifest is not None:
        why = "force"
    elif mark.exists():
        why = "an earlier prepare did not end"
    files.write_text(mark, "")
    for path in (dataset.manifest_json, dataset.idx, dataset.bin, dataset.baselines_json):
        path.unlink(missing_ok=True)
    if dataset.index_cache.is_dir():
        shutil.rmtree(dataset.index_cache)
    manifest = _encode(config, dataset, corpus, loaded)
    mark.unlink()
    say("made", f"{why}: {manifest.counts['documents']:,} documents, {manifest.counts['tokens']:,} tokens")
    return manifest


def _encode(config: RunConfig, dataset: DatasetFiles, corpus: Corpus, loaded: Tokenizer) -> DatasetManifest:
    with (
        Progress(f"encode {config.data.name}", corpus.total_bytes(), "B") as progress,
        IndexedWriter(dataset.prefix, loaded.vocab_size, loaded.eod_id) as writer,
    ):
        for batch in _batches(corpus.documents()):
            writer.add_batch(*loaded.encode_batch(batch))
            progress.update(sum(map(len, batch)), tokens=f"{writer.num_tokens:,}")
    written = writer.written
    assert written is not None
    dropped = dict(corpus.dropped)
    if written.num_empty:
        dropped["no_token"] = written.num_empty
    manifest = DatasetManifest(
        json_key=config.data.json_key,
        sources=corpus.describe(),
        counts={
            "documents": written.num_documents,
            "tokens": written.num_tokens,
            "bytes": corpus.num_bytes,
            "dropped": dropped,
        },
        vocab_size=loaded.vocab_size,
        dtype=manifest_dtype(writer.dtype),
        eod_id=loaded.eod_id,
        tokenizer_sha256=loaded.sha256,
        files=written.files,
        settings=settings(config),
        software=_software(loaded.engine),
    )
    files.write_json(dataset.manifest_json, manifest.to_dict())
    return manifest


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Documents in lists of about ENCODE_BYTES: what is in memory at one time."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= ENCODE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _adopt_tokens(config: RunConfig, dataset: DatasetFiles, loaded: Tokenizer | None) -> DatasetManifest:
    """A manifest for files that somebody brought: everything is read once and checked."""
    for path in (dataset.bin, dataset.idx):
        if not path.is_file():
            error = missing(path)
            raise DataError(
                f"{error} It makes data from data.sources, which {origin(config, 'data.sources')} leaves empty."
            )
    indexed = IndexedDataset(dataset.prefix)
    vocab_size = config.tokenizer.vocab_size
    indexed.verify(vocab_size)
    ends = np.cumsum(indexed.lengths, dtype=np.int64)[: min(len(indexed), 1000)] - 1
    last_tokens = np.unique(indexed.tokens[ends])
    manifest = DatasetManifest(
        json_key=config.data.json_key,
        sources=[],
        counts={
            "documents": len(indexed.document_indices) - 1,
            "tokens": indexed.num_tokens,
            "bytes": None,
            "dropped": {},
        },
        vocab_size=loaded.vocab_size if loaded else vocab_size,
        dtype=manifest_dtype(indexed.dtype),
        eod_id=loaded.eod_id if loaded else int(last_tokens[0]) if len(last_tokens) == 1 else None,
        tokenizer_sha256=loaded.sha256 if loaded else None,
        files={
            path.name: {"bytes": path.stat().st_size, "sha256": files.sha256_of(path)}
            for path in (dataset.bin, dataset.idx)
        },
        software=_software(),
    )
    files.write_json(dataset.manifest_json, manifest.to_dict())
    return manifest


def _check_tokenizer(manifest: DatasetManifest, loaded: Tokenizer | None, dataset: DatasetFiles) -> None:
    if loaded and manifest.tokenizer_sha256 and manifest.tokenizer_sha256 != loaded.sha256:
        raise DataError(
            f"{display(dataset.directory)}: encoded with another tokenizer than {display(loaded.directory)} "
            f"(sha256 {manifest.tokenizer_sha256[:12]} there, {loaded.sha256[:12]} here). Name the right tokenizer, give "
            f"data.name another value, or {FORCE}."
        )


# --- indices ------------------------------------------------------------------------------------------------


def _prepare_indices(config: RunConfig, dataset: DatasetFiles, say: Any) -> list[dict[str, Any]]:
    before = set(dataset.index_cache.glob("*.json"))
    datasets = gpt_dataset.build(config)
    made = len(set(dataset.index_cache.glob("*.json")) - before)
    if made:
        say("made", f"{made} of the indices of train, valid and test were not in index-cache/")
    else:
        say("kept", "index-cache/ holds them for this dataset, split, seed and length")
    return split_rows(datasets)


# --- small parts --------------------------------------------------------------------------------------------


def _software(*distributions: str) -> dict[str, str]:
    versions = {"nbtrain": nbtrain.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return {**versions, **{name: metadata.version(name) for name in distributions}}
