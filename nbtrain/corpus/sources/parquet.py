"""Parquet: row groups streamed in batches, and of them only the columns that are asked for.

A problem names the number of its row in place of a line.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.records import SourcePart, Tally, Texts
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.arrow import check_texts, text_rows
from nbtrain.corpus.sources.files import USUAL_RATIO, FileReader
from nbtrain.corpus.sources.folder import unreadable
from nbtrain.corpus.sources.optional import optional

SUFFIX = ".parquet"
BATCH_BYTES = 4 << 20
LARGEST_BATCH_ROWS = 8192
# Column chunks are read through such a buffer and not whole.
BUFFER_BYTES = 1 << 20


class ParquetReader(FileReader):
    """.parquet files: one column, and those of data.extra_json_keys."""

    kind = "parquet"
    suffixes = (SUFFIX,)

    def nothing_found(self) -> str:
        return f"no {SUFFIX} file"

    def check_dependencies(self) -> None:
        optional("pyarrow", self.where, "a .parquet file")

    def size_as_text(self, path: Path) -> int:
        return USUAL_RATIO * path.stat().st_size

    def columns(self) -> dict[str, str]:
        """Column -> the setting that names it."""
        return {
            self.config.text_key: "text_key",
            **dict.fromkeys(self.extra_keys, "data.extra_json_keys"),
        }

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        return parquet_pieces(path, self.where, self.columns())

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str | Texts]:
        keys = (self.config.text_key, *self.extra_keys)
        for name in part.details:
            path = Path(name)
            with OpenParquet(path, self.where) as file:
                check_texts(file.schema, self.columns(), f"{self.where}: {display(path)}")
                yield from text_rows(
                    file.batches(keys, part.start, part.stop),
                    keys,
                    display(path),
                    tally,
                    part.path is not None,
                )


def parquet_pieces(path: Path, where: str, columns: Mapping[str, str] | None = None) -> Iterator[SourcePart]:
    """A file as ranges of row groups whose `columns` (None: all) are about PART_BYTES.

    The bytes of the file are shared among them in proportion.
    """
    name, file_bytes = display(path), path.stat().st_size
    with OpenParquet(path, where) as file:
        sizes = file.group_bytes(columns)
    total, start, passed, attributed = max(1, sum(sizes)), 0, 0, 0
    held = 0
    for index, num_bytes in enumerate(sizes, start=1):
        held += num_bytes
        passed += num_bytes
        if held < base.PART_BYTES and index < len(sizes):
            continue
        until = file_bytes if index == len(sizes) else file_bytes * passed // total
        yield SourcePart(
            f"{name}, row groups {start:,} to {index:,}",
            name,
            start,
            index,
            until - attributed,
            details=(str(path),),
        )
        start, held, attributed = index, 0, until


class OpenParquet:
    """An open file. Raises DataError if it is no Parquet file or a page is damaged."""

    def __init__(self, path: Path, where: str):
        self._path, self._where = path, where
        self._arrow = optional("pyarrow", where, "a .parquet file")
        parquet = optional("pyarrow.parquet", where, "a .parquet file")
        try:
            self._file = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
            self.schema = self._file.schema_arrow
            """pyarrow.Schema."""
        except PermissionError as error:
            raise unreadable(path, error, where) from error
        except OSError as error:
            raise DataError(f"{where}: {display(path)}: cannot be read: {error}.") from error
        except self._arrow.ArrowException as error:
            raise self._damaged(error) from error

    def __enter__(self) -> "OpenParquet":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def group_bytes(self, columns: Mapping[str, str] | None) -> list[int]:
        """Unpacked bytes of `columns` (None: all) in each row group; 0 for a column that is not there."""
        metadata = self._file.metadata
        paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        # A column of lists is stored as name.list.element.
        wanted = [
            index
            for index, path in enumerate(paths)
            if columns is None or path in columns or path.partition(".")[0] in columns
        ]
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return [sum(group.column(index).total_uncompressed_size for index in wanted) for group in groups]

    def batches(self, columns: tuple[str, ...] | None, start: int, stop: int | None) -> Iterator[Any]:
        """pyarrow.RecordBatch after RecordBatch of row groups start to stop (None: the end), each about
        BATCH_BYTES.
        """
        metadata = self._file.metadata
        stop = metadata.num_row_groups if stop is None else stop
        wanted = None if columns is None else dict.fromkeys(columns, "")
        for index, num_bytes in enumerate(self.group_bytes(wanted)[start:stop], start=start):
            # A batch never reaches over a group: its size follows that of the group's rows.
            num_rows = metadata.row_group(index).num_rows
            batch_rows = max(1, min(LARGEST_BATCH_ROWS, num_rows * BATCH_BYTES // max(num_bytes, 1)))
            try:
                yield from self._file.iter_batches(
                    batch_rows, row_groups=[index], columns=columns and list(columns), use_threads=False
                )
            except (OSError, self._arrow.ArrowException) as error:
                raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        first = str(error).splitlines()[0].rstrip(".")
        return DataError(
            f"{self._where}: {display(self._path)}: no Parquet file, or damaged: {first}. Copy or download "
            f"it again."
        )
