"""A Hugging Face dataset on disk, as save_to_disk writes it: Arrow streams read batch by batch, by pyarrow
alone.

dataset_dict.json {"splits": [...]}     only if there are splits, each a folder of its own
state.json        {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
dataset_info.json license, citation, homepage
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display, resolve
from nbtrain.corpus.records import SourcePart, Tally, Texts
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.arrow import check_texts, text_rows
from nbtrain.corpus.sources.files import FileReader
from nbtrain.corpus.sources.folder import is_file, is_folder, unreadable
from nbtrain.corpus.sources.optional import optional

BATCH_BYTES = 4 << 20


class HfDatasetReader(FileReader):
    """One column of one split, and those of data.extra_json_keys. A row that is null is broken."""

    kind = "hf-dataset"
    suffixes = (".arrow",)

    def folder(self) -> Path:
        """The folder that holds state.json. Raises DataError if the dataset or the split is not there."""
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
                raise DataError(f"{where}: no split {split!r}; the splits are {names}. Set split.")
            return root / split
        if not is_file(root / "state.json", self.where):
            raise DataError(
                f"{where}: no dataset as save_to_disk writes it: neither dataset_dict.json nor state.json is "
                f"there. "
                "Files of other formats are read with kind: parquet or jsonl."
            )
        if split is not None:
            raise DataError(f"{where}: split = {split!r}, but the dataset has no splits. Leave split out.")
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
                    f"{self.where}: {display(folder / 'state.json')} names {name!r}, which is not there. "
                    f"Copy the whole "
                    "folder."
                )
        return [folder / name for name in names]

    def check_dependencies(self) -> None:
        optional("pyarrow", self.where, "an Arrow file")

    def licence(self) -> str | None:
        return self._info("license")

    def attribution(self) -> str | None:
        return self._info("citation") or self._info("homepage")

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        name, file_bytes = display(path), path.stat().st_size
        with OpenArrow(path, self.where) as file:
            sizes = [sum(batch.column(key).nbytes for key in self._keys(file)) for batch in file.batches()]
        start = held = passed = attributed = 0
        for index, num_bytes in enumerate(sizes, start=1):
            held += num_bytes
            passed += num_bytes
            if held < base.PART_BYTES and index < len(sizes):
                continue
            until = file_bytes if index == len(sizes) else file_bytes * passed // max(1, sum(sizes))
            shown = f"{name}, batches {start:,} to {index:,}"
            yield SourcePart(shown, name, start, index, until - attributed, details=(str(path),))
            start, held, attributed = index, 0, until

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str | Texts]:
        for name in part.details:
            path = Path(name)
            with OpenArrow(path, self.where) as file:
                keys = self._keys(file)
                batches = _slices(file.batches(part.start, part.stop), keys)
                yield from text_rows(batches, keys, display(path), tally, part.path is not None)

    def _keys(self, file: "OpenArrow") -> tuple[str, ...]:
        columns = {
            self.config.text_key: "text_key",
            **dict.fromkeys(self.extra_keys, "data.extra_json_keys"),
        }
        check_texts(file.schema, columns, f"{self.where}: {display(file.path)}")
        return (self.config.text_key, *self.extra_keys)

    def _json(self, path: Path, key: str) -> list[Any]:
        try:
            value = json.loads(path.read_bytes())[key]
        except PermissionError as error:
            raise unreadable(path, error, self.where) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self.where}: {display(path)}: cannot be read as a record with {key!r} ({error}). Copy the "
                f"whole folder."
            ) from error
        return value if isinstance(value, list) else []

    def _info(self, key: str) -> str | None:
        try:
            value = json.loads((self.folder() / "dataset_info.json").read_bytes()).get(key)
        except (OSError, ValueError, AttributeError):
            return None
        return str(value) if value else None


class OpenArrow:
    """An Arrow stream mapped into memory: pages are read when their batch is. Raises DataError if it is
    damaged.
    """

    def __init__(self, path: Path, where: str):
        self.path, self._where = path, where
        self._arrow = optional("pyarrow", where, "an Arrow file")
        try:
            self._map = self._arrow.memory_map(str(path))
            self._stream = self._arrow.ipc.open_stream(self._map)
        except PermissionError as error:
            raise unreadable(path, error, where) from error
        except (OSError, self._arrow.ArrowException) as error:
            raise self._damaged(error) from error
        self.schema = self._stream.schema
        """pyarrow.Schema."""

    def __enter__(self) -> "OpenArrow":
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """pyarrow.RecordBatch after RecordBatch, start to stop (None: the end). Earlier ones are passed over
        unread.
        """
        index = 0
        while stop is None or index < stop:
            try:
                batch = self._stream.read_next_batch()
            except StopIteration:
                return
            except (OSError, self._arrow.ArrowException) as error:
                raise self._damaged(error) from error
            if index >= start:
                yield batch
            index += 1

    def _damaged(self, error: Exception) -> DataError:
        first = str(error).splitlines()[0].rstrip(".")
        return DataError(
            f"{self._where}: {display(self.path)}: no Arrow stream, or damaged: {first}. Copy or download it "
            f"again."
        )


def _slices(batches: Iterator[Any], keys: tuple[str, ...]) -> Iterator[Any]:
    """The same rows in batches of about BATCH_BYTES, as writers make them of any size."""
    for batch in batches:
        num_bytes = sum(batch.column(key).nbytes for key in keys)
        num_rows = max(1, batch.num_rows * BATCH_BYTES // max(1, num_bytes))
        for start in range(0, batch.num_rows, num_rows):
            yield batch.slice(start, num_rows)
