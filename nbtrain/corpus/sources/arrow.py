"""Base classes for columnar files, read with pyarrow: split files into parts, and read text from rows."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from nbtrain.base.errors import DataError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.workspace import display
from nbtrain.corpus.files.folder import unreadable
from nbtrain.corpus.files.json_line import not_utf8
from nbtrain.corpus.optional import optional
from nbtrain.corpus.records import SourcePart, Tally, Texts
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.files import FileReader
from nbtrain.corpus.sources.keys import RecordNotes, RefusedKeys, record_policy
from nbtrain.corpus.sources.shapes import way_forward

BATCH_BYTES = 4 << 20


class OpenTable(ABC):
    """An open columnar file, which is read in units: record batches (Arrow) or row groups (Parquet).

    Raises DataError if the file cannot be read, has another format or is damaged.
    """

    format: ClassVar[str]  # name of such a file in messages
    units: ClassVar[str]  # plural name of the units in which a part's start and stop count
    schema: Any  # pyarrow.Schema
    _file: Any  # closed on exit

    def __init__(self, path: Path, where: str):
        self.path = self._path = path
        self._where = where
        self._arrow = optional("pyarrow", f"{where}: {display(path)}")
        try:
            self._open()
        except (OSError, self._arrow.ArrowException) as error:
            raise self.refusal(error) from error

    def __enter__(self) -> "OpenTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @abstractmethod
    def _open(self) -> None:
        """Open the file: set `_file` and `schema`."""

    @abstractmethod
    def unit_bytes(self, columns: Collection[str] | None) -> list[int]:
        """Return the size in bytes of `columns` in each unit of the file; None means all columns."""

    @abstractmethod
    def batches(self, columns: Sequence[str] | None, start: int, stop: int | None) -> Iterator[Any]:
        """Yield units `start` to `stop` (None: the end) as record batches of about BATCH_BYTES."""

    @abstractmethod
    def num_values(self, columns: Collection[str], start: int, stop: int | None) -> dict[str, int]:
        """Return {column: rows with a value} for units `start` to `stop` (None: the end) of the file.

        Only `columns` are counted, and columns without any value are omitted. If the file has no null count
        for a column, every row counts as having a value.
        """

    def parts(self, columns: Collection[str] | None) -> Iterator[SourcePart]:
        """Yield parts: ranges of units whose `columns` (None: all columns) hold about PART_BYTES of data."""
        name, file_bytes, sizes = display(self._path), self._path.stat().st_size, self.unit_bytes(columns)
        start = held = passed = attributed = 0
        for index, num_bytes in enumerate(sizes, start=1):
            held += num_bytes
            passed += num_bytes
            if held < base.PART_BYTES and index < len(sizes):
                continue
            until = file_bytes if index == len(sizes) else file_bytes * passed // max(1, sum(sizes))
            shown = f"{name}, {self.units} {start:,} to {index:,}"
            yield SourcePart(shown, name, start, index, until - attributed, details=(str(self._path),))
            start, held, attributed = index, 0, until

    def refusal(self, error: Exception) -> DataError:
        """Return the error that reports pyarrow's message about the file."""
        # Operating system errors have an errno; Arrow's errors do not.
        if isinstance(error, OSError) and (error.errno is not None or isinstance(error, PermissionError)):
            return unreadable(self._path, error, self._where)
        if problem := pointer_problem_of(self._path):
            return DataError(f"{self._where}: {display(self._path)}: {problem}.")
        first = str(error).splitlines()[0].rstrip(".")
        return DataError(
            f"{self._where}: {display(self._path)}: the file is damaged or not {self.format}: {first}. Copy "
            "or download it again."
        )


class ColumnReader(FileReader):
    """Reads one text column and the columns of data.extra_json_keys; rows with nulls there are broken."""

    @abstractmethod
    def open_table(self, path: Path) -> OpenTable:
        """Open one of the source's files."""

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        with self._opened(path) as file:
            yield from file.parts(self._keys)

    def unpacked_bytes_of(self, path: Path, most: int) -> int:
        with self._opened(path) as file:
            return sum(file.unit_bytes(self._keys))

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str | Texts]:
        for name in part.details:
            path = Path(name)
            with self._opened(path) as file:
                self._check_values(file, part, f"{self.where}: {display(path)}")
                batches = file.batches(self._keys, part.start, part.stop)
                yield from text_rows(batches, self._keys, display(path), tally, part.path is not None)
                unread = [name for name in file.schema.names if name not in self._keys]
                tally.unread_keys.update(file.num_values(unread, part.start, part.stop))

    @property
    def _keys(self) -> tuple[str, ...]:
        return (self.config.text_key, *self.extra_keys)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[OpenTable]:
        columns = {self.config.text_key: "text_key", **dict.fromkeys(self.extra_keys, "data.extra_json_keys")}
        where = f"{self.where}: {display(path)}"
        with self.open_table(path) as file:
            check_texts(file.schema, columns, where, self.kind)
            self._check_refused(file, where)
            yield file

    def _check_refused(self, file: OpenTable, where: str) -> None:
        """Raise DataError if the source's key rules refuse an unread column that holds a value.

        Such a column may, for example, mark a part of the text as outside the loss.
        """
        if (names := self._ruled(file)) and (values := file.num_values(names, 0, None)):
            self._check(values, where)

    def _check_values(self, file: OpenTable, part: SourcePart, where: str) -> None:
        """Raise DataError if the source's key rules refuse a value of an unread text column (split: test).

        Reads the values of such columns in the part, whereas _check_refused() reads only statistics.
        """
        types = {field.name: str(field.type) for field in file.schema}
        names = [name for name in self._ruled(file) if "string" in types[name]]
        for name in names:
            for batch in file.batches([name], part.start, part.stop):
                for value in batch.column(0).unique():
                    with suppress(UnicodeDecodeError):
                        self._check({name: value.as_py()}, where)

    def _ruled(self, file: OpenTable) -> list[str]:
        """Return the names of the unread columns that a key rule (keys.py) may refuse."""
        policy = record_policy(self.config)
        return [name for name in file.schema.names if not policy.is_counted(name) and name not in self._keys]

    def _check(self, values: Mapping[str, Any], where: str) -> None:
        notes = RecordNotes()
        record_policy(self.config).note_unread(values, (), notes)
        try:
            notes.check(self.kind)
        except RefusedKeys as problem:
            raise DataError(f"{where}: {problem}.") from None


def check_columns(schema: Any, columns: Mapping[str, str], where: str, kind: str) -> None:
    """Raise DataError if a column is missing from the schema or occurs more than once.

    `columns` maps each column to the setting that names it.
    """
    for name, setting in columns.items():
        if name not in schema.names:
            listed = ", ".join(map(repr, schema.names[:20]))
            there = f"the columns are {listed}" if listed else "the file has no columns"
            forward = (
                way_forward(dict.fromkeys(schema.names, True), kind)
                or f"; set {setting} to an existing column"
            )
            raise DataError(f"{where}: no column {name!r}; {there}{forward}.")
    check_once(schema, columns, where)


def check_once(schema: Any, columns: Iterable[str], where: str) -> None:
    """Raise DataError if one of `columns` occurs more than once, as in joined tables."""
    for name in columns:
        places = schema.get_all_field_indices(name)
        if len(places) > 1:
            found = " and ".join(f"{place + 1:,}" for place in places)
            raise DataError(
                f"{where}: columns {found} have the same name {name!r}, which is ambiguous. Rename or "
                "drop all but one of them."
            )


def check_texts(schema: Any, columns: Mapping[str, str], where: str, kind: str) -> None:
    """Raise DataError if one of `columns` is missing, occurs twice or is not a text column."""
    check_columns(schema, columns, where, kind)
    for name, setting in columns.items():
        if not holds_text(schema.field(name).type):
            others = [field.name for field in schema if holds_text(field.type)]
            listed = ", ".join(map(repr, others[:20]))
            there = f"the text columns are {listed}" if listed else "the file has no text columns"
            raise DataError(
                f"{where}: column {name!r} has type {schema.field(name).type}, not text; {there}. Set "
                f"{setting} to a text column."
            )


def holds_text(kind: Any) -> bool:
    """Return whether a pyarrow.DataType holds strings, or bytes that may be UTF-8 text."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    names = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(types, f"is_{name}")(kind) for name in names)


def text_rows(
    batches: Iterable[Any], keys: Sequence[str], path: str, tally: Tally, count_lines: bool
) -> Iterator[str | Texts]:
    """Yield the rows of record batches: str for one key, Texts for several.

    A row with a null or with invalid UTF-8 is broken.
    """
    number = 0
    try:
        for batch in batches:
            columns = [_values(batch.column(key)) for key in keys]
            del batch
            for row in zip(*columns):
                number += 1
                if all(type(value) is str for value in row):
                    yield row[0] if len(row) == 1 else Texts(row[0], row[1:])
                    continue
                key, value = next((key, value) for key, value in zip(keys, row) if type(value) is not str)
                what = "null" if value is None else not_utf8(value)
                tally.add_broken(path, number, f"{key!r} is {what}")
            row = columns = ()  # type: ignore[assignment]  # released before the next batch is read
    finally:
        tally.records += number
        tally.lines += number if count_lines else 0


def _values(column: Any) -> list[Any]:
    """Return the values of a column: str, None, or bytes that are not valid UTF-8."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            return column.to_pylist()
        except UnicodeDecodeError:
            column = column.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    elif kind in (pa.string_view(), pa.binary_view()):
        column = column.cast(pa.large_binary())
    return [_decoded(value) for value in column.to_pylist()]


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
