"""Base class for sources that read files: chooses the files, splits them into parts, and reads the lines.

    files sorted by relative path
        -> small files in groups of about PART_BYTES    SourcePart.details = their paths; path is None
        -> a large file in ranges of about PART_BYTES   SourcePart.path; bytes start to stop, or content

A range ends at a line end, or after a separator line if the source has a separator. It ends at the same
position in the text whether or not the file is compressed. Lines of a range are numbered from the first line
of the range, and lines of a file in a group from the first line of the file.
"""

import io
import logging
from abc import abstractmethod
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display, resolve
from nbtrain.corpus import heap
from nbtrain.corpus.files import compression, file_kinds, folder
from nbtrain.corpus.files.choice import Choice, counted_splits
from nbtrain.corpus.files.compression import open_bytes, packing_of_file, without_mark
from nbtrain.corpus.optional import optional
from nbtrain.corpus.records import SourcePart
from nbtrain.corpus.sources import base

logger = logging.getLogger(__name__)

BLOCK_BYTES = 64 << 10
# {suffix: the optional package that reads such files}
PACKAGES = {
    ".zst": "zstandard",
    ".zstd": "zstandard",
    **dict.fromkeys((*file_kinds.COLUMNS, *file_kinds.ARROW), "pyarrow"),
}
PACKED = (*compression.PACKED_SUFFIXES, *file_kinds.COLUMNS)
# Typical ratio of uncompressed to compressed size, for deciding which files are small.
USUAL_RATIO = 4
# Maximum number of skipped files that one warning names.
NAMED_FILES = 10


class FileReader(base.SourceReader):
    """Reads one file, or the files in a folder whose suffix is one of `suffixes` in upper or lower case."""

    suffixes: ClassVar[tuple[str, ...]]

    def files(self) -> list[Path]:
        """Return the files, sorted by relative path. Raises DataError if there are no files."""
        path = resolve(self.config.path)
        if folder.is_file(path, self.where):
            folder.check_name(path, self.where)
            self._refuse_choice()
            return [path]
        return [path / name for name in self._choice(path).read]

    def _choice(self, root: Path) -> Choice:
        """Choose which files of a folder to read. Raises DataError if it is missing or no file matches."""
        where = f"{self.where}: path = {self.config.path!r}"
        if not folder.is_folder(root, self.where):
            if root.is_symlink():
                raise folder.dangling(root, self.where)
            pattern = " Patterns are not supported: set path to the folder." if "*" in root.name else ""
            raise DataError(
                f"{where}: no such file or folder ({display(root)}). Relative paths start at the "
                f"workspace.{pattern}"
            )
        choice = Choice.of(root, self.is_wanted, self.config.split, self.config.exclude, self.where)
        if not choice.read:
            raise DataError(f"{where}: {self._nothing_read(choice)}")
        if self.config.split is None and (mixed := choice.mixed_splits()):
            raise DataError(
                f"{where}: the folder contains files from several splits: {mixed}. A model must not be "
                "trained on the text that it is evaluated on: set split: train to skip the files of other "
                "splits, or list the files to skip in exclude. If the file names mean something else, "
                "set split: all."
            )
        return choice

    def _nothing_read(self, choice: Choice) -> str:
        """Return why no file of the folder is read, and which setting to change."""
        if choice.other_splits:
            there = counted_splits(choice.other_splits)
            return (
                f"no file in the folder belongs to split {self.config.split!r}. Files per split: {there}. "
                "Change split."
            )
        if choice.excluded:
            return f"exclude matches every file in the folder ({len(choice.excluded):,}). Change exclude."
        left_out = self._left_out(choice) or "Change path or kind."
        return f"the folder contains no {self.wanted_files()}. {left_out}"

    def _refuse_choice(self) -> None:
        """Raise DataError if the path is a file, but a setting that applies only to folders is set."""
        for key in ("split", "exclude"):
            if getattr(self.config, key):
                raise DataError(
                    f"{self.where}: {key} applies only to folders, but path = {self.config.path!r} is a "
                    f"file. Remove {key}."
                )

    def _left_out(self, choice: Choice) -> str | None:
        """Return a sentence that lists the folder's skipped files; None if there are none.

        It names at most NAMED_FILES files, and omits files that usually accompany data, such as a README.
        """
        root = resolve(self.config.path)
        names = [name for name in choice.others if not file_kinds.stands_beside_data(Path(name).name)]
        if not names:
            return None
        named = []
        for name in names[:NAMED_FILES]:
            reason = file_kinds.why_not_read(Path(name).name, self.suffixes)
            named.append(
                f"{folder.printable_path(root / name)} ({reason})"
                if reason
                else folder.printable_path(root / name)
            )
        more = ""
        if len(names) > NAMED_FILES:
            suffixes = Counter(file_kinds.suffix_of(name) or "no suffix" for name in names[NAMED_FILES:])
            listed = ", ".join(f"{suffix} {count:,}" for suffix, count in suffixes.most_common(NAMED_FILES))
            more = f", and {len(names) - NAMED_FILES:,} more ({listed})"
        return f"Files that kind: {self.kind} does not read are skipped: {', '.join(named)}{more}."

    def is_wanted(self, name: str) -> bool:
        """Return whether the source reads a file with this name in a folder."""
        return file_kinds.suffix_of(name) in self.suffixes and not file_kinds.is_metadata(name)

    def wanted_files(self) -> str:
        """Return a phrase for the files that are read from a folder; in messages it follows the word "no"."""
        return f"file with the suffix {file_kinds.listed_suffixes(self.suffixes)}"

    def fingerprint(self) -> dict[str, Any]:
        root = resolve(self.config.path)
        entries = {}
        for path in self.files():
            name = path.name if path == root else path.relative_to(root).as_posix()
            entries[name] = [path.stat().st_size, path.stat().st_mtime_ns]
        return {"files": entries}

    def total_bytes(self) -> int | None:
        return sum(path.stat().st_size for path in self.files())

    def unpacked_bytes(self, most: int) -> int:
        num_bytes = 0
        for path in self.files():
            if num_bytes >= most:
                break
            num_bytes += self.unpacked_bytes_of(path, most - num_bytes)
        return min(num_bytes, most)

    def unpacked_bytes_of(self, path: Path, most: int) -> int:
        """Return the uncompressed size of a file in bytes; decompression stops after about `most` bytes."""
        with open_bytes(path, self.where) as stream:
            if not isinstance(stream.raw, compression.Unpacked):
                return path.stat().st_size
            num_bytes = 0
            while num_bytes < most and (block := stream.read(compression.BLOCK_BYTES)):
                num_bytes += len(block)
        return num_bytes

    def check_dependencies(self) -> None:
        for suffix in sorted(PACKAGES.keys() & {path.suffix.lower() for path in self.files()}):
            optional(PACKAGES[suffix], f"{self.where}: a {suffix} file")
        self.report_left_out()

    def report_left_out(self) -> None:
        """Log which files of the folder are skipped, and which patterns in `exclude` match no file."""
        root = resolve(self.config.path)
        if not folder.is_folder(root, self.where):
            return
        choice = self._choice(root)
        if sentence := self._left_out(choice):
            logger.warning("%s: %s", self.where, sentence)
        if choice.other_splits:
            there = counted_splits(choice.other_splits)
            logger.info("%s: split: %s skips these files: %s.", self.where, self.config.split, there)
        for pattern in choice.unmatched:
            logger.warning("%s: exclude: %r matches no file in the folder.", self.where, pattern)

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
        """Return an estimate of the bytes of text in a file, to distinguish small files from large ones."""
        return path.stat().st_size * (USUAL_RATIO if path.suffix.lower() in PACKED else 1)

    @abstractmethod
    def pieces(self, path: Path) -> Iterator[SourcePart]:
        """Yield the parts of a file that is larger than PART_BYTES."""

    def opened(self, part: SourcePart) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield (file name for messages, lines including their line ends) for each file of a part.

        Raises DataError if a file is damaged.
        """
        if part.content is not None:
            yield part.path or part.name, io.BytesIO(part.content)
            return
        if part.path is not None:
            with open_bytes(Path(part.details[0]), self.where) as stream:
                stream.seek(part.start)
                lines = io.BufferedReader(_PartBytes(stream, part, self.where), compression.BLOCK_BYTES)
                yield part.path, without_mark(lines) if part.start == 0 else lines
            return
        for name in part.details:
            path = Path(name)
            with self.open_file(path) as stream:
                yield display(path), without_mark(stream)

    def open_file(self, path: Path) -> io.BufferedReader:
        """Open a whole file for reading lines. Raises the errors of open_lines."""
        return open_lines(path, self.where)


class _PartBytes(io.RawIOBase):
    """The bytes of a part as a stream. Reading raises DataError if the file ends before the part does."""

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
                f"{self._where}: {self._part.path}: the file became shorter while it was read. Make sure "
                f"that no process writes to it, then run the command again."
            )
        self._left -= num_bytes
        return num_bytes


def open_lines(path: Path, where: str) -> io.BufferedReader:
    """Open a text file with open_bytes(). Raises DataError for UTF-16, which cannot be split into lines."""
    stream = open_bytes(path, where)
    try:
        begun = stream.peek(2)
        if begun.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise DataError(
                f"{where}: {display(path)}: the file is UTF-16 (it begins with the bytes "
                f"{begun[:2].hex(' ')}), not UTF-8. Convert it with `iconv -f UTF-16 -t UTF-8 OLD > NEW`, "
                "and use the new file."
            )
    except DataError:
        stream.close()
        raise
    return stream


def line_pieces(path: Path, where: str, separator: bytes | None = None) -> Iterator[SourcePart]:
    """Yield parts of about PART_BYTES of a text file, each ending after a `separator` line.

    A part ends after any line if `separator` is None.
    """
    if packing_of_file(path, where):
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
    """Return whether a line is the separator, ignoring the line end."""
    return line.startswith(separator) and line.rstrip(b"\r\n") == separator


def _cut(stream: io.BufferedReader, at: int, num_bytes: int, separator: bytes | None) -> int:
    """Return the first position at or after `at` where a part may end."""
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
    """Yield parts that carry the lines of a stream in `content`.

    `stream.raw.consumed_bytes` must give the position in the file.
    """
    raw: Any = stream.raw
    name, num_bytes, start, attributed = display(path), path.stat().st_size, 0, 0
    while content := _piece(stream, separator):
        stop = start + len(content)
        # Peek one byte ahead: if this part is the last, the rest of the file is attributed to it.
        consumed = raw.consumed_bytes if stream.peek(1) else num_bytes
        whole = content.removeprefix(BOM_UTF8) if start == 0 else content
        content = b""
        shown = _named(name, start, stop, "unpacked ")
        yield SourcePart(shown, name, start, stop, consumed - attributed, content=whole)
        whole = b""
        start, attributed = stop, consumed


def _piece(stream: io.BufferedReader, separator: bytes | None) -> bytes:
    """Return the next PART_BYTES of a stream, extended to the end of the line or of the separator line."""
    content = stream.read(base.PART_BYTES)
    if len(content) < base.PART_BYTES:
        return content
    pieces = [content]
    if not content.endswith(b"\n"):
        pieces.append(stream.readline())
        if len(pieces[-1]) > base.PART_BYTES:
            heap.give_back()  # memory into which a long line was read
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


def joined(pieces: list[bytes]) -> bytes:
    """Join the pieces and clear the list, so that a long line is not in memory twice."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole
