"""Surveys a user's text before a run is created for it: amount, kind of records, language.

    paths (files, folders, patterns) -> entries of data.sources -> documents read, up to READ_BYTES
        -> amounts (exact if all text was read, otherwise extrapolated) -> a sample -> language, vocabularies

`prepare` uses the same readers, so the counts match what is encoded later.
"""

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, resolve, typed_path
from nbtrain.config.sections.data_section import CleaningConfig
from nbtrain.config.sections.sources import Source, address_problem
from nbtrain.corpus.documents import dedup
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import Corpus, SourceCounts, cleaned
from nbtrain.corpus.documents.text_sample import text_of
from nbtrain.corpus.files import compression, folder
from nbtrain.corpus.files.choice import Choice
from nbtrain.corpus.files.file_kinds import COLUMNS, RECORDS, stands_beside_data, suffix_of
from nbtrain.corpus.files.json_line import keys_of
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources.base import SourceReader, open_source
from nbtrain.corpus.sources.hf_dataset import OpenArrow
from nbtrain.corpus.sources.record_kind import first_records, source_of
from nbtrain.corpus.survey.language import language_of

READ_BYTES = 64 << 20
"""Number of bytes of text to read; the amounts of a larger text are extrapolated."""
SAMPLE_BYTES = 4 << 20
LOOKED_AT_FILES = 8
MOST_SOURCES = 4
"""Maximum number of entries in data.sources, so that the run YAML stays short."""
MOST_PATTERNS = 4
"""Maximum number of patterns in a source's `exclude`, so that they fit on a line."""
LEAST_DOCUMENTS = 200
"""Minimum number of documents for splits of about the requested sizes.

Plain text with fewer files is cut into documents, because each file would be one document.
"""
DOCUMENT_BYTES = (1 << 10, 64 << 10)
"""Minimum and maximum size in bytes of the documents into which a plain text is cut."""

PLAIN_FILES = ("text", "jsonl", "parquet")
"""Kinds of source whose files survey() looks for in a folder.

For files of records, the kind in the result depends on the keys of the records.
"""
CONVERTED_BY = {
    ".pdf": "pdftotext",
    ".docx": "pandoc -t plain",
    ".odt": "pandoc -t plain",
    ".epub": "pandoc -t plain",
    ".html": "pandoc -t plain",
    ".htm": "pandoc -t plain",
    ".csv": "a program that writes Parquet or JSON lines",
}


@dataclass
class Survey:
    """The result of survey(): the sources found at some paths, and the amount and language of their text."""

    sources: list[dict[str, Any]] = field(default_factory=list)
    """Entries for data.sources of a run YAML."""
    files: int = 0
    documents: int = 0
    num_bytes: int = 0
    """UTF-8 bytes of text, without the empty and repeated documents that prepare drops."""
    is_exact: bool = True
    """Whether all text was read; otherwise documents and bytes are extrapolated from a part of it."""
    sample: list[str] = field(default_factory=list)
    """Texts of about SAMPLE_BYTES in total, spread over the text that was read."""
    language: str = ""
    """English name of the language of most of the sample; "" if unknown."""
    notes: list[str] = field(default_factory=list)
    """Clauses that describe what was skipped."""

    @property
    def kinds(self) -> set[str]:
        return {source["kind"] for source in self.sources}

    @property
    def is_fine_tuning(self) -> bool:
        """Whether the sources are conversations, instructions or preferences instead of plain text."""
        return not self.kinds <= {"text", "jsonl", "parquet", "hf-dataset", "tokens"}

    def words(self) -> str:
        """Return a summary, e.g. "3.0 MB of English text in 559 documents, 1 file"."""
        about = "" if self.is_exact else "about "
        language = f" of {self.language}" if self.language else ""
        what = amounts.counted(self.documents, "example" if self.is_fine_tuning else "document")
        files = amounts.counted(self.files, "file")
        return f"{about}{amounts.size(self.num_bytes)}{language} in {what}, {files}"


def survey(paths: Sequence[str | Path]) -> Survey:
    """Survey files, folders and patterns. Raises DataError if a path does not exist or cannot be read."""
    found = Survey()
    for entry in dict.fromkeys(entry for path in paths for entry in _expanded(path)):
        found.sources += _sources_in(entry, found.notes)
    if not found.sources:
        raise DataError("--text: no file or folder was given. Give at least one.")
    found.sources = _fewer(found.sources)
    if len({_is_plain(kind) for kind in found.kinds}) > 1:
        listed = ", ".join(f"{source['path']} ({source['kind']})" for source in found.sources)
        raise DataError(
            f"--text: plain text and fine-tuning examples cannot be mixed in one run: {listed}. Give only "
            "plain text, or only fine-tuning examples."
        )
    readers = _readers(found.sources)
    if _is_whole_text(found.sources) and _counted_files(readers) < LEAST_DOCUMENTS:
        num_bytes = sum(reader.total_bytes() or 0 for reader in readers)
        cut_bytes = _cut_bytes(num_bytes)
        found.sources = [{**source, "document_bytes": cut_bytes} for source in found.sources]
        readers = _readers(found.sources)
    found.files = _counted_files(readers)
    _read(found, readers)
    if not found.documents:
        raise DataError(
            f"{found.sources[0]['path']}: no usable text: every document is empty or broken. Give other "
            "files."
        )
    found.language = language_of(found.sample)
    return found


def _without_path(source: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key != "path"}


def _shown(source: dict[str, Any]) -> str:
    keys = ", ".join(f"{key} {value}" for key, value in source.items() if key not in ("kind", "path"))
    return f"{source['kind']}, {keys}" if keys else source["kind"]


def _expanded(path: str | Path) -> list[Path]:
    """Return the files and folders that a path or pattern refers to, as absolute paths."""
    text = str(path)
    if problem := address_problem(text):
        raise DataError(f"{text}: {problem}")
    for candidate in (typed_path(path).absolute(), resolve(path)):
        if folder.status(candidate, "--text") is not None:
            return [candidate]
    if any(mark in text for mark in "*?["):
        for pattern in (typed_path(path).absolute(), resolve(path)):
            plain = next(
                parent for parent in pattern.parents if not any(mark in str(parent) for mark in "*?[")
            )
            if matches := sorted(plain.glob(str(pattern.relative_to(plain)))):
                return matches
        raise DataError(f"{text}: no file or folder matches this pattern. Correct the pattern.")
    raise DataError(f"{text}: no such file or folder, here or in the workspace. Correct the path.")


def _sources_in(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Return the entries of data.sources that read a file or a folder.

    Adds clauses about files that the entries skip to `notes`.
    """
    name = display(path)
    if not folder.is_folder(path, name):
        return [_source_of_file(path)]
    if any((path / marker).is_file() for marker in ("dataset_dict.json", "state.json")):
        return [_hf_dataset(path)]
    found: list[dict[str, Any]] = []
    left: set[str] | None = None
    num_files = 0
    for kind in PLAIN_FILES:
        reader: Any = open_source(_adapted({"kind": kind, "path": name}), "--text")
        choice = Choice.of(path, reader.is_wanted, None, [], name)
        num_files = len(choice.read) + len(choice.others)
        left = set(choice.others) if left is None else left & set(choice.others)
        if not choice.read:
            continue
        split: dict[str, Any] = {}
        if mixed := choice.mixed_splits():
            split["split"] = "train"
            notes.append(f"{name}: holds files from several splits ({mixed}); only the train files are read")
            choice = Choice.of(path, reader.is_wanted, "train", [], name)
        if kind == "text":
            found.append({"kind": kind, "path": name, **split})
            continue
        files = [path / file for file in choice.read]
        step = max(1, len(files) // LOOKED_AT_FILES)
        looked_at = {file: _without_path(_source_of_file(file)) for file in files[::step][:LOOKED_AT_FILES]}
        first, source = next(iter(looked_at.items()))
        if other := next((file for file, entry in looked_at.items() if entry != source), None):
            raise DataError(
                f"{name}: the folder contains records of several kinds: {display(first)} ({_shown(source)}) "
                f"and {display(other)} ({_shown(looked_at[other])}). Give only files of one kind."
            )
        found.append({"kind": source.pop("kind"), "path": name, **split, **source})
    unread = sorted(display(path / file) for file in left or () if not stands_beside_data(Path(file).name))
    if not found:
        raise DataError(
            f"{name}: the folder contains no text: there is no .txt, .md, .jsonl, .json or .parquet file "
            f"among its {amounts.counted(num_files, 'file')}. Give another folder."
        )
    if unread:
        more = f" and {len(unread) - 3:,} more" if len(unread) > 3 else ""
        notes.append(f"skipped because not text: {', '.join(unread[:3])}{more}")
    return found


def _source_of_file(path: Path) -> dict[str, Any]:
    name, suffix = display(path), suffix_of(path.name)
    if suffix in CONVERTED_BY:
        raise DataError(
            f"{name}: {suffix} files are not supported. Convert the file with {CONVERTED_BY[suffix]}, and "
            "give the converted file."
        )
    if suffix == ".xml":
        raise DataError(
            f"{name}: .xml files are supported only as Wikipedia dumps. For a dump, write a run YAML that "
            f"extends gpt-tiny with data.sources: [{{kind: wiki, path: {name}}}]."
        )
    folder.is_file(path, name)
    if suffix in (*RECORDS, *COLUMNS):
        return _source_of_records(path, first_records(path), "parquet" if suffix in COLUMNS else "jsonl")
    _check_is_text(path)
    return {"kind": "text", "path": name}


def _source_of_records(path: Path, records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    name = display(path)
    if not records:
        raise DataError(f"{name}: the file contains no records. Give another file.")
    source = source_of(records)
    if source is None:
        raise DataError(
            f"{name}: no kind of source can read these records. The first record has the keys "
            f'{keys_of(records[0])}. Plain text must be under one key, as in {{"text": ...}}; see '
            "docs/finetuning-data.md for the formats of fine-tuning examples."
        )
    if source["kind"] == "jsonl":
        source["kind"] = kind
    return {"kind": source.pop("kind"), "path": name, **source}


def _hf_dataset(path: Path) -> dict[str, Any]:
    source: dict[str, Any] = {"kind": "hf-dataset", "path": display(path)}
    names = _split_names(path)
    if len(names) > 1:
        source["split"] = "train" if "train" in names else names[0]
    reader: Any = open_source(_adapted(source), "--text")
    with OpenArrow(reader.files()[0], "--text") as file:
        records = [
            row for batch in islice(file.batches(None, 0, 1), 1) for row in batch.slice(0, 50).to_pylist()
        ]
    found = _source_of_records(path, records, "hf-dataset")
    if found["kind"] != "hf-dataset":
        raise DataError(
            f"{display(path)}: the dataset contains fine-tuning examples ({found['kind']}), which are read "
            "only from .jsonl and .parquet files. Write it to a file with to_parquet() of Hugging Face's "
            "datasets, and give that file."
        )
    return {**source, **{key: value for key, value in found.items() if key == "text_key"}}


def _split_names(path: Path) -> list[str]:
    from nbtrain.base import files

    record = files.read_json(path / "dataset_dict.json") or {}
    return [str(name) for name in record.get("splits", [])]


def _check_is_text(path: Path) -> None:
    with compression.open_bytes(path, "--text") as stream:
        begun = stream.read(8192)
    try:
        text = begun.decode()
    except UnicodeDecodeError as error:
        # The last character may be incomplete.
        text = "" if error.start < len(begun) - 4 else begun[: error.start].decode()
        if not text:
            raise DataError(
                f"{display(path)}: the file is not UTF-8 text (byte 0x{begun[error.start]:02x} at "
                f"position {error.start:,}). Convert it, e.g. with "
                "`iconv -f ISO-8859-1 -t UTF-8 OLD > NEW`, and give the new file."
            ) from None
    if "\0" in text:
        raise DataError(
            f"{display(path)}: the file is not text: it contains bytes with the value zero. Give a text file."
        )


def _fewer(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge entries for files of the same folder that have equal settings into one entry for the folder.

    Raises DataError if too many entries remain.
    """
    if len(sources) <= MOST_SOURCES:
        return sources
    merged: list[dict[str, Any]] = []
    by_folder: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for source in sources:
        by_folder.setdefault((str(Path(source["path"]).parent), _shown(_without_path(source))), []).append(
            source
        )
    for (parent, _), own in by_folder.items():
        whole = _folder_of(parent, own) if len(own) > 1 else None
        merged += own if whole is None else [whole]
    if len(merged) > MOST_SOURCES:
        raise DataError(
            f"--text: the paths need {len(merged)} entries in data.sources, because their folders also "
            f"contain other files, but at most {MOST_SOURCES} entries are written to a run YAML. Put the "
            "files into a folder without other text, and give the folder."
        )
    return merged


def _folder_of(parent: str, own: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a folder entry that reads exactly these files; None if it needs too many exclude patterns."""

    def relative_files(source: dict[str, Any]) -> set[str]:
        reader: Any = open_source(_adapted(source), "--text")
        return {file.relative_to(resolve(parent)).as_posix() for file in reader.files()}

    whole = {**own[0], "path": parent}
    every = {**whole, "split": "all"}
    wanted = {resolve(source["path"]).relative_to(resolve(parent)).as_posix() for source in own}
    suffixes = {Path(name).suffix for name in wanted}
    patterns = {
        folder if below else name if Path(name).suffix in suffixes else f"*{Path(name).suffix}"
        for name in relative_files(every) - wanted
        for folder, below, _ in [name.partition("/")]
    }
    if len(patterns) > MOST_PATTERNS:
        return None
    exclude = {"exclude": sorted(patterns)} if patterns else {}
    for source in ({**whole, **exclude}, {**every, **exclude}):
        # A folder that mixes validation files with other files is refused if no split is set.
        with contextlib.suppress(DataError):
            if relative_files(source) == wanted:
                return source
    return None


def _readers(sources: list[dict[str, Any]]) -> list[SourceReader]:
    return Corpus.open([_adapted(source) for source in sources], "--text").readers


def _adapted(source: dict[str, Any]) -> Any:
    adapter: TypeAdapter[Any] = TypeAdapter(Source)
    return adapter.validate_python(source)


def _is_whole_text(sources: list[dict[str, Any]]) -> bool:
    return {source["kind"] for source in sources} == {"text"}


def _is_plain(kind: str) -> bool:
    return kind in ("text", "jsonl", "parquet", "hf-dataset", "tokens")


def _counted_files(readers: Sequence[Any]) -> int:
    return sum(len(reader.files()) for reader in readers)


def _cut_bytes(num_bytes: int) -> int:
    """Return the size in bytes, a power of two, of the documents into which plain text is cut."""
    smallest, largest = DOCUMENT_BYTES
    wanted = max(smallest, min(largest, num_bytes // LEAST_DOCUMENTS))
    return 1 << (wanted.bit_length() - 1)


def _read(found: Survey, readers: Sequence[Any]) -> None:
    """Count documents and bytes, and draw the sample. Reads whole parts until READ_BYTES are reached."""
    sizes = [reader.total_bytes() or 0 for reader in readers]
    total = sum(sizes)
    kept_fraction = min(1.0, 1.5 * SAMPLE_BYTES / max(1, min(total, READ_BYTES)))
    generator, seen, repeated, sampled = random.Random(0), set[bytes](), 0, 0
    documents = num_bytes = 0.0
    # The text of compressed files is larger than the files, so the bytes to expect are unknown.
    packed = (*compression.PACKED_SUFFIXES, *COLUMNS)
    is_packed = any(file.suffix.lower() in packed for reader in readers for file in reader.files())
    expected = None if is_packed else min(total, READ_BYTES) or None
    with Progress("reading the text", expected, "B") as progress:
        for reader, size in zip(readers, sizes, strict=True):
            enough = READ_BYTES * size // max(total, 1)
            own_documents = own_bytes = consumed = 0
            tally, cleaner = Tally(), Cleaner(CleaningConfig())
            for part in reader.parts():
                if own_bytes >= enough and consumed:
                    found.is_exact = False
                    break
                # For uncompressed files, progress is counted in bytes of the file, although the text is
                # smaller or, if a template is applied, larger.
                left = math.inf if is_packed else part.size_bytes
                for record in cleaned(reader.read(part, tally), cleaner, tally, reader.gives_unicode):
                    text = text_of(record)
                    if text is None:
                        raise DataError(
                            f"{reader.config.path}: contains token ids, from which no tokenizer can be "
                            "trained. Write a run YAML with kind: tokens, as shown in docs/data.md."
                        )
                    encoded = text.encode()
                    if (identity := dedup.digest(encoded)) in seen:
                        repeated += 1
                        continue
                    seen.add(identity)
                    own_documents += 1
                    own_bytes += len(encoded)
                    step = min(len(encoded), left)
                    progress.update(step)
                    left -= step
                    if sampled < SAMPLE_BYTES and generator.random() < kept_fraction:
                        found.sample.append(text)
                        sampled += len(encoded)
                consumed += part.size_bytes
                progress.update(0 if is_packed else left)
            _check_broken(reader, tally)
            scale = size / consumed if consumed and consumed < size else 1.0
            documents += own_documents * scale
            num_bytes += own_bytes * scale
    found.documents, found.num_bytes = round(documents), round(num_bytes)
    if repeated:
        found.notes.append(f"skipped: {amounts.counted(repeated, 'repeated document')}")


def _check_broken(reader: SourceReader, tally: Tally) -> None:
    """Raise DataError if the source has more broken records than `prepare` allows."""
    counts = SourceCounts(logged_before=True)
    counts.absorb(tally, None)
    counts.check_broken(reader)
