"""Reads a Hugging Face dataset that save_to_disk wrote: Arrow streams, read with pyarrow alone.

dataset_dict.json   {"splits": [...]}; only if there are splits, each in a separate folder
state.json          {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
dataset_info.json   license, citation, homepage
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.git_lfs import pointer_problem_of
from nbtrain.base.workspace import display, resolve
from nbtrain.corpus.files.file_kinds import ARROW
from nbtrain.corpus.files.folder import is_file, is_folder, unreadable
from nbtrain.corpus.sources import arrow


class OpenArrow(arrow.OpenTable):
    """A memory-mapped Arrow stream, whose pages are loaded when a batch is read. Its units are batches."""

    format = "an Arrow stream"
    units = "batches"

    def _open(self) -> None:
        self._file = self._arrow.memory_map(str(self._path))
        self._stream = self._arrow.ipc.open_stream(self._file)
        self.schema = self._stream.schema

    def unit_bytes(self, columns: Collection[str] | None) -> list[int]:
        return [_num_bytes(batch, columns) for batch in self._units(0, None)]

    def num_values(self, columns: Collection[str], start: int, stop: int | None) -> dict[str, int]:
        counts: Counter[str] = Counter()
        # A stream can be read only once, so count on a separate stream.
        with OpenArrow(self.path, self._where) as file:
            for batch in file._units(start, stop) if columns else ():
                for name in columns:
                    index = batch.schema.get_all_field_indices(name)[0]
                    counts[name] += batch.num_rows - batch.column(index).null_count
        return dict(+counts)

    def __enter__(self) -> "OpenArrow":
        return self

    def batches(self, columns: Sequence[str] | None, start: int, stop: int | None) -> Iterator[Any]:
        """Yield record batches. Writers choose any batch size, so large batches are sliced."""
        for batch in self._units(start, stop):
            num_rows = max(1, batch.num_rows * arrow.BATCH_BYTES // max(1, _num_bytes(batch, columns)))
            for first in range(0, batch.num_rows, num_rows):
                yield batch.slice(first, num_rows)

    def _units(self, start: int, stop: int | None) -> Iterator[Any]:
        """Yield the batches as stored in the file, skipping those before `start` without reading them."""
        try:
            yield from islice(self._stream, start, stop)
        except (OSError, self._arrow.ArrowException) as error:
            raise self.refusal(error) from error


def _num_bytes(batch: Any, columns: Collection[str] | None) -> int:
    return batch.nbytes if columns is None else sum(batch.column(name).nbytes for name in columns)


class HfDatasetReader(arrow.ColumnReader):
    """Reads one column of one split, and the columns of data.extra_json_keys."""

    kind = "hf-dataset"
    suffixes = ARROW

    def open_table(self, path: Path) -> OpenArrow:
        return OpenArrow(path, self.where)

    def folder(self) -> Path:
        """Return the folder that holds state.json. Raises DataError if the dataset or split is missing."""
        root, split = resolve(self.config.path), self.config.split
        where = f"{self.where}: path = {self.config.path!r}"
        if not is_folder(root, self.where):
            raise DataError(
                f"{where}: no such folder ({display(root)}). Relative paths start at the workspace."
            )
        if is_file(root / "dataset_dict.json", self.where):
            splits = self._json(root / "dataset_dict.json", "splits")
            names = ", ".join(map(str, splits))
            if split is None and len(splits) == 1:
                split = splits[0]
            if split is None:
                raise DataError(f"{where}: the dataset has the splits {names}. Set split to one of them.")
            if split not in splits:
                raise DataError(
                    f"{where}: no split {split!r}; the splits are {names}. Set split to one of them."
                )
            return root / split
        if not is_file(root / "state.json", self.where):
            raise DataError(
                f"{where}: not a dataset written by save_to_disk: the folder has neither dataset_dict.json "
                f"nor state.json. For files in other formats, use kind: parquet or kind: jsonl."
            )
        if split is not None:
            raise DataError(f"{where}: split = {split!r}, but the dataset has no splits. Remove split.")
        return root

    def files(self) -> list[Path]:
        folder = self.folder()
        entries = self._json(folder / "state.json", "_data_files")
        names = [str(entry.get("filename")) if isinstance(entry, dict) else str(entry) for entry in entries]
        if not names:
            raise DataError(f"{self.where}: {display(folder)}: the dataset has no rows.")
        for name in names:
            if Path(name).name != name or not is_file(folder / name, self.where):
                raise DataError(
                    f"{self.where}: {display(folder / 'state.json')} lists the file {name!r}, which is "
                    f"missing. Copy the whole folder."
                )
        return [folder / name for name in names]

    def report_left_out(self) -> None:
        """Do nothing: state.json lists the data files, and the other files are metadata or other splits."""

    def licence(self) -> str | None:
        return self._info("license")

    def attribution(self) -> str | None:
        return self._info("citation") or self._info("homepage")

    def _json(self, path: Path, key: str) -> list[Any]:
        try:
            value = json.loads(path.read_bytes())[key]
        except PermissionError as error:
            raise unreadable(path, error, self.where) from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if problem := pointer_problem_of(path):
                raise DataError(f"{self.where}: {display(path)}: {problem}.") from error
            raise DataError(
                f"{self.where}: {display(path)}: the file cannot be read as a JSON object with the key "
                f"{key!r} ({error}). Copy the whole folder."
            ) from error
        return value if isinstance(value, list) else []

    def _info(self, key: str) -> str | None:
        try:
            value = json.loads((self.folder() / "dataset_info.json").read_bytes()).get(key)
        except (OSError, ValueError, AttributeError, RecursionError):
            return None
        return str(value) if value else None
