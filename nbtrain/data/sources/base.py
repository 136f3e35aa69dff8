"""What every source of text is: a stream of documents, and what must be known about them.

A reader is made from its section of the run YAML. `documents()` streams; it may be called again and gives the
same again. `dropped` counts what the last pass left out, by reason. `fingerprint()` is cheap and changes when
the documents would. `describe()` goes into the dataset's manifest.
"""

import gzip
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from pydantic import BaseModel

from nbtrain.errors import DataError
from nbtrain.workspace import display, resolve

# kind -> module:class. A table of names, so that a run imports only the readers it uses.
READERS = {
    "jsonl": "nbtrain.data.sources.jsonl:JsonlReader",
    "mock": "nbtrain.data.sources.mock:MockReader",
    "python-docs": "nbtrain.data.sources.python_docs:PythonDocsReader",
    "text": "nbtrain.data.sources.text:TextReader",
}


class SourceReader(ABC):
    """One source of a run. `where` names it in messages (e.g. "gpt-tiny.yaml:12: data.sources[0]")."""

    kind: ClassVar[str]
    drift_is_accepted: ClassVar[bool] = False
    """Whether a dataset stays good when the fingerprint has changed without anybody asking for it."""

    def __init__(self, config: BaseModel, where: str = "data.sources"):
        self.config: Any = config
        self.where = where
        self.dropped: Counter[str] = Counter()

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """The documents, in a fixed order. Raises DataError where the source cannot be read."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """JSON values that change when the documents would: versions, or sizes and times of files."""

    def describe(self) -> dict[str, Any]:
        """For the manifest: settings, licence and attribution, versions."""
        return {
            **self.config.model_dump(),
            "licence": None,
            "attribution": None,
            "fingerprint": self.fingerprint(),
        }

    def total_bytes(self) -> int | None:
        """About how much text will come, for a progress bar; None where unknown."""
        return None


def open_source(config: Any, where: str = "data.sources") -> SourceReader:
    """The reader for one entry of data.sources."""
    module, _, name = READERS[config.kind].partition(":")
    return getattr(import_module(module), name)(config, where)


class FileReader(SourceReader):
    """A source that is a file, or a folder searched for `suffixes`, in the order of relative paths."""

    suffixes: ClassVar[tuple[str, ...]]

    def files(self) -> list[Path]:
        """The files, in reading order. Raises DataError where there is none."""
        path = resolve(self.config.path)
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise DataError(
                f"{self.where}: path = {self.config.path!r}: no such file or folder ({display(path)}). Relative "
                "paths start at the workspace."
            )
        found = [entry for entry in path.rglob("*") if entry.name.endswith(self.suffixes) and entry.is_file()]
        if not found:
            raise DataError(
                f"{self.where}: path = {self.config.path!r}: the folder holds no {' or '.join(self.suffixes)} file."
            )
        return sorted(found, key=lambda entry: entry.relative_to(path).as_posix())

    def fingerprint(self) -> dict[str, Any]:
        root = resolve(self.config.path)
        entries = {}
        for path in self.files():
            status = path.stat()
            name = path.name if path == root else path.relative_to(root).as_posix()
            entries[name] = [status.st_size, status.st_mtime_ns]
        return {"files": entries}

    def total_bytes(self) -> int | None:
        paths = self.files()
        # A compressed file does not say how long its text is.
        return (
            None
            if any(path.suffix == ".gz" for path in paths)
            else sum(path.stat().st_size for path in paths)
        )

    def open(self, path: Path) -> IO[bytes]:
        """The file's bytes, unpacked. Raises DataError where it cannot be opened."""
        try:
            return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
        except OSError as error:
            raise DataError(f"{self.where}: {display(path)}: cannot be read: {error.strerror}.") from error
