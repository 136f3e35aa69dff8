"""The interface of every source of text: parts, each read independently as a stream of records.

A kind of source is registered once, as a member of `Source` in config/sections/sources.py. Its reader is
found by name: kind "hf-dataset" is HfDatasetReader in sources/hf_dataset.py, imported when a run uses it.

A reader is created from its entry in data.sources and is picklable, so that workers receive it with a part.
`parts()` is cheap and returns the same parts as long as the source is unchanged; `read(part)` always yields
the same records.

A part must end where a record ends, because parts are read without their neighbours. A line end is such a
place only if no record can contain one, as in JSON lines. Otherwise one reader splits the source in order and
passes each part on with its `content` (json_array.py), or a whole file is one part (trees in chat.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

from pydantic import BaseModel

from nbtrain.corpus.records import Record, SourcePart, Tally


class SourceReader(ABC):
    """One source of a run; creating a reader opens no file.

    `where` names it in messages (e.g. "gpt-tiny.yaml:12: data.sources[0]"); `extra_keys` are
    data.extra_json_keys, for which readers of several keys return Texts instead of str.
    """

    kind: ClassVar[str]
    is_extracted: ClassVar[bool] = False
    """Whether reading is so expensive that the text is kept on disk (data/corpus/)."""
    gives_unicode: ClassVar[bool] = False
    """Whether texts can never hold a lone surrogate, which tokenizers reject; otherwise each text is
    checked.
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
        """Yield the source in pieces of about PART_BYTES, in order. Raises DataError if it cannot be read."""

    @abstractmethod
    def read(self, part: SourcePart, tally: Tally) -> Iterator[Record]:
        """Yield the records of one part; `tally` counts skipped records and keeps the first broken ones.

        Raises DataError if the rest of the part cannot be read (a damaged file).
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return JSON values that change whenever the records may change: versions, or sizes and times of
        files.
        """

    def accepts_drift(self, then: dict[str, Any], now: dict[str, Any]) -> bool:
        """Return whether a dataset stays valid although the fingerprint is now `now` instead of `then`."""
        return False

    def download(self) -> str | None:
        """Download data that is not on this disk yet. Return a sentence on the result; None if there was
        nothing to do.
        """
        return None

    def check_dependencies(self) -> None:  # noqa: B027  (most need none)
        """Raise DataError, with the pip command, if an optional package is missing."""

    def bears_mask(self) -> bool:
        """Return whether records may hold tokens outside the loss; may read the first record. Raises
        DataError.
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
        """Return a warning about a setting that looks wrong after reading the source; None if there is none.

        `num_separators` is the number of lines, in all parts, that separate documents.
        """
        return None

    def total_bytes(self) -> int | None:
        """Return the sum of all parts' size_bytes, for a progress bar; None if unknown."""
        return None

    def unpacked_bytes(self, most: int) -> int | None:
        """Return the unpacked size of the source in bytes, counted up to `most`; None if unknown."""
        total = self.total_bytes()
        return None if total is None else min(total, most)

    def documents(self, tally: Tally | None = None) -> Iterator[Record]:
        """Yield all records in order, read by this process."""
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
