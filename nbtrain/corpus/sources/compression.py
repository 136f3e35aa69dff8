"""Compressed files as streams of bytes: .gz, .zst, .bz2 and .xz, also of several members (frames, streams).

All four behave alike for files that are cut short, and count the bytes read, as their libraries do not.
Archives and other compressions are recognised and refused, with the command that unpacks them.
"""

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.optional import optional

CHECKS = {".gz": "gzip -t", ".zst": "zstd -t", ".bz2": "bzip2 -t", ".xz": "xz -t"}
SUFFIXES = tuple(CHECKS)
READ_ARE = f"{', '.join(SUFFIXES[:-1])} and {SUFFIXES[-1]}"
# Text in UTF-8 cannot begin like .gz, .zst or .xz; it may begin with BZh, but a block of bzip2 must follow.
MAGIC = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
}


class Unread(NamedTuple):
    """A compression or archive that is not read."""

    name: str
    magic: re.Pattern[bytes] | None
    """What such a file begins with; None if only its name tells."""
    suffixes: tuple[str, ...]
    unpack: str
    """The command that unpacks it."""


UNREAD = (
    Unread("a zip archive", re.compile(rb"PK(\x03\x04|\x05\x06|\x07\x08)"), (".zip",), "unzip"),
    Unread("a 7z archive", re.compile(rb"7z\xbc\xaf\x27\x1c"), (".7z",), "7z x"),
    Unread("a RAR archive", re.compile(rb"Rar!\x1a\x07"), (".rar",), "unrar x"),
    Unread("an lz4 file", re.compile(rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18"), (".lz4",), "lz4 -d"),
    Unread("an lzip file", re.compile(rb"LZIP\x01"), (".lz",), "lzip -d"),
    Unread("an lzma file", re.compile(rb"\x5d\x00\x00"), (".lzma",), "xz --format=lzma -d"),
    Unread("an lzop file", re.compile(rb"\x89LZO\x00"), (".lzo",), "lzop -d"),
    Unread("a compress (.Z) file", re.compile(rb"\x1f[\x9d\xa0]"), (".z",), "uncompress"),
    Unread("a snappy file", re.compile(rb"\xff\x06\x00\x00sNaPpY"), (".sz", ".snappy"), "snzip -d"),
    Unread("a brotli file", None, (".br",), "brotli -d"),
)
TAR = Unread(
    "a tar archive",
    re.compile(rb"[^\x00].{256}ustar(\x00|  \x00)", re.DOTALL),
    (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"),
    "tar -xf",
)
MAGIC_BYTES = 265  # the mark of a tar archive stands at byte 257
BLOCK_BYTES = 1 << 18
FEED_BYTES = 64 << 10
# zstandard's object cannot be told how much to unpack at once; 4 KiB are at most 128 MiB.
ZSTD_FEED_BYTES = 4 << 10
# Frames made with `zstd --long=31` ask for this window; only such frames cost the memory.
LARGEST_WINDOW_BYTES = 1 << 31


def is_compressed(path: Path) -> bool:
    """Whether the file's name says that it is compressed."""
    return path.suffix.lower() in CHECKS


def unread(begun: bytes, name: str) -> Unread | None:
    """What a file that begins with `begun` is, if it is an archive or a compression that is not read."""
    for kind in (TAR, *UNREAD):
        if kind.magic.match(begun) if kind.magic else name.lower().endswith(kind.suffixes):
            return kind
    return None


def advice(path: Path, suffixes: tuple[str, ...]) -> str | None:
    """What to do about a file that by its name is one of `suffixes` in a compression that is not read."""
    for kind in (TAR, *UNREAD):
        if path.name.lower().endswith(tuple(suffix + end for suffix in suffixes for end in kind.suffixes)):
            return (
                f"{display(path)} is {kind.name} by its name, which is not read; {READ_ARE} files are. "
                f"Unpack it with `{kind.unpack}`."
            )
    return None


def refusal(kind: Unread, path: Path, where: str) -> DataError:
    """The error for a file that is an archive or a compression that is not read."""
    return DataError(
        f"{where}: {display(path)}: is {kind.name}, which is not read; {READ_ARE} files are. "
        f"Unpack it with `{kind.unpack}`, and name what comes out."
    )


def packing_of(begun: bytes) -> str | None:
    """The suffix of the compression that a file begins with; None if it begins with none that is read."""
    return next((suffix for suffix, magic in MAGIC.items() if magic.match(begun)), None)


def open_bytes(path: Path, where: str) -> io.BufferedReader:
    """The file's bytes, unpacked if its name ends in .gz, .zst, .bz2 or .xz.

    Raises DataError if the file cannot be opened, has an archive or compression that is not read, or one that
    its name does not say. Reading raises DataError if the file is damaged.
    """
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"{where}: {display(path)}: cannot be read: {error.strerror}.") from error
    try:
        if is_compressed(path):
            stream: Any = io.BufferedReader(Unpacked(file, path, where), BLOCK_BYTES)
            if TAR.magic and TAR.magic.match(stream.peek(MAGIC_BYTES)):
                raise refusal(TAR, path, where)
            return stream
        begun = file.read(MAGIC_BYTES)
        file.seek(0)
        kind, packing = unread(begun, path.name), packing_of(begun)
        if packing and path.name.lower().endswith(TAR.suffixes):
            kind = TAR
        if kind:
            raise refusal(kind, path, where)
        if packing:
            raise DataError(
                f"{where}: {display(path)}: is compressed: it begins as a {packing} file does, and only "
                f"names that end in {packing} are unpacked. Rename it to {path.name}{packing}."
            )
        return io.BufferedReader(file, BLOCK_BYTES)
    except DataError:
        file.close()
        raise


class BlockStream(io.RawIOBase):
    """A raw stream, read forward only, of the blocks that a subclass gives."""

    _block = memoryview(b"")

    def next_block(self) -> bytes | None:
        """The next bytes, perhaps none; None at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._block:
            block = self.next_block()
            if block is None:
                return 0
            self._block = memoryview(block)
        count = min(len(buffer), len(self._block))
        buffer[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def readall(self) -> bytes:
        blocks, self._block = [bytes(self._block)], memoryview(b"")
        return b"".join(blocks + list(iter(self.next_block, None)))


class Unpacked(BlockStream):
    """What a compressed file holds, as a raw stream that can only be read forward."""

    def __init__(self, file: BinaryIO | io.FileIO, path: Path, where: str, suffix: str | None = None):
        """`suffix` names the compression; None takes that of `path`."""
        super().__init__()
        self.consumed_bytes = 0
        """Compressed bytes read so far."""
        self._file, self._path, self._where = file, path, where
        self._suffix = suffix or path.suffix.lower()
        self._make, self._errors = _decompressor(self._suffix, where)
        self._member: Any = self._make()
        self._left = b""  # compressed bytes that belong to the next member
        self._has_begun = False  # whether the member under way has got a byte
        self._num_members = 0
        self._unpacked_bytes = 0
        is_zstd = self._suffix == ".zst"
        self._feed_bytes = ZSTD_FEED_BYTES if is_zstd else FEED_BYTES
        self._limit: tuple[int, ...] = () if is_zstd else (BLOCK_BYTES,)
        # Whether the last block was as large as may be: more may come without input.
        self._is_full = False

    def close(self) -> None:
        self._file.close()
        super().close()

    def next_block(self) -> bytes | None:
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
            if not self._has_begun and self._num_members:
                packed = packed.lstrip(b"\0")  # zeros pad a file on tape, and stand between streams of xz
                if not packed:
                    return b""
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
            f"{self._where}: {name}: damaged {self._suffix} file: {reason}, after "
            f"{self.consumed_bytes:,} bytes ({self._unpacked_bytes:,} unpacked). Copy or download it again; "
            f"`{check}` checks it."
        )


def _decompressor(suffix: str, where: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """(what makes the decompressor of one member, the errors that it raises)."""
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if suffix == ".bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if suffix == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), (lzma.LZMAError,)
    zstandard = optional("zstandard", f"{where}: a .zst file")
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
    return decompressor.decompressobj, (zstandard.ZstdError,)
