"""Text and JSON lines: what is read, in which order, and what is said about bad files."""

import gzip
import logging
import os

import pytest

from nbtrain.config.schema import JsonlSource, TextSource
from nbtrain.data.sources.base import open_source
from nbtrain.errors import DataError


def text(path, **settings):
    return open_source(TextSource(kind="text", path=path, **settings), "run.yaml:7: data.sources[0]")


def jsonl(path, **settings):
    return open_source(JsonlSource(kind="jsonl", path=path, **settings), "run.yaml:7: data.sources[0]")


def refusal(reader):
    with pytest.raises(DataError) as caught:
        list(reader.documents())
    return str(caught.value)


def test_folder_of_text_files(workspace):
    """Each .txt below the folder is one document, in the order of paths; others are not read."""
    for name, content in {"b.txt": "second", "a/z.txt": "\ufefffirst", "c.md": "no"}.items():
        (workspace / "books" / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / "books" / name).write_text(content)
    (workspace / "books" / "d.txt.gz").write_bytes(gzip.compress(b"third"))
    reader = text("books")
    assert list(reader.documents()) == list(reader.documents()) == ["first", "second", "third"]


def test_document_separator(workspace):
    """A line that is the separator ends a document, with either line end; an empty separator is a blank line."""
    (workspace / "book.txt").write_bytes(b"one\ntwo\n---\nthree\r\n---\r\nfour --- five")
    assert list(text("book.txt", document_separator="---").documents()) == [
        "one\ntwo\n",
        "three\r\n",
        "four --- five",
    ]
    (workspace / "poem.txt").write_text("a\nb\n\nc")
    assert list(text("poem.txt", document_separator="").documents()) == ["a\nb\n", "c"]


def test_text_that_is_not_utf8(workspace):
    """The file and line of the first wrong byte are named."""
    (workspace / "book.txt").write_bytes(b"one\n---\ntwo\nthr\xe9e")
    assert refusal(text("book.txt", document_separator="---")) == (
        "run.yaml:7: data.sources[0]: book.txt:4: not UTF-8 (byte 0xe9). Convert the file, e.g. with iconv -t UTF-8."
    )


def test_jsonl_with_a_byte_order_mark(workspace):
    """As editors on Windows write it: the first line counts like the others."""
    (workspace / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n')
    reader = jsonl("a.jsonl")
    assert list(reader.documents()) == ["one", "two"]
    assert not reader.dropped


def test_jsonl_and_gz(workspace):
    """Documents come from the chosen key of .jsonl and .jsonl.gz; blank lines are nothing."""
    (workspace / "in").mkdir()
    (workspace / "in" / "a.jsonl").write_text('{"body": "one\\n\\u00e9"}\n\n{"body": "two", "x": 1}')
    (workspace / "in" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"body": "three"}\n'))
    reader = jsonl("in", text_key="body")
    assert list(reader.documents()) == ["one\né", "two", "three"]
    assert not reader.dropped


def test_broken_lines_are_counted_and_named(workspace, caplog):
    """Under the bound, broken lines are left out, counted, and named with file and line."""
    lines = ['{"text": "ok"}'] * 396 + ["{", "[1]", '{"text": 5}', '{"txt": "a"}']
    (workspace / "a.jsonl").write_text("\n".join(lines))
    reader = jsonl("a.jsonl", max_broken_fraction=0.01)
    with caplog.at_level(logging.WARNING):
        assert len(list(reader.documents())) == 396
    assert reader.dropped == {"broken_line": 4}
    assert [record.getMessage() for record in caplog.records][1:] == [
        "a.jsonl:398: not an object but list; the line is left out.",
        "a.jsonl:399: 'text' is not text but int; the line is left out.",
    ]


def test_too_many_broken_lines(workspace):
    """Over the bound it is an error with counts, places and the setting."""
    (workspace / "a.jsonl").write_text('{"txt": "a"}\n' * 3 + '{"text": "b"}\n')
    problem = "no key 'text' among 'txt'"
    assert refusal(jsonl("a.jsonl")) == (
        "run.yaml:7: data.sources[0]: 3 of 4 lines (75.00%) cannot be read, at most max_broken_fraction = 1.00% may "
        f"be. First: a.jsonl:1: {problem}; a.jsonl:2: {problem}; a.jsonl:3: {problem}. Mend the file, or set text_key "
        "or max_broken_fraction."
    )


def test_missing_path_and_empty_folder(workspace):
    """A path that is not there, and a folder without such files, name the setting and where it was looked for."""
    assert refusal(jsonl("nowhere/x.jsonl")) == (
        "run.yaml:7: data.sources[0]: path = 'nowhere/x.jsonl': no such file or folder (nowhere/x.jsonl). Relative "
        "paths start at the workspace."
    )
    (workspace / "empty").mkdir()
    assert refusal(text("empty")) == (
        "run.yaml:7: data.sources[0]: path = 'empty': the folder holds no .txt or .txt.gz file."
    )


def test_unreadable_file(workspace):
    """A file that may not be read is an error in words."""
    (workspace / "a.jsonl").write_text("{}")
    (workspace / "a.jsonl").chmod(0)
    if os.access(workspace / "a.jsonl", os.R_OK):
        pytest.skip("root may read every file")
    assert refusal(jsonl("a.jsonl")) == (
        "run.yaml:7: data.sources[0]: a.jsonl: cannot be read: Permission denied."
    )


def test_damaged_gzip(workspace):
    """A cut .gz names its file."""
    (workspace / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "abc"}\n' * 1000)[:-10])
    assert refusal(jsonl("a.jsonl.gz")).startswith(
        "run.yaml:7: data.sources[0]: a.jsonl.gz: damaged gzip file: "
    )


def test_fingerprint_follows_the_files(workspace):
    """Sizes and times of the files, by name within the source, so that the workspace may move."""
    (workspace / "in").mkdir()
    (workspace / "in" / "a.jsonl").write_text("{}")
    os.utime(workspace / "in" / "a.jsonl", ns=(5, 5))
    assert jsonl("in").fingerprint() == {"files": {"a.jsonl": [2, 5]}}
    assert jsonl("in/a.jsonl").fingerprint() == {"files": {"a.jsonl": [2, 5]}}
