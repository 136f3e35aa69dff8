"""Reads plain text: each file is one document, or is split into documents at separator lines or by size."""

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.corpus.files.file_kinds import TEXTS, stands_beside_data, suffix_of
from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources import files

LOOKED_AT_BYTES = 16 << 20


class TextReader(files.FileReader):
    """Reads UTF-8 .txt and .md files, compressed or not.

    A file that is split into documents is streamed; otherwise it is read as a whole. A document that is not
    UTF-8 counts as broken. CRLF line ends become LF, unless `newlines` is "keep".
    """

    kind = "text"
    suffixes = TEXTS
    gives_unicode = True

    def is_wanted(self, name: str) -> bool:
        # README.md and LICENSE.md accompany most data and are not part of it.
        return super().is_wanted(name) and not (suffix_of(name) == ".md" and stands_beside_data(name))

    def pieces(self, path: Path) -> Iterator[SourcePart]:
        if self._is_whole:
            yield SourcePart(display(path), size_bytes=path.stat().st_size, details=(str(path),))
        else:
            yield from files.line_pieces(path, self.where, self._separator)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        if self._is_whole:
            for name in part.details:
                path = Path(name)
                with files.open_lines(path, self.where) as stream:
                    content = stream.read()
                yield from self._text(content.removeprefix(BOM_UTF8), display(path), 1, tally)
            return
        for shown, lines in self.opened(part):
            lines_before = tally.lines
            for first, last, content in self._cut(lines, tally):
                tally.lines = lines_before + (last if part.path else 0)
                yield from self._text(content, shown, first, tally)

    def _text(self, content: bytes, path: str, first: int, tally: Tally) -> Iterator[str]:
        tally.records += 1
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = first + content.count(b"\n", 0, error.start)
            advice = "convert the file, e.g. with `iconv -f ISO-8859-1 -t UTF-8 OLD > NEW`"
            tally.add_broken(path, line, f"not UTF-8 (byte 0x{content[error.start]:02x}); {advice}")
            return
        del content
        if self.config.newlines == "lf" and "\r\n" in text:
            text = text.replace("\r\n", "\n")
        yield text

    @property
    def _is_whole(self) -> bool:
        return self._separator is None and self.config.document_bytes is None

    def doubt(self, num_separators: int) -> str | None:
        separator = self._separator
        if separator is None or num_separators:
            return None
        count = counted(len(self.files()), "file")
        met = self._inside(separator)
        inside = (
            f" {met} contains it within a longer line, but a separator must be a whole line." if met else ""
        )
        return (
            f"no line of the source ({count}) equals document_separator = "
            f"{self.config.document_separator!r}, so each file is one document.{inside} Set "
            "document_separator to a line of the files, or remove the setting."
        )

    def _inside(self, separator: bytes) -> str | None:
        """Return "file:line" of the first line that contains the separator; None if no line contains it.

        Searches only the first LOOKED_AT_BYTES of the source.
        """
        left = LOOKED_AT_BYTES
        for path in self.files():
            with files.open_lines(path, self.where) as stream:
                for number, line in enumerate(stream, start=1):
                    if separator in line:
                        return f"{display(path)}:{number}"
                    left -= len(line)
                    if left <= 0:
                        return None
        return None

    def _cut(self, lines: Iterable[bytes], tally: Tally) -> Iterator[tuple[int, int, bytes]]:
        if self._separator is not None:
            return _documents(lines, self._separator, tally)
        return _of_size(lines, self.config.document_bytes)

    @property
    def _separator(self) -> bytes | None:
        separator = self.config.document_separator
        return None if separator is None else separator.encode()


def _of_size(lines: Iterable[bytes], num_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield documents of about `num_bytes`, each ending at an empty line if possible.

    The items have the form that _documents() describes.

    Without an empty line, a document ends at the last line end before it would exceed twice that size. A
    single line longer than that is cut after a space or full stop, or at least between two characters.
    """
    first, number, size = 1, 0, 0
    begun: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        while size + len(line) > 2 * num_bytes:
            if begun:
                yield first, number - 1, files.joined(begun)
                first, size = number, 0
                continue
            at = _end_of_sentence(line, num_bytes)
            yield first, number - 1, line[:at]
            line = line[at:]
        begun.append(line)
        size += len(line)
        if size >= num_bytes and line.isspace():
            yield first, number, files.joined(begun)
            first, size = number + 1, 0
    if begun:
        yield first, number, files.joined(begun)


def _end_of_sentence(line: bytes, num_bytes: int) -> int:
    """Return the byte offset at which to cut a long line.

    Prefers the last space, then the last ideographic full stop, in the second half of the first `num_bytes`.
    Otherwise the cut is between two characters.
    """
    half = num_bytes // 2
    for mark in (b" ", "\u3002".encode()):
        if (found := line.rfind(mark, half, num_bytes)) >= 0:
            return found + len(mark)
    # In UTF-8, bytes after the first of a character are 10xxxxxx.
    at = num_bytes
    while at > half and line[at] & 0xC0 == 0x80:
        at -= 1
    return at or num_bytes


def _documents(lines: Iterable[bytes], separator: bytes, tally: Tally) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number of the first line, number of lines read so far, content) for each document."""
    first, number = 1, 0
    begun: list[bytes] = []
    for number, line in enumerate(lines, start=1):
        if line.startswith(separator) and files.is_separator(line, separator):
            tally.separators += 1
            yield first, number, files.joined(begun)
            first = number + 1
        else:
            begun.append(line)
    if begun:
        yield first, number, files.joined(begun)
