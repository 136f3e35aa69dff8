"""Reads Parquet files: streams row groups in batches, and reads only the required columns.

Problems are reported with row numbers instead of line numbers.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from nbtrain.corpus.files.file_kinds import COLUMNS
from nbtrain.corpus.optional import optional
from nbtrain.corpus.sources import arrow

MAGIC = b"PAR1"
LARGEST_BATCH_ROWS = 8192
# Size of the buffer for reading column chunks, which would otherwise be read as a whole.
BUFFER_BYTES = 1 << 20


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet, by its name or by its first bytes."""
    if path.suffix.lower() in COLUMNS:
        return True
    try:
        with path.open("rb", buffering=0) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:  # the file's reader reports why it cannot be read
        return False


class OpenParquet(arrow.OpenTable):
    """A Parquet file; its units are row groups."""

    format = "a Parquet file"
    units = "row groups"

    def _open(self) -> None:
        parquet = optional("pyarrow.parquet", self._where)
        self._file = parquet.ParquetFile(self._path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        self.schema = self._file.schema_arrow

    def __enter__(self) -> "OpenParquet":
        return self

    def unit_bytes(self, columns: Collection[str] | None) -> list[int]:
        """Return the uncompressed size in bytes of `columns` in each row group; 0 for a missing column."""
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

    def num_values(self, columns: Collection[str], start: int, stop: int | None) -> dict[str, int]:
        """Count values with the row-group statistics, which have no null counts for lists and objects."""
        metadata = self._file.metadata
        places = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        counts: Counter[str] = Counter()
        for number in range(metadata.num_row_groups)[start:stop]:
            group = metadata.row_group(number)
            for name in columns:
                counts[name] += group.num_rows
                statistics = group.column(places[name]).statistics if name in places else None
                if statistics is not None and statistics.has_null_count:
                    counts[name] -= statistics.null_count
        return dict(+counts)

    def batches(self, columns: Sequence[str] | None, start: int, stop: int | None) -> Iterator[Any]:
        for index, num_bytes in list(enumerate(self.unit_bytes(columns)))[start:stop]:
            # A batch never spans two row groups, so its number of rows follows from the group's row size.
            num_rows = self._file.metadata.row_group(index).num_rows
            batch_rows = max(1, min(LARGEST_BATCH_ROWS, num_rows * arrow.BATCH_BYTES // max(num_bytes, 1)))
            try:
                yield from self._file.iter_batches(
                    batch_rows, row_groups=[index], columns=columns and list(columns), use_threads=False
                )
            except (OSError, self._arrow.ArrowException) as error:
                raise self.refusal(error) from error


class ParquetReader(arrow.ColumnReader):
    """Reads Parquet files."""

    kind = "parquet"
    suffixes = COLUMNS

    def open_table(self, path: Path) -> OpenParquet:
        return OpenParquet(path, self.where)
