"""Reads files of objects: JSON (lines or one array, possibly compressed) and Parquet.

This is the base of the sources that read several keys of a record: fine-tuning examples and token ids.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from nbtrain.base.workspace import display
from nbtrain.corpus.files import json_line
from nbtrain.corpus.files.file_kinds import COLUMNS, RECORDS
from nbtrain.corpus.files.json_line import not_utf8
from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources.arrow import check_columns, check_once
from nbtrain.corpus.sources.files import FileReader
from nbtrain.corpus.sources.json_array import open_records, record_pieces
from nbtrain.corpus.sources.parquet import OpenParquet, is_parquet


class Row(NamedTuple):
    """One object of a file, with its location for tally.add_broken().

    `number` is the number of its line, array element or table row, counted from 1.
    """

    path: str
    number: int
    record: dict[str, Any]


class RecordFileReader(FileReader):
    """Base class for readers of objects. A subclass defines `kind`, and a read() that uses rows()."""

    suffixes = (*RECORDS, *COLUMNS)

    def required_columns(self) -> dict[str, str]:
        """Return the columns that a .parquet file must have, as {column: the setting that names it}."""
        return {}

    def is_read(self, column: str) -> bool:
        """Return whether the values of a column are read; the values of other columns are only counted."""
        return True

    def columns(self, file: OpenParquet) -> list[str]:
        """Return the columns of a .parquet file to read.

        Raises DataError if a required column is missing, or if a column to read occurs twice.
        """
        where, required = f"{self.where}: {display(file.path)}", self.required_columns()
        check_columns(file.schema, required, where, self.kind)
        wanted = [name for name in dict.fromkeys(file.schema.names) if name in required or self.is_read(name)]
        check_once(file.schema, wanted, where)
        return wanted

    def table_rows(self, batch: Any) -> Iterator[dict[str, Any] | str]:
        """Yield the rows of a record batch as dicts; for a broken row, yield a description of the problem."""
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError):
            rows = _rows_by_column(batch)
        yield from rows

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        if is_parquet(path):
            with OpenParquet(path, self.where) as file:
                yield from file.parts(self.columns(file))
        else:
            yield from record_pieces(path, self.where)

    def unpacked_bytes_of(self, path: Path, most: int) -> int:
        if not is_parquet(path):
            return super().unpacked_bytes_of(path, most)
        with OpenParquet(path, self.where) as file:
            return sum(file.unit_bytes(self.columns(file)))

    def open_file(self, path: Path) -> io.BufferedReader:
        return open_records(path, self.where)

    def rows(self, part: SourcePart, tally: Tally) -> Iterator[Row]:
        """Yield the objects of one part. Raises DataError if a file is damaged."""
        if part.content is not None:
            yield from self._lines(part, tally)
            return
        for name in part.details:
            path = Path(name)
            if is_parquet(path):
                yield from self._table(path, part, tally)
            else:
                yield from self._lines(part if part.path else SourcePart(name, details=(name,)), tally)

    def _lines(self, part: SourcePart, tally: Tally) -> Iterator[Row]:
        for path, lines in self.opened(part):
            number = blank = 0
            try:
                for number, line in enumerate(lines, start=1):
                    try:
                        record = orjson.loads(line)
                    except orjson.JSONDecodeError:
                        record = None
                    if type(record) is not dict:
                        if not line or line.isspace():
                            blank += 1
                            continue
                        try:
                            record = json_line.record_of(line)
                        except ValueError as problem:
                            tally.add_broken(path, number, str(problem))
                            continue
                    yield Row(path, number, record)
            finally:
                tally.records += number - blank
                tally.lines += number if part.path else 0

    def _table(self, path: Path, part: SourcePart, tally: Tally) -> Iterator[Row]:
        name, number = display(path), 0
        with OpenParquet(path, self.where) as file:
            columns = self.columns(file)
            try:
                for batch in file.batches(columns, part.start, part.stop):
                    for record in self.table_rows(batch):
                        number += 1
                        if isinstance(record, str):
                            tally.add_broken(name, number, record)
                        else:
                            yield Row(name, number, record)
                unread = [column for column in file.schema.names if column not in columns]
                tally.unread_keys.update(file.num_values(unread, part.start, part.stop))
            finally:
                tally.records += number
                tally.lines += number if part.path else 0


class NotUtf8(bytes):
    """Marks a value of a string column whose bytes are not UTF-8."""


def values_of(column: Any) -> list[Any]:
    """Return the values of a pyarrow.Array; strings that are not UTF-8 become NotUtf8.

    A value that no Python type can hold (a date after 9999, half a microsecond) stays a pyarrow.Scalar. Most
    such columns are never read; a reader that does read one reports that the value is not text or a list.
    """
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return NotUtf8(error.object)
    except (ValueError, OverflowError):
        return scalar


def _rows_by_column(batch: Any) -> Iterator[dict[str, Any] | str]:
    names = batch.schema.names
    for row in zip(*map(values_of, batch.columns)):
        problems = (
            f"{name!r} is {not_utf8(value)}" for name, value in zip(names, row) if isinstance(value, NotUtf8)
        )
        yield next(problems, None) or dict(zip(names, row))
