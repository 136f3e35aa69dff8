"""The interface of every text source: a list of parts, each read independently as a stream of records.

A kind of source is registered once, as a member of `Source` in config/sections/sources.py. Its reader is
found by name: kind "hf-dataset" is HfDatasetReader in sources/hf_dataset.py, imported when a run uses it.

A reader is created from its entry in data.sources and is picklable, so that workers receive it with a part.
`parts()` is cheap and returns the same parts as long as the source is unchanged; `read(part)` always yields
the same records.

A part must end where a record ends, because it is read without the parts before and after it. It may end at
any line end only if records cannot contain line ends, as in JSON lines. In other formats, either one process
reads the source in order and passes each part on with its `content` (json_array.py), or a whole file is one
part (message trees in chat.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

from pydantic import BaseModel

from nbtrain.corpus.records import Record, SourcePart, Tally


class SourceReader(ABC):
    """Reader for one source of a run. Creating a reader does not open any file.

    `where` identifies the source in messages (e.g. "gpt-tiny.yaml:12: data.sources[0]"). `extra_keys` holds
    data.extra_json_keys; if it is not empty, readers that support several keys yield Texts instead of str.
    """

    kind: ClassVar[str]
    is_extracted: ClassVar[bool] = False
    """Whether the extracted text is kept on disk (data/corpus/), because reading the source is expensive."""
    gives_unicode: ClassVar[bool] = False
    """Whether every text is guaranteed to be valid Unicode.

    If False, each text is checked for lone surrogates, which tokenizers reject.
    """

    @property
    def is_downloaded(self) -> bool:
        """Return whether the source is fetched by download()."""
        return False

    def __init__(self, config: BaseModel, where: str = "data.sources", extra_keys: tuple[str, ...] = ()):
        self.config: Any = config
        self.where = where
        self.extra_keys = extra_keys

    @property
    def name(self) -> str:
        """Name of the source in reports."""
        return self.config.name or self.config.kind

    @abstractmethod
    def parts(self) -> Iterator[SourcePart]:
        """Yield parts of about PART_BYTES, in order. Raises DataError if the source cannot be read."""

    @abstractmethod
    def read(self, part: SourcePart, tally: Tally) -> Iterator[Record]:
        """Yield the records of one part. `tally` counts skipped records and describes the first broken ones.

        Raises DataError if the rest of the part cannot be read (a damaged file).
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return a JSON object that differs from an earlier result if the records may have changed.

        Examples are package versions, or the sizes and modification times of files.
        """

    def accepts_drift(self, then: dict[str, Any], now: dict[str, Any]) -> bool:
        """Return whether a dataset with fingerprint `then` stays valid if the fingerprint is now `now`."""
        return False

    def download(self) -> str | None:
        """Download data that is not on disk yet.

        Returns a sentence that describes the result, or None if there was nothing to download.
        """
        return None

    def check_dependencies(self) -> None:  # noqa: B027  (most need none)
        """Raise DataError, with the pip command, if an optional package is missing."""

    def bears_mask(self) -> bool:
        """Return whether records may contain tokens outside the loss.

        May read the first record, and raises DataError if that fails.
        """
        return False

    def licence(self) -> Any:
        """Return the licence stated by the source itself; None if it states none."""
        return None

    def attribution(self) -> str | None:
        """Return the attribution stated by the source itself; None if it states none."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return settings, licence, attribution and versions for the manifest, without any secrets."""
        return {
            **self.config.model_dump(),
            "licence": self.config.licence or self.licence(),
            "attribution": self.config.attribution or self.attribution(),
            "fingerprint": self.fingerprint(),
        }

    def doubt(self, num_separators: int) -> str | None:
        """Return a warning if a setting looks wrong now that the source has been read, otherwise None.

        `num_separators` is the number of document separator lines in all parts together.
        """
        return None

    def total_bytes(self) -> int | None:
        """Return the sum of all parts' size_bytes, for a progress bar; None if unknown."""
        return None

    def unpacked_bytes(self, most: int) -> int | None:
        """Return the uncompressed size of the source in bytes, but at most `most`; None if it is unknown."""
        total = self.total_bytes()
        return None if total is None else min(total, most)

    def documents(self, tally: Tally | None = None) -> Iterator[Record]:
        """Yield all records in order, reading one part after another in this process."""
        tally = Tally() if tally is None else tally
        for part in self.parts():
            yield from self.read(part, tally)


PART_BYTES = 32 << 20


def reader_class(kind: str) -> type[SourceReader]:
    """Return the reader class of a kind of source: "hf-dataset" -> hf_dataset.HfDatasetReader."""
    module = import_module(f"{__package__}.{kind.replace('-', '_')}")
    return getattr(module, "".join(map(str.capitalize, kind.split("-"))) + "Reader")


def open_source(config: Any, where: str = "data.sources", extra_keys: tuple[str, ...] = ()) -> SourceReader:
    """Return the reader for one entry of data.sources."""
    return reader_class(config.kind)(config, where, extra_keys)
