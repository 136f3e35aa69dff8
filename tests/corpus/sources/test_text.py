"""Plain text: a document is a file or the text between separators, for any size of parts."""

import gzip
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.base.errors import DataError
from nbtrain.config.sections.data_section import DataConfig
from nbtrain.config.sections.sources import TextSource
from nbtrain.corpus.records import Tally
from nbtrain.corpus.requested_settings import same_text
from nbtrain.corpus.requested_settings import settings as settings_of
from nbtrain.corpus.sources import base
from nbtrain.corpus.sources.base import open_source
from tests.fuzzing import num_cases

PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


def text(path, **settings):
    return TextSource(kind="text", path=path, **settings)


def test_each_file_is_a_document(workspace, read):
    """A file is one document, without its byte order mark; an empty file is an empty document."""
    files = {
        "a.txt": "\ufefffirst\r\n".encode(),
        "b.txt": b"",
        "c.txt.gz": gzip.compress("\ufeffthird".encode()),
        "d.txt.zst": PACK[".zst"](b"fourth\n"),
    }
    for name, content in files.items():
        (workspace / name).write_bytes(content)
    found = read(text("."))
    assert found.records == ["first\n", "", "third", "fourth\n"]
    assert found.counts == {"records": 4, "broken": 0}


@pytest.mark.parametrize("separator", [None, "---"])
def test_line_ends(workspace, read, separator):
    """\\r\\n becomes \\n by default, and is kept with `newlines: keep`; a lone \\r is always kept."""
    (workspace / "a.txt").write_bytes(b"a\r\nb\rc\n\r\n")
    assert read(text("a.txt", document_separator=separator)).records == ["a\nb\rc\n\n"]
    kept = read(text("a.txt", document_separator=separator, newlines="keep"))
    assert kept.records == ["a\r\nb\rc\n\r\n"]


def test_the_manifest_says_how_line_ends_are_read(workspace):
    """The manifest records `newlines`, because a dataset with `keep` has another text."""
    (workspace / "a.txt").write_bytes(b"a")
    described = open_source(text("a.txt"), "here").describe()
    assert described["newlines"] == "lf"
    default, kept = (
        settings_of(SimpleNamespace(data=DataConfig(name="x", sources=[source])))
        for source in (text("a.txt"), text("a.txt", newlines="keep"))
    )
    assert same_text(json.loads(json.dumps(default)), default) and not same_text(default, kept)


@pytest.mark.parametrize("separator", [None, "---"])
def test_utf_16_is_an_error(workspace, read, separator):
    """UTF-16 is an error whatever max_broken_fraction is, because no text could be read."""
    (workspace / "a.txt").write_text("hello")
    (workspace / "b.txt").write_bytes("hi\n".encode("utf-16"))
    with pytest.raises(DataError) as caught:
        read(text(".", document_separator=separator, max_broken_fraction=None))
    assert str(caught.value) == (
        "run.yaml:7: data.sources[0]: b.txt: the file is UTF-16 (it begins with the bytes ff fe), not UTF-8. "
        "Convert it with `iconv -f UTF-16 -t UTF-8 OLD > NEW`, and use the new file."
    )


def test_a_document_larger_than_a_part(workspace, read, part_bytes):
    """Without a separator, a file is one document even if it is larger than a part."""
    part_bytes(100)
    (workspace / "a.txt").write_text("line\n" * 1000)
    (workspace / "b.txt.gz").write_bytes(gzip.compress(b"line\n" * 900))
    found = read(text("."))
    assert found.records == ["line\n" * 1000, "line\n" * 900]
    assert found.parts == ["a.txt", "b.txt.gz"]


def test_document_separator(workspace, read):
    """A line equal to the separator ends a document, with either newline; an empty
    separator is an empty line.
    """
    (workspace / "book.txt").write_bytes(b"one\ntwo\n---\nthree\r\n---\r\nfour --- five\n---- \n---")
    assert read(text("book.txt", document_separator="---")).records == [
        "one\ntwo\n",
        "three\n",
        "four --- five\n---- \n",
    ]
    (workspace / "poem.txt").write_text("a\nb\n\nc")
    assert read(text("poem.txt", document_separator="")).records == ["a\nb\n", "c"]


@pytest.mark.parametrize("size", [10, 10**6])
def test_text_that_is_not_utf8(workspace, read, part_bytes, size):
    """A document that is not UTF-8 is broken; the file and the line of the first
    invalid byte are reported.
    """
    part_bytes(size)
    (workspace / "book.txt").write_bytes(b"one\n---\ntwo\nthr\xe9e\n---\nfour\n")
    found = read(text("book.txt", document_separator="---"))
    assert found.records == ["one\n", "four\n"]
    what = "not UTF-8 (byte 0xe9); convert the file, e.g. with `iconv -f ISO-8859-1 -t UTF-8 OLD > NEW`"
    assert found.problems == [f"book.txt:4: {what}"]
    assert found.counts == {"records": 3, "broken": 1}
    whole = read(text("book.txt"))
    assert (whole.records, whole.problems) == ([], [f"book.txt:4: {what}"])


@pytest.mark.parametrize("separator", [None, "---"])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("size", [100, 10**6])
def test_a_truncated_file(workspace, refusal, part_bytes, separator, suffix, size):
    """A truncated compressed file stops the reading with an error that names it."""
    part_bytes(size)
    (workspace / f"a.txt{suffix}").write_bytes(PACK[suffix](b"text\n---\n" * 900)[:-7])
    assert refusal(text(f"a.txt{suffix}", document_separator=separator)).startswith(
        f"run.yaml:7: data.sources[0]: a.txt{suffix}: damaged {suffix} file: it ends too early, after "
    )


@pytest.mark.parametrize("suffix", list(PACK))
@settings(max_examples=num_cases(40), deadline=None)
@given(
    lines=st.lists(
        st.sampled_from([b"", b"--", b"--", b"a", b"bcd", b"---", b"-- ", b"\xff", b"--\r"]), max_size=20
    ),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    has_end=st.booleans(),
    separator=st.sampled_from(["--", ""]),
    size=st.integers(1, 60),
)
def test_parts_change_nothing(read_parts, suffix, lines, ending, has_end, separator, size):
    """Parts never split a document, and records, counts and line numbers do not depend on their size."""
    content = ending.join(lines) + ending * (has_end and bool(lines))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, f"a.txt{suffix}")
        path.write_bytes(PACK[suffix](content))
        reader = open_source(text(str(path), document_separator=separator, newlines="keep"))
        whole = read_parts(reader)
        patch.setattr(base, "PART_BYTES", size)
        parts = read_parts(reader)
    assert (parts.records, parts.counts, parts.dropped) == (whole.records, whole.counts, whole.dropped)
    assert parts.problems == whole.problems
    # The expected rule: lines are joined up to a separator.
    documents, begun = [], []
    for line in _lines(content):
        if line.rstrip(b"\r\n") == separator.encode():
            documents.append(b"".join(begun))
            begun = []
        else:
            begun.append(line)
    documents += [b"".join(begun)] if begun else []
    assert whole.records == [document.decode() for document in documents if b"\xff" not in document]


def _lines(content: bytes) -> list[bytes]:
    """Split after each \\n only, like files of lines."""
    pieces = content.split(b"\n")
    return [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def test_a_book_is_cut_into_documents_of_a_size(workspace, read):
    """A book is split at paragraphs, or at lines, or at sentences, and no byte is lost."""
    paragraphs = [f"Paragraph {number}: " + "word " * (number % 9 + 1) + "\n\n" for number in range(400)]
    book = "".join(paragraphs).encode()
    (workspace / "book.txt").write_bytes(book)
    (workspace / "book.txt.gz").write_bytes(gzip.compress(book))
    found = read(text("book.txt", document_bytes=500)).records
    assert "".join(found) == book.decode()
    assert all(record.endswith("\n\n") and 500 <= len(record) < 1000 for record in found[:-1])
    assert read(text("book.txt.gz", document_bytes=500)).records == found
    (workspace / "lines.txt").write_bytes(b"one line of a poem\n" * 100)
    assert {len(record) for record in read(text("lines.txt", document_bytes=100)).records[:-1]} == {190}
    for one_line in ("word " * 1000, "字字" * 700 + "字。" * 300, "字" * 1000):
        (workspace / "line.txt").write_text(one_line)
        cut = read(text("line.txt", document_bytes=300)).records
        assert "".join(cut) == one_line and all(len(record.encode()) <= 600 for record in cut)


def test_where_a_cut_file_is_not_utf_8(workspace, read):
    """In a file that is split, an invalid byte is reported by its line, and the other documents are read."""
    (workspace / "a.txt").write_bytes(b"good line\n\n" * 50 + b"bad \xff\n\n" + b"good line\n\n" * 50)
    found = read(text("a.txt", document_bytes=55))
    assert [problem.split(": ")[0] for problem in found.problems] == ["a.txt:101"]
    assert len(found.records) == 19


@pytest.mark.parametrize("size", [10, 1 << 20])
@pytest.mark.parametrize(
    ("content", "doubt"),
    [
        (b"a\n---\nb\n", None),
        (b"a\n---\n", None),
        (b"a\nb\n", ""),
        (
            b"a\nb---c\n",
            " in/a.txt:2 contains it within a longer line, but a separator must be a whole line.",
        ),
        (
            b"a\nb\nc\n--- \nd",
            " in/a.txt:4 contains it within a longer line, but a separator must be a whole line.",
        ),
    ],
)
def test_a_separator_that_is_never_met(workspace, part_bytes, content, doubt, size):
    """If the separator never occurs, a message reports it and shows similar lines;
    each file is one document.
    """
    part_bytes(size)
    (workspace / "in").mkdir()
    (workspace / "in" / "a.txt").write_bytes(content)
    (workspace / "in" / "b.txt").write_bytes(b"no separator here\n" * 3)
    reader, tally = open_source(text("in", document_separator="---"), "here"), Tally()
    for _ in reader.documents(tally):
        pass
    assert reader.doubt(tally.separators) == (
        None
        if doubt is None
        else "no line of the source (2 files) equals document_separator = '---', so each file is one "
        "document." + doubt + " Set document_separator to a line of the files, or remove the setting."
    )
    assert open_source(text("in"), "here").doubt(0) is None
