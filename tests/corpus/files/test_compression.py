"""Compressed streams: the text does not depend on the read size, and damaged files are reported."""

import bz2
import gzip
import io
import logging
import lzma
import random
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.base.extras import install_command
from nbtrain.config.sections.sources import JsonlSource
from nbtrain.corpus.files import compression
from nbtrain.corpus.files.compression import Unpacked, open_bytes
from nbtrain.corpus.sources.base import open_source
from tests.fuzzing import num_cases

PACK = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".xz": lzma.compress,
}
CONTENT = b"".join(b"%d\n" % number for number in random.Random(1).choices(range(10**6), k=3000))
packed = pytest.mark.parametrize("suffix", list(PACK))


def unpack(content: bytes, suffix: str) -> Unpacked:
    return Unpacked(io.BytesIO(content), Path(f"a{suffix}"), "data.sources[0]")


@packed
def test_round_trip(suffix, tmp_path):
    """Reading at once, by lines or in chunks returns the same bytes, and every compressed byte is counted."""
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](CONTENT))
    with open_bytes(path, "here") as stream:
        assert stream.read() == CONTENT
        assert stream.raw.consumed_bytes == path.stat().st_size
    with open_bytes(path, "here") as stream:
        assert list(stream) == CONTENT.splitlines(keepends=True)
    with open_bytes(path, "here") as stream:
        assert stream.read(1000) + stream.read() == CONTENT


@packed
def test_several_members(suffix):
    """Files of several members, appended or written in parallel, are read to the end; some may be empty."""
    pack = PACK[suffix]
    content = pack(b"one ") + pack(b"") + pack(CONTENT) + pack(b" three")
    assert unpack(content, suffix).read() == b"one " + CONTENT + b" three"
    assert unpack(pack(b""), suffix).read() == b""


@packed
def test_zeros_after_the_last_member(suffix):
    """Zeros at the end of a file, which tapes and some tools add, are ignored."""
    assert unpack(PACK[suffix](CONTENT) + bytes(1000), suffix).read() == CONTENT


def test_zeros_between_streams_of_xz():
    """Padding between streams of .xz, in multiples of four bytes, is ignored."""
    content = lzma.compress(b"one ") + bytes(8) + lzma.compress(CONTENT) + bytes(4)
    assert unpack(content, ".xz").read() == b"one " + CONTENT


def test_skippable_frames():
    """Frames without text, which pzstd and seekable zstd write, are skipped."""
    skippable = bytes.fromhex("502a4d18") + (5).to_bytes(4, "little") + b"hello"
    content = skippable + PACK[".zst"](b"text") + skippable
    assert unpack(content, ".zst").read() == b"text"


@pytest.mark.slow
@packed
@settings(max_examples=num_cases(40), deadline=None)
@given(st.data())
def test_cut_short_anywhere(suffix, data):
    """A file truncated at any byte raises an error and is never read as a shorter text."""
    content = PACK[suffix](b"begin") + PACK[suffix](CONTENT)
    whole_members = (len(PACK[suffix](b"begin")), len(content))
    length = data.draw(st.integers(0, len(content) - 1).filter(lambda length: length not in whole_members))
    with pytest.raises(
        DataError, match=rf"^data\.sources\[0\]: a\{suffix}: damaged \{suffix} file: it ends "
    ):
        unpack(content[:length], suffix).read()


@packed
def test_damage_is_named(suffix):
    """Corrupt bytes at the beginning, in the middle or after the end raise an error."""
    content = PACK[suffix](CONTENT)
    middle = bytearray(content)
    middle[len(content) // 2 : len(content) // 2 + 40] = b"\xa5" * 40
    for damaged in (b"no archive at all", bytes(middle), content + b"more"):
        with pytest.raises(DataError, match=rf"a\{suffix}: damaged \{suffix} file: ") as caught:
            unpack(damaged, suffix).read()
        assert str(caught.value).endswith(
            f"Copy or download it again; run `{compression.CHECKS[suffix]}` to check it."
        )


@pytest.mark.slow
@packed
def test_memory_of_a_bomb(suffix):
    """Decompression needs bounded memory, however well a file is compressed."""
    # zstd compresses 128 KiB to 4 bytes at best.
    num_zeros, largest = (200 << 20, 128 << 20) if suffix == ".zst" else (16 << 20, 1 << 20)
    content = PACK[suffix](random.Random(1).randbytes(300_000) + bytes(num_zeros))
    stream = unpack(content, suffix)
    sizes = []
    while (block := stream.next_block()) is not None:
        sizes.append(len(block))
    assert sum(sizes) == 300_000 + num_zeros
    assert max(sizes) <= largest


def test_without_zstandard(workspace, refusal, monkeypatch):
    """Without zstandard, the error includes the pip command."""
    (workspace / "a.jsonl.zst").write_bytes(PACK[".zst"](b"{}"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert refusal(JsonlSource(kind="jsonl", path="a.jsonl.zst")) == (
        "run.yaml:7: data.sources[0]: a .zst file needs the package zstandard, which is not installed. "
        f"Install it with `{install_command('data')}`."
    )


@packed
@pytest.mark.parametrize("content", [CONTENT, b""])
@pytest.mark.parametrize("name", ["a.jsonl", "a", "a.gz", "a.xz"])
def test_first_bytes_decide_and_not_the_name(suffix, content, name, workspace):
    """The first bytes decide how a file is decompressed, whatever its suffix."""
    (workspace / name).write_bytes(PACK[suffix](content))
    with open_bytes(workspace / name, "here") as stream:
        assert stream.read() == content


def test_plain_text_that_is_named_as_compressed(workspace, read):
    """Plain text with a compression suffix is read as text, because some tools
    unpack .gz but keep the name.
    """
    (workspace / "a.jsonl.gz").write_text('{"text": "\u4e2d"}\n' * 200)
    assert read(JsonlSource(kind="jsonl", path="a.jsonl.gz")).records == ["\u4e2d"] * 200


@pytest.mark.parametrize("sizes", [[4], [0], [5, 100_000], [4, 4, 4]])
def test_frames_to_be_skipped_before_the_text(sizes, workspace):
    """After a leading skippable frame, as pzstd writes it, the next frame tells zstd from lz4."""
    frames = b"".join(
        bytes([0x50 + place, 0x2A, 0x4D, 0x18]) + size.to_bytes(4, "little") + b"x" * size
        for place, size in enumerate(sizes)
    )
    for name in ("a.jsonl.zst", "a.jsonl"):
        (workspace / name).write_bytes(frames + PACK[".zst"](CONTENT))
        with open_bytes(workspace / name, "here") as stream:
            assert stream.read() == CONTENT
    (workspace / "a").write_bytes(frames + b"\x04\x22\x4d\x18" + bytes(30))
    with pytest.raises(DataError, match="a: the file is an lz4 file, which is not supported"):
        open_bytes(workspace / "a", "here")
    (workspace / "a").write_bytes(frames)
    with open_bytes(workspace / "a", "here") as stream:
        assert stream.read() == b""


def test_long_mode_of_zstd(workspace):
    """Frames of `zstd --long=28` are read, although their 256 MiB window is twice zstd's default limit."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (workspace / "a.zst").write_bytes(stream.compress(CONTENT) + stream.flush())
    with open_bytes(workspace / "a.zst", "here") as stream:
        assert stream.read() == CONTENT


UNREAD = {
    "a zip archive": (b"PK\x03\x04" + bytes(30), "unzip"),
    "a 7z archive": (b"7z\xbc\xaf\x27\x1c" + bytes(30), "7z x"),
    "an lz4 file": (b"\x04\x22\x4d\x18" + bytes(30), "lz4 -d"),
    "an lzma file": (lzma.compress(CONTENT, format=lzma.FORMAT_ALONE), "xz --format=lzma -d"),
    "a snappy file": (b"\xff\x06\x00\x00sNaPpY", "snzip -d"),
}


@pytest.mark.parametrize("name", list(UNREAD))
def test_what_is_not_read_is_named(name, workspace, refusal):
    """Archives and unsupported compressions are recognised by their first bytes, whatever the file name."""
    content, command = UNREAD[name]
    for file in ("a.jsonl", "a.bin"):
        (workspace / file).write_bytes(content)
        assert refusal(JsonlSource(kind="jsonl", path=file)) == (
            f"run.yaml:7: data.sources[0]: {file}: the file is {name}, which is not supported (compressed "
            f"text may be .gz, .zst, .bz2 or .xz). Unpack it with `{command} FILE`, and use the result."
        )


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_archive_is_named(mode, workspace, refusal):
    """A tar archive is refused if its bytes identify it, compressed or not and whatever its name."""
    suffix = mode.replace("w", "").replace(":", ".")
    (workspace / "inside.txt").write_bytes(CONTENT)
    with tarfile.open(workspace / f"a.tar{suffix}", mode) as archive:
        archive.add(workspace / "inside.txt", "inside.txt")
    for name in (f"a.tar{suffix}", f"a.jsonl{suffix}"):
        (workspace / f"a.tar{suffix}").rename(workspace / name)
        assert f"{name}: the file is a tar archive, which is not supported" in refusal(
            JsonlSource(kind="jsonl", path=name)
        )
        (workspace / name).rename(workspace / f"a.tar{suffix}")
    (workspace / f"a.tar{suffix}").rename(workspace / "a.tgz")
    assert "a.tgz: the file is a tar archive, which is not supported" in refusal(
        JsonlSource(kind="jsonl", path="a.tgz")
    )


def test_a_folder_with_files_that_are_not_read(workspace, refusal, caplog):
    """A .jsonl.zip in a folder is reported: in a warning if other files are read, else in the error."""
    folder = workspace / "texts"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.jsonl.zip", "w") as archive:
        archive.writestr("a.jsonl", CONTENT)
    (folder / "b.jsonl.tar.gz").touch()
    named = (
        "Files that kind: jsonl does not read are skipped: texts/a.jsonl.zip (a zip archive by its name; "
        "unpack it with unzip), texts/b.jsonl.tar.gz (a tar archive by its name; unpack it with tar -xf)."
    )
    source = JsonlSource(kind="jsonl", path="texts")
    assert refusal(source).endswith(named)
    (folder / "b.jsonl").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING):
        open_source(source, "here").check_dependencies()
    assert caplog.messages == [f"here: {named}"]


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (
            b"PAR1" + bytes(30),
            "the file is a Parquet file, which this kind of source does not read. Read it with kind: "
            "parquet.",
        ),
        (
            b"%PDF-1.7\n",
            "the file is a PDF document, which this kind of source does not read. Extract its text to a .txt "
            "or .jsonl file.",
        ),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n",
            "is a Git LFS pointer, not the file (12,345 bytes, not yet downloaded): run `git lfs "
            "pull` in its repository, or download the file itself.",
        ),
    ],
)
def test_other_files(content, remedy, workspace, refusal):
    """A file of another format is refused with its real format, whatever its name."""
    for name in ("a.jsonl", "a.jsonl.gz"):
        (workspace / name).write_bytes(content)
        message = refusal(JsonlSource(kind="jsonl", path=name))
        assert message == f"run.yaml:7: data.sources[0]: {name}: {remedy}"


def test_a_text_that_begins_as_bzip2(workspace):
    """Text that begins with "BZh" and a digit is not mistaken for a compressed file."""
    (workspace / "a.txt").write_bytes(b"BZh9 is what bzip2 begins with.")
    with open_bytes(workspace / "a.txt", "here") as stream:
        assert stream.read() == b"BZh9 is what bzip2 begins with."
