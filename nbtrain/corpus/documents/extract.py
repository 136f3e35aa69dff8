"""Extracts sources that are slow to read: once, with many processes, into data/corpus/.

    data/corpus/<source>-<hash of its settings and fingerprint>/
        000012.jsonl            {"text": ...} per document
        000012.json             the tally of the part, written last; without it the part counts as missing
        broken-records.jsonl    the records that could not be read, if any
        manifest.json           the inputs of the extraction, written when all parts are complete

An interrupted extraction resumes after the complete parts. The folder may be removed at any time.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.process.locks import LOCK_FILE, locked_directory
from nbtrain.base.workspace import data_home, display
from nbtrain.config.sections.sources import text_settings
from nbtrain.corpus.documents import broken_records
from nbtrain.corpus.documents.corpus import SourceCounts, changed_while_read, empty_error
from nbtrain.corpus.records import BROKEN_RECORDS, LISTED_PROBLEMS, SourcePart, Tally, Texts
from nbtrain.corpus.sources.base import SourceReader
from nbtrain.corpus.workers.lease import stop_if_ended
from nbtrain.corpus.workers.ordered_map import Workers, ordered_map

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


class ExtractedReader(SourceReader):
    """Reads the documents that were extracted from the source of another reader, `original`.

    Fingerprint, settings and licence come from the original source.
    """

    kind = "extracted"

    def __init__(self, original: SourceReader, folder: Path):
        super().__init__(original.config, original.where, original.extra_keys)
        self.original = original
        self.folder = folder

    def parts(self) -> Iterator[SourcePart]:
        for path in sorted(self.folder.glob("[0-9]*.jsonl")):
            yield SourcePart(path.name, display(path), size_bytes=path.stat().st_size, details=(str(path),))

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        path = Path(part.details[0])
        # The tally of the extraction, which the dataset's counts include.
        if (record := files.read_json(path.with_suffix(".json"))) is None:
            missing = display(path.with_suffix(".json"))
            raise DataError(
                f"{missing} is missing, so the extracted text of the source is incomplete. Remove "
                f"{display(path.parent)} and run `nbtrain prepare RUN.yaml`, which extracts the source again."
            )
        found = Tally.from_dict(record["tally"])
        tally.dropped.update(found.dropped)
        tally.problems += found.problems[: LISTED_PROBLEMS - len(tally.problems)]
        tally.records += found.records
        tally.broken += found.broken
        tally.add_sentences(found)
        with path.open("rb") as stream:
            for line in stream:
                yield orjson.loads(line)["text"]

    def fingerprint(self) -> dict[str, Any]:
        return self.original.fingerprint()

    def accepts_drift(self, then: dict[str, Any], now: dict[str, Any]) -> bool:
        return self.original.accepts_drift(then, now)

    def describe(self) -> dict[str, Any]:
        return self.original.describe()

    def total_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self.folder.glob("[0-9]*.jsonl"))


def extracted(
    reader: SourceReader, choose: Callable[..., Workers], force: bool = False
) -> tuple[ExtractedReader, str, str]:
    """Extract a source, unless a complete extraction is in data/corpus/ already.

    Returns (reader of the extracted documents, "made" or "kept", clause for the report).
    `choose(total_bytes, folder=...)` returns the workers, which write into that folder. Raises DataError if
    the source cannot be read, or if it has more broken records than its settings allow.
    """
    inputs: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "settings": text_settings(reader.config),
        "fingerprint": reader.fingerprint(),
    }
    text = json.dumps(inputs, sort_keys=True)
    key = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
    folder = data_home() / "corpus" / f"{reader.name}-{key}"
    with locked_directory(folder):
        if force:
            _empty(folder)
        manifest = files.read_json(folder / MANIFEST)
        if manifest is not None and all((folder / name).is_file() for name in manifest["parts"]):
            why = f"{display(folder)}: {manifest['documents']:,} documents"
            return ExtractedReader(reader, folder), "kept", why
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink()
        kept = len(list(folder.glob("[0-9]*.json")))
        documents, parts = _extract(reader, folder, choose(reader.total_bytes(), folder=folder))
        if (now := reader.fingerprint()) != inputs["fingerprint"]:
            _empty(folder)
            raise changed_while_read(reader, inputs["fingerprint"], now)
        manifest = {**inputs, "source": reader.describe(), "documents": documents, "parts": parts}
        files.write_json(folder / MANIFEST, manifest)
    before = f"; parts kept from an earlier extraction: {kept:,}" if kept else ""
    return ExtractedReader(reader, folder), "made", f"{display(folder)}: {documents:,} documents{before}"


def _empty(folder: Path) -> None:
    """Remove the extracted files, but not the lock file, which this process holds open (as NFS requires)."""
    for path in folder.iterdir():
        if path.name != LOCK_FILE:
            path.unlink()


def _extract(reader: SourceReader, folder: Path, workers: Workers) -> tuple[int, list[str]]:
    counts, documents = SourceCounts(), 0
    names: list[str] = []
    with Progress(f"extract {reader.name}", reader.total_bytes(), "B") as progress:
        make: Callable[[], Any] = partial(_Extractor, reader, folder)
        if workers is None:
            make = partial(_Extractor, reader, folder, progress.update)
        for part, tally, found in ordered_map(make, enumerate(reader.parts()), workers):
            counts.absorb(tally, part.path)
            documents += found
            names.append(f"{len(names):06d}.jsonl")
            if workers is not None:
                progress.update(part.size_bytes)
            progress.update(0, documents=f"{documents:,}")
    listed = folder / BROKEN_RECORDS
    shown = display(listed) if broken_records.write(listed, [counts]) else ""
    counts.check_broken(reader, shown)
    if not documents:
        raise empty_error(reader.where, counts.dropped, counts.first(shown) if counts.named else "")
    return documents, names


class _Extractor:
    """Extracts one part, and calls `advance` with the number of bytes processed since the last call."""

    def __init__(
        self, reader: SourceReader, folder: Path, advance: Callable[[int], None] = lambda size: None
    ):
        self.reader, self.folder, self.advance = reader, folder, advance

    def __call__(self, task: tuple[int, SourcePart]) -> tuple[SourcePart, Tally, int]:
        number, part = task
        path = self.folder / f"{number:06d}.jsonl"
        # The result is sent back to the caller, which does not need the content of the part again.
        bare = SourcePart(part.name, part.path, part.start, part.stop, part.size_bytes)
        record = files.read_json(path.with_suffix(".json"))
        if record is not None and path.is_file() and path.stat().st_size == record["bytes"]:
            self.advance(part.size_bytes)
            return bare, Tally.from_dict(record["tally"]), record["documents"]
        tally, documents, size, advanced = Tally(), 0, 0, 0
        with files.atomic_writer(path) as stream:
            for text in self.reader.read(part, tally):
                if isinstance(text, Texts):
                    text = text.text
                if not isinstance(text, str):
                    raise DataError(f"{self.reader.where}: kind: {self.reader.kind} has no text to extract.")
                try:
                    line = orjson.dumps({"text": text}) + b"\n"
                except orjson.JSONEncodeError:  # a lone surrogate
                    tally.dropped["not_unicode"] += 1
                    continue
                stream.write(line)
                documents += 1
                size += len(line)
                step = min(len(text), max(0, part.size_bytes - advanced))
                advanced += step
                self.advance(step)
                stop_if_ended()
        self.advance(part.size_bytes - advanced)
        record = {"documents": documents, "bytes": size, "tally": tally.to_dict()}
        files.write_json(path.with_suffix(".json"), record)
        return bare, tally, documents
