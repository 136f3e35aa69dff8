"""Opens compressed files as byte streams: .gz, .zst, .bz2 and .xz, including files with several members.

Whether a file is decompressed depends on its first bytes, not on its name. Unlike in the libraries for these
formats, a truncated file is an error in all four formats, and the compressed bytes read are counted.
Archives, other compression formats and files for another kind of source are recognized and refused, with
advice on how to read them.
"""

import bz2
import io
import lzma
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nbtrain.base.errors import DataError
from nbtrain.base.git_lfs import pointer_problem
from nbtrain.base.text.alternatives import alternatives
from nbtrain.base.workspace import display
from nbtrain.corpus.optional import optional

CHECKS = {".gz": "gzip -t", ".zst": "zstd -t", ".bz2": "bzip2 -t", ".xz": "xz -t"}
SUFFIXES = tuple(CHECKS)
PACKINGS = {**{suffix: suffix for suffix in SUFFIXES}, ".gzip": ".gz", ".zstd": ".zst", ".bzip2": ".bz2"}
"""Compression format for each suffix of a compressed file."""
PACKED_SUFFIXES = tuple(PACKINGS)
READABLE = alternatives(SUFFIXES)
# UTF-8 text cannot begin like .gz, .zst or .xz files. It may begin with BZh, so a bzip2 block must follow.
MAGIC = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\x00"),
}
# A frame that zstd and lz4 skip; files written by pzstd begin with one. The next four bytes are its size.
SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
SKIPPABLE_HEAD_BYTES = 8


class Unread(NamedTuple):
    """A kind of file that is not read as text."""

    name: str
    magic: re.Pattern[bytes] | None
    """Pattern of the first bytes of a file of this kind; None if only the name identifies the kind."""
    suffixes: tuple[str, ...]
    remedy: str
    """Sentence that tells the user what to do with a file of this kind."""
    command: str = ""
    """Command that unpacks a file of this kind; "" if the kind is neither compressed nor an archive."""


def _packed(name: str, magic: bytes | None, suffixes: tuple[str, ...], command: str) -> Unread:
    pattern = None if magic is None else re.compile(magic, re.DOTALL)
    return Unread(name, pattern, suffixes, f"Unpack it with `{command} FILE`, and use the result.", command)


UNREAD = (
    _packed("a zip archive", rb"PK(\x03\x04|\x05\x06|\x07\x08)", (".zip",), "unzip"),
    _packed("a 7z archive", rb"7z\xbc\xaf\x27\x1c", (".7z",), "7z x"),
    _packed("a RAR archive", rb"Rar!\x1a\x07", (".rar",), "unrar x"),
    _packed("an lz4 file", rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", (".lz4",), "lz4 -d"),
    _packed("an lzip file", rb"LZIP\x01", (".lz",), "lzip -d"),
    _packed("an lzma file", rb"\x5d\x00\x00", (".lzma",), "xz --format=lzma -d"),
    _packed("an lzop file", rb"\x89LZO\x00", (".lzo",), "lzop -d"),
    _packed("a compress (.Z) file", rb"\x1f[\x9d\xa0]", (".z",), "uncompress"),
    _packed("a snappy file", rb"\xff\x06\x00\x00sNaPpY", (".sz", ".snappy"), "snzip -d"),
    _packed("a brotli file", None, (".br",), "brotli -d"),
)
TAR = _packed(
    "a tar archive",
    rb"[^\x00].{256}ustar(\x00|  \x00)",
    (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"),
    "tar -xf",
)
# Files that are neither text nor compressed, which users pass to line-based sources by mistake.
OTHER_FILES = (
    Unread("a Parquet file", re.compile(rb"PAR1"), (), "Read it with kind: parquet."),
    Unread(
        "an Arrow file",
        re.compile(rb"ARROW1\x00\x00"),
        (),
        "Write the table to a Parquet file, and read that file with kind: parquet.",
    ),
    Unread("a PDF document", re.compile(rb"%PDF-"), (), "Extract its text to a .txt or .jsonl file."),
)
MAGIC_BYTES = 265  # enough for the marker of a tar archive, which is at byte 257
BLOCK_BYTES = 1 << 18
FEED_BYTES = 64 << 10
# zstandard cannot limit the size of its output; 4 KiB of input decompress to at most 128 MiB.
ZSTD_FEED_BYTES = 4 << 10
# Frames made with `zstd --long=31` need this window. Only such frames allocate that much memory.
LARGEST_WINDOW_BYTES = 1 << 31


def packing_of_file(path: Path, where: str) -> str | None:
    """Return the suffix of a file's compression, e.g. ".gz"; None if the file is not compressed.

    The first bytes decide, not the name. Raises the errors of open_bytes().
    """
    with open_bytes(path, where) as stream:
        raw: Any = stream.raw
        return raw.packing if isinstance(raw, Unpacked) else None


def unread(begun: bytes, name: str) -> Unread | None:
    """Return the kind of an archive, of unsupported compression, or of another file that is not read as text.

    `begun` holds the file's first bytes. A format without known first bytes is recognized by the file name.
    The result is None for all other files.
    """
    for kind in (TAR, *UNREAD):
        if kind.magic.match(begun) if kind.magic else name.lower().endswith(kind.suffixes):
            return kind
    return None


def advice(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return a clause with the format and unpacking command of a file such as data.jsonl.lz4, or None.

    The name must end with one of `suffixes`, followed by the suffix of an unsupported format.
    """
    for kind in (TAR, *UNREAD):
        if name.lower().endswith(tuple(suffix + end for suffix in suffixes for end in kind.suffixes)):
            return f"{kind.name} by its name; unpack it with {kind.command}"
    return None


def refusal(kind: Unread, path: Path, where: str) -> DataError:
    """Return the error for a file of an unsupported kind."""
    rule = f"is not supported (compressed text may be {READABLE})"
    if kind in OTHER_FILES:
        rule = "this kind of source does not read"
    return DataError(f"{where}: {display(path)}: the file is {kind.name}, which {rule}. {kind.remedy}")


def packing_of(begun: bytes) -> str | None:
    """Return the suffix of the supported compression that a file's first bytes show, e.g. ".gz", or None."""
    return next((suffix for suffix, magic in MAGIC.items() if magic.match(begun)), None)


def beginning(file: BinaryIO | io.FileIO) -> tuple[bytes, str | None]:
    """Return (the first MAGIC_BYTES of a file, its compression or None), and seek back to the beginning.

    Skippable frames are skipped, so that the bytes after them decide. A file with only such frames
    is an empty .zst file.
    """
    begun, packing = file.read(MAGIC_BYTES), None
    position = 0
    while SKIPPABLE.match(begun) and len(begun) >= SKIPPABLE_HEAD_BYTES:
        position += SKIPPABLE_HEAD_BYTES + int.from_bytes(begun[4:8], "little")
        file.seek(position)
        begun, packing = file.read(MAGIC_BYTES), ".zst"
    file.seek(0)
    return begun, packing_of(begun) or (packing if not begun else None)


def open_bytes(path: Path, where: str) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed if the file is compressed with gzip, zstd, bzip2 or xz.

    Raises DataError if the file cannot be opened, is a Git LFS pointer, or has an unsupported format (an
    archive, another compression, Parquet, PDF, ...). Reading raises DataError if the file is damaged.
    """
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"{where}: {display(path)}: cannot be read: {error.strerror}.") from error
    try:
        begun, packing = beginning(file)
        if packing is None:
            refuse_other_files(begun, path, where)
            if _is_text(begun) or not (packing := PACKINGS.get(path.suffix.lower())):
                return io.BufferedReader(file, BLOCK_BYTES)
            # By its name, the file is compressed, but it is empty or its beginning is damaged. Reading it
            # reports the problem.
        unpacked: Any = Unpacked(file, path, where, packing)
        stream = io.BufferedReader(unpacked, BLOCK_BYTES)
        is_named_tar = path.name.lower().endswith(TAR.suffixes)
        if is_named_tar or (TAR.magic and TAR.magic.match(stream.peek(MAGIC_BYTES))):
            raise refusal(TAR, path, where)
        return stream
    except DataError:
        file.close()
        raise


def without_mark(stream: "io.BufferedReader[Any]") -> "io.BufferedReader[Any]":
    """Skip a UTF-8 byte order mark, which Windows programs put at the start of files; return the stream."""
    if stream.peek(len(BOM_UTF8)).startswith(BOM_UTF8):
        stream.read(len(BOM_UTF8))
    return stream


def refuse_other_files(begun: bytes, path: Path, where: str) -> None:
    """Raise DataError if a file begins like a Git LFS pointer or like a file of an unsupported format."""
    if problem := _pointer_problem(begun, path):
        raise DataError(f"{where}: {display(path)}: {problem}.")
    if kind := unread(begun, path.name):
        raise refusal(kind, path, where)
    if kind := next((kind for kind in OTHER_FILES if kind.magic and kind.magic.match(begun)), None):
        raise refusal(kind, path, where)


def _pointer_problem(begun: bytes, path: Path) -> str | None:
    # A pointer may be longer than MAGIC_BYTES, so read the whole file.
    return pointer_problem(path.read_bytes()) if begun.lstrip().startswith(b"version http") else None


def _is_text(begun: bytes) -> bool:
    """Return whether the first bytes of a file are UTF-8 text, even if the last character is incomplete."""
    try:
        begun.decode()
    except UnicodeDecodeError as error:
        return error.start > 0 and error.reason == "unexpected end of data"
    return bool(begun) and b"\0" not in begun


class BlockStream(io.RawIOBase):
    """A raw, forward-only stream of blocks that a subclass produces in next_block()."""

    _block = memoryview(b"")

    def next_block(self) -> bytes | None:
        """Return the next block, which may be empty; None at the end."""
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
    """The uncompressed contents of a compressed file, as a raw, forward-only stream."""

    def __init__(self, file: BinaryIO | io.FileIO, path: Path, where: str, packing: str | None = None):
        """Wrap the open `file`. `packing` is its compression; by default, the suffix of `path` decides."""
        super().__init__()
        self.consumed_bytes = 0
        """Compressed bytes read so far."""
        self._file, self._path, self._where = file, path, where
        self.packing = packing or PACKINGS[path.suffix.lower()]
        self._make, self._errors = _decompressor(self.packing, where)
        self._member: Any = self._make()
        self._left = b""  # compressed bytes that belong to the next member
        self._has_begun = False  # whether the current member has received a byte
        self._num_members = 0
        self._unpacked_bytes = 0
        is_zstd = self.packing == ".zst"
        self._feed_bytes = ZSTD_FEED_BYTES if is_zstd else FEED_BYTES
        self._limit: tuple[int, ...] = () if is_zstd else (BLOCK_BYTES,)
        # Whether the last block had the maximum size, so that more output may follow without further input.
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
                    raise self._damaged("it ends too early")
                return None
            if not self._has_begun and self._num_members:
                packed = packed.lstrip(b"\0")  # zeros pad a file on tape, and separate streams of xz
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
        name, check = display(self._path), CHECKS[self.packing]
        return DataError(
            f"{self._where}: {name}: damaged {self.packing} file: {reason}, after "
            f"{self.consumed_bytes:,} bytes ({self._unpacked_bytes:,} bytes unpacked). Copy or download it "
            f"again; run `{check}` to check it."
        )


def _decompressor(packing: str, where: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return (a function that creates a decompressor for one member, the errors that it raises)."""
    if packing == ".gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if packing == ".bz2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    if packing == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), (lzma.LZMAError,)
    zstandard = optional("zstandard", f"{where}: a .zst file")
    decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
    return decompressor.decompressobj, (zstandard.ZstdError,)
