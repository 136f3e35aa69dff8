"""Compressed files as streams of bytes: .gz, .zst and .bz2, of several members (frames) too.

The standard library's readers and zstandard's own disagree about files that are cut short (one raises EOFError,
one ends quietly) and do not say how far in the file they are. Here all three behave alike.
"""

import bz2
import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.sources.optional import optional

CHECKS = {".gz": "gzip -t", ".zst": "zstd -t", ".bz2": "bzip2 -t"}
SUFFIXES = tuple(CHECKS)
# The first two are no UTF-8; a text may begin with BZh, but not go on as a block of bzip2, or its end, does.
MAGIC = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
}
MAGIC_BYTES = 10
BLOCK_BYTES = 1 << 18
FEED_BYTES = 64 << 10
# zstandard's object cannot be told how much to unpack at once; 4 KiB are at most 128 MiB.
ZSTD_FEED_BYTES = 4 << 10
# Frames made with `zstd --long=31` ask for this window; only such frames cost the memory.
LARGEST_WINDOW_BYTES = 1 << 31


def is_compressed(path: Path) -> bool:
    """Whether its name says so."""
    return path.suffix.lower() in CHECKS


def open_bytes(path: Path, where: str) -> io.BufferedReader:
    """The file's bytes, unpacked where its name ends in .gz, .zst or .bz2.

    Reading raises DataError where it is damaged. Raises DataError where it cannot be opened, or is compressed under a
    name that says otherwise.
    """
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"{where}: {display(path)}: cannot be read: {error.strerror}.") from error
    try:
        if is_compressed(path):
            return io.BufferedReader(Unpacked(file, path, where), BLOCK_BYTES)
        _check_plain(file, path, where)
        return io.BufferedReader(file, BLOCK_BYTES)
    except DataError:
        file.close()
        raise


def _check_plain(file: io.FileIO, path: Path, where: str) -> None:
    """Raises DataError where a file, here at its beginning, begins as a compressed one does."""
    begun = file.read(MAGIC_BYTES)
    file.seek(0)
    for suffix, magic in MAGIC.items():
        if magic.match(begun):
            raise DataError(
                f"{where}: {display(path)}: is compressed: it begins as a {suffix} file does, and only names that end in "
                f"{suffix} are unpacked. Rename it to {path.name}{suffix}."
            )


class Unpacked(io.RawIOBase):
    """What a compressed file holds, as a raw stream that can only be read forward."""

    def __init__(self, file: BinaryIO | io.FileIO, path: Path, where: str):
        super().__init__()
        self.consumed_bytes = 0
        """Compressed bytes read so far."""
        self._file, self._path, self._where = file, path, where
        self._suffix = path.suffix.lower()
        self._make, self._errors = _decompressor(self._suffix, where)
        self._member: Any = self._make()
        self._left = b""  # compressed bytes that belong to the next member
        self._has_begun = False  # whether the member under way has got a byte
        self._num_members = 0
        self._unpacked_bytes = 0
        is_zstd = self._suffix == ".zst"
        self._feed_bytes = ZSTD_FEED_BYTES if is_zstd else FEED_BYTES
        self._limit: tuple[int, ...] = () if is_zstd else (BLOCK_BYTES,)
        self._is_full = (
            False  # whether the last block was as large as may be, and more may come without input
        )
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._block:
            block = self._next()
            if block is None:
                return 0
            self._block = memoryview(block)
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def readall(self) -> bytes:
        blocks, self._block = [bytes(self._block)], memoryview(b"")
        while (block := self._next()) is not None:
            blocks.append(block)
        return b"".join(blocks)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next(self) -> bytes | None:
        """The next unpacked bytes, perhaps none; None at the end."""
        if self._is_full:
            packed = getattr(self._member, "unconsumed_tail", b"")
        else:
            packed, self._left = self._left, b""
            if not packed:
                packed = self._file.read(self._feed_bytes)
                self.consumed_bytes += len(packed)
            if not packed:
                if self._has_begun or not self._num_members:
                    raise self._damaged("it ends in the middle")
                return None
            if not self._has_begun and self._num_members and not packed.strip(b"\0"):
                return b""  # zeros that pad a file on tape
        self._has_begun = True
        try:
            block = self._member.decompress(packed, *self._limit)
        except self._errors as error:
            raise self._damaged(str(error)) from error
        self._unpacked_bytes += len(block)
        self._is_full = not self._member.eof and len(block) == BLOCK_BYTES
        if self._member.eof:
            self._left = self._member.unused_data
            self._member, self._has_begun = self._make(), False
            self._num_members += 1
        return block

    def _damaged(self, reason: str) -> DataError:
        name, check = display(self._path), CHECKS[self._suffix]
        return DataError(
            f"{self._where}: {name}: damaged {self._suffix} file: {reason}, after {self.consumed_bytes:,} bytes "
            f"({self._unpacked_bytes:,} unpacked). Copy or download it again; `{check}` checks it."
        )


def _decompressor(suffix: str, where: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """(what makes the decompressor of one member, the errors that it raises)."""
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if suffix == ".bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    zstandard = optional("zstandard", where, "a .zst file")
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
    return decompressor.decompressobj, (zstandard.ZstdError,)
