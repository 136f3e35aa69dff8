"""What the sources that are files share: which files, in what parts, and the lines of a part.

    files in the order of relative paths
      -> small files in groups of about PART_BYTES    SourcePart.details = their paths; path is None
      -> a large file in pieces of about PART_BYTES   SourcePart.path; bytes start to stop, or content

Pieces end at line ends, or after a separator line, at the same bytes of text whether or not the file is
compressed. Lines of a piece are numbered from its first line, lines of a file in a group from the file's.
"""

import io
import logging
from abc import abstractmethod
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display, resolve
from nbtrain.corpus import heap
from nbtrain.corpus.optional import optional
from nbtrain.corpus.records import SourcePart
from nbtrain.corpus.sources import base, compression, folder
from nbtrain.corpus.sources.compression import is_compressed, open_bytes

logger = logging.getLogger(__name__)

BLOCK_BYTES = 64 << 10
# Suffix -> the package that reads such files.
PACKAGES = {".zst": "zstandard", ".parquet": "pyarrow", ".arrow": "pyarrow"}
PACKED = (*compression.SUFFIXES, ".parquet")
# What text shrinks to in them, for the decision which files are small.
USUAL_RATIO = 4


def with_compressed(*suffixes: str) -> tuple[str, ...]:
    """Each suffix, and each followed by .gz, .zst, .bz2 or .xz."""
    return tuple(suffix + packed for suffix in suffixes for packed in ("", *compression.SUFFIXES))


class FileReader(base.SourceReader):
    """A source that is a file, or a folder that is searched for `suffixes` in upper or lower case."""

    suffixes: ClassVar[tuple[str, ...]]

    def files(self) -> list[Path]:
        """The files, in the order of relative paths. Raises DataError if there is none."""
        path = resolve(self.config.path)
        if folder.is_file(path, self.where):
            folder.check_name(path, self.where)
            return [path]
        if not folder.is_folder(path, self.where):
            if path.is_symlink():
                raise folder.dangling(path, self.where)
            raise DataError(
                f"{self.where}: path = {self.config.path!r}: no such file or folder ({display(path)}). "
                "Relative paths start at the workspace"
                f"{'; patterns are not read, name the folder' if '*' in path.name else ''}."
            )
        found = folder.wanted_files(path, self.is_wanted, self.where)
        if not found:
            what = f"path = {self.config.path!r}: the folder holds {self.nothing_found()}."
            raise DataError(" ".join([f"{self.where}: {what}", *self._unread()[:1]]))
        return found

    def _unread(self) -> list[str]:
        """What to do about files of the folder that would be read if their compression were read."""
        root = resolve(self.config.path)
        if not folder.is_folder(root, self.where):
            return []
        advice = partial(compression.advice, suffixes=self.suffixes)
        found = folder.wanted_files(root, lambda name: advice(Path(name)) is not None, self.where)
        return [str(advice(path)) for path in found]

    def is_wanted(self, name: str) -> bool:
        """Whether a file of a folder is read."""
        return name.lower().endswith(self.suffixes)

    def nothing_found(self) -> str:
        """The end of the message on a folder without a wanted file."""
        *others, last = self.suffixes
        return f"no {', '.join(others)} or {last} file" if others else f"no {last} file"

    def fingerprint(self) -> dict[str, Any]:
        root = resolve(self.config.path)
        entries = {}
        for path in self.files():
            name = path.name if path == root else path.relative_to(root).as_posix()
            entries[name] = [path.stat().st_size, path.stat().st_mtime_ns]
        return {"files": entries}

    def total_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self.files())

    def check_dependencies(self) -> None:
        for suffix in sorted(PACKAGES.keys() & {path.suffix.lower() for path in self.files()}):
            optional(PACKAGES[suffix], f"{self.where}: a {suffix} file")
        for advice in self._unread():
            logger.warning("%s: left out: %s", self.where, advice)

    def parts(self) -> Iterator[SourcePart]:
        group: list[Path] = []
        group_bytes = 0
        for path in self.files():
            num_bytes = self.size_as_text(path)
            if group and group_bytes + num_bytes > base.PART_BYTES:
                yield _grouped(group)
                group, group_bytes = [], 0
            if num_bytes > base.PART_BYTES:
                yield from self.pieces(path)
            else:
                group.append(path)
                group_bytes += num_bytes
        if group:
            yield _grouped(group)

    def size_as_text(self, path: Path) -> int:
        """About how many bytes of text a file holds, to tell small files from large ones."""
        return path.stat().st_size * (USUAL_RATIO if path.suffix.lower() in PACKED else 1)

    @abstractmethod
    def pieces(self, path: Path) -> Iterator[SourcePart]:
        """The parts of a file that is larger than a part."""

    def opened(self, part: SourcePart) -> Iterator[tuple[str, Iterator[bytes]]]:
        """(shown file, its lines with ends) for each file of a part. Raises DataError if one is damaged."""
        if part.content is not None:
            yield part.path or part.name, io.BytesIO(part.content)
            return
        if part.path is not None:
            with open_bytes(Path(part.details[0]), self.where) as stream:
                stream.seek(part.start)
                lines = io.BufferedReader(_PartBytes(stream, part, self.where), compression.BLOCK_BYTES)
                yield part.path, _without_mark(lines) if part.start == 0 else lines
            return
        for name in part.details:
            path = Path(name)
            with self.open_file(path) as stream:
                yield display(path), _without_mark(stream)

    def open_file(self, path: Path) -> io.BufferedReader:
        """The lines of a whole file. Errors are those of open_lines."""
        return open_lines(path, self.where)


class _PartBytes(io.RawIOBase):
    """The bytes of a part. Reading raises DataError if the file ends before it."""

    def __init__(self, stream: io.BufferedReader, part: SourcePart, where: str):
        assert part.stop is not None
        self._stream, self._part, self._where = stream, part, where
        self._left = part.stop - part.start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            return 0
        num_bytes = self._stream.readinto(memoryview(buffer)[: self._left])
        if not num_bytes:
            raise DataError(
                f"{self._where}: {self._part.path}: has become shorter while it was read. Let nothing write "
                f"to it, and start again."
            )
        self._left -= num_bytes
        return num_bytes


def open_lines(path: Path, where: str) -> io.BufferedReader:
    """open_bytes of a file of lines. Raises DataError also if it is UTF-16, whose lines cannot be read."""
    stream = open_bytes(path, where)
    try:
        begun = stream.peek(2)
        if begun.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise DataError(
                f"{where}: {display(path)}: is UTF-16 (it begins with {begun[:2].hex(' ')}), not UTF-8. "
                f"Convert it, with iconv -f UTF-16 -t UTF-8."
            )
    except DataError:
        stream.close()
        raise
    return stream


def line_pieces(path: Path, where: str, separator: bytes | None = None) -> Iterator[SourcePart]:
    """A file of lines in parts of about PART_BYTES, which end after a line, or after a line `separator`."""
    if is_compressed(path):
        with open_lines(path, where) as stream:
            yield from stream_pieces(path, stream, separator)
        return
    name, start, num_bytes = display(path), 0, path.stat().st_size
    with open_lines(path, where) as stream:
        while start < num_bytes:
            stop = _cut(stream, start + base.PART_BYTES, num_bytes, separator)
            yield SourcePart(_named(name, start, stop), name, start, stop, stop - start, details=(str(path),))
            start = stop


def is_separator(line: bytes, separator: bytes) -> bool:
    """Whether a line, with or without its end, is the separator."""
    return line.startswith(separator) and line.rstrip(b"\r\n") == separator


def _cut(stream: io.BufferedReader, at: int, num_bytes: int, separator: bytes | None) -> int:
    """The first place from `at` on at which a part may end."""
    if at >= num_bytes:
        return num_bytes
    at -= 1
    stream.seek(at)
    while block := stream.read(BLOCK_BYTES):
        found = block.find(b"\n")
        if found >= 0:
            at += found + 1
            break
        at += len(block)
    if separator is not None:
        stream.seek(at)
        for line in stream:
            at += len(line)
            if is_separator(line, separator):
                break
    return at


def stream_pieces(
    path: Path, stream: io.BufferedReader, separator: bytes | None = None
) -> Iterator[SourcePart]:
    """The lines of a stream in parts with content. Its raw stream counts the `consumed_bytes` of the file."""
    raw: Any = stream.raw
    name, num_bytes, start, attributed = display(path), path.stat().st_size, 0, 0
    while content := _piece(stream, separator):
        stop = start + len(content)
        # One byte ahead shows whether this piece is the last, which takes what is left of the file.
        consumed = raw.consumed_bytes if stream.peek(1) else num_bytes
        whole = content.removeprefix(BOM_UTF8) if start == 0 else content
        content = b""
        shown = _named(name, start, stop, "unpacked ")
        yield SourcePart(shown, name, start, stop, consumed - attributed, content=whole)
        whole = b""
        start, attributed = stop, consumed


def _piece(stream: io.BufferedReader, separator: bytes | None) -> bytes:
    """The next PART_BYTES of a stream and what is left of the line, or up to the separator."""
    content = stream.read(base.PART_BYTES)
    if len(content) < base.PART_BYTES:
        return content
    pieces = [content]
    if not content.endswith(b"\n"):
        pieces.append(stream.readline())
        if len(pieces[-1]) > base.PART_BYTES:
            heap.give_back()  # the blocks that a long line was read in
    if separator is not None:
        for line in stream:
            pieces.append(line)
            if is_separator(line, separator):
                break
    return joined(pieces) if len(pieces) > 1 else content


def _grouped(paths: list[Path]) -> SourcePart:
    name, num_bytes = display(paths[0]), sum(path.stat().st_size for path in paths)
    if len(paths) > 1:
        name += f" to {display(paths[-1])} ({len(paths):,} files)"
    return SourcePart(name, size_bytes=num_bytes, details=tuple(map(str, paths)))


def _named(name: str, start: int, stop: int, what: str = "") -> str:
    return f"{name}, {what}bytes {start:,} to {stop:,}"


def _without_mark(stream: Any) -> Any:
    if stream.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
        stream.read(len(BOM_UTF8))
    return stream


def joined(pieces: list[bytes]) -> bytes:
    """All of them as one; the list is emptied, so that a long line is not held twice."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole
