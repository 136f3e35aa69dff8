"""Reads all sources of a dataset as one numbered sequence of parts, and counts what it reads.

    sources in order -> parts in order -> (number, source, part)

A numbered part is the unit of extraction, encoding and resuming.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from nbtrain.base.errors import DataError
from nbtrain.base.text.terminal import printable
from nbtrain.corpus.documents import cleaning
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.dedup import digest, digests
from nbtrain.corpus.records import (
    LISTED_PROBLEMS,
    NAMED_PROBLEMS,
    Example,
    Preference,
    Problem,
    Record,
    SourcePart,
    Tally,
    Texts,
    TokenIds,
)
from nbtrain.corpus.sources.base import SourceReader, open_source
from nbtrain.corpus.sources.source_check import PLAIN, fitting_source

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """A part of a source, its number within the whole corpus, and the number of its source."""

    number: int
    source: int
    part: SourcePart


class Corpus:
    """The readers of all sources of a dataset, in the order of data.sources.

    `where` identifies data.sources in messages. `gone` holds the numbers of sources that are no longer on
    disk.
    """

    def __init__(
        self, readers: Sequence[SourceReader], where: str = "data.sources", gone: Collection[int] = ()
    ):
        self.readers = list(readers)
        self.where = where
        self.gone = gone

    @classmethod
    def open(
        cls,
        sources: Sequence[BaseModel],
        where: str = "data.sources",
        extra_keys: tuple[str, ...] = (),
        gone: Collection[int] = (),
    ) -> "Corpus":
        """Open the corpus of a run. Raises DataError if a package is missing."""
        readers = [open_source(source, f"{where}[{n}]", extra_keys) for n, source in enumerate(sources)]
        for number, reader in enumerate(readers):
            if number in gone:
                continue
            reader.check_dependencies()
        return cls(readers, where, gone)

    def tasks(self) -> Iterator[Task]:
        """Yield every part, numbered. Raises DataError if a source cannot be read."""
        number = 0
        for source, reader in enumerate(self.readers):
            for part in reader.parts():
                yield Task(number, source, part)
                number += 1

    def fingerprint(self) -> list[dict[str, Any] | None]:
        """Return the fingerprint of each source, or None for a source that is gone, without reading text."""
        return [None if n in self.gone else reader.fingerprint() for n, reader in enumerate(self.readers)]

    def total_bytes(self) -> int | None:
        """Return the sum of all parts' sizes, for a progress bar; None if the size of a source is unknown."""
        sizes = [reader.total_bytes() for reader in self.readers]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def unpacked_bytes(self, most: int) -> int | None:
        """Return the uncompressed size of all sources in bytes, or `most` if they are larger.

        The result is None if the size of a source is unknown.
        """
        num_bytes = 0
        for reader in self.readers:
            size = reader.unpacked_bytes(most - num_bytes)
            if size is None:
                return None
            num_bytes += size
        return num_bytes


def cleaned(
    records: Iterable[Record], cleaner: Cleaner, tally: Tally, is_unicode: bool = False
) -> Iterator[Record]:
    """Clean records and yield those that are kept. Examples and token ids are not cleaned.

    `tally` counts the dropped records. If `is_unicode` is True, the caller guarantees that no text contains a
    lone surrogate; otherwise each text is checked.
    """
    # Unlike a generator's variables, map and filter do not keep a record alive while the caller works on it.
    return filter(None, map(partial(_stays, cleaner, tally, is_unicode and cleaner.is_trivial), records))


def _stays(cleaner: Cleaner, tally: Tally, is_unicode: bool, record: Record) -> Record | None:
    # Plain text is checked first, because most documents are plain text.
    if type(record) is str or isinstance(record, Texts):
        text = record if type(record) is str else record.text  # type: ignore[union-attr]
        if not text or text.isspace():
            tally.dropped["empty"] += 1
            return None
        if not cleaner.is_trivial:
            text, reason = cleaner(text)
            if reason:
                tally.dropped[reason] += 1
                return None
            record = record._replace(text=text) if isinstance(record, Texts) else text
        if is_unicode:
            return record
    elif isinstance(record, TokenIds):
        if not len(record.ids):
            tally.dropped["empty"] += 1
            return None
        return record
    else:
        text = text_of(record)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        tally.dropped["not_unicode"] += 1
        return None
    return record


def length_of(record: Record) -> int:
    """Return a record's length for filling batches: characters of text, or bytes of token ids."""
    if isinstance(record, TokenIds):
        return record.ids.nbytes
    if isinstance(record, Example | Preference):
        return sum(len(piece) for piece, _ in record.pieces)
    return len(record.text if isinstance(record, Texts) else record)


def identities(records: Sequence[Record]) -> tuple[list[int], bytes]:
    """Return (number of UTF-8 bytes of each record, all records' digests joined to one bytes object).

    The number of bytes is 0 for token ids.
    """
    if set(map(type, records)) == {str}:
        # CPython caches the UTF-8 form of a string, so after the tokenizer has used it, encoding only copies.
        contents = list(map(str.encode, records))  # type: ignore[arg-type]
        return list(map(len, contents)), digests(contents)
    pairs = [_identity(record) for record in records]
    return [size for size, _ in pairs], b"".join([identity for _, identity in pairs])


def _identity(record: Record) -> tuple[int, bytes]:
    if isinstance(record, TokenIds):
        identity = digest(record.ids.tobytes())
        # Equal ids with different masks are different documents; a mask that includes all tokens counts as no
        # mask.
        if record.learnt is not None and not record.learnt.all():
            identity = digest(identity + record.learnt.tobytes())
        return 0, identity
    content = text_of(record).encode()
    identity = digest(content)
    if isinstance(record, Texts):
        # Equal texts with different extras are different documents.
        return len(content), digest(identity + digests(map(str.encode, record.extras)))
    if isinstance(record, Example | Preference):
        # Examples with equal pieces are different documents if different pieces are in the loss.
        identity = digest(identity + bytes(is_learnt for _, is_learnt in record.pieces))
    return len(content), identity


def text_of(record: Record) -> str:
    """Return a text by which records are compared.

    The pieces of an example are joined. For token ids, each byte of the ids becomes one character.
    """
    if isinstance(record, str):
        return record
    if isinstance(record, Texts):
        return record.text
    if isinstance(record, Example | Preference):
        return "\x1f".join(piece for piece, _ in record.pieces)
    return record.ids.tobytes().decode("latin-1")


def compared_text_of(record: Record) -> str:
    """Return the text that near-duplicate search compares: text_of(), and the extra texts of a Texts."""
    return "\x1f".join((record.text, *record.extras)) if isinstance(record, Texts) else text_of(record)


@dataclass
class SourceCounts:
    """Counts over all parts of a source that have been read so far."""

    records: int = 0
    broken: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    sentences: int = 0
    dropped_sentences: int = 0
    unknown_templates: Counter[str] = field(default_factory=Counter)
    unread_keys: Counter[str] = field(default_factory=Counter)
    named: list[str] = field(default_factory=list)
    """Location and problem of the first NAMED_PROBLEMS broken records, for messages."""
    listed: list[Problem] = field(default_factory=list)
    """The first LISTED_PROBLEMS broken records, with line numbers in their files."""
    separators: int = 0
    """Number of separator lines, in text that is split into documents at these lines."""
    logged_before: bool = False
    """Whether an earlier step has logged the broken records, so that they are not logged again."""
    _lines: Counter[str] = field(default_factory=Counter)

    def absorb(self, tally: Tally, path: str | None) -> None:
        """Add the tally of one part. Parts must come in order, because lines are numbered in sequence."""
        for problem in tally.problems[: LISTED_PROBLEMS - len(self.listed)]:
            if problem.line is not None:
                problem = problem._replace(line=problem.line + self._lines[problem.path])
            self.listed.append(problem)
            if len(self.named) < NAMED_PROBLEMS:
                self.named.append(problem.with_place())
                if not self.logged_before:
                    logger.warning("%s; the record is skipped.", printable(self.named[-1]))
        if path is not None:
            self._lines[path] += tally.lines
        self.records += tally.records
        self.broken += tally.broken
        self.dropped.update(tally.dropped)
        self.separators += tally.separators
        self.sentences += tally.sentences
        self.dropped_sentences += tally.dropped_sentences
        self.unknown_templates.update(tally.unknown_templates)
        self.unread_keys.update(tally.unread_keys)

    def first(self, listed: str = "") -> str:
        """Return a clause with the first broken records and, if `listed` is set, the file that lists them."""
        more = f"; and {self.broken - len(self.named):,} more" if self.broken > len(self.named) else ""
        return f"{'; '.join(self.named)}{more}{f'; listed in {listed}' if listed else ''}"

    def check_broken(self, reader: SourceReader, listed: str = "") -> None:
        """Raise DataError if more records are broken than the source allows.

        `listed` is the file that lists the broken records.
        """
        limit = getattr(reader.config, "max_broken_fraction", None)
        if limit is None or not self.records or self.broken / self.records <= limit:
            return
        fix = _fitting([reader]) or (
            "Fix the records, correct the source's key settings (such as text_key), or raise its "
            "max_broken_fraction."
        )
        raise DataError(
            f"{reader.where}: {self.broken:,} of {self.records:,} records ({self.broken / self.records:.2%}) "
            f"cannot be read, more than max_broken_fraction = {limit:.2%} allows. First: "
            f"{self.first(listed)}. {fix}"
        )


def changed_while_read(
    reader: SourceReader, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> DataError:
    """Return the error for a source whose fingerprint changed from `before` to `after` during reading."""
    then, now = ((each or {}).get("files", {}) for each in (before, after))
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return DataError(
        f"{reader.where}: {', '.join(map(printable, names[:3])) or reader.name}{more} changed during "
        f"reading. Make sure that no process writes to the source, then run the command again."
    )


FIX_BROKEN = "Fix the records, or correct the source's key settings (such as text_key)."
# {reason for dropping a record: the setting that controls it}
LOOSENED_BY = {
    cleaning.TOO_SHORT: "data.cleaning.min_bytes",
    cleaning.TOO_LONG: "data.cleaning.max_bytes",
    cleaning.SYMBOLS: "data.cleaning.max_symbol_fraction",
    cleaning.DIGITS: "data.cleaning.max_digit_fraction",
    cleaning.DUPLICATE_LINES: "data.cleaning.max_duplicate_line_fraction",
    cleaning.TOP_WORD: "data.cleaning.max_top_word_fraction",
    cleaning.LONG_WORD: "data.cleaning.max_word_chars",
    "other_namespace": "the source's namespaces",
}


def _fitting(readers: Sequence[SourceReader]) -> str:
    """Return the fix for the first source whose records lack the text key; "" if there is no such source."""
    plain = (reader.config for reader in readers if reader.kind in PLAIN)
    return next((fitting[1] for source in plain if (fitting := fitting_source(source))), "")


def empty_error(
    where: str, dropped: Mapping[str, int], first: str = "", readers: Sequence[SourceReader] = ()
) -> DataError:
    """Return the error for a corpus without any document; `first` describes the first broken records."""
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items())) or "nothing read"
    most = max(dropped, key=lambda reason: dropped[reason], default="")
    advice = "The sources contain no records: use other sources."
    if most in LOOSENED_BY:
        advice = f"The rule {most} drops most records: loosen {LOOSENED_BY[most]}, or use other sources."
    elif first:
        advice = f"First: {first}. {_fitting(readers) or FIX_BROKEN}"
    elif most == cleaning.EMPTY:
        advice = (
            "Most records have no text. If the text is under another key, set text_key to that key; "
            "otherwise use other sources."
        )
    elif dropped:
        advice = f"Most records are dropped for the reason {most}: use other sources."
    return DataError(f"{where}: the corpus is empty: no document is left ({reasons}). {advice}")
