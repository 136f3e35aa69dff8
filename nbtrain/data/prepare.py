"""From the sources of a run to samples it can train on, doing only what is not done yet.

    corpus -> tokenizer -> encode (.bin/.idx) -> index (document, sample and shuffle index of each split)

A step is skipped because the manifest of what is there names the same inputs, never because a file exists. What
was made for other inputs is refused, since runs refer to it by hash: another name, or force=True. Whatever a
killed prepare leaves has no manifest, so it does not count and is made again.
"""

import html
import logging
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from nbtrain.data.gpt_dataset import GPTDatasets
from nbtrain.data.indexed import IndexedDataset, IndexedWriter, missing
from nbtrain.data.tokenizer import Tokenizer
from nbtrain.errors import DataError
from nbtrain.progress import Progress
from nbtrain.workspace import display, tokenizer_dir

logger = logging.getLogger(__name__)

ENCODE_BYTES = 1 << 20
FORCE = "make it again with `nbtrain prepare RUN.yaml --force`"


@dataclass(frozen=True)
class Step:
    """One line of the report."""

    name: str
    action: str
    """made, kept, or used (brought by somebody and taken as it is)."""
    reason: str
    seconds: float


@dataclass
class PrepareReport:
    """What prepare did, why, and what there is now."""

    run: str
    steps: list[Step] = field(default_factory=list)
    dataset: Path | None = None
    manifest: DatasetManifest | None = None
    splits: list[dict[str, Any]] = field(default_factory=list)
    """name, documents, tokens, samples (in the order), epochs of each split."""

    @property
    def changed(self) -> bool:
        """Whether anything was made."""
        return any(step.action == "made" for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "dataset": str(self.dataset),
            "changed": self.changed,
            "seconds": self.seconds,
            "steps": [vars(step) for step in self.steps],
            "splits": self.splits,
            "manifest": self.manifest.to_dict() if self.manifest else None,
        }

    def __str__(self) -> str:
        return (
            "\n\n".join(_text_table(header, rows) for header, rows in self._tables())
            + f"\n\n{self._summary()}"
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        tables = "".join(_html_table(header, rows) for header, rows in self._tables())
        return f"{tables}<p>{html.escape(self._summary())}</p>"

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        steps = [[step.name, step.action, f"{step.seconds:.2f}", step.reason] for step in self.steps]
        splits = [
            [
                split["name"],
                f"{split['documents']:,}",
                f"{split['tokens']:,}",
                f"{split['samples']:,}",
                f"{split['epochs']:.2f}",
            ]
            for split in self.splits
        ]
        return [
            (["step", "", "seconds", "why"], steps),
            (["split", "documents", "tokens", "samples", "epochs"], splits),
        ]

    def _summary(self) -> str:
        if self.manifest is None or self.dataset is None:
            return ""
        counts = self.manifest.counts
        parts = [
            f"{display(self.dataset)}: {counts['documents']:,} documents, {counts['tokens']:,} tokens "
            f"({self.manifest.dtype}, vocabulary {self.manifest.vocab_size:,})"
        ]
        if counts.get("bytes"):
            parts.append(f"{counts['bytes'] / counts['tokens']:.2f} bytes/token")
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts["dropped"].items()))
        parts.append(f"dropped: {dropped or 'nothing'}")
        return "; ".join(parts) + "."


def prepare(config: RunConfig, force: bool = False) -> PrepareReport:
    """Make what the run's data lacks: tokenizer, .bin/.idx, indices.

    `force` makes all of it again, also for other settings; only a tokenizer that somebody brought stays. Runs that
    refer to the old dataset by its hash will then refuse to resume.

    Raises DataError: a source that cannot be read, an empty corpus, data made for other settings, damaged files.
    """
    report = PrepareReport(config.name)
    dataset = DatasetFiles.of(config)
    corpus = Corpus(config.data.sources, f"{config.where('data.sources')}: data.sources")
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
            f"{display(Path(error.filename or dataset.directory))}: {error.strerror}. Free space, or set NBTRAIN_DATA "
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
            other = trained and config.data.sources and trained["sources"] != _settings(config)["sources"]
            how = (
                "brought"
                if not trained
                else "trained on other sources"
                if other
                else "trained on these sources"
            )
            say(
                "used" if not trained else "kept",
                f"{display(directory)}: {loaded.vocab_size:,} entries, {how}",
            )
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
            f"{display(directory)}: {loaded.vocab_size:,} entries, but {config.where('tokenizer.vocab_size')} sets "
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
    differences = [
        f"{key} = {trained[key]:,} there, {value:,} in {config.where(f'tokenizer.{key}')}"
        for key, value in wanted.items()
        if trained[key] != value
    ]
    if differences:
        raise DataError(
            f"{display(directory)}: trained with other settings: {'; '.join(differences)}. Datasets and runs may "
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
    sources = _settings(config)["sources"]
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
        note = _check_same_inputs(config, dataset, manifest, corpus)
        _check_tokenizer(manifest, loaded, dataset)
        kept = dataset.require(config.tokenizer.vocab_size)
        say("kept", note)
        return kept
    if manifest is None and found and not mark.exists() and not force:
        raise DataError(
            f"{display(dataset.directory)}: holds {dataset.bin.name} without a manifest: nbtrain did not make it. To "
            f"use it, leave data.sources empty; to replace it, {FORCE}."
        )
    why = (
        "force"
        if manifest
        else "an earlier prepare did not end"
        if mark.exists()
        else "the dataset is not there"
    )
    files.write_text(mark, "")
    for path in (dataset.manifest_json, dataset.idx, dataset.bin, dataset.baselines_json):
        path.unlink(missing_ok=True)
    shutil.rmtree(dataset.index_cache, ignore_errors=True)
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
        settings=_settings(config),
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
                f"{error} It makes data from data.sources, which {config.where('data.sources')} leaves empty."
            )
    indexed = IndexedDataset(dataset.prefix)
    vocab_size = config.tokenizer.vocab_size
    indexed.verify(vocab_size)
    last_tokens = (
        np.unique(indexed.tokens[np.cumsum(indexed.lengths[:1000], dtype=np.int64) - 1])
        if len(indexed)
        else []
    )
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


def _check_same_inputs(
    config: RunConfig, dataset: DatasetFiles, manifest: DatasetManifest, corpus: Corpus
) -> str:
    """Why the dataset stays as it is. Raises DataError where it was made for other settings or other files."""
    wanted = _settings(config)
    differences = _differences(manifest.settings, wanted)
    if differences:
        raise DataError(
            f"{display(dataset.directory)}: made with other settings than {config.where('data.sources')}: "
            f"{'; '.join(differences)}. Runs may refer to it: give data.name another value, or {FORCE}."
        )
    now = corpus.fingerprint()
    then = [source["fingerprint"] for source in manifest.sources]
    if now == then:
        return "same settings, same sources"
    if all(reader.drift_is_accepted for reader, a, b in zip(corpus.readers, then, now) if a != b):
        return f"same settings; kept though versions differ: {'; '.join(_differences(then, now))}"
    sizes_only = [_sizes(entry) for entry in then] == [_sizes(entry) for entry in now]
    if sizes_only and _same_text(corpus, manifest):
        sources = [{**source, "fingerprint": entry} for source, entry in zip(manifest.sources, now)]
        renewed = DatasetManifest(**{**vars(manifest), "sources": sources})
        files.write_json(dataset.manifest_json, renewed.to_dict())
        return "same settings; file times differ, the text is the same"
    raise DataError(
        f"{display(dataset.directory)}: the sources have changed since it was made ([bytes, time]): "
        f"{'; '.join(_differences(then, now)[:3])}. Runs may refer to it: give data.name another value, or {FORCE}."
    )


def _same_text(corpus: Corpus, manifest: DatasetManifest) -> bool:
    for _ in corpus.documents():
        pass
    return [source["sha256"] for source in corpus.describe()] == [
        source["sha256"] for source in manifest.sources
    ]


def _sizes(fingerprint: dict[str, Any]) -> Any:
    return {name: size for name, (size, _) in fingerprint.get("files", {}).items()}


def _settings(config: RunConfig) -> dict[str, Any]:
    """What decides the content of a dataset, besides the tokenizer (compared by hash)."""
    return {
        "sources": [source.model_dump() for source in config.data.sources],
        "json_key": config.data.json_key,
    }


def _differences(there: Any, here: Any, key: str = "") -> list[str]:
    if there == here:
        return []
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here) and key.count("[") == 0:
        pairs = [(f"{key}[{index}]", a, b) for index, (a, b) in enumerate(zip(there, here))]
    elif isinstance(there, dict) and isinstance(here, dict):
        names = sorted(there.keys() | here.keys())
        pairs = [(f"{key}.{name}" if key else name, there.get(name), here.get(name)) for name in names]
    else:
        return [f"{key} = {there!r} there, {here!r} here"]
    return [line for name, a, b in pairs for line in _differences(a, b, name)]


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


def split_rows(datasets: GPTDatasets) -> list[dict[str, Any]]:
    """name, documents, tokens, samples, epochs of each split that is read."""
    return [
        {
            "name": name,
            "documents": split.num_documents,
            "tokens": split.num_tokens,
            "samples": split.num_samples,
            "epochs": split.num_epochs,
        }
        for name, split in (("train", datasets.train), ("valid", datasets.valid), ("test", datasets.test))
        if split is not None
    ]


# --- small parts --------------------------------------------------------------------------------------------


def _software(*distributions: str) -> dict[str, str]:
    versions = {"nbtrain": nbtrain.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return {**versions, **{name: metadata.version(name) for name in distributions}}


def _text_table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if _is_number(cell) else cell.ljust(width) for cell, width in zip(row, widths)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _html_table(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        styled = (
            f'<{tag} style="text-align:{"right" if _is_number(cell) else "left"}">{html.escape(cell)}</{tag}>'
            for cell in cells
        )
        return f"<tr>{''.join(styled)}</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _is_number(cell: str) -> bool:
    return bool(cell) and all(character in "0123456789.,%" for character in cell)
