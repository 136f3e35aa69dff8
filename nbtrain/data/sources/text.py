"""Plain text: each file one document, or cut at a line that separates documents."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from nbtrain.data.sources.base import FileReader
from nbtrain.errors import DataError
from nbtrain.workspace import display


class TextReader(FileReader):
    """UTF-8 .txt files (also .txt.gz). A file is streamed only where a separator cuts it."""

    kind = "text"
    suffixes = (".txt", ".txt.gz")

    def documents(self) -> Iterator[str]:
        self.dropped.clear()
        for path in self.files():
            for number, raw in self._pieces(path):
                try:
                    yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    line = number + raw.count(b"\n", 0, error.start)
                    raise DataError(
                        f"{self.where}: {display(path)}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}). Convert "
                        "the file, e.g. with iconv -t UTF-8."
                    ) from None

    def _pieces(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """(number of its first line, bytes) of each document."""
        separator = self.config.document_separator
        with self.open(path) as stream:
            try:
                if separator is None:
                    yield 1, stream.read()
                    return
                mark, first = separator.encode(), 1
                lines: list[bytes] = []
                for number, line in enumerate(stream, start=1):
                    if line.rstrip(b"\r\n") == mark:
                        yield first, b"".join(lines)
                        lines, first = [], number + 1
                    else:
                        lines.append(line)
                yield first, b"".join(lines)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{self.where}: {display(path)}: damaged gzip file: {error}.") from error
