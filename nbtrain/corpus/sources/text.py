"""Plain text: each file one document, or cut at a line that separates documents."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbtrain.base.workspace import display
from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources import files
from nbtrain.corpus.sources.file_kinds import TEXTS


class TextReader(files.FileReader):
    """UTF-8 .txt files, compressed ones too. A file is streamed if a separator cuts it, else read whole.

    A document that is not UTF-8 is broken. Line ends are normalised to \\n unless `newlines` is keep.
    """

    kind = "text"
    suffixes = TEXTS
    gives_unicode = True

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        if self._separator is None:
            yield SourcePart(display(path), size_bytes=path.stat().st_size, details=(str(path),))
        else:
            yield from files.line_pieces(path, self.where, self._separator)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        if self._separator is None:
            for name in part.details:
                path = Path(name)
                with files.open_lines(path, self.where) as stream:
                    content = stream.read()
                yield from self._text(content.removeprefix(BOM_UTF8), display(path), 1, tally)
            return
        for shown, lines in self.opened(part):
            lines_before = tally.lines
            for first, last, content in _documents(lines, self._separator):
                tally.lines = lines_before + (last if part.path else 0)
                yield from self._text(content, shown, first, tally)

    def _text(self, content: bytes, path: str, first: int, tally: Tally) -> Iterator[str]:
        tally.records += 1
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = first + content.count(b"\n", 0, error.start)
            advice = "convert the file, e.g. with iconv -t UTF-8"
            tally.add_broken(path, line, f"not UTF-8 (byte 0x{content[error.start]:02x}); {advice}")
            return
        del content
        if self.config.newlines == "lf" and "\r\n" in text:
            text = text.replace("\r\n", "\n")
        yield text

    @property
    def _separator(self) -> bytes | None:
        separator = self.config.document_separator
        return None if separator is None else separator.encode()


def _documents(lines: Iterable[bytes], separator: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number of its first line, number of lines read so far, bytes) of each document."""
    first, number = 1, 0
    begun: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith(separator) and files.is_separator(line, separator):
            yield first, number, files.joined(begun)
            first = number + 1
        else:
            begun.append(line)
    if begun:
        yield first, number, files.joined(begun)
